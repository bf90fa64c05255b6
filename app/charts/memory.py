"""Charts of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.bar import Bar
from app.charts.base import Trace, bar, figure, scatter
from memcore.report import Memory, RankMemory
from memcore.training.over_time import Course, Slot
from memcore.units import GiB, bytes_text

MAX_RANKS = 16  # bars shown when there are more pipeline stages: the fullest ones


def capacity(bytes_: int) -> dict[str, Any]:
    """The line at a memory's size, for a horizontal bar chart."""
    return {
        "shapes": [
            {
                "type": "line",
                "x0": bytes_ / GiB,
                "x1": bytes_ / GiB,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": palette.CAPACITY, "width": 2, "dash": "dash"},
            }
        ],
        "annotations": [
            {
                "x": bytes_ / GiB,
                "y": 1,
                "yref": "paper",
                "xanchor": "right",
                "yanchor": "top",
                "xshift": -4,
                "showarrow": False,
                "text": f"Capacity {bytes_text(bytes_)}",
                "font": {"color": palette.CAPACITY},
            }
        ],
    }


def _rank_label(rank: int, ranks: int) -> str:
    return "Each GPU" if ranks == 1 else f"Stage {rank}"


def _peaks(memory: Memory) -> list[RankMemory]:
    """Each pipeline rank at its own fullest instant; of many ranks the fullest."""
    fullest = sorted(memory.ranks, key=lambda r: -r.allocated_bytes)[:MAX_RANKS]
    return sorted(fullest, key=lambda r: r.rank)


def _places(memory: Memory) -> dict[tuple[int, str], str]:
    """Where each instant of each rank is in the Report."""
    return {(i.rank, i.id): f"memory.timeline.{n}" for n, i in enumerate(memory.timeline)}


def memory_by_consumer(memory: Memory) -> go.Figure:
    """Memory at the peak by consumer, per pipeline rank, against the capacity of one GPU."""
    peaks = _peaks(memory)
    labels = [_rank_label(i.rank, len(memory.ranks)) for i in peaks]
    traces = [
        bar(
            title,
            colour,
            [i.consumers.get(name, 0) / GiB for i in peaks],
            labels,
            [f"{title}: {bytes_text(i.consumers.get(name, 0))}<br>{i.label}" for i in peaks],
            [f"memory.ranks.{i.rank}.consumers.{name}" for i in peaks],
        )
        for name, (title, colour) in palette.CONSUMERS.items()
    ]
    low, high = memory.device_bytes
    title, colour = palette.OVERHEAD
    sure = low - memory.allocated_bytes
    traces.append(
        bar(
            title,
            colour,
            [sure / GiB] * len(peaks),
            labels,
            [f"{title}: at least {bytes_text(sure)}"] * len(peaks),
            ["memory.overhead_bytes.0"] * len(peaks),
        )
    )
    traces.append(
        bar(
            "at most",
            colour,
            [(high - low) / GiB] * len(peaks),
            labels,
            [f"{title}: up to {bytes_text(high - memory.allocated_bytes)}"] * len(peaks),
            ["memory.overhead_bytes.1"] * len(peaks),
            marker={"pattern": {"shape": "/", "fillmode": "replace", "size": 6}},
        )
    )
    most = max(high, memory.capacity_bytes)
    return figure(
        traces,
        height=105 + (46 if len(peaks) <= 2 else 34 if len(peaks) <= 4 else 22) * len(peaks),
        bargap=0.5,
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        yaxis={"range": [len(peaks) - 0.5, -0.5 if len(peaks) == 1 else -0.9]},  # room for a word
        **capacity(memory.capacity_bytes),
    )


