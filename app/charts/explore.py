"""Charts of the page Explore: a number against a field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go

from app import exploring, palette
from app.charts.base import Trace, bar, figure, scatter
from app.exploring import PART_NAMES
from app.text import VERDICTS
from memcore.report import CONSUMERS
from memcore.search.explore import Figure, Map, Spot, Sweep, is_number
from memcore.units import GiB, bytes_text

HEIGHT = 400
SPREAD = 12  # from the least to the most, from which on an axis is logarithmic
MOST_TICKS = 12
HIGHEST = 2.2  # capacities that an axis of memory shows: what is beyond, it says, flattens the rest
MARKS = {  # of a point, by its verdict; no colour is needed to tell them apart
    "fits": ("circle", palette.OURS, "Fits"),
    "tight": ("diamond", palette.TIGHT, "May fit"),
    "over": ("x", palette.CAPACITY, "Does not fit"),
}
SERVED = {  # parts of a server's memory
    "weights": palette.CONSUMERS["parameters"][1],
    "kv_cache": palette.KV_CACHE[1],
    "activations": palette.CONSUMERS["activations"][1],
    "overhead": palette.OVERHEAD[1],
}


def swept(found: Sweep, own: Any) -> go.Figure:
    """A number against the values of a field: numbers along an axis, words as bars. Memory is drawn
    part by part, under the line of what there is of it. `own` is the plan's value."""
    return _along(found, own) if is_number(found.path) else _words(found, own)


def scale(of: Figure) -> float:
    """What a unit of a figure is on an axis."""
    return GiB if of.unit == "GiB" else 1.0


def hover(found: Sweep, s: Spot) -> str:
    """What a point says: its value, the number, whether it fits, and what had to follow."""
    lines = [f"<b>{exploring.named(found.path, s.value_at)}</b>"]
    if found.figure.parts:
        whole = " to ".join(dict.fromkeys(map(bytes_text, (s.low, s.high))))
        lines.append(f"{whole} of {bytes_text(s.limit)}")
        lines += [f"{PART_NAMES[name]}: {bytes_text(n)}" for name, n in s.parts.items() if n]
    elif s.value is not None:
        lines.append(f"{found.figure.title}: {found.figure.text(s.value)}")
    lines.append(MARKS[s.verdict][2])
    lines += [f"with {exploring.title(p)}: {exploring.text(p, v)}" for p, v in s.with_.items()]
    return "<br>".join(lines)


def _along(found: Sweep, own: Any) -> go.Figure:
    spots = [s for s in found.spots if s.plan and s.value is not None]
    xs = [s.value_at for s in spots]
    of, unit = found.figure, scale(found.figure)
    traces: list[Any] = _areas(spots) if of.parts else [_line(xs, spots, unit)]
    traces += _points(found, spots, unit)
    limit = max((s.limit for s in spots), default=0)
    ys = [(s.value or 0) / unit for s in spots]
    top, bottom = max([*ys, 0.0]), min([*ys, 0.0])
    if of.parts:
        top = max(limit / unit, min(top, HIGHEST * limit / unit))
    elif of.zero_line:  # below zero it does not fit: how far, is no question
        bottom = max(bottom, -max(top, 0.2 * limit / unit))
    shapes, notes = _lines(found, own, limit / unit, xs)
    notes += _cut(spots, 1.08 * top) if of.parts else []
    title = f"{exploring.title(found.path)}{f' ({u})' if (u := exploring.unit(found.path)) else ''}"
    return figure(
        traces,
        height=HEIGHT,
        xaxis={"title": title, **_axis(xs, (found.edge, found.maybe))},
        yaxis={
            "title": f"{of.title}{f' ({of.unit})' if of.unit else ''}",
            "range": [1.05 * bottom, 1.08 * top],
            "tickformat": ".0%" if of.key == "mfu" else None,
        },
        shapes=shapes,
        annotations=notes,
        margin={"l": 8, "r": 16, "t": 56, "b": 8},
    )


def _axis(xs: Sequence[float], between: Sequence[float | None] = ()) -> dict[str, Any]:
    """Ticks at round values that were looked at, and room for marks at both ends. `between`: values
    that were found and not chosen, which are none."""
    if not xs:
        return {}
    low, high = min(xs), max(xs)
    if low > 0 and high / low >= SPREAD:
        span = math.log10(high / low)
        chosen = sorted(x for x in xs if x not in between)
        doubled = [x for x in chosen if isinstance(x, int) and x.bit_count() == 1]
        return {
            "type": "log",
            "range": [math.log10(low) - 0.02 * span, math.log10(high) + 0.02 * span],
            "tickvals": ticks if len(ticks := doubled or chosen) < MOST_TICKS else ticks[::2],
            "ticktext": [short(x) for x in (ticks if len(ticks) < MOST_TICKS else ticks[::2])],
        }
    span = (high - low) or 1
    return {"range": [low - 0.02 * span, high + 0.02 * span]}


