"""Exploring in words: what a sweep of one field, or of two, shows."""

from __future__ import annotations

from typing import Any

from app import palette
from app.fields import field as plan_field
from memcore.models import catalog
from memcore.plan.plan import value_text
from memcore.search.explore import LAYERS, SIZE, Sweep, is_number

PART_NAMES = {
    **palette.CONSUMER_LABELS,
    "weights": "Weights",
    "overhead": "Overhead",
}


def title(path: str) -> str:
    """A field's name for people."""
    return {SIZE: "Model size", LAYERS: "Layers"}.get(path) or plan_field(path).title


def unit(path: str) -> str:
    return {SIZE: "", LAYERS: "layers"}.get(path) or (
        "" if path in (SIZE, LAYERS) else plan_field(path).unit
    )


def text(path: str, value: Any) -> str:
    """A value of a field for people."""
    if path == "cluster.gpu" and isinstance(value, str):
        return catalog.accelerator(value).label
    if path in (SIZE, LAYERS):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return value_text(path, value)


def named(path: str, value: Any) -> str:
    """A value with its unit: '17,920 tokens'; of what has none with its field: 'micro-batch 8'."""
    words = text(path, value)
    if of := unit(path):
        return f"{words} {of.removesuffix('s') if value == 1 else of}"
    if path == "cluster.gpus":
        return f"{words} GPU{'s' * (value != 1)}"
    return words if not is_number(path) else f"{title(path).lower()} {words}"


def says(sweep: Sweep) -> list[str]:
    """What a sweep shows, in sentences."""
    lines = [_fitting(sweep) if is_number(sweep.path) else _how_many_fit(sweep)]
    if not sweep.figure.parts:
        lines.append(_best(sweep))
    return [line for line in lines if line]


def _fitting(sweep: Sweep) -> str:
    """Up to where it fits, and up to where it may."""
    known = [s for s in sweep.spots if s.plan]
    if not known:
        return f"No value of {title(sweep.path).lower()} can be planned here."
    first, final = known[0].value_at, known[-1].value_at
    where = f"from {text(sweep.path, first)} to {named(sweep.path, final)}"
    if sweep.edge is None:
        if all(s.fits for s in known):
            return f"Fits at every value that was tried, {where}."
        if any(s.possible for s in known):
            return f"Fits for sure at none of these values, {where}; some may fit."
        return f"Fits at no value that was tried, {where}."
    to = "up to" if sweep.rises else "from"
    also = ""
    if sweep.maybe is None:
        also = "; the others may fit too"
    elif sweep.maybe != sweep.edge:
        also = f"; may fit {to} {named(sweep.path, sweep.maybe)}"
    return f"Fits {to} {named(sweep.path, sweep.edge)}{also}{'' if sweep.rises else ' on'}."


def _how_many_fit(sweep: Sweep) -> str:
    """How many values fit, of a field that is no number."""
    fit = sum(s.fits for s in sweep.spots)
    may = sum(bool(s.plan) and s.possible and not s.fits for s in sweep.spots)
    also = f"; {may} more may fit" if may else ""
    return f"{fit} of {len(sweep.spots)} fit{also}. The table says of each why."


def _best(sweep: Sweep) -> str:
    """The best of what fits."""
    fit = [s for s in sweep.spots if s.fits and s.value is not None]
    if not fit:
        return ""
    sign = 1 if sweep.figure.less_is_better else -1
    best = min(fit, key=lambda s: sign * (s.value or 0))
    word = "Least" if sweep.figure.less_is_better else "Most"
    value = sweep.figure.text(best.value or 0)
    return f"{word} of what fits: {value}, at {named(sweep.path, best.value_at)}."


def accelerators(every: bool) -> tuple[str, ...]:
    """Those with a list price, or every one."""
    return tuple(catalog.gpu_names() if every else catalog.priced_gpus())
