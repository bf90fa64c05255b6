"""Bar: one GPU's memory, part by part, on an axis that stays where it is.

Drawn by a small component, which changes in place: nothing flashes, and a part grows or shrinks
before one's eyes. A click on a part says why it is so large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import streamlit as st

from app import palette, why
from memcore.plan.plan import Plan
from memcore.report import Memory, Serve, TogetherMemory
from memcore.together.scene import PARTS
from memcore.units import bytes_text

HERE = Path(__file__).parent
# The axis ends at one of these multiples of the capacity: the same for almost every plan, so that
# a length means bytes and less memory never looks longer.
ENDS = (1.25, 2, 4, 8, 16, 32, 64, 128)
LOOK = (HERE / "bar.css").read_text(encoding="utf-8")
DRAW = (HERE / "bar.js").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bar: `key` is its word, `path` where its number is in the Report."""

    key: str
    name: str
    colour: str
    bytes: int
    path: str
    hatched: bool = False


_OF_PART = tuple(field.name for field in fields(Part))


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts from left to right, and the line that they must not cross."""

    parts: tuple[Part, ...]
    limit: int
    limit_name: str

    @property
    def end(self) -> float:
        """Bytes at which the axis ends."""
        used = sum(part.bytes for part in self.parts)
        return next((m for m in ENDS if used <= m * self.limit), ENDS[-1]) * self.limit

    @property
    def limit_text(self) -> str:
        return f"{self.limit_name} {bytes_text(self.limit)}"

    def data(
        self, end: float = 0.0, legend: Sequence[Part] | None = None, limit: bool = True
    ) -> dict[str, Any]:
        """What the component draws. Where others stand beside it they have one axis, which ends at
        so many bytes, and one of them has the `legend` of all, and says the `limit` of all."""
        end = max(1.0, end or self.end)
        return {
            "parts": [
                {
                    **{name: getattr(part, name) for name in _OF_PART},
                    "share": 100 * part.bytes / end,
                    "text": bytes_text(part.bytes),
                    "ink": palette.text_on(part.colour),
                }
                for part in self.parts
                if part.bytes
            ],
            "legend": [
                {"name": part.name, "colour": part.colour, "hatched": part.hatched}
                for part in (self.parts if legend is None else legend)
                if part.bytes
            ],
            "limit": 100 * self.limit / end,
            "limit_text": self.limit_text if limit else "",
        }


def of_training(memory: Memory) -> Bar:
    """The fullest GPU at its fullest instant, and what is outside the allocator."""
    title, colour = palette.OVERHEAD
    low, high = memory.device_bytes
    return Bar(
        (
            *(
                Part(key, name, shade, memory.consumers.get(key, 0), f"memory.consumers.{key}")
                for key, (name, shade) in palette.CONSUMERS.items()
            ),
            Part("overhead", title, colour, max(0, low - memory.allocated_bytes),
                 "memory.overhead_bytes.0"),
            Part("overhead_most", "at most", colour, high - low, "memory.overhead_bytes.1", True),
        ),
        memory.capacity_bytes,
        "Capacity",
    )  # fmt: skip


def of_serving(serve: Serve, concurrency: int) -> Bar:
    """One serving GPU with all the sequences that are asked for, against its budget."""
    kv = serve.sequence_bytes * concurrency
    states = serve.state_bytes_per_sequence * concurrency
    cache = "serve.asked_kv_bytes" if states else "serve.asked_bytes"
    return Bar(
        (
            Part("weights", "Weights", palette.CONSUMERS["parameters"][1], serve.weights_bytes,
                 "serve.weights_bytes"),
            Part("kv_cache", palette.KV_CACHE[0], palette.KV_CACHE[1], kv - states, cache),
            Part("states", palette.STATES[0], palette.STATES[1], states, "serve.asked_state_bytes"),
            Part("activations", *palette.CONSUMERS["activations"], serve.activation_bytes,
                 "serve.activation_bytes"),
            Part("overhead", "Overhead", palette.OVERHEAD[1], serve.overhead_bytes,
                 "serve.overhead_bytes"),
        ),
        serve.budget_bytes,
        "Budget",
    )  # fmt: skip


def of_together(found: TogetherMemory) -> Bar:
    """The fullest phase of a step that trains and serves."""
    at, phase = next((i, p) for i, p in enumerate(found.phases) if p.id == found.peak)
    over = max(0, phase.device_bytes[0] - phase.bytes)
    return Bar(
        (
            *(
                Part(part, title, palette.TOGETHER[part], phase.parts.get(part, 0),
                     f"together.phases.{at}.parts.{part}")
                for part, title in PARTS.items()
            ),
            Part("overhead", *palette.OVERHEAD, over, f"together.phases.{at}.device_bytes"),
        ),
        found.capacity_bytes,
        "Capacity",
    )  # fmt: skip


_component = st.components.v2.component(
    "memplan_bar", html='<div class="memplan-bar"></div>', css=LOOK, js=DRAW
)


def draw(
    bar: Bar,
    key: str,
    end: float = 0.0,
    legend: Sequence[Part] | None = None,
    of: Plan | None = None,
    limit: bool = True,
) -> None:
    """The bar on the page; `of` is its plan where that is another than the page's."""
    _component(key=key, data=bar.data(end, legend, limit), on_why_change=lambda: why.asked(key, of))


def fill(colour: str, hatched: bool) -> str:
    """A part's background in CSS."""
    stripes = f"repeating-linear-gradient(135deg,{colour} 0 2px,transparent 2px 6px)"
    return stripes if hatched else colour


def small(bar: Bar) -> str:
    """The bar as HTML that stands still: in a card, or in a file for somebody else."""
    data = bar.data()
    parts = "".join(
        f'<span style="width:{part["share"]:.2f}%;'
        f'background:{fill(part["colour"], part["hatched"])}"></span>'
        for part in data["parts"]
    )
    style = f"left:{data['limit']:.2f}%"
    return f'<div class="small-bar">{parts}<i style="{style}"></i></div>'


def all_parts(bars: Sequence[Bar]) -> tuple[Part, ...]:
    """One of each part that any of these bars has, in the order of the bars."""
    found = {part.name: part for bar in bars for part in bar.parts if part.bytes}
    names = dict.fromkeys(part.name for bar in bars for part in bar.parts)
    return tuple(found[name] for name in names if name in found)
