"""Every time has an interval, from the errors of measured steps by how near they are."""

import tomllib
from statistics import median

import pytest

from memcore import Plan, evaluate
from memcore.evidence import intervals
from memcore.explain.book import Book
from memcore.timing.certainty import ANY, GPU, LIKE, TWIN, WORK, compared

ROUGHLY = 0.03  # the file is written anew where a ratio moves by more
RUNS = intervals.measured()


def plan(gpu: str = "h100-sxm-80gb", model: str = "llama-3-8b", **train: object) -> Plan:
    return Plan.of({"model": model, "cluster": {"gpu": gpu, "gpus": 8}, "train": train})


def test_the_file_says_what_the_evidence_says() -> None:
    said = tomllib.loads(intervals.PATH.read_text(encoding="utf-8"))
    found = tomllib.loads(intervals.written(RUNS))
    assert said[ANY].keys() == found[ANY].keys()
    for distance in (TWIN, LIKE, GPU, WORK):
        assert said[distance].keys() == found[distance].keys()
        for key, now in found[distance].items():
            assert said[distance][key] == pytest.approx(now, abs=ROUGHLY), (distance, key)


def test_an_interval_is_narrow_where_the_same_was_measured_and_wide_where_nothing_was() -> None:
    near = compared(RUNS[0].plan.changed("train.grad_accumulation", 3))
    like = compared(plan(model="gemma-2-9b"))
    gpu = compared(plan(model="gemma-2-9b", framework="pytorch", zero=0, micro_batch=1))
    far = compared(plan("mi300x-192gb"))
    mixture = compared(plan("mi300x-192gb", model="qwen3-30b-a3b"))
    assert [c.distance for c in (near, like, gpu, far, mixture)] == [TWIN, LIKE, GPU, WORK, WORK]
    assert near.high / near.low < like.high / like.low < far.high / far.low
    assert mixture.high / mixture.low > 2
    assert far.low < 0.8
    assert far.high > 1.3


def test_ours_is_always_inside_and_the_report_says_what_was_compared() -> None:
    time = evaluate(plan()).time
    low, high = time.step_interval
    assert low <= 0.95 * time.step_seconds < 1.05 * time.step_seconds <= high
    assert "measured steps" in time.compared


def test_the_interval_is_explained() -> None:
    report = evaluate(plan())
    found = Book(plan(), report).explain("time.step_interval.1")
    assert found.value == pytest.approx(report.time.step_interval[1])
    assert found.unit == "seconds"
    assert any("intervals.toml" in source for source in found.sources)


def test_three_of_four_of_a_source_that_is_left_out_are_inside() -> None:
    """Each source against an interval of the others alone."""
    inside = []
    for source in {r.source for r in RUNS}:
        others = groups_of([r for r in RUNS if r.source != source])
        for r in (r for r in RUNS if r.source == source):
            framework, architecture, work = r.like
            keys = ((LIKE, f"{framework}, {architecture}, {work}"),
                    (GPU, f"{architecture}, {work}"), (WORK, work), (ANY, ""))  # fmt: skip
            low, high = next(others[k] for k in keys if k in others)
            inside.append(low <= r.ratio <= high)
    assert sum(inside) / len(inside) >= INSIDE


INSIDE = 0.75  # of the runs of sources that were left out: 127 of 159; nine of ten is the wish


def groups_of(runs: list[intervals.Measured]) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        (distance, key): intervals.ends(distance, rows)
        for distance, by_key in intervals.groups(runs).items()
        for key, rows in by_key.items()
        if distance != TWIN and len(rows) >= intervals.LEAST
    }


def test_half_of_the_intervals_are_narrow() -> None:
    widths = [compared(r.plan).high / compared(r.plan).low - 1 for r in RUNS]
    assert median(widths) <= 0.35
