"""Sweep: any numbers of the Report against any fields of the Plan, as a table.

Micro-batch, sequence length and GPUs broadcast: the same rows and quantities are read with arrays
in place of numbers. Every other field is an outer loop, and a number that nothing reads with arrays
yet is that of `evaluate`, cell by cell. There is no second copy of any formula.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.evaluate import evaluate
from memcore.frameworks import FRAMEWORKS
from memcore.plan.plan import Plan, field_paths, limits_of, meant
from memcore.plan.repair import planned
from memcore.plan.sizes import SIZE_RULES
from memcore.quantity.reading import QUANTITIES, Values
from memcore.tape.dims import Number, minimum
from memcore.tape.ledger import Amounts
from memcore.training.memory import swept_memory
from memcore.training.saved import Saved
from memcore.training.steps import complete, steps_of
from memcore.training.time import SweptTime, swept_time
from memcore.training.training import Pool, not_planned

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
RANKS = "cluster.gpus"
OF_LINKS = ("exposed", "resources")  # a number for each link and resource that a plan uses
SEVERAL = (*OF_LINKS, "step_interval")  # no number by themselves
SWEPT = {f"time.{f.name}" for f in fields(SweptTime) if f.name not in OF_LINKS}


def sweep(
    plan: Plan,
    axes: Mapping[str, Sequence[Any]],
    numbers: Sequence[str] = (PEAK,),
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Numbers of the Report for every combination of the axes' values.

    axes      fields, named as in an error ('train.seq_len'), and the values to try
    numbers   paths of the Report ('time.step_seconds', 'serve.max_concurrency')
    progress  is called with how many combinations of words are done, and of how many

    Returns one row a combination, in the order of `itertools.product`; one column an axis and one a
    number, NaN where the combination cannot exist or has no such number. A yes is 1, a no 0. Needs
    pandas, which the extra `app` brings. Raises PlanError for an axis that is no field, and for a
    number that no combination's Report has.
    """
    return _table(axes, swept(plan, axes, numbers, progress))


