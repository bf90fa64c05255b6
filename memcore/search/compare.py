"""Compare: what several plans differ in, their figures side by side, and what moved them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError, refusal
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, field_paths, get
from memcore.report import Report
from memcore.search.measured import FIRST, STEP, TOKEN, Calibrated, calibrated
from memcore.search.waterfall import Change, waterfall

FEWEST, MOST = 2, 6
# The figures that plans are compared by: path in the Report, and unit.
FIGURES = {
    "parameters": "",
    "trainable_parameters": "",
    "memory.verdict": "",
    "memory.allocated_bytes": "bytes",
    "memory.reserved_bytes.1": "bytes",
    "memory.device_bytes.0": "bytes",
    "memory.device_bytes.1": "bytes",
    "memory.tiers.dram": "bytes",
    "memory.tiers.nvme": "bytes",
    "memory.consumers.parameters": "bytes",
    "memory.consumers.gradients": "bytes",
    "memory.consumers.optimizer_states": "bytes",
    "memory.consumers.activations": "bytes",
    "memory.consumers.workspace": "bytes",
    "time.step_seconds": "seconds",
    "time.tokens_per_second": "tokens/s",
    "time.tokens_per_second_per_gpu": "tokens/s",
    "time.mfu": "",
    "time.bound_by": "",
    "run.seconds": "seconds",
    "run.gpu_hours": "GPU-hours",
    "run.cost": "USD",
    "run.energy_joules": "J",
    "serve.weights_bytes": "bytes",
    "serve.kv_bytes_per_token": "bytes",
    "serve.kv_capacity_tokens": "tokens",
    "serve.max_concurrency": "sequences",
    "serve.fits": "",
    "serve.ttft_seconds": "seconds",
    "serve.tpot_seconds": "seconds",
    "serve.tokens_per_second": "tokens/s",
}
CALIBRATED = {  # with what was measured
    f"calibrated.{name}.{what}": "seconds"
    for name in (STEP, FIRST, TOKEN)
    for what in ("calibrated_seconds", "interval.0", "interval.1")
} | {"calibrated.numbers.allocated_bytes.1": "bytes"}
UNITS = FIGURES | CALIBRATED


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two to six plans, side by side.

    fields   those in which they differ, with each plan's value
    figures  numbers of the Report that one of them has, with each plan's value or None
    between  what moved bytes and seconds, from each plan to each later one
    """

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    fields: Mapping[str, tuple[Any, ...]]
    figures: Mapping[str, tuple[Any, ...]]
    between: Mapping[tuple[int, int], tuple[Change, ...]]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON types."""
        return {
            "plans": [
                {"name": name, "plan": plan.document()}
                for name, plan in zip(self.names, self.plans, strict=True)
            ],
            "fields": {path: list(values) for path, values in self.fields.items()},
            "figures": {path: list(values) for path, values in self.figures.items()},
            "waterfalls": [
                {
                    "from": self.names[a],
                    "to": self.names[b],
                    "changes": [change.to_dict() for change in changes],
                }
                for (a, b), changes in self.between.items()
            ],
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """The comparison as tidy rows: one value each."""
        for kind, table in (("field", self.fields), ("figure", self.figures)):
            for path, values in table.items():
                for name, value in zip(self.names, values, strict=True):
                    unit = UNITS.get(path, "")
                    yield {"plan": name, "kind": kind, "name": path, "value": value, "unit": unit}
        for (a, b), changes in self.between.items():
            for change in changes:
                moved = {"bytes": change.bytes, "seconds": change.seconds}
                for unit, value in moved.items():
                    yield {
                        "plan": self.names[b],
                        "kind": "change",
                        "name": change.label,
                        "value": value,
                        "unit": unit,
                        "against": self.names[a],
                    }


def compare(
    plans: Sequence[Plan], names: Sequence[str] = (), measured: Measured | None = None
) -> Comparison:
    """Two to six plans side by side, those that a `measured` step or server says something of
    with that too.
    Raises PlanError for fewer or more, and where it says nothing of any."""
    if not FEWEST <= len(plans) <= MOST:
        refused = f"{FEWEST} to {MOST} plans can be compared, not {len(plans)}"
        raise refusal("", refused)
    reports = [evaluate(plan) for plan in plans]
    pairs = [(a, b) for b in range(len(plans)) for a in range(b)]
    return Comparison(
        names=tuple(names) or tuple(f"plan {i + 1}" for i in range(len(plans))),
        plans=tuple(plans),
        fields=differing(plans),
        figures=figures_of(reports) | (calibrated_of(plans, reports, measured) if measured else {}),
        between={(a, b): waterfall(plans[a], plans[b]) for a, b in pairs},
    )


def differing(plans: Sequence[Plan], alike: bool = False) -> dict[str, tuple[Any, ...]]:
    """The fields in which plans differ, or all of them, with each plan's value."""
    values = {p: tuple(_plain(get(plan, p)) for plan in plans) for p in field_paths()}
    return {p: of for p, of in values.items() if alike or any(v != of[0] for v in of)}


def figures_of(reports: Sequence[Report]) -> dict[str, tuple[Any, ...]]:
    """The figures that any of the reports has, with each one's value or None."""
    return _known({p: tuple(_at(report, p) for report in reports) for p in FIGURES})


def _known(figures: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Those that anything has."""
    return {p: of for p, of in figures.items() if any(v is not None for v in of)}


def calibrated_of(
    plans: Sequence[Plan], reports: Sequence[Report], measurement: Measured
) -> dict[str, tuple[Any, ...]]:
    """Figures with a measured step or server, with each plan's value, or None where it says
    nothing of one. Raises PlanError where that is all of them."""
    figures: list[Calibrated | None] = []
    issues: list[Issue] = []
    for plan, report in zip(plans, reports, strict=True):
        try:
            figures.append(calibrated(plan, measurement, report))
        except PlanError as e:
            issues, figures = issues or list(e.issues), [*figures, None]
    if not any(figures):
        raise PlanError(issues)
    return _known({p: tuple(_at(c, p.partition(".")[2]) for c in figures) for p in CALIBRATED})


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _at(report: Any, path: str) -> Any:
    """What a Report has at a path, or None."""
    value: Any = report
    for word in path.split("."):
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = value.get(word)
        elif word.isdigit():
            value = value[int(word)]
        else:
            value = getattr(value, word, None)
    return value