def short(value: float) -> str:
    """A number on an axis: 128K where it is a whole number of 1,024s."""
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}K"
    if isinstance(value, int) and value >= 10_000:
        return f"{value / 1000:.4g}k"
    return f"{value:,}"


def _areas(spots: Sequence[Spot]) -> list[Trace]:
    """The parts of memory on top of one another; above them what is outside the allocator."""
    xs = [s.value_at for s in spots]
    serves = bool(spots) and "weights" in spots[0].parts
    names = SERVED if serves else {name: palette.CONSUMERS[name][1] for name in CONSUMERS}
    layers = [
        (PART_NAMES[name], colour, [s.parts.get(name, 0) for s in spots], "")
        for name, colour in names.items()
    ]
    if not serves:
        title, grey = palette.OVERHEAD
        sure = [max(0, s.low - sum(s.parts.values())) for s in spots]
        layers += [
            (title, grey, sure, ""),
            ("at most", grey, [s.high - s.low for s in spots], "/"),
        ]
    return [
        scatter(
            name=name,
            x=xs,
            y=[n / GiB for n in sizes],
            stackgroup="memory",
            mode="lines",
            line={"width": 0, "color": colour},
            fillcolor=colour,
            fillpattern={"shape": pattern, "fillmode": "replace", "size": 6, "fgcolor": colour}
            if pattern
            else None,
            hoverinfo="skip",
        )
        for name, colour, sizes, pattern in layers
        if any(sizes)
    ]


def _line(xs: Sequence[Any], spots: Sequence[Spot], unit: float) -> Trace:
    return scatter(
        x=list(xs),
        y=[(s.value or 0) / unit for s in spots],
        mode="lines",
        line={"color": palette.OURS, "width": 2},
        hoverinfo="skip",
        showlegend=False,
    )


def _points(found: Sweep, spots: Sequence[Spot], unit: float) -> list[Trace]:
    """A mark for each value, which a click makes the plan."""
    traces = []
    for verdict, (symbol, colour, name) in MARKS.items():
        chosen = [s for s in spots if s.verdict == verdict]
        if chosen:
            traces.append(
                scatter(
                    name=name,
                    x=[s.value_at for s in chosen],
                    y=[(s.value or 0) / unit for s in chosen],
                    mode="markers",
                    marker={
                        "symbol": symbol,
                        "size": 11,
                        "color": colour,
                        "opacity": 1,
                        "line": {"width": 1.5, "color": "#ffffff"},
                    },
                    unselected={"marker": {"opacity": 1}},
                    customdata=[[hover(found, s), s.value_at] for s in chosen],
                    hovertemplate="%{customdata[0]}<br>click: this plan<extra></extra>",
                )
            )
    return traces


