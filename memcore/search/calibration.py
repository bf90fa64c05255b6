"""Calibration: other plans, read beside one step that was measured.

Most of what our seconds are off is a bias of the framework and its version on a GPU, not scatter: a
measured step of one plan says it for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcore.errors import Issue, PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.units import seconds_text

# What the bias is of.
SHARED = ("train.framework", "train.kernels", "train.attention", "train.adapter", "cluster.gpu")


@dataclass(frozen=True, slots=True)
class Measured:
    """A step that somebody measured.

    plan      of it
    seconds   of one optimizer step
    bytes     allocated at its peak on the fullest GPU, as PyTorch counts them; 0 where not known
    """

    plan: Plan
    seconds: float
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A plan's step beside a measured one.

    seconds            as they are predicted; calibrated_seconds: scaled by the measured step
    factor             measured seconds over predicted ones, of the plan that was measured
    allocated_bytes    as they are predicted; calibrated_bytes: with as many more as were measured
                       beyond the prediction; None where no bytes were measured
    """

    seconds: float
    calibrated_seconds: float
    factor: float
    allocated_bytes: int
    calibrated_bytes: int | None

    @property
    def text(self) -> str:
        return (
            f"{seconds_text(self.seconds)} predicted, {seconds_text(self.calibrated_seconds)} "
            f"calibrated: what was measured took {self.factor:.2f} times the prediction"
        )


def calibrated(plan: Plan, by: Measured) -> Calibrated:
    """A plan's step, as it is predicted and scaled by a measured step of the same framework,
    kernels, attention, adapter and GPU. Raises PlanError where one of these differs, or nothing is
    predicted."""
    issues = [
        Issue(field, f"the measured step had {_value(by.plan, field)}, this plan has "
                     f"{_value(plan, field)}: what one was off says nothing of the other")
        for field in SHARED
        if _value(by.plan, field) != _value(plan, field)
    ]  # fmt: skip
    if by.seconds <= 0:
        issues.append(Issue("seconds", "a measured step takes more than 0 seconds"))
    if issues:
        raise PlanError(issues)
    measured, now = evaluate(by.plan), evaluate(plan)
    if not (measured.time and measured.memory and now.time and now.memory):
        raise PlanError([Issue("train", "the training of one of the plans is not computed")])
    factor = by.seconds / measured.time.step_seconds
    allocated, more = now.memory.allocated_bytes, by.bytes - measured.memory.allocated_bytes
    return Calibrated(
        now.time.step_seconds,
        now.time.step_seconds * factor,
        factor,
        allocated,
        max(0, allocated + more) if by.bytes else None,
    )


def _value(plan: Plan, field: str) -> str:
    if field == "cluster.gpu":
        return plan.accelerator.label
    return str(getattr(plan.train, field.rpartition(".")[2]))
