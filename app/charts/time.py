"""Charts of the page Time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure, phase_bar, scatter
from memcore.hardware.accelerator import Accelerator
from memcore.report import OperationTime, Time
from memcore.units import rate_text, seconds_text

HIDDEN = 0.35  # opacity of time that something else hides


def step_time(time: Time) -> go.Figure:
    """The step as seconds that nothing hides, by resource; below, each resource's own busy time."""
    used = [name for name, busy in time.resources.items() if busy or time.exposed.get(name)]
    rows = ["Step", *(palette.resource(name) for name in used)]
    traces = []
    for name in used:
        title, colour = palette.RESOURCES.get(name, (name, palette.OVERHEAD[1]))
        exposed = time.exposed.get(name, 0.0)
        hidden = max(0.0, time.resources[name] - exposed)
        said = f"{title}: {seconds_text(exposed)} that nothing hides"
        traces.append(
            bar(
                title,
                colour,
                [exposed, exposed],
                ["Step", title],
                [said, said],
                [f"time.exposed.{name}"] * 2,
                text=[title, ""],
                textposition="inside",
                textangle=0,
                insidetextfont={"color": palette.text_on(colour)},
                insidetextanchor="middle",
            )
        )
        traces.append(
            bar(
                f"{title}, hidden",
                colour,
                [hidden],
                [title],
                [f"{title}: {seconds_text(hidden)} hidden behind other work"],
                [f"time.hidden.{name}"],
                marker={"opacity": HIDDEN},
            )
        )
    if time.bubble_seconds:
        said = f"{palette.phase('bubble')}: {seconds_text(time.bubble_seconds)}"
        path = "time.bubble_seconds"
        traces.append(phase_bar("bubble", [time.bubble_seconds], ["Step"], [said], [path]))
    return figure(
        traces,
        height=80 + 34 * len(rows),
        showlegend=False,  # each row is named
        uniformtext={"mode": "hide", "minsize": 11},  # no name where it has no room
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        xaxis={"title": "seconds per step", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1]},
    )


def step_phases(time: Time) -> go.Figure:
    """The step as one bar: what it does, what it waits for, and the bubble."""
    traces = [
        phase_bar(
            name,
            [seconds],
            ["Step"],
            [f"{palette.phase(name)}: {seconds_text(seconds)}"],
            [f"time.phases.{name}"],
        )
        for name, seconds in time.phases.items()
        if seconds
    ]
    return figure(
        traces,
        height=190,
        xaxis={"title": "seconds per step", "rangemode": "tozero"},
        yaxis={"showticklabels": False},
    )


STAGE_PARTS = ("forward", "recompute", "backward", "communication", "host")


