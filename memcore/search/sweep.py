"""Sweep: any numbers of the Report against any fields of the Plan, as a table.

Micro-batch, sequence length and GPUs broadcast: the same rows and quantities are read with arrays
in place of numbers. Every other field is an outer loop, and a number that nothing reads with arrays
yet is that of `evaluate`, cell by cell. There is no second copy of any formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.plan.rules import SIZE_RULES
from memcore.quantity.reading import QUANTITIES, Values
from memcore.tape.dims import Number, minimum
from memcore.tape.ledger import Amounts
from memcore.training.memory import swept_memory
from memcore.training.steps import complete, steps_of
from memcore.training.time import SweptTime, swept_time
from memcore.training.training import not_planned

if TYPE_CHECKING:
    import pandas as pd

PEAK = "memory.allocated_bytes"
TIERS = ("hbm", "dram", "nvme")
INTERVALS = ("reserved_bytes", "device_bytes", "room_bytes", "overhead_bytes")
MEMORY = {  # read with arrays
    *(PEAK, "memory.fits", "memory.capacity_bytes"),
    *(f"memory.{part}.{tier}" for part in ("tiers", "tier_capacities") for tier in TIERS),
    *(f"memory.{name}.{end}" for name in INTERVALS for end in (0, 1)),
}
# Plan fields that are numbers in the flat sizes and change no structure.
BROADCAST = {"train.micro_batch": "B", "train.seq_len": "S", "cluster.gpus": "GPUS"}
TIMED = ("train.micro_batch", "train.seq_len")  # of them, those that change no rank
REPLICATED = "pytorch"  # one GPU has no other to reduce gradients with: not only a size changes
SWEPT = {f"time.{f.name}" for f in fields(SweptTime)}


def sweep(
    plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str] = (PEAK,)
) -> pd.DataFrame:
    """Numbers of the Report for every combination of the axes' values.

    axes     fields, named as in an error ('train.seq_len'), and the values to try
    numbers  paths of the Report ('time.step_seconds', 'serve.max_concurrency')

    Returns one row a combination, in the order of `itertools.product`; one column an axis and one a
    number, NaN where the combination cannot exist or has no such number. A yes is 1, a no 0. Raises
    PlanError for an axis that is no field, and for a number that no combination's Report has.
    """
    import numpy as np
    import pandas as pd

    names = list(axes)
    found = pd.DataFrame(list(itertools.product(*axes.values())), columns=names)
    cells = {number: [float("nan")] * len(found) for number in numbers}
    known = dict.fromkeys(numbers, False)
    for memory in (True, False):
        wanted = [n for n in numbers if (n in MEMORY) == memory]
        together = [n for n in wanted if memory or _broadcasts(n)]
        alone = [n for n in wanted if n not in together]
        frameworks = (plan.train.framework, *axes.get("train.framework", ()))
        broadcast = BROADCAST if memory and REPLICATED not in frameworks else TIMED
        inner = [n for n in names if n in broadcast] if together else []
        outer = [n for n in names if n not in inner]
        if together:
            for n in together:
                known[n] = True
            for rows, changed in _choices(plan, axes, outer):
                arrays = {n: axes[n] for n in inner}
                with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is allowed
                    values = _cells(changed, arrays, together) if changed else {}
                for number, of in values.items():
                    for row, value in zip(rows, of, strict=True):
                        cells[number][row] = value
        if alone:
            for rows, changed in _choices(plan, axes, names):
                document = evaluate(changed).to_dict() if changed else {}
                for number in alone:
                    if (cell := _at(document, number)) is not None:
                        known[number] = True
                        cells[number][rows[0]] = cell
    if missing := [n for n, is_known in known.items() if not is_known]:
        raise PlanError([Issue("numbers", _refusal(plan, n)) for n in missing])
    return found.assign(**cells)


def _broadcasts(number: str) -> bool:
    """Whether a number can be read with arrays."""
    part, _, inner = number.partition(".")
    of_link = part == "time" and inner.split(".")[0] in ("exposed", "resources")
    return number in SWEPT or of_link or (number in QUANTITIES and part in ("time", "run"))


def _choices(
    plan: Plan, axes: Mapping[str, Sequence[Any]], outer: Sequence[str]
) -> list[tuple[list[int], Plan | None]]:
    """Each combination of the outer axes: its rows of the table, and the plan; None where its rules
    forbid it."""
    names, found = list(axes), []
    rows = list(itertools.product(*(range(len(axes[n])) for n in names)))
    by: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        by.setdefault(tuple(row[names.index(n)] for n in outer), []).append(i)
    for choice, where in by.items():
        document = plan.document()
        changed: Plan | None = plan
        for name, i in zip(outer, choice, strict=True):
            part, _, field = name.partition(".")
            if field not in document.get(part, {}) and name != "model":
                raise PlanError([Issue(name, f"is no field of a plan; {_near(document, name)}")])
            if field:
                document[part][field] = axes[name][i]
            else:
                document[name] = axes[name][i]
        if outer:
            try:
                changed = Plan.of(document)
            except PlanError:
                changed = None
        found.append((where, changed))
    return found


def _near(document: Mapping[str, Any], name: str) -> str:
    every = [f"{part}.{f}" for part, of in document.items() if isinstance(of, dict) for f in of]
    return did_you_mean(name, every)


def _refusal(plan: Plan, number: str) -> str:
    every: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else name)
        elif isinstance(value, int | float):
            every.append(path)

    walk(evaluate(plan).to_dict(), "")
    return f"{shown(number)} is no number of these reports; {did_you_mean(number, every)}"


def _at(document: Any, path: str) -> float | None:
    """The number at a path of a report's document, if it has one."""
    for word in path.split("."):
        if isinstance(document, list) and word.isdigit() and int(word) < len(document):
            document = document[int(word)]
        elif isinstance(document, dict) and word in document:
            document = document[word]
        else:
            return None
    if isinstance(document, bool):
        return int(document)
    return document if isinstance(document, int | float) else None


