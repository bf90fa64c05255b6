"""Waterfalls."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app import palette
from app.charts.base import SAYS, figure
from memcore.report import Report
from memcore.search.waterfall import Change
from memcore.units import GiB, bytes_text, seconds_text, signed_bytes, signed_seconds

LABEL = 34  # characters of a change's name beside a bar; hovering says all of it


def waterfall_bytes(
    changes: Sequence[Change], was: Report, now: Report, ends: tuple[str, str]
) -> go.Figure:
    """Allocated bytes at the peak, from one plan to another, by the changes that move them."""
    before, after = (r.memory.allocated_bytes if r.memory else 0 for r in (was, now))
    return _waterfall(
        [(c.label, c.bytes / GiB, signed_bytes(c.bytes)) for c in changes if c.bytes],
        (ends[0], before / GiB, bytes_text(before)),
        (ends[1], after / GiB, bytes_text(after)),
        "memory.allocated_bytes",
        "GiB allocated at the peak",
    )


def waterfall_seconds(
    changes: Sequence[Change], was: Report, now: Report, ends: tuple[str, str]
) -> go.Figure:
    """Seconds of a step, from one plan to another, by the changes that move them."""
    before, after = (r.time.step_seconds if r.time else 0.0 for r in (was, now))
    return _waterfall(
        [(c.label, c.seconds, signed_seconds(c.seconds)) for c in changes if c.seconds],
        (ends[0], before, seconds_text(before)),
        (ends[1], after, seconds_text(after)),
        "time.step_seconds",
        "seconds of a step",
    )


Step = tuple[str, float, str]  # of a waterfall: its name, its value, and that in words


def _waterfall(
    changes: Sequence[Step], before: Step, after: Step, path: str, title: str
) -> go.Figure:
    """Bars that hang from one another between two plans, of which the second is explained."""
    steps = [before, *changes, after]
    high = level = before[1]
    for _, value, _ in changes:
        level += value
        high = max(high, level)
    numbered = [f"{i}. {_short(label)}" for i, (label, _, _) in enumerate(changes, 1)]
    trace = go.Waterfall(
        orientation="h",
        measure=["absolute", *["relative"] * len(changes), "total"],
        x=[value for _, value, _ in steps],
        y=[before[0], *numbered, after[0]],
        text=[text for _, _, text in steps],
        textposition="outside",
        cliponaxis=False,
        customdata=[(f"{label}: {text}", "") for label, _, text in steps[:-1]]
        + [(f"{after[0]}: {after[2]}", path)],
        hovertemplate=SAYS,
        increasing={"marker": {"color": palette.MORE[0]}},
        decreasing={"marker": {"color": palette.LESS[0]}},
        totals={"marker": {"color": palette.OVERHEAD[1]}},
        connector={"line": {"color": palette.OVERHEAD[1], "width": 1}},
    )
    return figure(
        [trace],
        height=110 + 30 * len(steps),
        showlegend=False,  # signs and words say which is more and which less
        xaxis={"title": title, "range": [0, 1.22 * max(high, after[1])]},
        yaxis={"autorange": "reversed"},
    )


def _short(label: str) -> str:
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"
