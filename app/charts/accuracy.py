"""Charts of the page Accuracy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import figure
from app.charts.time import literal
from app.tables.accuracy import COUNTS, WHAT, compared_path, figure_text
from memcore import evidence
from memcore.units import GiB, bytes_text, relative_text

SOURCES = dict(zip(evidence.SOURCES, palette.SOURCE_COLOURS, strict=False))
SPREAD = 0.7  # of a band's height, over which its points are spread so that none hides another
OUTLIERS = 0.004  # share of the points that may lie outside the part of the axis that is shown
GROUPS = {  # what a band can stand for
    "what": "What is compared",
    "model": "Model",
    "family": "Family",
    "source": "Source",
}


def _band(row: evidence.Comparison, by: str) -> str:
    """The band of the chart that a comparison is in."""
    if by == "model" and row.source == evidence.COUNTED:
        return "all presets"  # one row each
    if by == "model" and row.what == "figure":
        return "published figures"
    if by == "what":
        return WHAT.get(row.what, row.what)
    return getattr(row, by) or "no family"


def _bands(rows: Sequence[evidence.Comparison], by: str) -> dict[str, list[evidence.Comparison]]:
    """Rows in bands: the band with the worst first, and in it the worst on top."""
    found: dict[str, list[evidence.Comparison]] = {}
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        found.setdefault(_band(row, by), []).append(row)
    return found


def bands(rows: Sequence[evidence.Comparison], by: str = "what") -> int:
    """How many bands the rows make."""
    return len(_bands(rows, by))


def residuals(
    rows: Sequence[evidence.Comparison], by: str = "what", most: int | None = None
) -> go.Figure:
    """How far each figure of ours is from theirs, in percent, in the first `most` bands or in all.
    What a constant was tuned on has marks of its own."""
    bands = dict(itertools.islice(_bands(rows, by).items(), most))
    rows = [row for members in bands.values() for row in members]
    places: dict[tuple[str, str], list[tuple[evidence.Comparison, float]]] = {}
    for band, members in enumerate(bands.values()):
        for i, row in enumerate(members):
            place = band + SPREAD * ((i + 0.5) / len(members) - 0.5)
            places.setdefault((row.source, row.used_for), []).append((row, place))
    traces = [
        go.Scatter(
            name=source if used_for == evidence.CHECK else f"{source} ({used_for})",
            x=[100 * row.error for row, _ in found],
            y=[place for _, place in found],
            mode="markers",
            marker={
                "symbol": "circle" if used_for == evidence.CHECK else "x",
                "size": 6,
                "color": SOURCES[source],
            },
            customdata=[(_compared(row), compared_path(row)) for row, _ in found],
            hovertemplate="%{customdata[0]}<extra></extra>",
            unselected={"marker": {"opacity": 1}},
        )
        for (source, used_for), found in sorted(places.items(), key=_legend_order)
    ]
    near, far = _near_and_far([100 * row.error for row in rows])
    return figure(
        traces,
        height=120 + 32 * len(bands),
        xaxis={
            "range": near,
            "title": "off the reference, % of it" + far,
            "ticksuffix": "%",
            "zeroline": True,
            "zerolinecolor": palette.OVERHEAD[1],
        },
        yaxis={
            "tickvals": list(range(len(bands))),
            "ticktext": [f"{literal(band)} ({len(members)})" for band, members in bands.items()],
            "range": [len(bands) - 0.5, -0.5],
            "zeroline": False,
        },
    )


def _near_and_far(errors: Sequence[float]) -> tuple[list[float], str]:
    """The part of the axis that holds all but a few outliers, and a word about those. They would
    squeeze everything else together; the table has them first, and a double click shows all."""
    kept = sorted(errors, key=abs)[: math.ceil((1 - OUTLIERS) * len(errors))] or [0.0]
    room = 0.1 * (max(kept) - min(kept)) + 0.01
    outside = [e for e in errors if not min(kept) - room <= e <= max(kept) + room]
    if not outside:
        return [min(kept) - room, max(kept) + room], ""
    worst = max(outside, key=abs)
    more = f"<br>{len(outside)} further out, up to {worst:+.0f}%"
    return [min(kept) - room, max(kept) + room], more


def _legend_order(item: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    (source, used_for), _ = item
    return evidence.SOURCES.index(source), used_for


def _compared(row: evidence.Comparison) -> str:
    """A comparison in words."""
    words = [
        row.regime,
        f"{row.attention} attention" if row.attention else "",
        f"checkpointing {row.checkpointing}" if row.checkpointing else "",
    ]
    shape = [
        f"{row.batch:,} × {row.seq_len:,} tokens" if row.batch else "",
        f"{row.layers:,} layers" if row.layers else "",
        f"{row.gpus:,} GPUs" if row.gpus else "",
    ]
    details = [", ".join(filter(None, line)) for line in (words, shape)]
    return "<br>".join(
        filter(
            None,
            (
                f"<b>{literal(row.model)}</b>: {row.what}",
                *details,
                f"{row.source}: {figure_text(row.theirs)} {row.unit}",
                f"Memplan: {figure_text(row.ours)} {row.unit} ({row.error:+.4%})",
                f"used for: {row.used_for}",
            ),
        )
    )


TRACKER_ROW, OUR_ROW = "PyTorch's tracker", "Memplan"
COUNTED_SYMBOLS = {  # by what a calculator counts
    evidence.STATES: "circle-open",
    evidence.STEP: "circle",
    evidence.DEVICE: "square",
}
LEAST_ROWS = 8  # so that charts beside each other are equally high


def calculators(worked: evidence.Worked) -> go.Figure:
    """What each calculator says of one plan, the most first, under PyTorch's figure and ours.

    A thin line leads from each mark to Memplan's figure for what that calculator counts.
    """
    colour, names = palette.OVERHEAD[1], [s.calculator.name for s in worked.said]
    sizes = [worked.tracker, worked.ours, *(s.theirs for s in worked.said)]
    order = [TRACKER_ROW, OUR_ROW, *names]
    reach = 1.35 * max(sizes) / GiB  # room for the column of sizes
    apart: list[float | None] = []
    rows: list[str | None] = []
    for said in worked.said:
        apart += [said.ours / GiB, said.theirs / GiB, None]
        rows += [said.calculator.name, said.calculator.name, None]
    traces = [
        go.Scatter(
            x=apart, y=rows, mode="lines", line={"color": colour, "width": 1}, hoverinfo="skip"
        ),
        go.Scatter(
            x=[s.ours / GiB for s in worked.said],
            y=names,
            mode="markers",
            marker={"symbol": "line-ns", "size": 9, "line": {"width": 2, "color": palette.OURS}},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[size / GiB for size in sizes],
            y=order,
            mode="markers",
            marker={
                "symbol": ["diamond"] * 2
                + [COUNTED_SYMBOLS[s.calculator.counts] for s in worked.said],
                "size": 9,
                "color": [SOURCES[evidence.TRACKER], palette.OURS] + [colour] * len(names),
            },
            customdata=[
                *(f"{row}: {size:,} bytes" for row, size in zip(order[:2], sizes, strict=False)),
                *map(_of_calculator, worked.said),
            ],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        go.Scatter(
            x=[reach] * len(order),
            y=order,
            mode="text",
            text=[bytes_text(size) for size in sizes],
            textposition="middle left",
            hoverinfo="skip",
        ),
    ]
    high = max(LEAST_ROWS, len(order))
    return figure(
        traces,
        height=60 + 22 * high,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        showlegend=False,  # each row is named
        xaxis={"title": "GiB per GPU", "range": [0, reach]},
        yaxis={
            "categoryorder": "array",
            "categoryarray": order,
            "range": [high - 0.5, -0.5],
            "showgrid": False,
        },
    )


def _of_calculator(said: evidence.Said) -> str:
    by = said.calculator
    return (
        f"<b>{literal(by.name)}</b>, {COUNTS[by.counts]}: {bytes_text(said.theirs)}<br>"
        f"Memplan for the same: {bytes_text(said.ours)} ({relative_text(said.excess, 0)})"
    )
