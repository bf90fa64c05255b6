"""Chart of what a search found."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import figure, scatter
from memcore.plan.plan import Plan, change_texts
from memcore.search.result import Point, SearchResult
from memcore.units import money_text, seconds_text

MOST_SAID = 8  # changes that hovering names
HOURS = 3600


def found(of: SearchResult, here: Plan) -> go.Figure:
    """Time of the whole run against GPUs: the best, and the front that nothing beats. A click makes
    a point the plan; its number is as in the table."""
    every = of.points
    numbered = sorted(enumerate(every), key=lambda n: n[1][0].figures["gpus"])  # a line goes on
    groups = (  # the front last, so that nothing hides it
        ("Others of the best", "circle", palette.OVERHEAD[1],
         [(i, p) for i, (p, of_front) in numbered if not of_front]),
        ("Nothing beats it", "diamond", palette.OURS,
         [(i, p) for i, (p, of_front) in numbered if of_front]),
    )  # fmt: skip
    traces = [
        scatter(
            name=name,
            x=[p.figures["gpus"] for _, p in points],
            y=[p.figures["run_seconds"] / HOURS for _, p in points],
            mode="lines+markers" if symbol == "diamond" else "markers",
            line={"color": palette.OURS, "width": 1.5, "shape": "hv"},
            marker={
                "symbol": symbol,
                "size": [17 if p.plan == here else 12 for _, p in points],
                "color": colour,
                "opacity": 1,
                "line": {"width": 1.5, "color": "#ffffff"},
            },
            unselected={"marker": {"opacity": 1}},
            customdata=[[said(p), i] for i, p in points],
            hovertemplate="%{customdata[0]}<br>click: this plan<extra></extra>",
        )
        for name, symbol, colour, points in groups
        if points
    ]
    counts = sorted({p.figures["gpus"] for p, _ in every})
    slowest = max(p.figures["run_seconds"] for p, _ in every) / HOURS
    return figure(
        traces,
        height=320,
        xaxis={
            "title": "GPUs",
            "range": [0, 1.06 * counts[-1]],
            "tickvals": counts,
        },
        yaxis={"title": "hours of the whole run", "range": [0, 1.1 * slowest]},
    )


def said(p: Point) -> str:
    """What hovering over a plan says."""
    f = p.figures
    lines = [
        f"<b>{f['gpus']:,} GPUs, {seconds_text(f['run_seconds'])}</b>",
        f"{seconds_text(f['step_seconds'])} a step",
    ]
    if "cost" in f:
        lines.append(f"{money_text(f['cost'])} for the run")
    changes = change_texts({c: v for c, v in p.changes.items() if c != "model"}, ":")
    more = len(changes) - MOST_SAID
    return "<br>".join([*lines, *changes[:MOST_SAID], *([f"and {more} more"] if more > 0 else [])])