class Swept:
    """A plan, or a part of one, some of whose numbers are arrays."""

    def __init__(self, given: Any, arrays: Mapping[str, Number]):
        self._given, self._arrays = given, arrays

    def __getattr__(self, name: str) -> Any:
        if name in self._arrays:
            return self._arrays[name]
        inner = {p[len(name) + 1 :]: a for p, a in self._arrays.items() if p.startswith(f"{name}.")}
        value = getattr(self._given, name)
        return Swept(value, inner) if inner else value


def _cells(
    plan: Plan, axes: Mapping[str, Sequence[int]], numbers: Sequence[str]
) -> dict[str, list[float]]:
    """One structure, its numeric axes broadcast: each number, flat."""
    import numpy as np

    full = tuple(len(v) for v in axes.values())
    if not_planned(plan):
        return {}
    sizes: dict[str, Number] = plan.sizes()
    arrays = {}
    for i, (name, values) in enumerate(axes.items()):
        along = [1] * len(axes)
        along[i] = len(values)
        arrays[name] = np.asarray(values, dtype=np.int64).reshape(along)
        sizes[BROADCAST[name]] = arrays[name]
    sizes["DP"] = sizes["GPUS"] // (sizes["TP"] * sizes["PP"] * sizes["CP"])
    allowed: Any = True
    for rule in SIZE_RULES:
        allowed = allowed & np.asarray(rule.holds(sizes))
    model = plan.architecture
    if model.image:
        allowed = allowed & np.asarray(sizes["S"] == model.image.tokens)
    elif model.learned_positions:
        allowed = allowed & np.asarray(sizes["S"] <= model.max_positions)
    complete(sizes, plan)
    amounts, steps = Amounts(sizes), steps_of(plan)
    swept: Any = plan
    if arrays:
        in_node = {"gpus_in_node": minimum(sizes["GPUS"], plan.gpus_per_node)}
        swept = Swept(plan, arrays | in_node)
    given: dict[str, Any] = {}
    if MEMORY.intersection(numbers):
        given["memory"] = swept_memory(swept, steps, amounts)
    if not MEMORY.issuperset(numbers):
        given["time"] = swept_time(plan, steps, amounts)
    x = Values(plan=swept, hardware=plan.accelerator, **given)
    found: dict[str, Any] = {}
    for number in numbers:
        part, field, *word = number.split(".")
        value = getattr(getattr(x, part), field)
        for key in word:
            value = value[int(key) if key.isdigit() else key]
        found[number] = np.nan if value is None else value
    return {
        n: np.broadcast_to(np.where(allowed, v, np.nan), full).ravel().tolist()
        for n, v in found.items()
    }
