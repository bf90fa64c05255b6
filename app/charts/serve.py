"""Charts of the pages Serve and RL."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure
from app.charts.memory import capacity
from memcore.report import Serve, TogetherMemory
from memcore.together.scene import PARTS
from memcore.units import GiB, bytes_text

MOST, STEPS = 1.25, 40  # times the sequences that have room, and points of the axis


def serving_memory(serve: Serve, concurrency: int) -> go.Figure:
    """Memory of one serving GPU against how many sequences run at once, up to its budget."""
    most = max(2, round(MOST * max(serve.max_concurrency, concurrency)))
    counts = sorted({round(1 + (most - 1) * i / STEPS) for i in range(STEPS + 1)})
    cache = serve.sequence_bytes - serve.state_bytes_per_sequence
    areas = (
        ("Weights", palette.CONSUMERS["parameters"][1], serve.weights_bytes, 0),
        ("Activations", palette.CONSUMERS["activations"][1], serve.activation_bytes, 0),
        ("Overhead", palette.OVERHEAD[1], serve.overhead_bytes, 0),
        (*palette.STATES, 0, serve.state_bytes_per_sequence),
        (*palette.KV_CACHE, 0, cache),
    )
    traces = [
        {
            "type": "scatter",
            "name": name,
            "x": counts,
            "y": [(fixed + each * n) / GiB for n in counts],
            "stackgroup": "memory",
            "mode": "lines",
            "line": {"width": 0, "color": colour},
            "fillcolor": colour,
            "hovertemplate": f"{name}: %{{y:.2f}} GiB with %{{x:,}} at once<extra></extra>",
        }
        for name, colour, fixed, each in areas
        if fixed or each
    ]
    budget = serve.budget_bytes / GiB
    traces.append(
        {
            "type": "scatter",
            "name": f"Budget {bytes_text(serve.budget_bytes)}",
            "x": [counts[0], counts[-1]],
            "y": [budget, budget],
            "mode": "lines",
            "line": {"color": palette.CAPACITY, "dash": "dash"},
            "hoverinfo": "skip",
        }
    )
    return figure(
        traces,
        height=300,
        xaxis={"title": "sequences at once", "range": [counts[0], counts[-1]]},
        yaxis={"title": "GiB", "rangemode": "tozero"},
        shapes=[
            {
                "type": "line",
                "x0": concurrency,
                "x1": concurrency,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dot", "width": 1, "color": palette.OVERHEAD[1]},
            }
        ],
    )


def together(found: TogetherMemory) -> go.Figure:
    """Each phase of a step that trains and serves on the same GPUs, against one GPU's capacity."""
    phases = list(enumerate(found.phases))
    labels = [phase.label for _, phase in phases]
    bars = [
        bar(
            title,
            palette.TOGETHER[part],
            [phase.parts.get(part, 0) / GiB for _, phase in phases],
            labels,
            [f"{title}: {bytes_text(phase.parts.get(part, 0))}" for _, phase in phases],
            [f"together.phases.{i}.parts.{part}" for i, _ in phases],
        )
        for part, title in PARTS.items()
        if any(part in phase.parts for _, phase in phases)
    ]
    title, colour = palette.OVERHEAD
    more = [phase.device_bytes[0] - phase.bytes for _, phase in phases]
    bars.append(
        bar(
            title,
            colour,
            [n / GiB for n in more],
            labels,
            [f"{title}: {bytes_text(n)}" for n in more],
            [f"together.phases.{i}.device_bytes" for i, _ in phases],
        )
    )
    most = max(found.capacity_bytes, found.device_bytes[1])
    return figure(
        bars,
        height=110 + 38 * len(phases),
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        yaxis={"range": [len(phases) - 0.5, -0.9]},  # room for a word
        **capacity(found.capacity_bytes),
    )
