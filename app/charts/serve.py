"""The chart of the page RL."""

from __future__ import annotations

import plotly.graph_objects as go

from app import palette
from app.charts.base import bar, figure
from app.charts.memory import capacity
from memcore.report import TogetherMemory
from memcore.together.scene import PARTS
from memcore.units import GiB, bytes_text


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
