"""What other calculators say for plans that they can express (presets/evidence/calculators.toml).

They are no authority: nothing is tested against them. What is right is what PyTorch's own tracker
says of the same plan.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evidence.papers import resident
from evidence.planned import memory_of, of_training
from evidence.pytorch import PEAK_TOLERANCE, REGIMES, dispatched_peak, wider_on_a_gpu
from memcore.evidence.comparison import TRACKER, Comparison, text
from memcore.plan.plan import Plan

STATES, STEP, DEVICE = COUNTS = ("states", "step", "device")


@dataclass(frozen=True, slots=True)
class CalculatorFigure:
    """A calculator's figure in bytes per GPU, with ours of what it counts.

    counts   'states' (parameters, gradients, optimizer states), 'step' (activations too) or
             'device' (an allowance for CUDA and the like too)
    """

    calculator: str
    counts: str
    theirs: int
    ours: int


@dataclass(frozen=True, slots=True)
class Worked:
    """A plan and what everybody says of one GPU's memory, in bytes.

    tracker   PyTorch's own figure, for a step without its optimizer step
    ours      what PyTorch allocates at the peak
    """

    name: str
    label: str
    detail: str
    plan: Plan
    tracker: int
    ours: int
    figures: tuple[CalculatorFigure, ...]


@functools.cache
def calculators_table() -> Mapping[str, Any]:
    """The table as its file has it: tracker, plans, calculators, figures."""
    return tomllib.loads(text("calculators.toml"))


@functools.cache
def worked() -> tuple[Worked, ...]:
    """Every plan with every figure there is of it, the largest first."""
    table = calculators_table()
    counts = {c["name"]: c["counts"] for c in table["calculators"]}
    return tuple(_worked(row, table["figures"], counts) for row in table["plans"])


def _worked(
    row: Mapping[str, Any], rows: list[Mapping[str, Any]], counts: Mapping[str, str]
) -> Worked:
    plan = Plan.of(row["plan"])
    memory = memory_of(plan)
    figures = []
    for f in rows:
        if f["plan"] == row["name"]:
            by, counted = f["calculator"], counts[f["calculator"]]
            ours = resident(memory) if counted == STATES else memory.allocated_bytes
            figures.append(CalculatorFigure(by, counted, f["bytes"], ours))
    figures.sort(key=lambda s: -s.theirs)
    name, label, detail = (row[key] for key in ("name", "label", "detail"))
    tracker, ours = row["tracker_bytes"], dispatched_peak(plan)
    return Worked(name, label, detail, plan, tracker, ours, tuple(figures))


def compared_tracker() -> tuple[Comparison, ...]:
    """The tracker's figure of each of these plans beside ours: models at their full depth."""
    return tuple(
        _tracker_row(w)
        for w in worked()
        if not wider_on_a_gpu(w.plan.architecture.traits.activation, w.plan.train.precision)
    )


def _tracker_row(w: Worked) -> Comparison:
    train, model = w.plan.train, w.plan.architecture
    regime = next(
        r for r, words in REGIMES.items() if all(getattr(train, k) == words[k] for k in words)
    )
    told = of_training(w.plan) | {"regime": regime, "family": model.family, "layers": model.layers}
    return Comparison(
        TRACKER, f"{w.plan.model}", "peak", w.tracker, dispatched_peak(w.plan), "bytes",
        gpus=w.plan.cluster.gpus, tolerance=PEAK_TOLERANCE, **told,
    )  # fmt: skip
