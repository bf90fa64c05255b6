"""Waterfalls."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure
from memcore.search.waterfall import Change
from memcore.units import GiB, bytes_text, seconds_text, signed_bytes, signed_seconds

LABEL = 34  # characters of a change's name beside a bar; hovering says all of it


def waterfall_bytes(
    changes: Sequence[Change], before: int, after: int, ends: tuple[str, str]
) -> go.Figure:
    """Allocated bytes at the peak, from one plan to another, by the changes that move them."""
    return _waterfall(
        [(c.label, c.bytes / GiB, signed_bytes(c.bytes)) for c in changes if c.bytes],
        (before / GiB, bytes_text(before)),
        (after / GiB, bytes_text(after), "memory.allocated_bytes"),
        "GiB allocated at the peak",
        ends,
    )


def waterfall_seconds(
    changes: Sequence[Change], before: float, after: float, ends: tuple[str, str]
) -> go.Figure:
    """Seconds of a step, from one plan to another, by the changes that move them."""
    return _waterfall(
        [(c.label, c.seconds, signed_seconds(c.seconds)) for c in changes if c.seconds],
        (before, seconds_text(before)),
        (after, seconds_text(after), "time.step_seconds"),
        "seconds of a step",
        ends,
    )


def _waterfall(
    changes: Sequence[tuple[str, float, str]],
    before: tuple[float, str],
    after: tuple[float, str, str],
    unit: str,
    names: tuple[str, str],
) -> go.Figure:
    """Bars that hang from one another: (label, value, text) each, between two whole ones."""
    ends = [before[0]]
    for _, value, _ in changes:
        ends.append(ends[-1] + value)
    numbered = [f"{i}. {_short(label)}" for i, (label, _, _) in enumerate(changes, 1)]
    traces = []
    for name, colour, sign in (("more", *palette.MORE), ("less", *palette.LESS)):
        chosen = [i for i, (_, value, _) in enumerate(changes) if sign * value > 0]
        traces.append(
            bar(
                name.capitalize(),
                colour,
                [changes[i][1] for i in chosen],
                [numbered[i] for i in chosen],
                [f"{changes[i][0]}: {changes[i][2]}" for i in chosen],
                [""] * len(chosen),
                base=[ends[i] for i in chosen],
                text=[changes[i][2] for i in chosen],
                textposition="outside",
                cliponaxis=False,
            )
        )
    wholes = [(names[0], *before, ""), (names[1], *after)]
    traces.append(
        bar(
            "Plan",
            palette.OVERHEAD[1],
            [value for _, value, _, _ in wholes],
            [label for label, _, _, _ in wholes],
            [f"{label}: {text}" for label, _, text, _ in wholes],
            [path for _, _, _, path in wholes],
            text=[text for _, _, text, _ in wholes],
            textposition="outside",
            cliponaxis=False,
        )
    )
    order = [names[0], *numbered, names[1]]
    return figure(
        traces,
        height=110 + 30 * len(order),
        barmode="overlay",
        xaxis={"title": unit, "range": [0, 1.22 * max(*ends, after[0])]},
        yaxis={"categoryorder": "array", "categoryarray": order, "autorange": "reversed"},
    )


def _short(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"
