"""Overheads: what no shape determines (context, NCCL, workspaces) and the allocator's slack."""

from __future__ import annotations

import math

from memcore.frameworks import FRAMEWORKS
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.report import Overhead
from memcore.tape.dims import LIVE
from memcore.tape.ledger import Amounts
from memcore.words.precision import COPIES
from memcore.words.training import NATIVE


def allocator_slack(plan: Plan) -> constants.Constant:
    """Reserved over allocated bytes, as runs of this plan's framework show it."""
    return FRAMEWORKS[plan.train.framework].slack_at(plan.train.zero)


def reserved_bytes(plan: Plan, allocated: int, overheads: tuple[Overhead, ...]) -> tuple[int, int]:
    """What PyTorch's allocator holds: allocated with its slack, and cuBLAS's workspace."""
    slack = allocator_slack(plan)
    low, high = slack.low, slack.high
    if plan.train.allocator == NATIVE:
        gaps = constants.NATIVE_SEGMENTS
        low, high = low * gaps.low, high * gaps.high
    inside = [o for o in overheads if o.counter == "reserved"]
    return (
        math.ceil(allocated * low) + sum(o.low for o in inside),
        math.ceil(allocated * high) + sum(o.high for o in inside),
    )


# Architectures whose cuBLAS has PyTorch's larger workspace.
LARGE_WORKSPACE = ("Hopper", "Blackwell")


def plan_overheads(plan: Plan, amounts: Amounts) -> tuple[Overhead, ...]:
    """What no shape determines, by the counter that it is first seen in."""
    gpu = plan.accelerator
    found = [(constants.CUDA_CONTEXT, "device")]
    if plan.cluster.gpus > 1:
        found.append((constants.NCCL_BUFFERS, "device"))
    if gpu.vendor == "nvidia":
        large = gpu.architecture.startswith(LARGE_WORKSPACE)
        workspace = constants.CUBLAS_WORKSPACE_HOPPER if large else constants.CUBLAS_WORKSPACE
        found.insert(0, (workspace, "reserved"))
    overheads = [
        Overhead(c.name, int(c.low), int(c.high), counter, c.certainty, c.source)
        for c, counter in found
    ]
    framework = FRAMEWORKS[plan.train.framework]
    if framework.streams and plan.train.zero >= framework.gathers:
        c, live = constants.STREAM_POOLS, streamed_bytes(plan, amounts)
        low, high = (math.ceil(live * end) for end in (c.low, c.high))
        overheads.insert(0, Overhead(c.name, low, high, "reserved", c.certainty, c.source))
    return tuple(overheads)


def streamed_bytes(plan: Plan, amounts: Amounts) -> int:
    """Weights of other ranks that DeepSpeed's ZeRO-3 holds at once, all on a stream of its own."""
    compute = COPIES[plan.train.framework, plan.train.precision].compute
    return int(amounts.bytes((LIVE,), compute))