def stages(time: Time) -> go.Figure:
    """One micro-batch on every pipeline stage."""
    labels = [f"Stage {s.rank}" for s in time.stages]
    traces = []
    for part in STAGE_PARTS:
        values = [getattr(s, part) for s in time.stages]
        if any(values):
            said = [
                f"{label}, {palette.phase(part).lower()}: {seconds_text(value)}"
                for label, value in zip(labels, values, strict=True)
            ]
            paths = [f"time.stages.{s.rank}.{part}" for s in time.stages]
            traces.append(phase_bar(part, values, labels, said, paths))
    return figure(
        traces,
        height=100 + (34 if len(labels) <= 4 else 20) * len(labels),
        xaxis={"title": "seconds per micro-batch", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": labels[::-1]},
    )


DECADES = range(6, 19)  # of FLOP/s
PREFIXES = ("", "K", "M", "G", "T", "P", "E")
NEAR = 0.1  # decades: operations that lie closer to each other on the roofline are one mark
NAMED = 0.03  # of the time of all marks: one that took more of it has its name
APART = 0.065  # of the axis' height: names lie that far from each other, and from marks
LETTER = 0.019  # of the axis' width on a narrow page, a letter of a name
LISTED = 6  # operations of one mark that hovering names

Placed = tuple[int, OperationTime]  # an operation, and where it is in the Report


def roofline(operations: Sequence[OperationTime], gpu: Accelerator, dtype: str) -> go.Figure:
    """Operations by arithmetic intensity and achieved FLOP/s, under the two ceilings of the GPU.
    Those that lie together are one mark, as large as their time; the longest have names."""
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
    bottom = min(*(y for _, y in places), math.log10(peak) - 1) - 0.2
    top = math.log10(peak) + 0.4
    roof = scatter(
        name="Roof",
        x=[10**left, ridge, 10**right],
        y=[10**left * bandwidth, peak, peak],
        mode="lines",
        line={"color": palette.OVERHEAD[1], "width": 2},
        hovertemplate=(
            f"{rate_text(peak, 'FLOP/s')} ({dtype}), {rate_text(bandwidth, 'B/s')}: they meet at "
            f"{ridge:,.0f} FLOP per byte<extra></extra>"
        ),
        showlegend=False,
    )
    groups = _together(shown)
    seconds = sum(o.seconds for _, o in shown)
    traces = [roof]
    for phase, (title, symbol) in palette.PHASES.items():
        of_phase = [g for g in groups if g[0][1].phase == phase]
        if not of_phase:
            continue
        at = [_place(g[0][1]) for g in of_phase]
        traces.append(
            scatter(
                name=title,
                x=[10**x for x, _ in at],
                y=[10**y for _, y in at],
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": [9 + 18 * math.sqrt(_seconds(g) / seconds) for g in of_phase],
                    "color": palette.PHASE_COLOURS[phase],
                    "line": {"width": 1, "color": "white"},
                },
                customdata=[(_placed(g), f"time.operations.{g[0][0]}.rate") for g in of_phase],
                hovertemplate="%{customdata[0]}<extra></extra>",
                unselected={"marker": {"opacity": 1}},
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
            "fixedrange": False,  # operations lie close to each other
        },
        yaxis={
            "title": "FLOP/s",
            "type": "log",
            "range": [bottom, top],
            "tickvals": [10.0**n for n in DECADES],
            "ticktext": [f"{10 ** (n % 3)}{PREFIXES[n // 3]}" for n in DECADES],
            "fixedrange": False,
        },
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "y": math.log10(peak) + 0.03 * (top - bottom),  # clear of the line
                "text": f"{dtype} peak {rate_text(peak, 'FLOP/s')}",
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom",
            },
            *_names(groups, seconds, APART * (top - bottom), (left, right)),
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


def _names(
    groups: Sequence[Sequence[Placed]], seconds: float, apart: float, ends: tuple[float, float]
) -> list[dict[str, Any]]:
    """The names of the longest marks. A mark near the slope has room at its right, one under the
    flat part of the roof below it; a name is clear of other marks and names, with no other between
    itself and its mark, or is not there."""
    found: list[dict[str, Any]] = []
    left, right = ends
    marks = [_at(group) for group in groups]
    for group in groups:
        if _seconds(group) < NAMED * seconds:
            continue
        x, y = _at(group)
        first = literal(group[0][1].name.removeprefix("layers.").removesuffix(".matmul"))
        said = f"{first}, {len(group) - 1} more" if len(group) > 1 else first
        note = {"text": said, "showarrow": False, "yanchor": "middle"}
        if x <= (left + right) / 2:
            size = 5 + 9 * math.sqrt(_seconds(group) / seconds)
            found.append({**note, "x": x, "y": y, "xanchor": "left", "xshift": size + 4})
            continue
        width = LETTER * len(said) * (right - left)
        end = min(right, x + width / 2)
        taken = [b for a, b in marks if end - width - NEAR < a < end + NEAR]
        names = [n["y"] for n in found if n["xanchor"] == "right" or n["x"] > end - width]
        taken += names
        free = (y - k * apart / 8 for k in range(8, 21))
        level = next((v for v in free if all(abs(v - t) > 0.72 * apart for t in taken)), None)
        if level is not None and not any(level < name < y for name in names):
            found.append({**note, "x": end, "y": level, "xanchor": "right"})
    return found


def _at(group: Sequence[Placed]) -> tuple[float, float]:
    """Where a mark is: at the longest of its operations."""
    return _place(group[0][1])


def _placed(group: Sequence[Placed]) -> str:
    """What hovering over a mark of the roofline says."""
    first = group[0][1]
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
    return "<br>".join(lines)


def literal(text: str) -> str:
    """Text that came from outside, so that Plotly does not read its tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
