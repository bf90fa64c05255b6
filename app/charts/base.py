"""Charts: pure functions from a Report to a Plotly figure.

Heights are fixed and colours are explicit; a figure depends on nothing but what it shows, so that a
chart that has not changed is not drawn again. Every value is also in the hover text, exactly; what
stands behind a mark is a path in the Report, which a click explains, or what the click makes of the
plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

from app import palette
from memcore.units import GiB, bytes_text, seconds_text

Trace = dict[str, Any]
Rule = tuple[dict[str, Any], dict[str, Any]]  # a line across a chart, and its words

HATCHED = {"shape": "/", "fillmode": "replace", "size": 6}  # what may be there and may not
SAYS = "%{customdata[0]}<extra></extra>"
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom",
          "traceorder": "normal"}  # fmt: skip
FEW = 4  # rows of bars that may be thick


def figure(
    traces: Iterable[Any],
    height: int,
    rules: Sequence[Rule] = (),
    annotations: Sequence[dict[str, Any]] = (),
    shapes: Sequence[dict[str, Any]] = (),
    **layout: Any,
) -> go.Figure:
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
            "uniformtext": {"mode": "hide", "minsize": 11},  # no words where they have no room
            "legend": LEGEND,
            "shapes": [*shapes, *(shape for shape, _ in rules)],
            "annotations": [*annotations, *(words for _, words in rules if words["text"])],
            **layout,
        },
    )  # fmt: skip


def note(text: str, x: Any, y: Any, xanchor: str, yanchor: str = "middle", **more: Any) -> Trace:
    """Words in a chart."""
    place = {"x": x, "y": y, "xanchor": xanchor, "yanchor": yanchor}
    return {"text": text, "showarrow": False, **place, **more}


def rule(
    axis: str,
    at: float,
    text: str = "",
    colour: str = palette.CAPACITY,
    dash: str = "dash",
    to: float = 1,
    **words: Any,
) -> Rule:
    """A line at a value of one axis, through the whole chart or up to a part of its height, and
    words at its end: that at a memory's size, or at the plan's own value."""
    other = "y" if axis == "x" else "x"
    line = {"color": colour, "width": 2, "dash": dash}
    shape = {"type": "line", f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": to,
             f"{other}ref": "paper", "line": line}  # fmt: skip
    place: dict[str, Any] = (
        {"x": at, "y": to, "yref": "paper", "xanchor": "right", "yanchor": "top", "xshift": -4}
        if axis == "x"
        else {"x": 0, "xref": "paper", "y": at, "xanchor": "left", "yanchor": "bottom", "xshift": 4}
    )
    font = {"font": {"color": colour}} if colour == palette.CAPACITY else {}
    return shape, note(**{"text": text, **place, **font, **words})


def capacity(bytes_: int, word: str = "Capacity", axis: str = "x") -> Rule:
    """The line at a memory's size."""
    return rule(axis, bytes_ / GiB, f"{word} {bytes_text(bytes_)}")


# --- bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """What bars of one colour are: an entry of the legend."""

    name: str
    colour: str
    pattern: Mapping[str, Any] | None = None
    opacity: float = 1

    def trace(self, **more: Any) -> Trace:
        marker = {"color": self.colour, "line": {"width": 0}, "opacity": self.opacity}
        return {
            "type": "bar",
            "name": self.name,
            "orientation": "h",
            "marker": marker | ({"pattern": self.pattern} if self.pattern else {}),
            "hovertemplate": SAYS,
            "unselected": {"marker": {"opacity": self.opacity}},  # a click pales no other
            "insidetextanchor": "middle",
            "insidetextfont": {"color": palette.text_on(self.colour)},
            "textangle": 0,
            "cliponaxis": False,
            **more,
        }


class Mark(NamedTuple):
    """A bar of a series in a row: how long, what hovering says, what a click explains, and what
    stands in it."""

    row: Any
    series: Series
    value: float
    hover: str
    behind: Any = ""
    text: str = ""


