"""Chart of what a search found."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import figure, points
from memcore.plan.plan import Plan, change_texts
from memcore.search.result import Point, SearchResult
from memcore.units import money_text, seconds_text

MOST_SAID = 8  # changes that hovering names
HOURS = 3600


def search_results(of: SearchResult, here: Plan) -> go.Figure:
    """Time of the whole run against GPUs: the best, and the front that nothing beats. A click makes
    a point the plan; its number is as in the table."""
    numbered = sorted(enumerate(of.points), key=lambda n: n[1][0].figures["gpus"])  # a line goes on
    traces = []
    for name, symbol, mode, colour, front in (  # the front last, so that nothing hides it
        ("Others of the best", "circle", "markers", palette.OVERHEAD[1], False),
        ("Nothing beats it", "diamond", "lines+markers", palette.OURS, True),
    ):
        mine = [(i, p) for i, (p, of_front) in numbered if of_front == front]
        rows = [
            (p.figures["gpus"], p.figures["run_seconds"] / HOURS, _hover(p), i) for i, p in mine
        ]
        marker = {
            "symbol": symbol,
            "size": [17 if p.plan == here else 12 for _, p in mine],
            "line": {"width": 1.5, "color": "#ffffff"},
        }
        if mine:
            traces.append(points(name, rows, colour, mode, marker=marker))
            traces[-1]["line"]["shape"] = "hv"
    counts = sorted({p.figures["gpus"] for p, _ in of.points})
    slowest = max(p.figures["run_seconds"] for p, _ in of.points) / HOURS
    return figure(
        traces,
        height=320,
        xaxis={"title": "GPUs", "range": [0, 1.06 * counts[-1]], "tickvals": counts},
        yaxis={"title": "hours of the whole run", "range": [0, 1.1 * slowest]},
    )


def _hover(p: Point) -> str:
    """What hovering over a plan says."""
    f = p.figures
    lines = [
        f"<b>{f['gpus']:,} GPUs, {seconds_text(f['run_seconds'])}</b>",
        f"{seconds_text(f['step_seconds'])} a step",
    ]
    if "cost" in f:
        lines.append(f"{money_text(f['cost'])} for the run")
    changes = change_texts({c: v for c, v in p.changes.items() if c != "model"}, ":")
    more = [f"and {len(changes) - MOST_SAID} more"] if len(changes) > MOST_SAID else []
    return "<br>".join([*lines, *changes[:MOST_SAID], *more, "click: this plan"])
