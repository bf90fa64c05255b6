"""Charts of the page Explore: a number against a field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go

from app import exploring, palette
from app.charts.base import (
    HATCHED,
    LEGEND,
    Mark,
    Rule,
    Series,
    Trace,
    area,
    bars,
    capacity,
    figure,
    note,
    points,
    rule,
)
from app.exploring import PART_NAMES
from app.text import VERDICTS, counted
from memcore.report import CONSUMERS
from memcore.search.explore import Figure, Map, Spot, Sweep, is_number
from memcore.units import GiB, bytes_text

HEIGHT = 400
SPREAD = 12  # from the least to the most, from which on an axis is logarithmic
MOST_TICKS = 12
HIGHEST = 2.2  # capacities that an axis of memory shows: what is beyond, it says, flattens the rest
MARKS = {  # of a point, by its verdict; no colour is needed to tell them apart
    "fits": ("circle", palette.OURS, "Fits", ""),
    "tight": ("diamond", palette.TIGHT, "May fit", "/"),
    "over": ("x", palette.CAPACITY, "Does not fit", "x"),
}
SERVED = {  # parts of a server's memory
    "weights": palette.CONSUMERS["parameters"][1],
    "kv_cache": palette.KV_CACHE[1],
    "activations": palette.CONSUMERS["activations"][1],
    "overhead": palette.OVERHEAD[1],
}
MARK = "#7A7F87"  # lines that are no data: seen on both themes
CLICK = "<br>click: this plan"


def swept(sweep: Sweep, own: Any) -> go.Figure:
    """A number against the values of a field: numbers along an axis, words as bars. Memory is drawn
    part by part, under the line of what there is of it. `own` is the plan's value."""
    return _along(sweep, own) if is_number(sweep.path) else _words(sweep, own)


def scale(of: Figure) -> float:
    """What a unit of a figure is on an axis."""
    return GiB if of.unit == "GiB" else 1.0


def hover(sweep: Sweep, s: Spot) -> str:
    """What a point says: its value, the number, whether it fits, and what had to follow."""
    lines = [f"<b>{exploring.named(sweep.path, s.value_at)}</b>"]
    if sweep.figure.parts:
        whole = " to ".join(dict.fromkeys(map(bytes_text, (s.low, s.high))))
        lines.append(f"{whole} of {bytes_text(s.limit)}")
        lines += [f"{PART_NAMES[name]}: {bytes_text(n)}" for name, n in s.parts.items() if n]
    elif s.value is not None:
        lines.append(f"{sweep.figure.title}: {sweep.figure.text(s.value)}")
    lines.append(MARKS[s.verdict][2])
    lines += [f"with {exploring.title(p)}: {exploring.text(p, v)}" for p, v in s.with_.items()]
    return "<br>".join(lines)


def _shown(sweep: Sweep) -> list[Spot]:
    return [s for s in sweep.spots if s.plan and s.value is not None]


def _number_axis(of: Figure, low: float, high: float) -> dict[str, Any]:
    """The axis of the number that is asked for."""
    return {
        "title": f"{of.title}{f' ({of.unit})' if of.unit else ''}",
        "range": [low, high or 1],
        "tickformat": ".0%" if of.key == "mfu" else None,
    }