def timeline(memory: Memory) -> go.Figure:
    """What is alive at each instant of the step, first to last, on the rank that has the peak."""
    instants = [i for i in memory.timeline if i.rank == memory.peak.rank]
    places = _places(memory)
    labels = [i.label for i in instants]
    traces = [
        bar(
            title,
            colour,
            [i.consumers.get(name, 0) / GiB for i in instants],
            labels,
            [
                f"{title}: {bytes_text(i.consumers.get(name, 0))}<br>{i.label}: "
                f"{bytes_text(i.bytes)} in all"
                for i in instants
            ],
            [f"{places[i.rank, i.id]}.consumers.{name}" for i in instants],
        )
        for name, (title, colour) in palette.CONSUMERS.items()
    ]
    most = max([i.bytes for i in instants], default=0)
    totals = [
        {
            "x": i.bytes / GiB,
            "y": i.label,
            "text": f"<b>{bytes_text(i.bytes)}, the peak</b>"
            if i.id == memory.peak.instant
            else bytes_text(i.bytes),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 3,
        }
        for i in instants
    ]
    # A capacity far beyond every bar would only flatten them; the header says how far it is.
    near = memory.capacity_bytes < 2 * most
    reach = max(1.2 * most, 1.03 * memory.capacity_bytes if near else 0)
    if near:
        traces.append(_named_line(f"Capacity {bytes_text(memory.capacity_bytes)}"))
    return figure(
        traces,
        height=100 + 25 * len(instants),
        xaxis={"title": "GiB", "range": [0, reach / GiB]},
        yaxis={"autorange": "reversed"},
        shapes=capacity(memory.capacity_bytes)["shapes"] if near else [],
        annotations=totals,
    )


def _named_line(name: str) -> Trace:
    """A legend entry for a capacity line, where the chart has no room for a label beside it."""
    line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
    return scatter(name=name, x=[None], y=[None], mode="lines", line=line)


FAR = 2.5  # times what is needed: a capacity beyond would flatten all else
STAGES = 8  # that are drawn: the fullest ones
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
    axes: dict[str, Any] = {}
    traces: list[Trace] = []
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    gap = 0.04 if len(shown) > 1 else 0.0
    height = (1 + gap) / len(shown)
    for row, course in enumerate(shown):
        name = f"y{row + 1}" if row else "y"
        domain = [max(0.0, 1 - (row + 1) * height + gap), 1 - row * height]
        title = f"Stage {course.rank}" if len(courses) > 1 else "GiB"
        axes[f"yaxis{row + 1 if row else ''}"] = {
            "domain": domain, "range": [0, top], "title": title, "fixedrange": True,
        }  # fmt: skip
        traces += _areas(course, places, scale, sure, name, legend=not row)
        if near:
            limit = memory.capacity_bytes / GiB
            shapes.append(_level(limit, name))
        full = course.peak
        if full.bytes == memory.allocated_bytes or len(shown) == 1:
            at = scale * (full.start + full.seconds / 2)
            text = f"<b>{bytes_text(full.bytes)}, the peak</b>"
            notes.append(
                {"x": at, "y": (full.bytes + sure) / GiB, "yref": name, "text": text,
                 "showarrow": False, "yanchor": "bottom", "yshift": 4}
            )  # fmt: skip
    if near:
        traces.append(_named_line(f"Capacity {bytes_text(memory.capacity_bytes)}"))
    last = f"y{len(shown)}" if shown[1:] else "y"
    return figure(
        traces,
        height=320 if len(shown) == 1 else 110 + 105 * len(shown),
        hovermode="x",
        xaxis={"title": f"{unit} of one step", "anchor": last, "rangemode": "tozero"},
        shapes=shapes,
        annotations=notes,
        **axes,
    )


def _areas(
    course: Course,
    places: Mapping[tuple[int, str, int], str],
    scale: float,
    overhead: int,
    axis: str,
    legend: bool,
) -> list[Trace]:
    """One stage's consumers, one on another, over the time of the step; and a mark on each moment,
    which says what is alive then."""
    slots = course.fullest(SLOTS)
    edges = [scale * t for t in (*(s.start for s in slots), slots[-1].end)]
    sizes = {
        title: [s.consumers[key] for s in slots] for key, (title, _) in palette.CONSUMERS.items()
    }
    sizes[palette.OVERHEAD[0]] = [overhead] * len(slots)
    colours = dict([*palette.CONSUMERS.values(), palette.OVERHEAD])
    areas = [
        scatter(
            name=title,
            x=edges,
            y=[n / GiB for n in (*of, of[-1])],
            yaxis=axis,
            stackgroup=axis,
            mode="lines",
            line={"width": 0, "shape": "hv"},
            fillcolor=colours[title],
            hoverinfo="skip",
            legendgroup=title,
            showlegend=legend,
        )
        for title, of in sizes.items()
        if any(of)
    ]
    marks = scatter(
        x=[scale * (s.start + s.seconds / 2) for s in slots],
        y=[(s.bytes + overhead) / GiB for s in slots],
        yaxis=axis,
        mode="markers",
        marker={"opacity": 0, "color": palette.OVERHEAD[1]},
        customdata=[(_alive(s), places.get((course.rank, s.instant, s.bytes), "")) for s in slots],
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": 0}},
        showlegend=False,
    )
    return [*areas, marks]


