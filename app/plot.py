"""Plot: a chart of a page as SVG, from the figure that says in Plotly's words what is in it.

Plotly in a browser makes a chart anew at every change of its figure, which takes about 55 ms each.
What a change of the plan changes is drawn by this small component instead: bars that lie, lines,
areas, marks, outlines and words. Everything is placed here, in shares of the plot's width and
height; the browser knows only how many pixels these are.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app import parts, picture, why
from app.charts.base import Picture
from app.text import times
from memcore.plan.plan import Plan

TICKS = {"x": 8, "y": 6}  # on an axis, at most about so many

Spec = Mapping[str, Any]

_component = st.components.v2.component(
    "memplan_plot",
    html='<div class="memplan-plot"><div class="picture" role="group" tabindex="0">'
    '<svg aria-hidden="true"></svg><div class="said" role="status" hidden></div></div>'
    '<button class="save" type="button">Save image</button></div>',
    css=picture.source("plot.css"),
    js=picture.source("plot.js"),
)


def chart(
    figure: Picture,
    key: str,
    alt: str,
    of: Sequence[Plan] = (),
    take: Callable[[Any], None] | None = None,
    narrow: Picture | None = None,
) -> None:
    """The figure on the page. A click on what has a number says why it is so, or does with what
    the mark stands for what `take` says. `of`: the plans that it is of, where it is not the
    page's. `narrow`: the same for a phone."""
    name = f"plot_{key}"

    def taken() -> None:
        said = (st.session_state.get(name) or {}).get("taken")
        if said is None:
            return
        if take:
            take(said)
        else:
            number, _, path = str(said).rpartition("|")
            why.opened(path, of[int(number or 0)] if of else None)

    more = {
        "narrow": data(narrow) if narrow else None,
        "alt": alt,
        "file": parts.named(f"memplan-{key}"),
        "title": "" if of else f"{parts.title()}: {alt[:1].lower()}{alt[1:]}",
        "format": st.session_state.get("image_format") or "png",
    }
    _component(key=name, data=data(figure) | more, on_taken_change=taken)


# --- axes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values are: `low` at 0, `high` at 1; of names, each has its number."""

    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    def at(self, value: Any) -> float:
        """The share of the axis at which a value is."""
        if isinstance(value, str) and self.names:
            value = self.names.index(value)
        number = math.log10(max(value, 1e-300)) if self.log else value
        return self.coordinate(number)

    def coordinate(self, number: float) -> float:
        """The same of a logarithm, where the axis is logarithmic."""
        return float((number - self.low) / ((self.high - self.low) or 1))


def _axis(spec: Spec, values: Sequence[Any]) -> Axis:
    """What Plotly would make of an axis that has these values."""
    log, backwards = spec.get("type") == "log", spec.get("autorange") == "reversed"
    names = tuple(dict.fromkeys(v for v in values if isinstance(v, str)))
    if names:
        order = spec.get("categoryarray") or ()
        names = (*(n for n in order if n in names), *(n for n in names if n not in order))
        low, high = spec.get("range") or (-0.5, len(names) - 0.5)
    elif given := spec.get("range"):
        low, high = given
    else:
        known = [v for v in values if v is not None and (v > 0 or not log)] or [1.0]
        if log:
            low, high = math.log10(min(known)), math.log10(max(known))
            low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)
        else:
            low = min(0.0, *known) if spec.get("rangemode") == "tozero" else min(known)
            high = max(known) + 0.05 * (max(known) - low or 1)
    return Axis(*((high, low) if backwards else (low, high)), log, names)