def _along(sweep: Sweep, own: Any) -> go.Figure:
    spots = _shown(sweep)
    xs = [s.value_at for s in spots]
    of, unit = sweep.figure, scale(sweep.figure)
    ys = [(s.value or 0) / unit for s in spots]
    traces: list[Trace] = []
    if of.parts:
        traces = [area(series, xs, [n / GiB for n in sizes]) for series, sizes in _parts(spots)]
    else:
        line = [(x, y, "", "") for x, y in zip(xs, ys, strict=True)]
        traces = [points("", line, palette.OURS, "lines", hoverinfo="skip", hovertemplate=None,
                         showlegend=False)]  # fmt: skip
    traces += [
        points(
            name,
            [
                (s.value_at, (s.value or 0) / unit, hover(sweep, s) + CLICK, s.value_at)
                for s in spots
                if s.verdict == verdict
            ],
            colour,
            marker={"symbol": symbol, "line": {"width": 1.5, "color": "#ffffff"}},
        )
        for verdict, (symbol, colour, name, _) in MARKS.items()
        if any(s.verdict == verdict for s in spots)
    ]
    limit = max((s.limit for s in spots), default=0)
    top, bottom = max([*ys, 0.0]), min([*ys, 0.0])
    if of.parts:
        top = max(limit / unit, min(top, HIGHEST * limit / unit))
    elif of.zero_line:  # below zero it does not fit: how far, is no question
        bottom = max(bottom, -max(top, 0.2 * limit / unit))
    title = f"{exploring.title(sweep.path)}{f' ({u})' if (u := exploring.unit(sweep.path)) else ''}"
    if plan := next((s.plan for s in spots if s.plan), None):
        title = counted(title, plan.architecture.unit)
    return figure(
        traces,
        height=HEIGHT,
        xaxis={"title": title, **_axis(xs, (sweep.edge, sweep.maybe))},
        yaxis=_number_axis(of, 1.05 * bottom, 1.08 * top),
        rules=_rules(sweep, own, limit, xs),
        **(_cut(spots, 1.08 * top) if of.parts else {}),
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


def _parts(spots: Sequence[Spot]) -> list[tuple[Series, list[int]]]:
    """The parts of memory at each point, one after another; then what is outside the allocator."""
    serves = bool(spots) and "weights" in spots[0].parts
    names = SERVED if serves else {name: palette.CONSUMERS[name][1] for name in CONSUMERS}
    parts = [
        (Series(PART_NAMES[name], colour), [s.parts.get(name, 0) for s in spots])
        for name, colour in names.items()
    ]
    if not serves:
        title, grey = palette.OVERHEAD
        parts.append((Series(title, grey), [max(0, s.low - sum(s.parts.values())) for s in spots]))
        parts.append((Series("at most", grey, HATCHED), [s.high - s.low for s in spots]))
    return [(series, sizes) for series, sizes in parts if any(sizes)]


def _rules(sweep: Sweep, own: Any, limit: int, xs: Sequence[Any]) -> list[Rule]:
    """The capacity, up to where it fits, and the plan on the page."""
    log = _axis(xs).get("type") == "log"
    low, high = min(xs, default=1), max(xs, default=2)

    def place(x: float) -> float:
        return math.log10(x) if log else x

    def along(x: float) -> float:
        return (place(x) - place(low)) / ((place(high) - place(low)) or 1)

    def down(x: float, text: str, dash: str, to: float, left: bool) -> Rule:
        side, shift = ("right", -4) if left else ("left", 4)
        words = {"x": place(x), "xanchor": side, "xshift": shift}
        return rule("x", x, f"<b>{text}</b>", MARK, dash, to, **words)

    rules: list[Rule] = []
    if sweep.figure.parts:
        rules.append(capacity(limit, "Budget" if sweep.figure.serves else "Capacity", "y"))
    elif sweep.figure.zero_line:
        rules.append(rule("y", 0, "Nothing to spare"))
    edge = sweep.edge
    if edge is not None:
        # On the side that fits, where the areas are low, as long as there is room.
        to, room = ("fits up to", 0.4) if sweep.rises else ("fits from", 0.6)
        shown = f"{to} {exploring.text(sweep.path, edge)}"
        rules.append(down(edge, shown, "dash", 1.0, along(edge) > room))
    if own is not None and xs and low <= own <= high:
        # Lower, so that its line ends below the other's words; away from the other line, but at
        # the chart's ends inwards.
        share = along(own)
        left = share > 0.8 or (share > 0.2 and (share > 0.5 if edge is None else own < edge))
        shown = f"this plan: {exploring.text(sweep.path, own)}"
        rules.append(down(own, shown, "dot", 0.93, left))
    return rules


def _words(sweep: Sweep, own: Any) -> go.Figure:
    spots = _shown(sweep)
    of, unit = sweep.figure, scale(sweep.figure)
    labels = [_label(sweep.path, s, s.value_at == own) for s in spots]
    texts = [hover(sweep, s) + CLICK for s in spots]
    values = [(s.value or 0) / unit for s in spots]
    rows = list(zip(labels, spots, texts, strict=True))
    least, most = min([0.0, *values]), max([0.0, *values])
    if of.parts:
        marks = [
            Mark(label, series, n / GiB, text, s.value_at)
            for series, sizes in _parts(spots)
            for (label, s, text), n in zip(rows, sizes, strict=True)
        ]
        traces = [*bars(marks), _limits(spots, labels)]
        limit = max((s.limit for s in spots), default=0) / unit
        most = max(limit, min(most, HIGHEST * limit))
    else:
        marks = [
            Mark(label, Series(name, palette.OURS, {**HATCHED, "shape": pattern}), value, text,
                 s.value_at, of.text(s.value or 0))
            for verdict, (_, _, name, pattern) in MARKS.items()
            for (label, s, text), value in zip(rows, values, strict=True)
            if s.verdict == verdict
        ]  # fmt: skip
        traces = bars(marks, textposition="outside", insidetextfont=None)
    return figure(
        traces,
        height=130 + 30 * max(1, len(spots)),
        bargap=0.35,
        xaxis=_number_axis(of, 1.15 * least, (1.05 if of.parts else 1.18) * most),
        yaxis={"categoryorder": "array", "categoryarray": labels, "autorange": "reversed"},
        **(_cut(spots, 1.05 * most) if of.parts else {}),
    )


ABOVE = 1.08  # of the chart's height: room below the legend for a line of words


def _cut(spots: Sequence[Spot], end: float) -> dict[str, Any]:
    """Where an axis ends below the largest memory: how large that is, and the legend above it."""
    most = max((s.high for s in spots), default=0)
    if most <= end * GiB:
        return {}
    text = f"up to {bytes_text(most)}, beyond the chart"
    words = note(text, 1, 1, "right", "bottom", xref="paper", yref="paper")
    return {"annotations": [words], "legend": {**LEGEND, "y": ABOVE}}


def _limits(spots: Sequence[Spot], labels: Sequence[str]) -> Trace:
    """What there is of the memory, bar by bar."""
    name = "Budget" if spots and "weights" in spots[0].parts else "Capacity"
    rows = [
        (s.limit / GiB, label, f"{name}: {bytes_text(s.limit)}", s.value_at)
        for s, label in zip(spots, labels, strict=True)
    ]
    line = {"width": 3, "color": palette.CAPACITY}
    marker = {"symbol": "line-ns-open", "size": 20, "line": line}
    return points(name, rows, palette.CAPACITY, marker=marker)


def _label(path: str, s: Spot, is_own: bool) -> str:
    text = exploring.text(path, s.value_at)
    return f"<b>{text}</b> (now)" if is_own else text


CELL = 24  # pixels of a row of a map
LOGARITHMIC = 20  # from the least to the most, from which on colours are logarithmic


def mapped(cells: Map, own: tuple[Any, Any]) -> go.Figure:
    """Two fields against a number, as a field of cells, each of which is a plan. What does not fit
    has a cross, what may fit a question mark; a thick line is the frontier, a frame this plan.
    `own`: the plan's values, across and down."""
    columns = [exploring.text(cells.across, x) for x in cells.columns]
    rows = [exploring.text(cells.down, y) for y in cells.rows]
    known = [s.value for line in cells.spots for s in line if s.possible and s.value is not None]
    log = bool(known) and min(known) > 0 and max(known) / min(known) > LOGARITHMIC

    def height(s: Spot) -> float | None:
        if not s.possible or s.value is None:
            return None
        return math.log10(s.value) if log else s.value

    field = {
        "type": "heatmap",
        "z": [[height(s) for s in line] for line in cells.spots],
        "text": [[_cell(cells, s) for s in line] for line in cells.spots],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "colorscale": [[i / (len(palette.RAMP) - 1), c] for i, c in enumerate(palette.RAMP)],
        "xgap": 1,
        "ygap": 1,
        "showscale": False,
        "hoverinfo": "skip",
    }
    places = [(x, y) for y in range(len(rows)) for x in range(len(columns))]
    marks = points(  # a field of cells by itself cannot be clicked
        "",
        [
            (x, y, cell_words(cells, cells.spots[y][x], cells.columns[x], cells.rows[y]), i)
            for i, (x, y) in enumerate(places)
        ],
        "#000000",
        marker={"symbol": "square", "size": CELL, "opacity": 0},
        selected={"marker": {"opacity": 0}},
    )
    frame = [
        _edge(x - 0.5, x + 0.5, y - 0.5, y + 0.5, "rect", palette.OURS)
        for x, y in places
        if (cells.columns[x], cells.rows[y]) == own
    ]
    plain: dict[str, Any] = {"showgrid": False, "zeroline": False}
    across = {"tickvals": list(range(len(columns))), "ticktext": columns, **plain}
    down = {"tickvals": list(range(len(rows))), "ticktext": rows, "autorange": "reversed", **plain}
    return figure(
        [field, marks],
        height=120 + CELL * len(rows),
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        xaxis={"title": exploring.title(cells.across), **across},
        yaxis={"title": exploring.title(cells.down), **down},
        shapes=[*_frontier(cells.spots), *frame],
        showlegend=False,
    )


def _cell(cells: Map, s: Spot) -> str:
    """What stands in a cell."""
    if s.value is None or s.verdict == "over":
        return "✕" if s.verdict == "over" else ""
    return f"{cells.figure.text(s.value)}{' ?' * (s.verdict == 'tight')}"


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


def cell_words(cells: Map, s: Spot, x: Any, y: Any) -> str:
    """All of a cell in words."""
    lines = [exploring.named(cells.across, x), exploring.named(cells.down, y)]
    if s.plan is None:
        return "<br>".join([*lines, f"cannot be planned: {s.why_not}"])
    if s.value is not None:
        lines.append(f"{cells.figure.title}: {cells.figure.text(s.value)}")
    lines.append(VERDICTS.get(s.verdict, ""))
    return "<br>".join(lines)
