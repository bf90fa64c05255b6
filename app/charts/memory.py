"""Charts of memory."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import Picture, Trace, bar, figure, scatter
from memcore.report import Memory, RankMemory
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


def memory_by_consumer(memory: Memory) -> Picture:
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
    ).plotly()


def _named_line(name: str) -> Trace:
    """A legend entry for a capacity line, where the chart has no room for a label beside it."""
    line = {"color": palette.CAPACITY, "width": 2, "dash": "dash"}
    return scatter(name=name, x=[None], y=[None], mode="lines", line=line)
