"""Bar: one GPU's memory, part by part, on an axis that stays where it is."""

from __future__ import annotations

from dataclasses import dataclass

from app import palette
from memcore.report import Memory, Serve, TogetherMemory
from memcore.together.scene import PARTS
from memcore.units import bytes_text

# The axis ends at one of these multiples of the capacity: the same for almost every plan, so that
# a length means bytes and less memory never looks longer.
ENDS = (1.25, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bar: `key` is its word, `path` where its number is in the Report."""

    key: str
    name: str
    colour: str
    bytes: int
    path: str
    hatched: bool = False


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


def of_together(together: TogetherMemory) -> Bar:
    """The fullest phase of a step that trains and serves."""
    at, phase = next((i, p) for i, p in enumerate(together.phases) if p.id == together.peak)
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
        together.capacity_bytes,
        "Capacity",
    )  # fmt: skip


def fill(colour: str, hatched: bool) -> str:
    """A part's background in CSS."""
    stripes = f"repeating-linear-gradient(135deg,{colour} 0 2px,transparent 2px 6px)"
    return stripes if hatched else colour


def small(bar: Bar) -> str:
    """The bar as HTML that stands still: in a card, or in a file for somebody else."""
    end = max(1.0, bar.end)
    parts = "".join(
        f'<span style="width:{100 * part.bytes / end:.2f}%;'
        f'background:{fill(part.colour, part.hatched)}"></span>'
        for part in bar.parts
        if part.bytes
    )
    return f'<div class="small-bar">{parts}<i style="left:{100 * bar.limit / end:.2f}%"></i></div>'


def key(bar: Bar) -> str:
    """What each colour of the bar is and how much it is, as HTML that wraps where the page ends."""
    parts = "".join(
        f'<span><b style="background:{fill(part.colour, part.hatched)}"></b>'
        f"{part.name} {bytes_text(part.bytes)}</span>"
        for part in bar.parts
        if part.bytes
    )
    return f'<div class="key">{parts}</div>'
