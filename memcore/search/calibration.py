"""Calibration: other plans, read beside one step that was measured.

Most of what our seconds are off is a bias of the framework and its version on a GPU, not scatter: a
measured step of one plan says it for the others. How much nearer that comes is among the figures of
docs/accuracy.md (memcore.evidence.calibration).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, get, value_text
from memcore.report import Report
from memcore.timing.certainty import calibrated_interval, farthest
from memcore.units import bytes_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd

    from memcore.search.search import Found, Point

# What the bias is of.
SHARED = ("train.framework", "train.kernels", "train.attention", "train.adapter", "cluster.gpu")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A plan's figures beside a measured step. The Report has them as they are predicted.

    factor             measured seconds over predicted ones, of the plan that was measured
    seconds            of a step, as predicted; calibrated_seconds: times the factor
    interval           seconds that 9 of 10 calibrated steps that were measured lie between
    tokens_per_second, run_seconds, gpu_hours, cost   with calibrated_seconds; cost: or None
    allocated_bytes    as predicted; calibrated_bytes: with as many more as were measured beyond the
                       prediction; None where no bytes were measured
    """

    measured: Measured
    factor: float
    seconds: float
    calibrated_seconds: float
    interval: tuple[float, float]
    tokens_per_second: float
    run_seconds: float
    gpu_hours: float
    cost: float | None
    allocated_bytes: int
    calibrated_bytes: int | None

    @property
    def text(self) -> str:
        """What it comes to, in a line."""
        low, high = map(seconds_text, self.interval)
        said = (
            f"{seconds_text(self.calibrated_seconds)} a step ({low} to {high}), predicted "
            f"{seconds_text(self.seconds)}"
        )
        if self.calibrated_bytes is None:
            return said
        return (
            f"{said}; {bytes_text(self.calibrated_bytes)} allocated at the peak, predicted "
            f"{bytes_text(self.allocated_bytes)}"
        )

    @property
    def assumed(self) -> str:
        """What was measured, and what is taken to follow from it."""
        said = (
            f"The measured step took {seconds_text(self.measured.seconds)}, {self.factor:.2f} "
            "times the prediction. Assumed: other plans with its framework, kernels, attention, "
            "adapter and GPU are as far off"
        )
        said += ", and in bytes by as many." if self.measured.bytes else "."
        low, high = farthest()
        if low <= self.factor <= high:
            return said
        return (
            f"{said} No step that Memplan was held against was so far off: check that this plan is "
            "the one that ran, and that the seconds are those of one optimizer step."
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the plan that was measured."""
        names = [n for n in self.__slots__ if n not in ("measured", "interval")]
        found = {n: value for n in names if (value := getattr(self, n)) is not None}
        measured = {"seconds": self.measured.seconds, "bytes": self.measured.bytes}
        return found | {
            "interval": list(self.interval),
            "measured": {name: value for name, value in measured.items() if value},
            "assumed": self.assumed,
        }

    def beside(self, report: Report) -> dict[str, Any]:
        """The plan's Report as plain JSON types, with these figures as `calibrated`."""
        return {**report.to_dict(), "calibrated": self.to_dict()}


def calibrated(
    plan: Plan, by: Measured, now: Report | None = None, then: Report | None = None
) -> Calibrated:
    """A plan's step, as it is predicted and scaled by a measured step of the same framework,
    kernels, attention, adapter and GPU. `now` and `then`: the reports of the plan and of the
    measured one, where they are there already. Raises PlanError where one of these differs, or
    nothing is predicted."""
    if issues := refused(plan, by):
        raise PlanError(issues)
    now, then = now or evaluate(plan), then or evaluate(by.plan)
    if not (now.memory and now.time and now.run):
        raise PlanError([Issue("train", "the training of this plan is not computed")])
    factor, allocated = factor_of(by, then), now.memory.allocated_bytes
    seconds, low, high = _scaled(plan, by, now.time.step_seconds, factor)
    more = by.bytes - then.memory.allocated_bytes if then.memory else 0
    return Calibrated(
        measured=by,
        factor=factor,
        seconds=now.time.step_seconds,
        calibrated_seconds=seconds,
        interval=(low, high),
        tokens_per_second=now.time.tokens_per_second / factor,
        run_seconds=now.run.seconds * factor,
        gpu_hours=now.run.gpu_hours * factor,
        cost=None if now.run.cost is None else now.run.cost * factor,
        allocated_bytes=allocated,
        calibrated_bytes=max(0, allocated + more) if by.bytes else None,
    )


def factor_of(by: Measured, then: Report | None = None) -> float:
    """Measured seconds over predicted ones. `then`: the measured plan's report, where it is there
    already. Raises PlanError where nothing is predicted."""
    time = (then or evaluate(by.plan)).time
    if time is None:
        raise PlanError([Issue("train", "the training of the measured plan is not computed")])
    return by.seconds / time.step_seconds


def _scaled(
    plan: Plan, by: Measured, predicted: float, factor: float
) -> tuple[float, float, float]:
    """A plan's calibrated seconds, and between which 9 of 10 lie."""
    seconds = predicted * factor
    low, high = (1.0, 1.0) if plan == by.plan else calibrated_interval()
    return seconds, seconds * low, seconds * high


CALIBRATED, CALIBRATED_INTERVAL = "calibrated_seconds", "calibrated_interval"


def found_beside(found: Found, by: Measured) -> Found:
    """What a search found, with calibrated seconds of a step among the figures of those plans that
    a measured step says something of. Ranks are as predicted, since it says nothing of the others.
    Raises PlanError where nothing is predicted of the measured plan."""
    factor, of = factor_of(by), kind(by.plan)

    def beside(point: Point) -> Point:
        if kind(point.plan) != of:
            return point
        seconds, *ends = _scaled(point.plan, by, point.figures["step_seconds"], factor)
        more = {CALIBRATED: seconds, CALIBRATED_INTERVAL: ends}
        return replace(point, figures={**point.figures, **more})

    best, pareto = (tuple(map(beside, points)) for points in (found.best, found.pareto))
    return replace(found, best=best, pareto=pareto)


def table_beside(
    table: pd.DataFrame, plan: Plan, axes: Mapping[str, Sequence[Any]], by: Measured
) -> pd.DataFrame:
    """A sweep's table that has STEP, with calibrated seconds as one more column: NaN where the
    measured step says nothing of a plan. Raises PlanError where it says nothing of any."""
    if issues := [i for i in refused(plan, by) if i.field not in axes]:
        raise PlanError(issues)
    wanted, same = dict(zip(SHARED, kind(by.plan), strict=True)), table[STEP].notna()
    for field in set(SHARED).intersection(axes):
        labels = {value: _label(field, value) for value in axes[field]}
        same &= table[field].map(labels) == wanted[field]
    scaled = (table[STEP] * factor_of(by)).where(same)
    return table.assign(**{f"calibrated.{STEP.partition('.')[2]}": scaled})


STEP = "time.step_seconds"


def _label(field: str, value: Any) -> str:
    """What a plan with this value of a field has of what the bias is of."""
    if field != "cluster.gpu":
        return str(value)
    try:
        return Plan.of({"cluster": {"gpu": value}}).accelerator.label
    except PlanError:
        return ""


def refused(plan: Plan, by: Measured) -> list[Issue]:
    """Why a measured step says nothing of a plan; [] where it does."""
    return [
        Issue(field, f"the measured step had {_text(by.plan, field)}, this plan has "
                     f"{_text(plan, field)}: so how far one is off says nothing of the other")
        for field, then, now in zip(SHARED, kind(by.plan), kind(plan), strict=True)
        if then != now
    ]  # fmt: skip


def kind(plan: Plan) -> tuple[str, ...]:
    """What a plan has of what the bias is of."""
    return tuple(
        plan.accelerator.label if field == "cluster.gpu" else str(get(plan, field))
        for field in SHARED
    )


def _text(plan: Plan, field: str) -> str:
    if field == "cluster.gpu":
        return plan.accelerator.label
    return value_text(field, get(plan, field))