def _alive(s: Slot) -> str:
    """What is alive in a moment of a step."""
    batch = f", micro-batch {s.micro_batch}" if s.micro_batch else ""
    of = [
        f"{title}: {bytes_text(s.consumers[key])}"
        for key, (title, _) in palette.CONSUMERS.items()
        if s.consumers[key]
    ]
    return "<br>".join([f"<b>{bytes_text(s.bytes)}</b>, {s.label}{batch}", *of])


def _level(value: float, axis: str) -> dict[str, Any]:
    """The line at a memory's size, across a chart of memory over time."""
    line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
    place = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value, "yref": axis}
    return {"type": "line", "line": line, **place}


BEYOND = "rgba(229, 72, 77, 0.14)"  # the ground beyond the capacity


def strip(bars: Sequence[Bar], names: Sequence[str] = ("",)) -> go.Figure:
    """Bars of memory, part by part, on one axis whose ground is red beyond what there is. Of
    several bars each has a name; its paths begin with its number."""
    end = max(b.end for b in bars)
    several = len(bars) > 1
    every = dict.fromkeys((p.name, p.colour, p.hatched) for b in bars for p in b.parts if p.bytes)
    traces = []
    for name, colour, hatched in every:
        mine = [next((p for p in b.parts if p.name == name and p.bytes), None) for b in bars]
        texts = [bytes_text(p.bytes) if p else "" for p in mine]
        traces.append(
            bar(
                name,
                colour,
                [p.bytes / GiB if p else None for p in mine],
                list(names),
                [f"{name}: {text}" for text in texts],
                [(f"{i}|{p.path}" if several else p.path) if p else "" for i, p in enumerate(mine)],
                text=texts,
                textposition="inside",
                insidetextanchor="middle",
                insidetextfont={"color": palette.text_on(colour)},
                textangle=0,
                marker={"pattern": {"shape": "/", "fillmode": "replace", "size": 6}}
                if hatched
                else {},
            )
        )
    shapes, notes = [], []
    for i, b in enumerate(bars):
        low, high = (i - 0.5, i + 0.5) if several else (0, 1)
        rows = {"y0": low, "y1": high, "yref": "y" if several else "paper"}
        limit = b.limit / GiB
        shapes += [
            {"type": "rect", "x0": limit, "x1": end / GiB, "fillcolor": BEYOND,
             "line": {"width": 0}, "layer": "below", **rows},
            {"type": "line", "x0": limit, "x1": limit, **rows,
             "line": {"color": palette.CAPACITY, "width": 2, "dash": "dash"}},
        ]  # fmt: skip
        if not i or b.limit_text != bars[i - 1].limit_text:
            notes.append(
                {"x": limit, "y": low if several else 1, "yref": rows["yref"], "text": b.limit_text,
                 "showarrow": False, "xanchor": "right" if limit > end / GiB / 2 else "left",
                 "yanchor": "bottom", "font": {"color": palette.CAPACITY}}
            )  # fmt: skip
    return figure(
        traces,
        height=(64 + 36 * len(bars)) if several else 92,
        bargap=0.25 if several else 0,
        margin={"l": 0, "r": 0, "t": 20, "b": 30},
        uniformtext={"mode": "hide", "minsize": 11},
        xaxis={"range": [0, end / GiB], "visible": False},
        yaxis={"visible": several, "autorange": "reversed"},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top",
                "traceorder": "normal"},
        shapes=shapes,
        annotations=notes,
    )  # fmt: skip
