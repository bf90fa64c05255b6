"""Charts of the page Compare."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app import palette
from app.charts.base import figure, phase_bar
from memcore.report import Time
from memcore.units import seconds_text


def compared_phases(times: Sequence[tuple[str, Time]]) -> go.Figure:
    """Seconds of a step by phase, plan under plan on one axis. A mark's path begins with the number
    of its plan."""
    names = [name for name, _ in times]
    traces = [
        phase_bar(
            part,
            [t.phases.get(part, 0) for _, t in times],
            names,
            [
                f"{name}<br>{palette.phase(part)}: {seconds_text(t.phases.get(part, 0))}"
                for name, t in times
            ],
            [f"{i}|time.phases.{part}" for i in range(len(times))],
        )
        for part in palette.PHASE_COLOURS
        if any(t.phases.get(part) for _, t in times)
    ]
    most = max(sum(t.phases.values()) for _, t in times)
    return figure(
        traces,
        height=125 + 34 * len(times),
        xaxis={"title": "seconds of a step", "range": [0, 1.2 * most]},
        yaxis={"autorange": "reversed"},
        annotations=[
            {
                "x": sum(t.phases.values()),
                "y": name,
                "text": seconds_text(t.step_seconds),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
            }
            for name, t in times
        ],
    )
