"""Tables of what was measured, with what is predicted."""

from __future__ import annotations

from app.tables.base import Rows
from memcore.formats.memory import CATEGORIES, GpuMemory
from memcore.report import Memory
from memcore.search.measured import FIRST, STEP, TOKEN, Calibrated, Moved
from memcore.units import bytes_text, count_text, hours_text, money_text, seconds_text

SECONDS = {FIRST: "Time to first token", TOKEN: "Time per output token", STEP: "Step"}
NUMBERS = {
    "tokens_per_second": ("Tokens/s", count_text),
    "run_seconds": ("Time to train", seconds_text),
    "gpu_hours": ("GPU-hours", hours_text),
    "cost": ("Cost", money_text),
    "cost_per_million_out": ("A million tokens out", money_text),
    "allocated_bytes": ("Allocated at the peak", bytes_text),
}
CALIBRATED = {FIRST: "first token, calibrated", TOKEN: "per token, calibrated"}  # heads of columns


def calibrated(of: Calibrated) -> Rows:
    """Figures as they are predicted, and as what was measured has them."""
    lines = [
        (what, seconds_text(of.moved[name].seconds), of.moved[name].text)
        for name, what in SECONDS.items()
        if name in of.moved
    ]
    lines += [
        (what, text(of.numbers[name][0]), text(of.numbers[name][1]))
        for name, (what, text) in NUMBERS.items()
        if name in of.numbers
    ]
    return [dict(zip(("figure", "predicted", "calibrated"), line, strict=True)) for line in lines]


def moved_text(moved: Moved | None) -> str:
    """Calibrated seconds, where there are any."""
    return moved.text if moved else "–"


def memory_compared(device: GpuMemory, memory: Memory) -> Rows:
    """The plan's peak, and what a run had."""
    return [
        {
            "figure": CATEGORIES.get(row.name, row.name),
            "planned": "" if row.planned is None else _interval(row.planned, row.at_most),
            "measured": "" if row.measured is None else bytes_text(row.measured),
        }
        for row in device.compared(memory)
    ]


def _interval(low: int, high: int | None) -> str:
    return bytes_text(low) if high is None else f"{bytes_text(low)} to {bytes_text(high)}"