def _lines(
    found: Sweep, own: Any, limit: float, xs: Sequence[Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The capacity, up to where it fits, and the plan on the page."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    log = _axis(xs).get("type") == "log"

    def place(x: float) -> float:
        return math.log10(x) if log else x

    def across(y: float, text: str) -> None:
        ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": y, "y1": y}
        line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
        shapes.append({"type": "line", **ends, "line": line})
        notes.append(
            {"x": 0, "xref": "paper", "xanchor": "left", "y": y, "yanchor": "bottom", "text": text,
             "showarrow": False, "font": {"color": palette.CAPACITY}, "xshift": 4}
        )  # fmt: skip

    def along(x: float) -> float:
        low, high = place(min(xs, default=1)), place(max(xs, default=2))
        return (place(x) - low) / ((high - low) or 1)

    def down(x: float, text: str, dash: str, top: float, left: bool) -> None:
        ends = {"x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": top}
        shapes.append({"type": "line", **ends, "line": {"color": MARK, "width": 1.5, "dash": dash}})
        notes.append(
            {"x": place(x), "y": top, "yref": "paper", "yanchor": "top", "showarrow": False,
             "xanchor": "right" if left else "left", "text": f"<b>{text}</b>",
             "xshift": -4 if left else 4}
        )  # fmt: skip

    if found.figure.parts:
        word = "Budget" if found.figure.serves else "Capacity"
        across(limit, f"{word} {bytes_text(limit * GiB)}")
    elif found.figure.zero_line:
        across(0, "Nothing to spare")
    shown = own is not None and bool(xs) and min(xs) <= own <= max(xs)
    if found.edge is not None:
        # On the side that fits, where the areas are low, as long as there is room.
        to, room = ("fits up to", 0.4) if found.rises else ("fits from", 0.6)
        said = f"{to} {exploring.text(found.path, found.edge)}"
        down(found.edge, said, "dash", 1.0, along(found.edge) > room)
    if shown:
        # Lower, so that its line ends below the other's words; away from the other line, but at
        # the chart's ends inwards.
        share, edge = along(own), found.edge
        left = share > 0.8 or (share > 0.2 and (share > 0.5 if edge is None else own < edge))
        down(own, f"this plan: {exploring.text(found.path, own)}", "dot", 0.93, left)
    return shapes, notes


MARK = "#7A7F87"  # lines that are no data: seen on both themes


def _words(found: Sweep, own: Any) -> go.Figure:
    spots = [s for s in found.spots if s.plan and s.value is not None]
    of, unit = found.figure, scale(found.figure)
    names = {s.value_at: _label(found.path, s, s.value_at == own) for s in spots}
    labels = [names[s.value_at] for s in spots]
    texts = [f"{hover(found, s)}<br>click: this plan" for s in spots]
    at: Any = [s.value_at for s in spots]
    if of.parts:
        bars = [
            bar(area["name"], area["fillcolor"], area["y"], labels, texts, at,
                marker={"pattern": {"shape": "/", "fillmode": "replace", "size": 6}}
                if area["fillpattern"]
                else {})
            for area in _areas(spots)
        ]  # fmt: skip
        bars.append(_limits(spots, labels))
    else:
        bars = [
            bar(
                name,
                palette.OURS,
                [(s.value or 0) / unit for s in spots if s.verdict == verdict],
                [names[s.value_at] for s in spots if s.verdict == verdict],
                [t for t, s in zip(texts, spots, strict=True) if s.verdict == verdict],
                [s.value_at for s in spots if s.verdict == verdict],
                text=[of.text(s.value or 0) for s in spots if s.verdict == verdict],
                textposition="outside",
                cliponaxis=False,
                marker={"pattern": {"shape": pattern, "fillmode": "replace", "size": 6}},
            )
            for verdict, (_, _, name) in MARKS.items()
            for pattern in ({"fits": "", "tight": "/", "over": "x"}[verdict],)
            if any(s.verdict == verdict for s in spots)
        ]
    least = min([0.0, *((s.value or 0) / unit for s in spots)])
    most = max([0.0, *((s.value or 0) / unit for s in spots)])
    if of.parts:
        limit = max((s.limit for s in spots), default=0) / unit
        most = max(limit, min(most, HIGHEST * limit))
    return figure(
        bars,
        height=130 + 30 * max(1, len(spots)),
        bargap=0.35,
        xaxis={
            "title": f"{of.title}{f' ({of.unit})' if of.unit else ''}",
            "range": [1.15 * least, (1.05 if of.parts else 1.18) * most or 1],
            "tickformat": ".0%" if of.key == "mfu" else None,
        },
        yaxis={"categoryorder": "array", "categoryarray": labels, "autorange": "reversed"},
        annotations=_cut(spots, 1.05 * most) if of.parts else [],
    )


def _cut(spots: Sequence[Spot], end: float) -> list[dict[str, Any]]:
    """Where an axis ends below the largest memory: how large that is."""
    most = max((s.high for s in spots), default=0)
    if most <= end * GiB:
        return []
    return [
        {"text": f"up to {bytes_text(most)}, beyond the chart", "x": 1, "xref": "paper",
         "xanchor": "right", "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    ]  # fmt: skip


def _limits(spots: Sequence[Spot], labels: Sequence[str]) -> Trace:
    """What there is of the memory, bar by bar."""
    return scatter(
        name="Budget" if spots and "weights" in spots[0].parts else "Capacity",
        x=[s.limit / GiB for s in spots],
        y=list(labels),
        mode="markers",
        marker={
            "symbol": "line-ns-open",
            "size": 20,
            "color": palette.CAPACITY,
            "line": {"width": 3, "color": palette.CAPACITY},
            "opacity": 1,
        },
        unselected={"marker": {"opacity": 1}},
        hoverinfo="skip",
    )


def _label(path: str, s: Spot, is_own: bool) -> str:
    said = exploring.text(path, s.value_at)
    return f"<b>{said}</b> (now)" if is_own else said


CELL = 24  # pixels of a row of a map
LOGARITHMIC = 20  # from the least to the most, from which on colours are logarithmic


def mapped(found: Map, own: tuple[Any, Any]) -> go.Figure:
    """Two fields against a number, as a field of cells, each of which is a plan. What does not fit
    has a cross, what may fit a question mark; a thick line is the frontier, a frame this plan.
    `own`: the plan's values, across and down."""
    columns = [exploring.text(found.across, x) for x in found.columns]
    rows = [exploring.text(found.down, y) for y in found.rows]
    known = [s.value for line in found.spots for s in line if s.possible and s.value is not None]
    log = bool(known) and min(known) > 0 and max(known) / min(known) > LOGARITHMIC

    def height(s: Spot) -> float | None:
        if not s.possible or s.value is None:
            return None
        return math.log10(s.value) if log else s.value

    field = {
        "type": "heatmap",
        "z": [[height(s) for s in line] for line in found.spots],
        "text": [[_cell(found, s) for s in line] for line in found.spots],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "colorscale": [[i / (len(palette.RAMP) - 1), c] for i, c in enumerate(palette.RAMP)],
        "xgap": 1,
        "ygap": 1,
        "showscale": False,
        "hoverinfo": "skip",
    }
    places = [(x, y) for y in range(len(rows)) for x in range(len(columns))]
    marks = scatter(  # a field of cells by itself cannot be clicked
        x=[x for x, _ in places],
        y=[y for _, y in places],
        mode="markers",
        marker={"symbol": "square", "size": CELL, "opacity": 0},
        customdata=[
            [cell_words(found, found.spots[y][x], found.columns[x], found.rows[y]), i]
            for i, (x, y) in enumerate(places)
        ],
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": 0}},
        selected={"marker": {"opacity": 0}},
    )
    frame = [
        _edge(x - 0.5, x + 0.5, y - 0.5, y + 0.5, "rect", palette.OURS)
        for x, y in places
        if (found.columns[x], found.rows[y]) == own
    ]
    plain: dict[str, Any] = {"showgrid": False, "zeroline": False}
    across = {"tickvals": list(range(len(columns))), "ticktext": columns, **plain}
    down = {"tickvals": list(range(len(rows))), "ticktext": rows, "autorange": "reversed", **plain}
    return figure(
        [field, marks],
        height=120 + CELL * len(rows),
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        xaxis={"title": exploring.title(found.across), **across},
        yaxis={"title": exploring.title(found.down), **down},
        shapes=[*_frontier(found.spots), *frame],
        showlegend=False,
    )


def _cell(found: Map, s: Spot) -> str:
    """What stands in a cell."""
    if s.value is None or s.verdict == "over":
        return "✕" if s.verdict == "over" else ""
    return f"{found.figure.text(s.value)}{' ?' * (s.verdict == 'tight')}"


def _edge(
    x0: float, x1: float, y0: float, y1: float, kind: str = "line", colour: str = palette.CAPACITY
) -> dict[str, Any]:
    line = {"color": colour, "width": 4}
    return {"type": kind, "line": line, "x0": x0, "x1": x1, "y0": y0, "y1": y1}


def _frontier(spots: Sequence[Sequence[Spot]]) -> Iterator[dict[str, Any]]:
    """The edges between cells that fit and cells that do not."""
    for y, row in enumerate(spots):
        for x, one in enumerate(row):
            for dx, dy in ((1, 0), (0, 1)):
                if x + dx >= len(row) or y + dy >= len(spots):
                    continue
                other = spots[y + dy][x + dx]
                if one.plan and other.plan and one.fits != other.fits:
                    yield _edge(x + dx - 0.5, x + 0.5, y + dy - 0.5, y + 0.5)


def cell_words(found: Map, s: Spot, x: Any, y: Any) -> str:
    """All of a cell in words."""
    lines = [exploring.named(found.across, x), exploring.named(found.down, y)]
    if s.plan is None:
        return "<br>".join([*lines, f"cannot be planned: {s.why_not}"])
    if s.value is not None:
        lines.append(f"{found.figure.title}: {found.figure.text(s.value)}")
    lines.append(VERDICTS.get(s.verdict, ""))
    return "<br>".join(lines)