def _ticks(spec: Spec, axis: Axis, most: int) -> list[tuple[float, str]]:
    """Where an axis has words, and which."""
    if spec.get("visible") is False or spec.get("showticklabels") is False:
        return []
    if axis.names:
        return [(axis.at(name), html.unescape(_bare(name))) for name in axis.names]
    if (at := spec.get("tickvals")) is not None:
        words = spec.get("ticktext") or [f"{v:,}" for v in at]
        found = [(axis.at(v), str(w)) for v, w in zip(at, words, strict=True)]
    elif axis.log:
        decades = range(math.ceil(axis.low), math.floor(axis.high) + 1)
        found = [(axis.coordinate(n), f"{10.0**n:,.15g}") for n in decades]
    else:
        share = str(spec.get("tickformat") or "").endswith("%")
        low, high = sorted((axis.low, axis.high))
        found = [(axis.at(v), f"{v:.0%}" if share else f"{v:,.15g}") for v in nice(low, high, most)]
    return [(at, words) for at, words in found if -1e-9 <= at <= 1 + 1e-9]


def nice(low: float, high: float, most: int) -> list[float]:
    """Round numbers from one to another: at most so many, 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        return [low]
    ten = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(n * ten for n in (1, 2, 5, 10) if (high - low) / (n * ten) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


# --- what is drawn -------------------------------------------------------------------------------


def data(figure: Picture) -> dict[str, Any]:
    """What the component draws."""
    layout, traces = figure.layout, figure.data
    xs, ys = layout.get("xaxis") or {}, layout.get("yaxis") or {}
    others = [x for t in traces if not _is_bar(t) for x in _of(t, "x")]
    labels = [y for t in traces if _is_bar(t) for y in _of(t, "y")]
    across = _axis(xs, [*_ends(traces), *others])
    up = _axis(ys, [*labels, *_tops(traces)])
    bars = _bars(traces, layout, across, up)
    return {
        "height": layout["height"],
        "across": {"title": _words(xs), "ticks": _ticks(xs, across, TICKS["x"]),
                   "grid": not across.names},
        "up": {"title": _words(ys), "ticks": _ticks(ys, up, TICKS["y"]), "grid": not up.names},
        "hidden": xs.get("visible") is False,
        "legend": [] if layout.get("showlegend") is False else _legend(traces),
        "bars": sorted(bars, key=lambda b: (-round(b["y"][0], 6), b["x"][0])),
        "areas": _areas(traces, across, up),
        "lines": [_line(t, across, up) for t in traces if _drawn_as(t, "lines")],
        "marks": [m for t in traces if not _is_bar(t) for m in _marks(t, across, up)],
        "shapes": [_shape(s, across, up) for s in layout.get("shapes") or ()],
        "notes": [_note(n, across, up) for n in layout.get("annotations") or ()],
    }  # fmt: skip


def _is_bar(trace: Spec) -> bool:
    return bool(trace["type"] == "bar")


def _of(trace: Spec, name: str) -> list[Any]:
    return [v for v in trace.get(name) or () if v is not None]


def _drawn_as(trace: Spec, how: str) -> bool:
    stacked = "stackgroup" in trace
    return not _is_bar(trace) and how in trace.get("mode", "") and not stacked


def _ends(traces: Sequence[Spec]) -> list[float]:
    """How far bars reach that lie one behind the other."""
    totals: dict[Any, float] = {}
    found = []
    for t in filter(_is_bar, traces):
        bases = t.get("base") or [None] * len(t["x"])
        for label, value, base in zip(t["y"], t["x"], bases, strict=True):
            start = totals.get(label, 0.0) if base is None else base
            totals[label] = start + (value or 0.0)
            found += [start, totals[label]]
    return found


def _tops(traces: Sequence[Spec]) -> list[Any]:
    """How high lines and stacked areas reach."""
    sums: dict[Any, float] = {}
    for t in traces:
        if "stackgroup" in t:
            for x, y in zip(t["x"], t["y"], strict=True):
                sums[x] = sums.get(x, 0.0) + y
    alone = [t for t in traces if not _is_bar(t) and "stackgroup" not in t]
    return [*sums.values(), *(y for t in alone for y in _of(t, "y"))]


def _bars(traces: Sequence[Spec], layout: Spec, across: Axis, up: Axis) -> list[dict[str, Any]]:
    totals: dict[Any, float] = {}
    found = []
    stacked = layout.get("barmode") == "stack"
    for t in filter(_is_bar, traces):
        marker, half = t.get("marker") or {}, t.get("width", 1 - layout.get("bargap", 0.2)) / 2
        values = zip(
            t["x"],
            t["y"],
            t.get("base") or itertools.repeat(None),
            t.get("customdata") or itertools.repeat(None),
            t.get("text") or itertools.repeat(""),
            strict=False,
        )
        for value, label, base, custom, text in values:
            if not value:
                continue
            start = base if base is not None else totals.get(label, 0.0) if stacked else 0.0
            totals[label] = start + value
            middle = up.names.index(label) if isinstance(label, str) else label
            low, high = sorted(map(up.coordinate, (middle - half, middle + half)))
            found.append(
                {
                    "x": [_near(v) for v in sorted((across.at(start), across.at(start + value)))],
                    "y": [_near(low), _near(high)],
                    "fill": marker.get("color"),
                    "opacity": marker.get("opacity", 1),
                    "pattern": _pattern(marker.get("pattern")),
                    "text": text,
                    "outside": t.get("textposition") == "outside",
                    "ink": (t.get("insidetextfont") or {}).get("color", ""),
                    **_said(t, custom),
                }
            )
    return found


def _areas(traces: Sequence[Spec], across: Axis, up: Axis) -> list[dict[str, Any]]:
    under: dict[Any, float] = {}
    found = []
    for t in traces:
        if "stackgroup" not in t:
            continue
        below = [under.get(x, 0.0) for x in t["x"]]
        above = [low + y for low, y in zip(below, t["y"], strict=True)]
        under = dict(zip(t["x"], above, strict=True))
        there = [*zip(t["x"], above, strict=True)]
        back = [*zip(t["x"], below, strict=True)][::-1]
        found.append(
            {
                "fill": t.get("fillcolor"),
                "pattern": _pattern(t.get("fillpattern")),
                "at": [[_near(across.at(x)), _near(up.at(y))] for x, y in (*there, *back)],
            }
        )
    return found


def _line(trace: Spec, across: Axis, up: Axis) -> dict[str, Any]:
    line = trace.get("line") or {}
    at = [
        [_near(across.at(x)), _near(up.at(y))]
        for x, y in zip(trace["x"], trace["y"], strict=True)
        if x is not None and y is not None
    ]
    if line.get("shape") == "hv":
        at = [at[0], *(p for one, two in itertools.pairwise(at) for p in ([two[0], one[1]], two))]
    return {"at": at, **_stroke(line)}


def _marks(trace: Spec, across: Axis, up: Axis) -> list[dict[str, Any]]:
    """The points of a trace: those of a line that has no marks can be pointed at, too."""
    shown, marker = "markers" in trace.get("mode", ""), trace.get("marker") or {}
    customs, template = trace.get("customdata"), trace.get("hovertemplate")
    if "stackgroup" in trace or (not shown and not customs and not template):
        return []
    sizes = marker.get("size", 8)
    symbol = str(marker.get("symbol", "circle")) if shown else ""
    points = zip(trace["x"], trace["y"], customs or itertools.repeat(None), strict=False)
    return [
        {
            "at": [_near(across.at(x)), _near(up.at(y))],
            "symbol": symbol,
            "size": sizes[i] if isinstance(sizes, list | tuple) else sizes,
            "fill": marker.get("color") or (trace.get("line") or {}).get("color"),
            **_said(trace, custom),
        }
        for i, (x, y, custom) in enumerate(points)
        if x is not None and y is not None
    ]


def _said(trace: Spec, custom: Any) -> dict[str, Any]:
    """What pointing at a mark says, and what a press gives: a path of the Report, or a value."""
    several = isinstance(custom, list | tuple)
    template = trace.get("hovertemplate") or ""
    if trace.get("hoverinfo") == "skip" or not template:
        return {}
    first = str(custom[0] if several else custom)
    text = template.replace("<extra></extra>", "")
    text = text.replace("%{customdata[0]}", first).replace("%{customdata}", first)
    taken = custom[1] if several and len(custom) > 1 and custom[1] != "" else None
    return {"said": _runs(text), "take": taken}


def _stroke(line: Spec) -> dict[str, Any]:
    dashes = {"dash": "9 6", "dot": "2 4"}
    return {
        "stroke": line.get("color"),
        "width": line.get("width", 2),
        "dash": dashes.get(line.get("dash") or "", ""),
    }


def _pattern(spec: Spec | None) -> dict[str, Any] | None:
    if not spec or not spec.get("shape"):
        return None
    return {"shape": spec["shape"], "bare": spec.get("fillmode") != "overlay"}


def _shape(spec: Spec, across: Axis, up: Axis) -> dict[str, Any]:
    return {
        "box": spec["type"] == "rect",
        "x": [_place(spec, "x", f"x{i}", across) for i in (0, 1)],
        "y": [_place(spec, "y", f"y{i}", up) for i in (0, 1)],
        **_stroke(spec.get("line") or {}),
    }


def _note(spec: Spec, across: Axis, up: Axis) -> dict[str, Any]:
    # A note's value on a logarithmic axis is a logarithm; that of a shape is none.
    return {
        "x": _near(_coordinate(spec, "x", across)),
        "y": _near(_coordinate(spec, "y", up)),
        "shift": spec.get("xshift", 0),
        "anchor": {"left": "start", "right": "end"}.get(spec.get("xanchor", ""), "middle"),
        "side": spec.get("yanchor", "middle"),
        "colour": (spec.get("font") or {}).get("color", ""),
        "lines": _runs(spec["text"]),
    }


def _place(spec: Spec, side: str, name: str, axis: Axis) -> float:
    value = spec[name]
    return _near(value if spec.get(f"{side}ref") == "paper" else axis.at(value))


def _coordinate(spec: Spec, side: str, axis: Axis) -> float:
    value = spec[side]
    if spec.get(f"{side}ref") == "paper":
        return float(value)
    return axis.at(value) if isinstance(value, str) else axis.coordinate(value)


def _legend(traces: Sequence[Spec]) -> list[dict[str, Any]]:
    found = []
    for t in traces:
        if not t.get("name") or t.get("showlegend") is False or (_is_bar(t) and not any(t["x"])):
            continue
        marker, line = t.get("marker") or {}, t.get("line") or {}
        if _is_bar(t) or "stackgroup" in t:
            pattern = _pattern(marker.get("pattern") or t.get("fillpattern"))
            look = {"fill": marker.get("color") or t.get("fillcolor"), "pattern": pattern}
        elif "markers" in t.get("mode", ""):
            symbol = str(marker.get("symbol", "circle"))
            look = {"symbol": symbol, "fill": marker.get("color") or line.get("color")}
            if "lines" in t["mode"]:
                look |= _stroke(line)
        else:
            look = _stroke(line)
        found.append({"name": html.unescape(t["name"]), **look})
    return found


def _words(axis: Spec) -> str:
    title = axis.get("title") or ""
    return str(title if isinstance(title, str) else title.get("text") or "")


def _bare(text: str) -> str:
    return re.sub(r"</?b>", "", text)


def _runs(text: str) -> list[list[tuple[bool, str]]]:
    """Lines of words, each with whether it is bold."""
    return [
        [
            (i % 2 == 1, times(html.unescape(run)))
            for i, run in enumerate(re.split(r"</?b>", line))
            if run
        ]
        for line in text.split("<br>")
    ]


def _near(value: float) -> float:
    return round(value, 5)
