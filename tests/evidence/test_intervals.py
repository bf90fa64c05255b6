"""Every time has an interval, from the errors of measured steps by how near they are."""

import functools
import itertools
import tomllib
from statistics import median

import pytest

from evidence import intervals
from evidence.engines import point_errors
from memcore import Plan, evaluate
from memcore.explain.book import Book
from memcore.timing.certainty import (
    ANY,
    GPU,
    LIKE,
    TWIN,
    WORK,
    apart,
    apart_serving,
    compared,
    ranked,
)
from memcore.training.training import Training

ROUGHLY = 0.03  # the file is written anew where a ratio moves by more


@functools.cache
def runs():
    return intervals.measured()


def plan(gpu: str = "h100-sxm-80gb", model: str = "llama-3-8b", **train: object) -> Plan:
    return Plan.of({"model": model, "cluster": {"gpu": gpu, "gpus": 8}, "train": train})


def test_the_file_says_what_the_evidence_says() -> None:
    said = tomllib.loads(intervals.PATH.read_text(encoding="utf-8"))
    found = tomllib.loads(intervals.written(runs()))
    assert said[ANY].keys() == found[ANY].keys()
    for distance in (TWIN, LIKE, GPU, WORK):
        assert said[distance].keys() == found[distance].keys()
        for key, now in found[distance].items():
            assert said[distance][key] == pytest.approx(now, abs=ROUGHLY), (distance, key)


def test_an_interval_is_narrow_where_the_same_was_measured_and_wide_where_nothing_was() -> None:
    near = compared(runs()[0].plan.changed("train.grad_accumulation", 3))
    like = compared(plan(model="gemma-2-9b"))
    gpu = compared(
        plan("b200-sxm-180gb", model="gemma-2-9b", framework="pytorch", zero=0, micro_batch=1)
    )
    far = compared(plan("mi300x-192gb"))
    mixture = compared(plan("mi300x-192gb", model="qwen3-30b-a3b"))
    assert [c.distance for c in (near, like, gpu, far, mixture)] == [TWIN, LIKE, GPU, WORK, WORK]
    assert near.high / near.low < like.high / like.low < far.high / far.low
    assert mixture.high / mixture.low > 1.5
    assert far.low < 0.85
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


def test_nine_of_ten_of_a_source_that_is_left_out_are_inside() -> None:
    """Each source against an interval of the others alone, widened by what the others miss."""
    missed = intervals.left_out(runs())
    inside = [
        m.beyond <= intervals.widening([o for o in missed if o.source != m.source], m.distance)
        for m in missed
    ]
    assert sum(inside) / len(inside) >= 0.9


def test_half_of_the_intervals_are_narrow() -> None:
    widths = [compared(r.plan).high / compared(r.plan).low - 1 for r in runs()]
    assert median(widths) <= 0.35


# --- two plans beside each other ------------------------------------------------------------------


def test_the_file_of_pairs_says_what_the_evidence_says() -> None:
    said = tomllib.loads(intervals.PAIRS.read_text(encoding="utf-8"))
    found = tomllib.loads(intervals.written_pairs(runs(), point_errors()))
    assert said["training"]["own"].keys() == found["training"]["own"].keys()
    for kind in ("dense", "mixture"):
        for distance, now in found["serving"][kind].items():
            assert said["serving"][kind][distance] == pytest.approx(now, abs=ROUGHLY)
    for distance in (TWIN, LIKE, GPU, WORK, ANY):
        now = found["training"][distance]
        assert said["training"][distance] == pytest.approx(now, abs=ROUGHLY), distance


def test_what_two_plans_share_is_no_part_of_their_difference() -> None:
    """Variants of one plan are told apart by less than either's own interval says."""
    one = plan()
    for other in (one.changed("train.checkpointing", "none"), one.changed("train.micro_batch", 2)):
        assert apart(one, other).distance == TWIN
        own = compared(one)
        assert apart(one, other).ratio < own.high / own.low
    elsewhere = [
        apart(one, other)
        for other in (plan("h200-sxm-141gb"), plan(framework="pytorch", zero=0, micro_batch=1),
                      plan("a100-sxm-80gb"), plan(adapter="lora", kernels="hf"))
    ]  # fmt: skip
    assert [a.distance for a in elsewhere] == [LIKE, GPU, WORK, ANY]
    ratios = [apart(one, one).ratio, *(a.ratio for a in elsewhere)]
    assert ratios == sorted(ratios)


def test_nine_of_ten_measured_pairs_that_are_told_apart_are_in_our_order() -> None:
    """Runs of one model on one GPU under one framework, by GPU time per token."""
    right = []
    of_gpu = {id(run): gpu_seconds(run.plan) for run in runs()}
    for a, b in itertools.combinations(runs(), 2):
        if a.twin != b.twin:
            continue
        ours = of_gpu[id(a)], of_gpu[id(b)]
        if not apart(a.plan, b.plan).same(*ours):
            theirs = ours[0] * a.ratio, ours[1] * b.ratio
            right.append((ours[0] < ours[1]) == (theirs[0] < theirs[1]))
    assert len(right) > 60
    assert sum(right) / len(right) >= 0.9


def gpu_seconds(plan: Plan) -> float:
    """Of a token."""
    training = Training.of(plan, rows=False)
    assert training
    return training.time().step_seconds * plan.cluster.gpus / plan.tokens_per_step


def test_ranks_are_equal_where_no_two_can_be_told_apart() -> None:
    one, other = plan(), plan(framework="pytorch", zero=0, micro_batch=1)
    near, far = apart(one, one).ratio, apart(one, other).ratio
    assert near < 1.14 < far
    assert ranked([one, one, one], [1.0, 1.01, near]) == [1, 1, 1]
    assert ranked([one, one, one], [1.0, near * 1.01, 2.0]) == [1, 2, 3]
    # The last cannot be told from the first, of another framework, but from the second.
    assert ranked([other, one, one], [1.0, 1.01, 1.14 * 1.01]) == [1, 1, 3]


def test_servers_are_told_apart_by_their_engine_and_gpu() -> None:
    one = plan()
    engine, gpu = one.changed("serve.engine", "sglang"), plan("h200-sxm-141gb")
    found = [apart_serving(one, other).distance for other in (one, gpu, engine)]
    assert found == [TWIN, LIKE, GPU]
