"""Charts of the pages Time and Compare: seconds of a step, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from app import palette
from app.charts.base import (
    Mark,
    Series,
    figure,
    literal,
    note,
    of_seconds,
    points,
    stacked,
)
from memcore.hardware.accelerator import Accelerator
from memcore.report import OperationTime, Time
from memcore.units import rate_text, seconds_text

HIDDEN = 0.35  # opacity of time that something else hides
STEP = "Step"  # the row of the whole step


def step_time(time: Time) -> go.Figure:
    """The step as seconds that nothing hides, by resource; below, each resource's own busy time."""
    rows, marks = [STEP], []
    for name, busy in time.resources.items():
        exposed = time.exposed.get(name, 0.0)
        if not busy and not exposed:
            continue
        title, colour = palette.RESOURCES.get(name, (name, palette.OVERHEAD[1]))
        hidden = max(0.0, busy - exposed)
        text = f"{title}: {seconds_text(exposed)} that nothing hides"
        also = f"{title}: {seconds_text(hidden)} hidden behind other work"
        pale = Series(f"{title}, hidden", colour, opacity=HIDDEN)
        rows.append(title)
        marks += [
            Mark(STEP, Series(title, colour), exposed, text, f"time.exposed.{name}", title),
            Mark(title, Series(title, colour), exposed, text, f"time.exposed.{name}"),
            Mark(title, pale, hidden, also, f"time.hidden.{name}"),
        ]
    marks.append(of_seconds(STEP, "bubble", time.bubble_seconds, "time.bubble_seconds"))
    drawn = stacked(marks, rows, "seconds per step", showlegend=False)  # each row is named
    return drawn.update_layout(margin={"t": 8}, height=80 + 34 * len(rows))


def step_phases(time: Time) -> go.Figure:
    """The step as one bar: what it does, what it waits for, and the bubble."""
    marks = [of_seconds(STEP, part, n, f"time.phases.{part}") for part, n in time.phases.items()]
    drawn = stacked(marks, [STEP], "seconds per step", height=190)
    return drawn.update_yaxes(showticklabels=False)


STAGE_PARTS = ("forward", "recompute", "backward", "communication", "host")


def stages(time: Time) -> go.Figure:
    """One micro-batch on every pipeline stage."""
    rows = [f"Stage {s.rank}" for s in time.stages]
    marks = [
        of_seconds(row, part, getattr(s, part), f"time.stages.{s.rank}.{part}", f"{row}, ")
        for part in STAGE_PARTS
        for row, s in zip(rows, time.stages, strict=True)
    ]
    return stacked(marks, rows, "seconds per micro-batch")


def compared_phases(times: Sequence[tuple[str, Time]]) -> go.Figure:
    """Seconds of a step by phase, plan under plan on one axis. A mark's path begins with the number
    of its plan."""
    marks = [
        of_seconds(name, part, t.phases.get(part, 0), f"{i}|time.phases.{part}", f"{name}<br>")
        for part in palette.PHASE_COLOURS
        for i, (name, t) in enumerate(times)
    ]
    ends = {name: (sum(t.phases.values()), seconds_text(t.step_seconds)) for name, t in times}
    reach = 1.2 * max(end for end, _ in ends.values())
    return stacked(marks, list(ends), "seconds of a step", ends=ends, reach=reach)


DECADES = range(6, 19)  # of FLOP/s
PREFIXES = ("", "K", "M", "G", "T", "P", "E")
NEAR = 0.1  # decades: operations that lie closer to each other on the roofline are one mark
LISTED = 6  # operations of one mark that hovering names

Placed = tuple[int, OperationTime]  # an operation, and where it is in the Report