def of_phase(part: str) -> Series:
    """A part of a step, in its colour and its pattern."""
    pattern = {
        "shape": palette.PHASE_PATTERNS[part],
        "fillmode": "overlay",
        "fgcolor": "rgba(255, 255, 255, 0.6)",
        "size": 7,
        "solidity": 0.2,
    }
    return Series(palette.phase(part), palette.PHASE_COLOURS[part], pattern)


def of_bytes(row: str, series: Series, size: int, path: str, more: str = "") -> Mark:
    """Bytes as a bar of GiB."""
    return Mark(row, series, size / GiB, f"{series.name}: {bytes_text(size)}{more}", path)


def of_seconds(row: str, part: str, seconds: float, path: str, before: str = "") -> Mark:
    """Seconds of a part of a step as a bar."""
    series = of_phase(part)
    text = f"{before}{series.name}: {seconds_text(seconds)}"
    return Mark(row, series, seconds, text, path)


def bars(marks: Iterable[Mark], **more: Any) -> list[Trace]:
    """Marks as traces, a series each, in the order in which they come; nothing is drawn of 0."""
    traces: dict[str, list[Mark]] = {}
    for mark in marks:
        if mark.value:
            traces.setdefault(mark.series.name, []).append(mark)
    return [
        mine[0].series.trace(
            x=[m.value for m in mine],
            y=[m.row for m in mine],
            text=[m.text for m in mine],
            customdata=[(m.hover, m.behind) for m in mine],
            **{"textposition": "inside" if mine[0].text else "none"} | more,
        )
        for mine in traces.values()
    ]


def stacked(
    marks: Iterable[Mark],
    rows: Sequence[str],
    title: str,
    limit: Rule | None = None,
    ends: Mapping[str, tuple[float, str]] | None = None,
    reach: float | None = None,
    **layout: Any,
) -> go.Figure:
    """Bars of several series on one another, a row each from the top: the one form of all charts of
    parts. `limit`: the line that they must not cross; `ends`: words at the end of each row's bar;
    `reach`: where the axis ends, if not behind the longest."""
    n = max(1, len(rows))
    return figure(
        bars(marks),
        **{
            "height": 105 + (38 if n <= FEW else 25) * n,
            "rules": [limit] if limit else [],
            "annotations": [
                note(text, x, row, "left", xshift=4) for row, (x, text) in (ends or {}).items()
            ],
            "xaxis": {"title": title, **({"range": [0, reach]} if reach else {})},
            "yaxis": {
                "categoryorder": "array",
                "categoryarray": list(rows),
                "range": [n - 0.5, -0.9 if limit else -0.5],  # room for the line's words
            },
            **layout,
        },
    )


# --- points, lines and areas ---------------------------------------------------------------------


def points(
    name: str,
    rows: Iterable[tuple[Any, Any, str, Any]],
    colour: str,
    mode: str = "markers",
    dash: str = "solid",
    marker: Mapping[str, Any] | None = None,
    **more: Any,
) -> Trace:
    """Marks, or a line through them: x, y, what hovering says, and what stands behind each."""
    every = list(rows)
    size = 5 if "lines" in mode else 11
    opacity = (marker or {}).get("opacity", 1)
    return {
        "type": "scatter",
        "name": name,
        "x": [x for x, *_ in every],
        "y": [y for _, y, *_ in every],
        "mode": mode,
        "marker": {"color": colour, "size": size, "opacity": opacity, **(marker or {})},
        "line": {"color": colour, "width": 2, "dash": dash},
        "customdata": [(text, behind) for *_, text, behind in every],
        "hovertemplate": SAYS,
        "unselected": {"marker": {"opacity": opacity}},
        **more,
    }


def area(series: Series, xs: Sequence[Any], ys: Sequence[float], **more: Any) -> Trace:
    """A part of a whole along an axis, on the parts before it."""
    pattern = {**series.pattern, "fgcolor": series.colour} if series.pattern else None
    return {
        "type": "scatter",
        "name": series.name,
        "x": list(xs),
        "y": list(ys),
        "stackgroup": "whole",
        "mode": "lines",
        "line": {"width": 0, "color": series.colour},
        "fillcolor": series.colour,
        "fillpattern": pattern,
        "hoverinfo": "skip",
        **more,
    }


def literal(text: str) -> str:
    """Text that came from outside, so that Plotly does not read its tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