def swept(
    plan: Plan,
    axes: Mapping[str, Sequence[Any]],
    numbers: Sequence[str] = (PEAK,),
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """The numbers of such a table, each as an array with a dimension an axis. Who needs no table
    asks here: pandas takes 65 MiB of a process."""
    _refuse_unknown(axes)
    cells, known = _every_cell(plan, axes, numbers, progress)
    _refuse_missing(plan, [n for n in numbers if n not in known])
    return cells


def _table(axes: Mapping[str, Sequence[Any]], cells: Mapping[str, np.ndarray]) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = dict(_columns(axes))
    return pd.DataFrame(columns | {n: of.ravel() for n, of in cells.items()})


def _every_cell(
    plan: Plan,
    axes: Mapping[str, Sequence[Any]],
    numbers: Sequence[str],
    progress: Progress | None = None,
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The numbers, each as an array, and those of them that there are."""
    cells = {number: np.full(tuple(map(len, axes.values())), np.nan) for number in numbers}
    known = {n for n in numbers if n in MEMORY or (_broadcasts(n) and not _of_link(n))}
    readings = list(_readings(plan, axes, numbers))
    lengths = [[len(of) for n, of in axes.items() if n not in inner] for _, inner, _ in readings]
    done, every = 0, sum(map(math.prod, lengths))
    for wanted, inner, read in readings:
        for where, changed in _choices(plan, axes, inner):
            done += 1
            if progress:
                progress(done, every)
            if changed is None:
                continue
            read_cells = read(changed, {n: axes[n] for n in inner}, wanted)
            known.update(read_cells)
            for number, value in read_cells.items():
                cells[number][where] = value
    return cells, known


Progress = Callable[[int, int], None]
Cells = dict[str, Any]  # a number's cells, by the number
Reading = Callable[[Plan, Mapping[str, Sequence[Any]], Sequence[str]], Cells]


def _readings(
    plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str]
) -> Iterator[tuple[list[str], list[str], Reading]]:
    """Numbers that are read together, the axes that broadcast for them, and how they are read."""
    memory = [n for n in numbers if n in MEMORY]
    timed = [n for n in numbers if n not in memory and _broadcasts(n)]
    alone = [n for n in numbers if n not in memory and n not in timed]
    of_memory = [n for n in axes if n in BROADCAST]
    of_time = [n for n in axes if n in TIMED]
    if memory and timed and of_memory == of_time:
        memory, timed = [n for n in numbers if n not in alone], []
    read = functools.partial(_cells, pool={})
    if memory:
        yield memory, of_memory, read
    if timed:
        yield timed, of_time, read
    if alone:
        yield alone, [], _evaluated


def _broadcasts(number: str) -> bool:
    """Whether a number can be read with arrays."""
    part, _, inner = number.partition(".")
    quantity = number in QUANTITIES and part in ("time", "run") and inner not in SEVERAL
    return number in SWEPT or _of_link(number) or quantity


def _of_link(number: str) -> bool:
    part, _, inner = number.partition(".")
    field, _, link = inner.partition(".")
    return part == "time" and field in OF_LINKS and bool(link)


def _choices(
    plan: Plan, axes: Mapping[str, Sequence[Any]], inner: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], Plan | None]]:
    """Each combination of the axes that do not broadcast: where its cells are, and the plan; None
    where its rules forbid it."""
    every = slice(None)
    places: list[Sequence[Any]] = [[every] if n in inner else range(len(axes[n])) for n in axes]
    for at in itertools.product(*places):
        chosen = zip(axes.items(), at, strict=True)
        changes = {name: values[i] for (name, values), i in chosen if i != every}
        try:
            yield at, plan.with_changes(changes) if changes else plan
        except PlanError:
            yield at, None


def _refuse_unknown(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises PlanError for an axis that is no field of a plan, or that has no list of values."""
    known, issues = field_paths(), []
    for name, values in axes.items():
        if name not in known:
            issues.append(Issue(name, f"is no field of a plan; {meant(name)}"))
        elif isinstance(values, str) or not hasattr(values, "__len__"):
            issues.append(Issue(name, f"wants a list of values, not {shown(values)}"))
    if issues:
        raise PlanError(issues)


def _columns(axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Each axis as a column of the table, in the order of `itertools.product`."""
    import pandas as pd

    before, rows = 1, math.prod(map(len, axes.values()))
    for name, values in axes.items():
        after = rows // max(1, before * len(values))
        at = np.tile(np.repeat(np.arange(len(values)), after), before)
        yield name, pd.Series(list(values)).take(at).reset_index(drop=True)
        before *= len(values)


def _evaluated(plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str]) -> Cells:
    """Numbers of one plan, where its Report has them."""
    document = evaluate(plan).to_dict()
    cells = {number: _at(document, number) for number in numbers}
    return {number: cell for number, cell in cells.items() if cell is not None}


def _refuse_missing(plan: Plan, missing: Sequence[str]) -> None:
    """Raises PlanError for numbers that no combination had."""
    if missing:
        raise PlanError([Issue("numbers", _refusal(plan, n)) for n in missing])


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


def _data_parallel(sizes: Mapping[str, Any]) -> Any:
    return sizes["GPUS"] // (sizes["TP"] * sizes["PP"] * sizes["CP"])


def _permitted(plan: Plan, path: str, values: Sequence[Any]) -> list[bool]:
    """Whether a field may have each of these values, but for what SIZE_RULES say, which are asked
    of all axes together. Every other rule allows a numeric field from some value on, or up to one,
    so that of a long axis the ends speak for all; an engine beside the trainer divides the GPUs."""
    low, high = limits_of(path)
    integers = [isinstance(v, Integral) and not isinstance(v, bool) for v in values]
    may = [w and low <= v <= high for v, w in zip(values, integers, strict=True)]
    within = [v for v, m in zip(values, may, strict=True) if m]
    ends = {min(within), max(within)} if within else set()
    if plan.together.kind == "none" and all(_else_permitted(plan, path, v) for v in ends):
        return may
    return [m and _else_permitted(plan, path, v) for v, m in zip(values, may, strict=True)]


def _else_permitted(plan: Plan, path: str, value: Any) -> bool:
    """Whether a field may have a value, but for what SIZE_RULES say."""
    try:
        plan.changed(path, int(value))
    except PlanError as e:
        sizes = plan.sizes() | {BROADCAST[path]: int(value)}
        sizes["DP"] = _data_parallel(sizes)
        expected = [rule.issue(sizes) for rule in SIZE_RULES if not rule.holds(sizes)]
        return all(issue in expected for issue in e.issues)
    return True


POOLED = 64  # amounts that are kept for plans of the same sizes


def _cells(
    plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str], pool: Pool
) -> Cells:
    """One structure, its numeric axes broadcast: each number, shaped like the axes."""
    if not_planned(plan):
        return dict.fromkeys(numbers, np.nan)
    if not axes:
        amounts = varied(plan, {})
        if len(pool) == POOLED:
            pool.clear()
        amounts = pool.setdefault(tuple(amounts.sizes.items()), amounts)
        return _read(plan, {}, numbers, amounts)
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is allowed
        if RANKS in axes and FRAMEWORKS[plan.train.framework].replicas:
            return _replicated(plan, axes, numbers)
        return _broadcast(plan, axes, numbers)


def _replicated(plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str]) -> Cells:
    """Where one rank has no other to reduce gradients with, not only a size changes: cells of one
    replica apart from those of several."""
    values, along = axes[RANKS], list(axes).index(RANKS)
    one = plan.cluster.gpus // plan.dp  # GPUs of a replica
    cells_of: Cells = {n: np.full(tuple(map(len, axes.values())), np.nan) for n in numbers}
    for several in (False, True):
        which = [i for i, value in enumerate(values) if (value != one) == several]
        given = [plan] if (plan.dp > 1) == several else []
        plans = itertools.chain(given, (planned(plan, {RANKS: values[i]}) for i in which))
        like = next(filter(None, plans), None)
        if not which or like is None:
            continue
        cells = _broadcast(like, {**axes, RANKS: [values[i] for i in which]}, numbers)
        at = tuple(which if i == along else slice(None) for i in range(len(axes)))
        for number, cell in cells.items():
            cells_of[number][at] = cell
    return cells_of


def broadcast(plan: Plan, axes: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], Any]:
    """Axes as arrays that broadcast to the table, and at which of its cells there is a plan; a
    value that no plan has is 1."""
    sizes: dict[str, Number] = plan.sizes()
    arrays = {}
    allowed: Any = True
    for i, (name, values) in enumerate(axes.items()):
        along = [1] * len(axes)
        along[i] = len(values)
        may = _permitted(plan, name, values)
        valid = [value if m else 1 for value, m in zip(values, may, strict=True)]
        # Whole numbers of 64 bits would wrap around where a table reaches past 2^63 operations.
        arrays[name] = np.asarray(valid, dtype=np.float64).reshape(along)
        sizes[BROADCAST[name]] = arrays[name]
        allowed = allowed & np.asarray(may, dtype=bool).reshape(along)
    sizes["DP"] = _data_parallel(sizes)
    for rule in SIZE_RULES:
        allowed = allowed & np.asarray(rule.holds(sizes))
    return arrays, allowed


BLOCK = 1 << 14  # cells that are computed at once: more would take gigabytes


def _broadcast(plan: Plan, axes: Mapping[str, Sequence[Any]], numbers: Sequence[str]) -> Cells:
    if math.prod(map(len, axes.values())) > BLOCK:
        name, values = max(axes.items(), key=lambda axis: len(axis[1]))
        middle, along = len(values) // 2, list(axes).index(name)
        halves = [
            _broadcast(plan, {**axes, name: part}, numbers)
            for part in (values[:middle], values[middle:])
        ]
        return {n: np.concatenate([half[n] for half in halves], along) for n in halves[0]}
    arrays, allowed = broadcast(plan, axes)
    read_cells = _read(plan, arrays, numbers)
    shape = tuple(map(len, axes.values()))
    return {n: np.broadcast_to(np.where(allowed, v, np.nan), shape) for n, v in read_cells.items()}


def varied(plan: Plan, varying: Mapping[str, Number]) -> Amounts:
    """A plan's sizes, where some fields are arrays."""
    sizes: dict[str, Number] = plan.sizes()
    sizes |= {BROADCAST[name]: values for name, values in varying.items()}
    sizes["DP"] = _data_parallel(sizes)
    complete(sizes, plan)
    return Amounts(sizes)


def _read(
    plan: Plan,
    varying: Mapping[str, Number],
    numbers: Sequence[str],
    amounts: Amounts | None = None,
) -> Cells:
    """Numbers of a plan some of whose fields are arrays."""
    amounts, steps = amounts or varied(plan, varying), steps_of(plan)
    swept: Any = plan
    if varying:
        in_node = {"gpus_in_node": minimum(amounts.sizes["GPUS"], plan.gpus_per_node)}
        swept = Swept(plan, {**varying, **in_node})
    given: dict[str, Any] = {}
    if MEMORY.intersection(numbers):
        given["memory"] = swept_memory(swept, steps, amounts)
    if not MEMORY.issuperset(numbers):
        given["time"] = swept_time(plan, steps, amounts)
    if any(n.startswith("run.") for n in numbers):
        given["saved"] = Saved.of(plan)
    x = Values(plan=swept, hardware=plan.accelerator, **given)
    cells: dict[str, Any] = {}
    for number in numbers:
        part, field, *word = number.split(".")
        value = getattr(getattr(x, part), field)
        if _of_link(number):
            link = ".".join(word)
            if link not in value:
                continue
            word = [link]
        for key in word:
            value = value[int(key) if key.isdigit() else key]
        cells[number] = np.nan if value is None else value
    return cells
