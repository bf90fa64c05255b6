"""Charts: pure functions from a Report to a Plotly figure.

Heights are fixed and colours are explicit; a figure depends on nothing but what it shows, so that a
chart that has not changed is not drawn again. Every value is also in the hover text, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette

Trace = dict[str, Any]


def figure(traces: Sequence[Any], height: int, **layout: Any) -> go.Figure:
    """A chart of this height in pixels. A drag scrolls the page; the bar of tools zooms."""
    return go.Figure(
        list(traces),
        {
            "height": height,
            "margin": {"l": 8, "r": 16, "t": 40, "b": 8},
            "barmode": "stack",
            "bargap": 0.3,
            "dragmode": False,
            "hovermode": "closest",
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "traceorder": "normal",
            },
            **layout,
        },
    )


def bar(
    name: str,
    colour: str,
    values: Sequence[float | None],
    labels: Sequence[str],
    texts: Sequence[str],
    paths: Sequence[str],
    **more: Any,
) -> Trace:
    """One horizontal series; `texts` is what hovering says about each value, and `paths` where it
    is in the Report, which a click explains."""
    # There is nothing to explain where there is no bar.
    paths = [path if value else "" for path, value in zip(paths, values, strict=True)]
    marker = {"color": colour, "line": {"width": 0}, "opacity": 1, **more.pop("marker", {})}
    return dict(
        type="bar",
        name=name,
        x=list(values),
        y=list(labels),
        orientation="h",
        marker=marker,
        customdata=list(zip(texts, paths, strict=True)),
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": marker["opacity"]}},  # a click pales no other
        **more,
    )


def scatter(**more: Any) -> Trace:
    """A line, marks, or both."""
    return {"type": "scatter", **more}


def phase_bar(
    part: str,
    values: Sequence[float | None],
    labels: Sequence[str],
    texts: Sequence[str],
    paths: Sequence[str],
) -> Trace:
    """A part of a step, in its colour and its pattern."""
    pattern = {
        "shape": palette.PHASE_PATTERNS[part],
        "fillmode": "overlay",
        "fgcolor": "rgba(255, 255, 255, 0.6)",
        "size": 7,
        "solidity": 0.2,
    }
    return bar(
        palette.phase(part),
        palette.PHASE_COLOURS[part],
        values,
        labels,
        texts,
        paths,
        marker={"pattern": pattern},
    )
