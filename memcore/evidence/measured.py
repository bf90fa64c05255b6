"""Figures measured on real GPUs by others (presets/evidence/measured.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from memcore.evaluate import evaluate
from memcore.evidence.comparison import OUT_OF_MEMORY, Comparison, of_run, of_training, text
from memcore.plan.plan import Plan
from memcore.report import Memory

# What the issue of accuracy asks of runs of high confidence.
ALLOCATED_TOLERANCE = 0.05  # in the median
RESERVED_INSIDE = 0.9  # share of runs inside their interval
RESERVED_WIDTH = 0.15  # of the interval, over its lower end


@functools.cache
def measured_table() -> Mapping[str, Any]:
    """`runs` and what is `left_out`, as the file has them."""
    return tomllib.loads(text("measured.toml"))


@functools.cache
def compared_runs() -> tuple[Comparison, ...]:
    """Every measured run beside ours."""
    return tuple(compared_run(run) for run in measured_table()["runs"])


def compared_run(run: Mapping[str, Any]) -> Comparison:
    """One run. For 'reserved', `ours` is the middle of an interval; for 'out of memory', the least
    that the plan needs of the device, beside what the device has."""
    plan = Plan.of(run["plan"])
    memory = evaluate(plan).memory
    assert memory, "runs are plans whose training is computed"
    low, high = _interval(run["counter"], memory)
    ends = {"low": low, "high": high} if low < high else {}
    return of_run(
        run, plan, run["counter"], run["value"], (low + high) // 2, "bytes",
        tolerance=ALLOCATED_TOLERANCE, **of_training(plan), **ends,
    )  # fmt: skip


def _interval(counter: str, memory: Memory) -> tuple[int, int]:
    """What we say of a counter, from and to."""
    if counter == "reserved":
        return memory.reserved_bytes
    if counter == "after start":
        return (memory.consumers["parameters"],) * 2
    if counter == "after a step":
        states = memory.timeline[-1].consumers
        return (sum(states[c] for c in ("parameters", "gradients", "optimizer_states")),) * 2
    if counter == OUT_OF_MEMORY:
        return (memory.device_bytes[0],) * 2
    assert counter == "allocated", counter
    return (memory.allocated_bytes,) * 2
