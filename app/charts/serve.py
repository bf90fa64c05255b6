"""Charts of the pages Serve and RL."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import Mark, Series, area, capacity, figure, of_bytes, points, rule, stacked
from memcore.report import Serve, TogetherMemory
from memcore.together.scene import PARTS
from memcore.units import GiB, bytes_text

MOST, STEPS = 1.25, 40  # times the sequences that have room, and points of the axis


def serving_memory(serve: Serve, concurrency: int) -> go.Figure:
    """Memory of one serving GPU against how many sequences run at once, up to its budget."""
    most = max(2, round(MOST * max(serve.max_concurrency, concurrency)))
    counts = sorted({round(1 + (most - 1) * i / STEPS) for i in range(STEPS + 1)})
    cache = serve.sequence_bytes - serve.state_bytes_per_sequence
    traces = [
        area(
            Series(name, colour),
            counts,
            [(fixed + each * n) / GiB for n in counts],
            hoverinfo=None,
            hovertemplate=f"{name}: %{{y:.2f}} GiB with %{{x:,}} at once<extra></extra>",
        )
        for name, colour, fixed, each in (
            ("Weights", palette.CONSUMERS["parameters"][1], serve.weights_bytes, 0),
            ("Activations", palette.CONSUMERS["activations"][1], serve.activation_bytes, 0),
            ("Overhead", palette.OVERHEAD[1], serve.overhead_bytes, 0),
            (*palette.STATES, 0, serve.state_bytes_per_sequence),
            (*palette.KV_CACHE, 0, cache),
        )
        if fixed or each
    ]
    budget = f"Budget {bytes_text(serve.budget_bytes)}"
    ends = [(n, serve.budget_bytes / GiB, budget, "") for n in (counts[0], counts[-1])]
    traces.append(points(budget, ends, palette.CAPACITY, "lines", "dash"))
    return figure(
        traces,
        height=300,
        rules=[rule("x", concurrency, colour=palette.OVERHEAD[1], dash="dot")],
        xaxis={"title": "sequences at once", "range": [counts[0], counts[-1]]},
        yaxis={"title": "GiB", "rangemode": "tozero"},
    )


def together(together: TogetherMemory) -> go.Figure:
    """Each phase of a step that trains and serves on the same GPUs, against one GPU's capacity."""
    marks: list[Mark] = []
    for part, title in PARTS.items():
        series = Series(title, palette.TOGETHER[part])
        for i, phase in enumerate(together.phases):
            path = f"together.phases.{i}.parts.{part}"
            marks.append(of_bytes(phase.label, series, phase.parts.get(part, 0), path))
    for i, phase in enumerate(together.phases):
        over = phase.device_bytes[0] - phase.bytes
        path = f"together.phases.{i}.device_bytes"
        marks.append(of_bytes(phase.label, Series(*palette.OVERHEAD), over, path))
    reach = 1.03 * max(together.capacity_bytes, together.device_bytes[1]) / GiB
    rows = [phase.label for phase in together.phases]
    return stacked(marks, rows, "GiB", capacity(together.capacity_bytes), reach=reach)
