"""Calibration: other plans, read beside one step that was measured.

Part of what our seconds are off is a bias of the framework and its version on a GPU, which a
measured step of one plan says for the others; the rest is that plan's own. How much is in common
(memcore.evidence.calibration), and how much nearer it comes, stands in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError, refusal
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, get, value_text
from memcore.report import Report
from memcore.timing.certainty import calibrated_interval, farthest, in_common
from memcore.units import bytes_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd

    from memcore.search.found import Found, Point

# What the bias is of.
SHARED = ("train.framework", "train.kernels", "train.attention", "train.adapter", "cluster.gpu")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A plan's figures beside a measured step. The Report has them as they are predicted.

    off                measured seconds over predicted ones, of the plan that was measured
    factor             what this plan's are multiplied by: as much of that as steps of one kind have
                       in common, and all of it for the plan that was measured
    seconds            of a step, as predicted; calibrated_seconds: times the factor
    interval           seconds that 9 of 10 calibrated steps that were measured lie between
    tokens_per_second, run_seconds, gpu_hours, cost   with calibrated_seconds; cost: or None
    allocated_bytes    as predicted; calibrated_bytes: with as many more as were measured beyond the
                       prediction; None where no bytes were measured
    """

    measured: Measured
    off: float
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
        took = seconds_text(self.measured.seconds)
        said = f"The measured step took {took}, {self.off:.2f} times the prediction"
        if self.factor != self.off:
            said += (
                ". Assumed: other plans with its framework, kernels, attention, adapter and GPU "
                f"take {self.factor:.2f} times as long, since measured steps of one kind have "
                f"{in_common():.0%} of what they are off (as a logarithm) in common"
            )
        said += "; in bytes all of it." if self.measured.bytes else "."
        low, high = farthest()
        if low <= self.off <= high:
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
    """A plan's step, as it is predicted and as a measured step of the same framework, kernels,
    attention, adapter and GPU has it. `now` and `then`: the reports of the plan and of the
    measured one, where they are there already. Raises PlanError where one of these differs, or
    nothing is predicted."""
    if issues := refused(plan, by):
        raise PlanError(issues)
    now, then = now or evaluate(plan), then or evaluate(by.plan)
    if not (now.memory and now.time and now.run):
        raise refusal("train", "the training of this plan is not computed")
    off, allocated = off_by(by, then), now.memory.allocated_bytes
    factor, (low, high) = _taken(plan, by, off)
    seconds = now.time.step_seconds * factor
    more = by.bytes - then.memory.allocated_bytes if then.memory else 0
    return Calibrated(
        measured=by,
        off=off,
        factor=factor,
        seconds=now.time.step_seconds,
        calibrated_seconds=seconds,
        interval=(seconds * low, seconds * high),
        tokens_per_second=now.time.tokens_per_second / factor,
        run_seconds=now.run.seconds * factor,
        gpu_hours=now.run.gpu_hours * factor,
        cost=None if now.run.cost is None else now.run.cost * factor,
        allocated_bytes=allocated,
        calibrated_bytes=max(0, allocated + more) if by.bytes else None,
    )


def off_by(by: Measured, then: Report | None = None) -> float:
    """Measured seconds over predicted ones. `then`: the measured plan's report, where it is there
    already. Raises PlanError where nothing is predicted."""
    time = (then or evaluate(by.plan)).time
    if time is None:
        raise refusal("train", "the training of the measured plan is not computed")
    return by.seconds / time.step_seconds


def _taken(plan: Plan, by: Measured, off: float) -> tuple[float, tuple[float, float]]:
    """What a plan's seconds are multiplied by, and between how many times these 9 of 10 lie."""
    return (off, (1.0, 1.0)) if plan == by.plan else (_shared(off), calibrated_interval())


def _shared(off: float) -> float:
    """How many times the prediction other plans of the kind take."""
    return shared(off, in_common(), farthest())


def shared(off: float, share: float, far: tuple[float, float]) -> float:
    """How many times the prediction something takes that has `share` in common (of logarithms) with
    what was measured to be `off`. Nothing that we were held against is farther off than `far`: what
    is beyond that is taken to be the machine's, and so all in common."""
    low, high = far
    near = min(max(off, low), high)
    factor: float = near**share * off / near
    return factor


CALIBRATED, CALIBRATED_INTERVAL = "calibrated_seconds", "calibrated_interval"


def found_beside(found: Found, by: Measured) -> Found:
    """What a search found, with calibrated seconds of a step among the figures of those plans that
    a measured step says something of. Ranks are as predicted, since it says nothing of the others.
    Raises PlanError where nothing is predicted of the measured plan."""
    off, of = off_by(by), kind(by.plan)

    def beside(point: Point) -> Point:
        if kind(point.plan) != of:
            return point
        factor, ends = _taken(point.plan, by, off)
        seconds = point.figures["step_seconds"] * factor
        more = {CALIBRATED: seconds, CALIBRATED_INTERVAL: [seconds * end for end in ends]}
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
    off = off_by(by)
    factor = _own(table, plan, axes, by).map({True: off, False: _shared(off)})
    scaled = (table[STEP] * factor).where(same)
    return table.assign(**{f"calibrated.{STEP.partition('.')[2]}": scaled})


STEP = "time.step_seconds"


def _own(
    table: pd.DataFrame, plan: Plan, axes: Mapping[str, Sequence[Any]], by: Measured
) -> pd.Series[bool]:
    """Which rows of a sweep are the plan that was measured."""
    own = table[STEP].notna()
    for field in axes:
        own &= table[field] == get(by.plan, field)
    asked = {field: get(by.plan, field) for field in axes}
    try:
        return own & (plan.with_changes(asked) == by.plan)
    except PlanError:
        return own & False


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
