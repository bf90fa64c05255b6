"""Charts of the pages Serve and Together."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure
from app.charts.memory import capacity
from memcore.report import Serve, TogetherMemory
from memcore.together import PARTS
from memcore.units import GiB, bytes_text


def serving(serve: Serve, concurrency: int) -> go.Figure:
    """The memory of one serving GPU, part by part, against its budget."""
    kv = serve.sequence_bytes * concurrency
    states = serve.state_bytes_per_sequence * concurrency
    cached: tuple[tuple[str, str, int, str], ...] = (
        ("KV cache of these sequences", palette.KV_CACHE[1], kv, "serve.asked_bytes"),
    )
    if states:
        cached = (
            ("Keys and values of these sequences", palette.KV_CACHE[1], kv - states,
             "serve.asked_kv_bytes"),
            ("States of these sequences", palette.STATES[1], states, "serve.asked_state_bytes"),
        )  # fmt: skip
    parts = (
        ("Weights", palette.CONSUMERS["parameters"][1], serve.weights_bytes, "serve.weights_bytes"),
        *cached,
        ("Activations", palette.CONSUMERS["activations"][1], serve.activation_bytes,
         "serve.activation_bytes"),
        ("Overhead", palette.OVERHEAD[1], serve.overhead_bytes, "serve.overhead_bytes"),
    )  # fmt: skip
    most = max(sum(size for _, _, size, _ in parts), serve.budget_bytes)
    bars = [
        bar(name, colour, [size / GiB], ["Each GPU"], [f"{name}: {bytes_text(size)}"], [path])
        for name, colour, size, path in parts
    ]
    return figure(
        bars,
        height=189,
        bargap=0.5,
        xaxis={"title": "GiB", "range": [0, 1.03 * most / GiB]},
        **capacity(serve.budget_bytes, "Budget"),
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
        yaxis={"autorange": "reversed"},
        **capacity(found.capacity_bytes),
    )
