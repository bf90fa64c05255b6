"""Charts of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure
from memcore.report import Memory, RankMemory
from memcore.training.over_time import Course, Slot
from memcore.units import GiB, bytes_text, seconds_text

MAX_RANKS = 16  # bars shown when there are more pipeline stages: the fullest ones
FAR = 2.5  # times what is needed: a capacity beyond would flatten all else
LABEL = 34  # characters of a change's name beside a bar; hovering says all of it


def capacity(bytes_: int, label: str = "Capacity") -> dict[str, Any]:
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
                "text": f"{label} {bytes_text(bytes_)}",
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
            "Overhead, at most",
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
        height=155 + 34 * len(peaks),
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


STAGES = 8  # that are drawn over time: the fullest ones
SLOTS = 240  # of one stage; where there are more, neighbours are drawn as the fullest of them


def over_time(memory: Memory, courses: Sequence[Course]) -> go.Figure:
    """Memory over a step, stage by stage, from the first on down, with the line of what one GPU
    has."""
    shown = sorted(sorted(courses, key=lambda c: -c.peak.bytes)[:STAGES], key=lambda c: c.rank)
    unit, name = (1e3, "ms") if courses[0].slots[-1].end < 10 else (1.0, "s")
    sure = memory.device_bytes[0] - memory.allocated_bytes
    most = max(c.peak.bytes for c in shown) + sure
    near = memory.capacity_bytes < FAR * most
    top = max(1.25 * most, 1.08 * memory.capacity_bytes if near else 0) / GiB
    of = _places(memory)
    places = {(i.rank, i.id, i.bytes): of[i.rank, i.id] for i in memory.timeline}
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    annotations: list[dict[str, Any]] = []
    high = 1 / len(shown)
    for row, course in enumerate(shown):
        y = f"y{row + 1}" if row else "y"
        bottom = 1 - (row + 1) * high
        layout[f"yaxis{row + 1}" if row else "yaxis"] = {
            "range": [0, top],
            "domain": [bottom, bottom + high * (0.88 if len(shown) > 1 else 1)],
            "title": f"Stage {course.rank}" if len(courses) > 1 else "GiB",
            "nticks": 5 if len(shown) == 1 else 3,
        }
        slots = course.fullest(SLOTS)
        x = [unit * s.start for s in slots] + [unit * slots[-1].end]
        parts = [(title, colour, key) for key, (title, colour) in palette.CONSUMERS.items()]
        for title, colour, key in (*parts, (*palette.OVERHEAD, "")):
            sizes = [s.consumers[key] if key else sure for s in slots]
            traces.append(
                go.Scatter(
                    name=title,
                    x=x,
                    y=[round(n / GiB, 4) for n in (*sizes, sizes[-1])],
                    yaxis=y,
                    mode="lines",
                    line={"shape": "hv", "width": 0},
                    fillcolor=colour,
                    stackgroup=f"stage {course.rank}",
                    legendgroup=title,
                    showlegend=not row,
                    hoverinfo="skip",
                )
            )
        traces.append(_heard(course, slots, unit, y, places))
        peak = course.peak
        if peak.bytes == memory.allocated_bytes or len(shown) == 1:
            at = unit * (peak.start + peak.seconds / 2)
            late = at > x[-1] / 2
            annotations.append(
                {
                    "x": at,
                    "y": peak.bytes / GiB,
                    "yref": y,
                    "text": f"<b>{bytes_text(peak.bytes)}, the peak</b>",
                    "hovertext": peak.label,
                    "xanchor": "right" if late else "left",
                    "ax": -24 if late else 24,
                    "ay": -22,
                    "arrowhead": 2,
                }
            )
    if near:
        lines = [
            {
                "type": "line",
                "x0": 0,
                "x1": 1,
                "xref": "paper",
                "y0": memory.capacity_bytes / GiB,
                "y1": memory.capacity_bytes / GiB,
                "yref": f"y{row + 1}" if row else "y",
                "line": {"color": palette.CAPACITY, "width": 2, "dash": "dash"},
            }
            for row in range(len(shown))
        ]
        layout["shapes"] = lines
        traces.append(_named_line(f"Capacity {bytes_text(memory.capacity_bytes)}"))
    else:
        annotations.append(
            {
                "x": 1,
                "y": 1,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "right",
                "yanchor": "top",
                "showarrow": False,
                "text": f"\u2191 Capacity {bytes_text(memory.capacity_bytes)}",
                "font": {"color": palette.CAPACITY},
            }
        )
    last = f"y{len(shown)}" if len(shown) > 1 else "y"
    return figure(
        traces,
        height=340 if len(shown) == 1 else 110 + 105 * len(shown),
        hovermode="x",
        annotations=annotations,
        xaxis={
            "title": name,
            "hoverformat": ".1f",
            "range": [0, unit * courses[0].slots[-1].end],
            "anchor": last,
        },
        **layout,
    )


def _heard(
    course: Course,
    slots: Sequence[Slot],
    unit: float,
    y: str,
    places: Mapping[tuple[int, str, int], str],
) -> go.Scatter:
    """What hovering says of each slot, and the number that a click explains."""
    said = [
        "<br>".join(
            (
                f"<b>{bytes_text(s.bytes)}</b>, {s.label}"
                + (f", micro-batch {s.micro_batch}" if s.micro_batch else ""),
                f"{seconds_text(s.start)} to {seconds_text(s.end)}",
                *(
                    f"{title}: {bytes_text(s.consumers[key])}"
                    for key, (title, _) in palette.CONSUMERS.items()
                    if s.consumers[key]
                ),
            )
        )
        for s in slots
    ]
    # Of what is no instant of the Report nothing more is said than what hovering says.
    paths = [places.get((course.rank, s.instant, s.bytes), "") for s in slots]
    return go.Scatter(
        x=[unit * (s.start + s.seconds / 2) for s in slots],
        y=[round(s.bytes / GiB, 4) for s in slots],
        yaxis=y,
        mode="markers",
        marker={"size": 8, "opacity": 0},
        text=said,
        customdata=[[s.label, path] if path else "" for s, path in zip(slots, paths, strict=True)],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
    )


def _named_line(name: str) -> go.Scatter:
    """A legend entry for a capacity line, where the chart has no room for a label beside it."""
    line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
    return go.Scatter(name=name, x=[None], y=[None], mode="lines", line=line)
