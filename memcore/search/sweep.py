"""Sweep: the same rows with arrays in place of numbers.

Numeric fields broadcast through one evaluation; words are an outer loop. There is no second copy of
any formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memcore.plan.plan import Plan
from memcore.plan.rules import SIZE_RULES
from memcore.tape.dims import Number, maximum
from memcore.tape.ledger import Amounts
from memcore.training.memory import peak_bytes
from memcore.training.steps import complete, steps_of
from memcore.training.training import not_planned

if TYPE_CHECKING:
    import numpy as np

# Plan fields that are numbers in the flat sizes and change no structure.
BROADCAST = {"train.micro_batch": "B", "train.seq_len": "S", "cluster.gpus": "GPUS"}


def sweep(plan: Plan, axes: Mapping[str, Sequence[Any]]) -> np.ndarray[Any, Any]:
    """Allocated peak in bytes for every combination, shaped like the axes; NaN where impossible.

    axes maps fields, named as in an error ('train.seq_len'), to the values to try.
    """
    import numpy as np

    names = list(axes)
    shape = tuple(len(axes[name]) for name in names)
    result = np.full(shape, np.nan)
    outer = [name for name in names if name not in BROADCAST]
    inner = [name for name in names if name in BROADCAST]
    for choice in itertools.product(*(range(len(axes[name])) for name in outer)):
        chosen = {name: axes[name][i] for name, i in zip(outer, choice, strict=True)}
        changed = plan
        for name, value in chosen.items():
            changed = changed.changed(name, value)
        cells = _cells(changed, {name: axes[name] for name in inner})
        index: list[Any] = [slice(None)] * len(names)
        for name, i in zip(outer, choice, strict=True):
            index[names.index(name)] = i
        result[tuple(index)] = cells
    return result


def _cells(plan: Plan, axes: Mapping[str, Sequence[int]]) -> Any:
    """One structure, its numeric axes broadcast."""
    import numpy as np

    full = tuple(len(v) for v in axes.values())
    if not_planned(plan):
        return np.full(full, np.nan)
    sizes: dict[str, Number] = plan.sizes()
    for i, (name, values) in enumerate(axes.items()):
        along = [1] * len(axes)
        along[i] = len(values)
        sizes[BROADCAST[name]] = np.asarray(values, dtype=np.int64).reshape(along)
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
    amounts, peak = Amounts(sizes), 0
    for step in steps_of(plan):
        peak = maximum(peak, peak_bytes(step, amounts))
    return np.broadcast_to(np.where(allowed, peak, np.nan), full)