def roofline(operations: Sequence[OperationTime], gpu: Accelerator, dtype: str) -> go.Figure:
    """Operations by arithmetic intensity and achieved FLOP/s, under the two ceilings of the GPU.
    Those that lie together are one mark, as large as their time; the longest has its name."""
    shown = [
        (i, o)
        for i, o in enumerate(operations)
        if o.flops > 0 and o.hbm_bytes > 0 and o.seconds > 0
    ]
    peak, bandwidth = gpu.peak_flops(dtype), gpu.memory_bandwidth
    ridge = peak / bandwidth
    places = [_place(o) for _, o in shown] or [(math.log10(ridge), math.log10(peak))]
    left = min(*(x for x, _ in places), math.log10(ridge) - 0.5) - 0.3
    right = max(*(x for x, _ in places), math.log10(ridge) + 0.5) + 0.3
    middle = (left + right) / 2
    bottom = min(*(y for _, y in places), math.log10(peak) - 1) - 0.2
    top = math.log10(peak) + 0.4
    words = (
        f"{rate_text(peak, 'FLOP/s')} ({dtype}), {rate_text(bandwidth, 'B/s')}: they meet at "
        f"{ridge:,.0f} FLOP per byte"
    )
    corners = ((10**left, 10**left * bandwidth), (ridge, peak), (10**right, peak))
    roof = [(x, y, words, "") for x, y in corners]
    traces = [points("Roof", roof, palette.OVERHEAD[1], "lines", showlegend=False)]
    groups = _together(shown)
    seconds = sum(o.seconds for _, o in shown)
    for phase, (title, symbol) in palette.PHASES.items():
        of_phase = [g for g in groups if g[0][1].phase == phase]
        if of_phase:
            traces.append(
                points(
                    title,
                    [_mark(g) for g in of_phase],
                    palette.PHASE_COLOURS[phase],
                    "markers+text",
                    marker={
                        "symbol": symbol,
                        "size": [9 + 18 * math.sqrt(_seconds(g) / seconds) for g in of_phase],
                        "line": {"width": 1, "color": "white"},
                    },
                    text=[_name(g) if g == groups[0] else "" for g in of_phase],
                    textposition="bottom left"
                    if middle < _place(groups[0][0][1])[0]
                    else "middle right",
                )
            )
    return figure(
        traces,
        height=360,
        xaxis={
            "title": "FLOP per byte of HBM traffic",
            "type": "log",
            "range": [left, right],
            "dtick": 1,
        },
        yaxis={
            "title": "FLOP/s",
            "type": "log",
            "range": [bottom, top],
            "tickvals": [10.0**n for n in DECADES],
            "ticktext": [f"{10 ** (n % 3)}{PREFIXES[n // 3]}" for n in DECADES],
        },
        annotations=[
            note(
                f"{dtype} peak {rate_text(peak, 'FLOP/s')}",
                1,
                math.log10(peak) + 0.03 * (top - bottom),  # clear of the line
                "right",
                "bottom",
                xref="paper",
            )
        ],
    )


def _place(o: OperationTime) -> tuple[float, float]:
    """Where an operation is on the roofline, in decades."""
    return math.log10(o.flops / o.hbm_bytes), math.log10(o.flops / o.seconds)


def _together(shown: Sequence[Placed]) -> list[list[Placed]]:
    """Operations that lie together on the roofline, the longest of them first; and so are they."""
    groups: list[list[Placed]] = []
    for each in sorted(shown, key=lambda placed: -placed[1].seconds):
        x, y = _place(each[1])
        for group in groups:
            there = _place(group[0][1])
            if abs(there[0] - x) < NEAR and abs(there[1] - y) < NEAR:
                group.append(each)
                break
        else:
            groups.append([each])
    return sorted(groups, key=_seconds, reverse=True)


def _seconds(group: Sequence[Placed]) -> float:
    return sum(o.seconds for _, o in group)


def _name(group: Sequence[Placed]) -> str:
    first = literal(group[0][1].name.removeprefix("layers.").removesuffix(".matmul"))
    return f"{first}, {len(group) - 1} more" if len(group) > 1 else first


def _mark(group: Sequence[Placed]) -> tuple[float, float, str, str]:
    """A mark of the roofline, at the longest of its operations, with what hovering says."""
    number, first = group[0]
    lines = [
        f"<b>{literal(o.name)}</b> ({palette.phase(o.phase).lower()}): {seconds_text(o.seconds)}"
        for _, o in group[:LISTED]
    ]
    if len(group) > LISTED:
        lines.append(f"and {len(group) - LISTED} more")
    lines.append(
        f"{first.flops / first.hbm_bytes:,.1f} FLOP per byte, "
        f"{rate_text(first.flops / first.seconds, 'FLOP/s')}, bound by "
        f"{palette.resource(first.bound_by)}"
    )
    x, y = _place(first)
    return 10**x, 10**y, "<br>".join(lines), f"time.operations.{number}.rate"
