"""Charts of the page Time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app import palette
from app.charts.base import Picture, bar, figure, phase_bar, scatter
from memcore.hardware.accelerator import Accelerator
from memcore.report import OperationTime, Time
from memcore.units import rate_text, seconds_text

HIDDEN = 0.35  # opacity of time that something else hides


def step_time(time: Time) -> Picture:
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


def step_phases(time: Time) -> Picture:
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


def stages(time: Time) -> Picture:
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
        height=min(640, 150 + 26 * len(labels)),
        xaxis={"title": "seconds per micro-batch", "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": labels[::-1]},
    )


DECADES = range(6, 19)  # of FLOP/s
PREFIXES = ("", "K", "M", "G", "T", "P", "E")


def roofline(operations: Sequence[OperationTime], gpu: Accelerator, dtype: str) -> Picture:
    """Operations by arithmetic intensity and achieved FLOP/s, under the two ceilings of the GPU."""
    shown = [
        (i, o)
        for i, o in enumerate(operations)
        if o.flops > 0 and o.hbm_bytes > 0 and o.seconds > 0
    ]
    peak, bandwidth = gpu.peak_flops(dtype), gpu.memory_bandwidth
    intensities = [o.flops / o.hbm_bytes for _, o in shown] or [1.0]
    low = min(*intensities, 0.1 * peak / bandwidth, 1.0) / 2
    high = max(*intensities, 10 * peak / bandwidth) * 2
    ridge = peak / bandwidth
    roof = scatter(
        name="Roof",
        x=[low, ridge, high],
        y=[low * bandwidth, peak, peak],
        mode="lines",
        line={"color": palette.OVERHEAD[1], "width": 2},
        hovertemplate=(
            f"{rate_text(peak, 'FLOP/s')} ({dtype}), {rate_text(bandwidth, 'B/s')}: they meet at "
            f"{ridge:,.0f} FLOP per byte<extra></extra>"
        ),
        showlegend=False,
    )
    traces = [roof]
    for phase, (title, symbol) in palette.PHASES.items():
        of_phase = [(i, o) for i, o in shown if o.phase == phase]
        if not of_phase:
            continue
        traces.append(
            scatter(
                name=title,
                x=[o.flops / o.hbm_bytes for _, o in of_phase],
                y=[o.flops / o.seconds for _, o in of_phase],
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 10,
                    "color": palette.PHASE_COLOURS[phase],
                    "line": {"width": 1, "color": "white"},
                },
                customdata=[(_placed(o), f"time.operations.{i}.rate") for i, o in of_phase],
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
            "dtick": 1,
            "fixedrange": False,  # operations lie close to each other
        },
        yaxis={
            "title": "FLOP/s",
            "type": "log",
            "tickvals": [10.0**n for n in DECADES],
            "ticktext": [f"{10 ** (n % 3)}{PREFIXES[n // 3]}" for n in DECADES],
            "fixedrange": False,
        },
        annotations=[
            {
                "x": 1,
                "xref": "paper",
                "y": _log10(peak),
                "text": f"{dtype} peak {rate_text(peak, 'FLOP/s')}",
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom",
            }
        ],
    )


def _placed(o: OperationTime) -> str:
    """What hovering over an operation on the roofline says."""
    return (
        f"<b>{o.name}</b> ({palette.phase(o.phase).lower()})<br>{o.flops / o.hbm_bytes:,.1f} FLOP "
        f"per byte, {rate_text(o.flops / o.seconds, 'FLOP/s')}<br>"
        f"{seconds_text(o.seconds)} per step, bound by {palette.resource(o.bound_by)}"
    )


def _log10(value: float) -> float:
    return math.log10(value)


def literal(text: str) -> str:
    """Text that came from outside, so that Plotly does not read its tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
