"""The chart of the page Accuracy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import figure, literal, points
from app.tables.accuracy import compared_path, figure_text
from memcore.evidence.comparison import CHECK, SOURCES, Comparison

COLOURS = dict(zip(SOURCES, palette.SOURCE_COLOURS, strict=False))
SPREAD = 0.7  # of a band's height, over which its points are spread so that none hides another
OUTLIERS = 0.004  # share of the points that may lie outside the part of the axis that is shown


def _bands(rows: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Rows by what is compared: the band with the worst first, and in it the worst on top."""
    bands: dict[str, list[Comparison]] = {}
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        bands.setdefault(row.kind, []).append(row)
    return bands


def residuals(rows: Sequence[Comparison], most: int | None = None) -> go.Figure:
    """How far each figure of ours is from theirs, in percent, in the first `most` bands or in all.
    What a constant was tuned on has marks of its own."""
    bands = dict(itertools.islice(_bands(rows).items(), most))
    spread: dict[tuple[str, str], list[tuple[Comparison, float]]] = {}
    for band, members in enumerate(bands.values()):
        for i, row in enumerate(members):
            height = band + SPREAD * ((i + 0.5) / len(members) - 0.5)
            spread.setdefault((row.source, row.used_for), []).append((row, height))
    traces = [
        points(
            source if used_for == CHECK else f"{source} ({used_for})",
            [
                (100 * row.error, height, _compared(row), compared_path(row))
                for row, height in marks
            ],
            COLOURS[source],
            marker={"symbol": "circle" if used_for == CHECK else "x", "size": 6},
        )
        for (source, used_for), marks in sorted(spread.items(), key=_legend_order)
    ]
    near, far = _near_and_far([100 * row.error for rows in bands.values() for row in rows])
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
    near = sorted(errors, key=abs)[: math.ceil((1 - OUTLIERS) * len(errors))] or [0.0]
    room = 0.1 * (max(near) - min(near)) + 0.01
    ends = [min(near) - room, max(near) + room]
    outside = [e for e in errors if not ends[0] <= e <= ends[1]]
    if not outside:
        return ends, ""
    worst = max(outside, key=abs)
    return ends, f"<br>{len(outside)} further out, up to {worst:+.0f}%"


def _legend_order(item: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    (source, used_for), _ = item
    return SOURCES.index(source), used_for


def _compared(row: Comparison) -> str:
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
    lines = [
        f"<b>{literal(row.model)}</b>: {row.what}",
        *(", ".join(filter(None, line)) for line in (words, shape)),
        f"{row.source}: {figure_text(row.theirs)} {row.unit}",
        f"Memplan: {figure_text(row.ours)} {row.unit} ({row.error:+.4%})",
        f"used for: {row.used_for}",
    ]
    return "<br>".join(filter(None, lines))
