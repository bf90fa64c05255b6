"""Heat: two fields against a number, as a table of cells, each of which is a plan.

Drawn by a small component, which changes in place. What does not fit is hatched, a thick line is
the frontier, and arrows lead from cell to cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app import exploring, palette
from app.exploring import Map, Spot
from app.text import VERDICTS

HERE = Path(__file__).parent

_component = st.components.v2.component(
    "memplan_heat",
    html='<div class="memplan-heat"></div>',
    css=(HERE / "heat.css").read_text(encoding="utf-8"),
    js=(HERE / "heat.js").read_text(encoding="utf-8"),
)


def draw(found: Map, own: tuple[Any, Any], key: str, take: Callable[[int], None]) -> None:
    """The map on the page; `take` is called with the number of the cell that was clicked."""
    _component(key=key, data=data(found, own), on_cell_change=lambda: _taken(key, take))


def _taken(key: str, take: Callable[[int], None]) -> None:
    said: Mapping[str, Any] | None = st.session_state.get(key)
    cell = (said or {}).get("cell")
    if isinstance(cell, int):
        take(cell)


def data(found: Map, own: tuple[Any, Any]) -> dict[str, Any]:
    """What the component draws. `own`: the plan's values, across and down."""
    spots = [s for row in found.spots for s in row]
    known = [s.value for s in spots if s.possible and s.value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    log = low > 0 and high / low > 20
    width = len(found.columns)
    cells = []
    for i, s in enumerate(spots):
        column, row = i % width, i // width
        right = spots[i + 1] if column < width - 1 else None
        below = spots[i + width] if row < len(found.rows) - 1 else None
        colour = palette.ramp(_share(s.value, low, high, log)) if s.possible else ""
        cells.append(
            {
                "text": _short(found, s),
                "said": said(found, s, found.columns[column], found.rows[row]),
                "verdict": s.verdict or "none",
                "colour": colour,
                "ink": palette.text_on(colour) if colour else "",
                "own": (found.columns[column], found.rows[row]) == own,
                "right": _frontier(s, right),
                "below": _frontier(s, below),
            }
        )
    of = found.figure
    key = [["", of.text(low), palette.ramp(0.0)], ["", of.text(high), palette.ramp(1.0)]]
    return {
        "title": of.title,
        "across": exploring.title(found.across),
        "down": exploring.title(found.down),
        "columns": [exploring.text(found.across, x) for x in found.columns],
        "rows": [exploring.text(found.down, y) for y in found.rows],
        "cells": cells,
        "key": [
            *(key if known else []),
            ["over", "does not fit", ""],
            ["frontier", "frontier of what fits", ""],
            ["own", "this plan", ""],
        ],
    }


def _share(value: float | None, low: float, high: float, log: bool) -> float:
    """How far from the least to the most."""
    if value is None or high <= low:
        return 0.0
    if log:
        return math.log(max(value, low) / low) / math.log(high / low)
    return (value - low) / (high - low)


def _frontier(one: Spot, other: Spot | None) -> bool:
    return bool(other and one.plan and other.plan and one.fits != other.fits)


def _short(found: Map, s: Spot) -> str:
    return "" if s.value is None else found.figure.text(s.value)


def said(found: Map, s: Spot, x: Any, y: Any) -> str:
    """All of a cell in words."""
    lines = [exploring.named(found.across, x), exploring.named(found.down, y)]
    if s.plan is None:
        return "\n".join([*lines, f"cannot be planned: {s.why_not}"])
    if s.value is not None:
        lines.append(f"{found.figure.title}: {found.figure.text(s.value)}")
    lines.append(VERDICTS.get(s.verdict, ""))
    return "\n".join(lines)


def rows(found: Map) -> Sequence[dict[str, Any]]:
    """The same as rows of a file."""
    return [
        {
            exploring.title(found.down): exploring.text(found.down, y),
            exploring.title(found.across): exploring.text(found.across, x),
            "verdict": VERDICTS.get(s.verdict, f"cannot be planned: {s.why_not}"),
            "number": found.figure.title,
            "value": s.value,
            "unit": "bytes" if found.figure.unit == "GiB" else found.figure.unit,
            "low_bytes": s.low if s.plan else None,
            "high_bytes": s.high if s.plan else None,
            "limit_bytes": s.limit if s.plan else None,
        }
        for y, line in zip(found.rows, found.spots, strict=True)
        for x, s in zip(found.columns, line, strict=True)
    ]
