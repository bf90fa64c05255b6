"""One measured step says most of what our seconds are off for others of its kind."""

from statistics import median

import pytest

from memcore.errors import PlanError
from memcore.evidence import TUNED, times_table
from memcore.evidence.fit import source_of
from memcore.plan.plan import Plan
from memcore.search.calibration import SHARED, Measured, _value, calibrated


def kinds() -> list[list[Measured]]:
    """Measured steps of one source, framework, kernels and GPU, of sources that nothing was tuned
    on: of the others the bias was taken when constants were fitted."""
    runs = times_table()["runs"]
    tuned = {source_of(run) for run in runs if run["used_for"] == TUNED}
    found: dict[tuple[str, ...], list[Measured]] = {}
    for run in runs:
        if source_of(run) not in tuned:
            plan = Plan.of(run["plan"])
            key = (run["source"], *(_value(plan, field) for field in SHARED))
            found.setdefault(key, []).append(Measured(plan, run["seconds"]))
    return [of for of in found.values() if len(of) > 1]


def test_one_measured_step_takes_the_bias_of_the_others() -> None:
    """Each kind by the first of its runs."""
    plain, scaled = [], []
    for first, *others in kinds():
        for other in others:
            found = calibrated(other.plan, first)
            plain.append(abs(found.seconds / other.seconds - 1))
            scaled.append(abs(found.calibrated_seconds / other.seconds - 1))
    assert len(plain) >= 40
    assert median(scaled) < 0.8 * median(plain), (median(plain), median(scaled))


def test_the_measured_plan_itself_takes_what_was_measured() -> None:
    plan = Plan.of({"model": "llama-3-8b", "train": {"micro_batch": 1}})
    found = calibrated(plan, Measured(plan, 5.0, 40 * 2**30))
    assert found.calibrated_seconds == pytest.approx(5.0)
    assert found.calibrated_bytes == 40 * 2**30
    twice = calibrated(plan.changed("train.grad_accumulation", 2), Measured(plan, 5.0))
    assert twice.calibrated_seconds == pytest.approx(twice.seconds * twice.factor)
    assert twice.calibrated_bytes is None
    assert "calibrated" in twice.text


@pytest.mark.parametrize(
    ("field", "value"),
    [("cluster.gpu", "a100-sxm-80gb"), ("train.kernels", "compile"), ("train.framework", "fsdp2")],
)
def test_another_framework_or_gpu_is_refused_by_name(field: str, value: str) -> None:
    plan = Plan.of({"model": "llama-3-8b", "train": {"framework": "pytorch", "zero": 0}})
    with pytest.raises(PlanError) as raised:
        calibrated(plan.changed(field, value), Measured(plan, 5.0))
    assert field in [issue.field for issue in raised.value.issues]
