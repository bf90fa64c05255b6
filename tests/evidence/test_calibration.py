"""One measured step says part of what our seconds are off for others of its kind."""

import tomllib
from dataclasses import replace

import pytest

from evidence import calibration, fit
from evidence.fit import source_of
from evidence.times import times_table
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan
from memcore.search.measured import calibrated, kind
from memcore.timing.certainty import farthest, in_common

PLAN = Plan.of({"model": "llama-3-8b", "train": {"framework": "pytorch", "zero": 0}})


def test_one_measured_step_brings_others_nearer() -> None:
    """Of each source as if nothing had been tuned on it, each step is read by each other of its
    kind, with a share that was found without its source. Those that are far off come nearer; half
    of all are as near as they were, which scaled by all of it they are not."""
    steps = calibration.steps()
    plain, scaled = calibration.errors(steps)
    assert len(steps) >= 150
    assert calibration.within(scaled, 0.9) < calibration.within(plain, 0.9)
    assert calibration.within(scaled, 0.5) < calibration.within(plain, 0.5) + 0.003
    _, whole = calibration.errors([replace(step, share=1.0) for step in steps])
    for share in (0.5, 0.9):
        assert calibration.within(scaled, share) < calibration.within(whole, share)


def test_the_share_in_common_is_the_slope_of_all_pairs() -> None:
    """Of steps that are off alike it is all, of such as have nothing in common none."""
    alike = [calibration.Step("a", 1.3, (1.3,)), calibration.Step("b", 0.8, (0.8, 0.8))]
    none = [calibration.Step("a", 1.3, (1.2, 1 / 1.2)), calibration.Step("b", 1.0, (1.5,))]
    assert calibration.common(alike) == pytest.approx(1)
    assert calibration.common(none) == pytest.approx(0)
    twice = [calibration.Step("a", 1.44, (1.2,)), calibration.Step("b", 1 / 1.44, (1 / 1.2,))]
    assert calibration.common(twice) == pytest.approx(2)


def test_the_share_that_plans_take_is_that_of_all_pairs() -> None:
    assert in_common() == pytest.approx(calibration.common(calibration.steps()), abs=0.006)


def test_no_source_takes_part_in_its_own_prediction() -> None:
    said = tomllib.loads(fit.PATH.read_text(encoding="utf-8"))
    source = "github.com/mosaicml/llm-foundry"
    own = {round(1 / step.ratio - 1, 4) for step in calibration.steps() if step.source == source}
    assert own == set(said[source]["errors"])


def test_no_step_takes_part_in_its_own_calibration() -> None:
    """As `calibrated` has it, of one source: each of its steps by each other."""
    runs = times_table()["runs"]
    source = "github.com/AI-Hypercomputer/maxtext"
    every = [Measured(Plan.of(r["plan"]), r["seconds"]) for r in runs if source_of(r) == source]
    of = [m for m in every if kind(m.plan) == kind(every[0].plan)]
    steps = [step for step in calibration.steps() if step.source == source]
    assert len(of) == len(steps) > 1
    for own, step in zip(of, steps, strict=True):
        others = [calibrated(own.plan, by) for by in of if by is not own]
        taken = replace(step, share=in_common()).scaled
        assert taken == pytest.approx([own.seconds / c.step.calibrated_seconds for c in others])
        assert [by.plan for by in of].count(own.plan) == 1  # which would take all that was measured


def test_a_share_of_the_weights_lies_up_to_a_value() -> None:
    values = [(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
    assert [calibration.within(values, share) for share in (0.2, 0.5, 0.75, 0.76)] == [1, 2, 2, 3]


def test_the_measured_plan_itself_takes_what_was_measured() -> None:
    found = calibrated(PLAN, Measured(PLAN, 5.0, 40 * 2**30))
    assert found.step.calibrated_seconds == pytest.approx(5.0)
    assert found.step.interval == pytest.approx((5.0, 5.0))
    assert found.numbers["allocated_bytes"][1] == 40 * 2**30


def test_every_figure_of_another_plan_is_scaled_alike() -> None:
    twice = PLAN.with_changes({"train.grad_accumulation": 2, "run.price_per_gpu_hour": 2.0})
    report = evaluate(twice)
    took = 1.2 * evaluate(PLAN).time.step_seconds
    found = calibrated(twice, Measured(PLAN, took))
    step = found.step
    assert step.off == pytest.approx(1.2)
    assert step.factor == pytest.approx(step.off ** in_common())
    assert step.seconds == report.time.step_seconds
    assert step.calibrated_seconds == pytest.approx(step.seconds * step.factor)
    low, high = step.interval
    assert low < step.calibrated_seconds < high
    assert found.numbers["run_seconds"] == (
        report.run.seconds, pytest.approx(report.run.seconds * step.factor),
    )  # fmt: skip
    assert found.numbers["cost"][1] == pytest.approx(report.run.cost * step.factor)
    tokens = found.numbers["tokens_per_second"][1] * step.calibrated_seconds
    assert tokens == pytest.approx(twice.tokens_per_step)
    assert "allocated_bytes" not in found.to_dict()


def test_what_is_off_beyond_all_that_was_measured_is_every_plans() -> None:
    """A machine that is twice as slow is so for other plans too."""
    step, (_, most) = evaluate(PLAN).time.step_seconds, farthest()
    other = PLAN.changed("train.grad_accumulation", 2)
    at, beyond = (calibrated(other, Measured(PLAN, step * k)).step.factor for k in (most, 2 * most))
    assert at == pytest.approx(most ** in_common())
    assert beyond == pytest.approx(2 * at)


def test_what_is_far_off_says_so() -> None:
    step = evaluate(PLAN).time.step_seconds
    near, far = (calibrated(PLAN, Measured(PLAN, step * k)).assumed for k in (1.1, 40))
    assert "check that" in far
    assert "check that" not in near


@pytest.mark.parametrize(
    ("field", "value"),
    [("cluster.gpu", "a100-sxm-80gb"), ("train.kernels", "compile"), ("train.framework", "fsdp2")],
)
def test_another_framework_or_gpu_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(PlanError) as raised:
        calibrated(PLAN.changed(field, value), Measured(PLAN, 5.0))
    assert field in [issue.field for issue in raised.value.issues]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_step_takes_some_seconds(seconds: float) -> None:
    with pytest.raises(PlanError, match="seconds"):
        Measured(PLAN, seconds)
    with pytest.raises(PlanError, match="bytes"):
        replace(Measured(PLAN, 5.0), bytes=-1)
