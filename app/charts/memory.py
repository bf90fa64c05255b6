"""Charts of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.bar import Bar
from app.charts.base import (
    HATCHED,
    LEGEND,
    Mark,
    Series,
    Trace,
    area,
    bars,
    capacity,
    figure,
    note,
    of_bytes,
    points,
    stacked,
)
from memcore.report import Memory, RankMemory
from memcore.training.over_time import Course, Slot
from memcore.units import GiB, bytes_text

MAX_RANKS = 16  # bars shown when there are more pipeline stages: the fullest ones
FAR = 2.5  # times what is needed: a capacity beyond would flatten all else
CONSUMERS = {key: Series(*of) for key, of in palette.CONSUMERS.items()}
OVERHEAD = Series(*palette.OVERHEAD)
AT_MOST = Series("at most", palette.OVERHEAD[1], HATCHED)


def _consumers(row: str, of: Mapping[str, int], path: str, more: str) -> Iterator[Mark]:
    """A bar of what each consumer has at an instant."""
    for key, series in CONSUMERS.items():
        yield of_bytes(row, series, of.get(key, 0), f"{path}.consumers.{key}", f"<br>{more}")


def _peaks(memory: Memory) -> list[RankMemory]:
    """Each pipeline rank at its own fullest instant; of many ranks the fullest."""
    fullest = sorted(memory.ranks, key=lambda r: -r.allocated_bytes)[:MAX_RANKS]
    return sorted(fullest, key=lambda r: r.rank)


def memory_by_consumer(memory: Memory) -> go.Figure:
    """Memory at the peak by consumer, per pipeline rank, against the capacity of one GPU."""
    peaks = {"Each GPU" if len(memory.ranks) == 1 else f"Stage {r.rank}": r for r in _peaks(memory)}
    low, high = memory.device_bytes
    sure = low - memory.allocated_bytes
    marks: list[Mark] = []
    for row, r in peaks.items():
        marks += _consumers(row, r.consumers, f"memory.ranks.{r.rank}", r.label)
        marks.append(of_bytes(row, OVERHEAD, sure, "memory.overhead_bytes.0"))
        text = f"{OVERHEAD.name}: up to {bytes_text(high - memory.allocated_bytes)}"
        marks.append(Mark(row, AT_MOST, (high - low) / GiB, text, "memory.overhead_bytes.1"))
    reach = 1.03 * max(high, memory.capacity_bytes) / GiB
    return stacked(marks, list(peaks), "GiB", capacity(memory.capacity_bytes), reach=reach)


def timeline(memory: Memory) -> go.Figure:
    """What is alive at each instant of the step, first to last, on the rank that has the peak."""
    instants = [(n, i) for n, i in enumerate(memory.timeline) if i.rank == memory.peak.rank]
    marks: list[Mark] = []
    ends = {}
    for n, i in instants:
        size = bytes_text(i.bytes)
        marks += _consumers(
            i.label, i.consumers, f"memory.timeline.{n}", f"{i.label}: {size} in all"
        )
        text = f"<b>{size}, the peak</b>" if i.id == memory.peak.instant else size
        ends[i.label] = (i.bytes / GiB, text)
    most = max((i.bytes for _, i in instants), default=0)
    # A capacity far beyond every bar would only flatten them; the header says how far it is.
    near = memory.capacity_bytes < 2 * most
    return stacked(
        marks,
        list(ends),
        "GiB",
        capacity(memory.capacity_bytes) if near else None,
        ends,
        max(1.2 * most, 1.03 * memory.capacity_bytes if near else 0) / GiB,
    )


STAGES = 8  # that are drawn: the fullest ones
GAP = 0.12  # between them, of the height of one
SLOTS = 240  # of one stage; where there are more, neighbours are drawn as the fullest of them


def shown_stages(courses: Sequence[Course]) -> list[Course]:
    """The fullest stages, in the order of the pipeline."""
    return sorted(sorted(courses, key=lambda c: -c.peak.bytes)[:STAGES], key=lambda c: c.rank)


def over_time(memory: Memory, courses: Sequence[Course]) -> go.Figure:
    """Memory over one step by consumer, stage by stage, under the line of what one GPU has."""
    shown = shown_stages(courses)
    scale, unit = (1e3, "ms") if max(c.slots[-1].end for c in shown) < 10 else (1.0, "s")
    sure = memory.device_bytes[0] - memory.allocated_bytes
    most = max(c.peak.bytes for c in shown) + sure
    near = memory.capacity_bytes < FAR * most
    top = max(1.25 * most, 1.08 * memory.capacity_bytes if near else 0) / GiB
    places = {
        (i.rank, i.id, i.bytes): f"memory.timeline.{n}" for n, i in enumerate(memory.timeline)
    }
    limit, title = capacity(memory.capacity_bytes, axis="y"), f"{unit} of one step"
    traces: list[Trace] = []
    words = [limit[1]] if near else []
    lines: list[Trace] = []
    axes: list[str] = []
    layout: dict[str, Any] = {}
    for row, course in enumerate(shown, 1):
        axis = f"y{row}" if row > 1 else "y"
        stage = f"Stage {course.rank}" if len(courses) > 1 else "GiB"
        axes.append(axis)
        layout[f"yaxis{axis[1:]}"] = {"range": [0, top], "title": stage, "fixedrange": True}
        traces += _areas(course, places, scale, sure, axis)
        if near:
            lines.append(limit[0] | {"yref": axis})
        full = course.peak
        if full.bytes == memory.allocated_bytes or len(shown) == 1:
            at, high = scale * (full.start + full.seconds / 2), (full.bytes + sure) / GiB
            text = f"<b>{bytes_text(full.bytes)}, the peak</b>"
            words.append(note(text, at, high, "center", "bottom", yshift=4, yref=axis))
    return figure(
        traces,
        320 if len(shown) == 1 else 110 + 105 * len(shown),
        annotations=words,
        shapes=lines,
        hovermode="x",
        grid={"subplots": [[f"x{axis}"] for axis in axes], "ygap": GAP},
        xaxis={"title": title, "anchor": axis},
        **layout,
    )


def _areas(
    course: Course,
    places: Mapping[tuple[int, str, int], str],
    scale: float,
    overhead: int,
    axis: str,
) -> list[Trace]:
    """One stage's consumers, one on another, over the time of the step; and what is not seen, but
    says of each moment what is alive then: a mark on each that a click explains, and a line through
    the others, as each mark takes a browser as long as an area."""
    slots = course.fullest(SLOTS)
    edges = [scale * t for t in (*(s.start for s in slots), slots[-1].end)]
    sizes = [(series, [s.consumers[key] for s in slots]) for key, series in CONSUMERS.items()]
    sizes.append((OVERHEAD, [overhead] * len(slots)))
    areas = [
        area(
            series,
            edges,
            [n / GiB for n in (*of, of[-1])],
            stackgroup=f"stage {course.rank}",
            line={"width": 0, "shape": "hv"},
            legendgroup=series.name,
            showlegend=axis == "y",
            yaxis=axis,
        )
        for series, of in sizes
        if any(of)
    ]
    moments = [
        (
            scale * (s.start + s.seconds / 2),
            (s.bytes + overhead) / GiB,
            _alive(s),
            places.get((course.rank, s.instant, s.bytes), ""),
        )
        for s in slots
    ]
    opens, says = ([m for m in moments if bool(m[-1]) == opens] for opens in (True, False))
    unseen: Trace = {"showlegend": False, "yaxis": axis}
    return [
        *areas,
        points("", opens, OVERHEAD.colour, marker={"opacity": 0}, **unseen),
        points("", says, OVERHEAD.colour, "lines", line={"width": 0}, **unseen),
    ]


def _alive(s: Slot) -> str:
    """What is alive in a moment of a step."""
    batch = f", micro-batch {s.micro_batch}" if s.micro_batch else ""
    of = [
        f"{series.name}: {bytes_text(s.consumers[key])}"
        for key, series in CONSUMERS.items()
        if s.consumers[key]
    ]
    return "<br>".join([f"<b>{bytes_text(s.bytes)}</b>, {s.label}{batch}", *of])


BEYOND = "rgba(229, 72, 77, 0.14)"  # the ground beyond the capacity


def strip(drawn: Sequence[Bar], names: Sequence[str] = ("",)) -> go.Figure:
    """Bars of memory, part by part, on one axis whose ground is red beyond what there is. Of
    several bars each has a name; its paths begin with its number."""
    end = max(b.end for b in drawn) / GiB
    several = len(drawn) > 1
    marks = [
        of_bytes(
            name,
            Series(p.name, p.colour, HATCHED if p.hatched else None),
            p.bytes,
            f"{i}|{p.path}" if several else p.path,
        )._replace(text=bytes_text(p.bytes))
        for i, (b, name) in enumerate(zip(drawn, names, strict=True))
        for p in b.parts
    ]
    shapes: list[Trace] = []
    notes: list[Trace] = []
    for i, b in enumerate(drawn):
        low, high = (i - 0.5, i + 0.5) if several else (0, 1)
        rows = {"y0": low, "y1": high, "yref": "y" if several else "paper"}
        limit = b.limit / GiB
        line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
        ground = {"fillcolor": BEYOND, "line": {"width": 0}, "layer": "below"}
        shapes += [
            {"type": "rect", "x0": limit, "x1": end, **ground, **rows},
            {"type": "line", "x0": limit, "x1": limit, "line": line, **rows},
        ]
        if not i or b.limit_text != drawn[i - 1].limit_text:
            side = "right" if limit > end / 2 else "left"
            place = {"yref": rows["yref"], "font": {"color": palette.CAPACITY}}
            y = low if several else 1
            notes.append(note(b.limit_text, limit, y, side, "bottom", **place))
    return figure(
        bars(marks),
        height=(64 + 36 * len(drawn)) if several else 62,
        bargap=0.25 if several else 0,
        margin={"l": 0, "r": 0, "t": 20, "b": 30 if several else 0},
        showlegend=several,
        xaxis={"range": [0, end], "visible": False},
        yaxis={"visible": several, "autorange": "reversed"},
        legend={**LEGEND, "y": 0, "yanchor": "top"},
        shapes=shapes,
        annotations=notes,
    )  # fmt: skip
