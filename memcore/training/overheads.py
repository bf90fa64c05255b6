"""Overheads: what no shape determines (context, NCCL, workspaces) and the allocator's slack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memcore.frameworks import FRAMEWORKS
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.quantity.reading import Read, Values, ceil, total
from memcore.report import Overhead
from memcore.tape.dims import LIVE
from memcore.tape.ledger import Amounts
from memcore.words.precision import COPIES
from memcore.words.training import NATIVE


def allocator_slack(plan: Plan) -> constants.Constant:
    """Reserved over allocated bytes, as runs of this plan's framework show it."""
    return FRAMEWORKS[plan.train.framework].slack_at(plan.train.zero)


def slack(x: Any, end: int) -> Read:
    """Reserved over allocated bytes at one end, with what the allocator's gaps add."""
    found = x.constant(allocator_slack(x.plan), end)
    if x.plan.train.allocator == NATIVE:
        found = found * x.constant(constants.NATIVE_SEGMENTS, end)
    return found


def counted(overheads: Iterable[Any], counter: str, end: int) -> list[Read]:
    """Those that a counter is the first to count, at one end."""
    return [(o.low, o.high)[end] for o in overheads if o.counter == counter]


def reserved(x: Any, allocated: Read, overheads: Iterable[Any], end: int) -> Read:
    """What PyTorch's allocator holds: allocated with its slack, and cuBLAS's workspace."""
    return total([ceil(allocated * slack(x, end)), *counted(overheads, "reserved", end)])


def reserved_bytes(plan: Plan, allocated: int, overheads: Sequence[Overhead]) -> tuple[int, int]:
    """The same at both ends."""
    x = Values(plan=plan)
    return reserved(x, allocated, overheads, 0), reserved(x, allocated, overheads, 1)


# Architectures whose cuBLAS has PyTorch's larger workspace.
LARGE_WORKSPACE = ("Hopper", "Blackwell")


def plan_overheads(plan: Plan, amounts: Amounts) -> tuple[Overhead, ...]:
    """What no shape determines, by the counter that it is first seen in."""
    gpu = plan.accelerator
    found = [(constants.CUDA_CONTEXT, "device", 1)]
    several = amounts.sizes["GPUS"] > 1
    if amounts.arrays or several:
        found.append((constants.NCCL_BUFFERS, "device", several))
    if gpu.vendor == "nvidia":
        large = gpu.architecture.startswith(LARGE_WORKSPACE)
        workspace = constants.CUBLAS_WORKSPACE_HOPPER if large else constants.CUBLAS_WORKSPACE
        found.insert(0, (workspace, "reserved", 1))
    overheads = [
        Overhead(c.name, int(c.low) * n, int(c.high) * n, counter, c.certainty, c.source)
        for c, counter, n in found
    ]
    framework = FRAMEWORKS[plan.train.framework]
    if framework.streams and plan.train.zero >= framework.gathers:
        c, x = constants.STREAM_POOLS, Values(plan=plan)
        low, high = streamed(x, amounts, 0), streamed(x, amounts, 1)
        overheads.insert(0, Overhead(c.name, low, high, "reserved", c.certainty, c.source))
    return tuple(overheads)


def streamed(x: Any, amounts: Amounts, end: int) -> Read:
    """What DeepSpeed's streams keep for weights of other ranks, all on a stream of its own: those
    that ZeRO-3 holds at once."""
    compute = COPIES[x.plan.train.framework, x.plan.train.precision].compute
    live = x.width(compute) * x.shape((LIVE,), amounts)
    return ceil(live * x.constant(constants.STREAM_POOLS, end))
