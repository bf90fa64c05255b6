"""Overheads: what no shape determines (context, NCCL, workspaces) and the allocator's slack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memcore.frameworks import FRAMEWORKS
from memcore.hardware import constants
from memcore.hardware.accelerator import Accelerator
from memcore.plan.plan import Plan
from memcore.quantity.reading import Read, Values, ceil, total
from memcore.report import Overhead
from memcore.step.pipeline import sides_by_side
from memcore.step.step import Step
from memcore.tape.dims import LIVE, Number
from memcore.tape.ledger import Amounts
from memcore.training.segments import reserved_by_rules
from memcore.words.training import COPIES, NATIVE


def allocator_slack(plan: Plan) -> constants.Constant:
    """Reserved over allocated bytes, as runs of this plan's framework show it."""
    return FRAMEWORKS[plan.train.framework].slack_at(plan.train.zero)


def slack(x: Any, end: int) -> Read:
    """Reserved over allocated bytes at one end, with what the allocator's gaps add."""
    if by_rules(x.plan):
        return 1  # what the rules add is an overhead of its own
    t, framework = x.plan.train, FRAMEWORKS[x.plan.train.framework]
    if t.allocator == NATIVE and framework.slack_native and t.zero >= framework.facts.gathers:
        return x.constant(framework.slack_native, end)
    found = x.constant(allocator_slack(x.plan), end)
    if t.allocator == NATIVE:
        found = found * x.constant(constants.NATIVE_SEGMENTS, end)
    return found


def rules_of(plan: Plan) -> constants.Constant | None:
    """What is reserved over what the native allocator's rules make of the step's tensors on one
    stream, where they are followed: on the stream that computes lies all but weights that are
    gathered and those of a micro-batch beside another. What goes to the host and comes back is
    copied there too (torch/autograd/graph.py: save_on_cpu)."""
    t, framework = plan.train, FRAMEWORKS[plan.train.framework]
    if t.allocator != NATIVE or sides_by_side(plan):
        return None
    gathers = t.zero >= framework.facts.gathers
    return framework.rules_native if gathers else constants.NATIVE_RULES


def by_rules(plan: Plan) -> bool:
    """Whether the native allocator's rules are followed."""
    return rules_of(plan) is not None


def segments(plan: Plan, step: Step, amounts: Amounts, allocated: Number) -> Overhead:
    """What the native allocator reserves beyond what is allocated."""
    c, reserved = rules_of(plan), reserved_by_rules(step, amounts)
    assert c, "asked of plans for which the rules are followed"

    def beyond(share: float) -> Number:
        return amounts.most(amounts.whole(reserved * share), allocated) - allocated

    return _overhead(c, beyond(c.low), beyond(c.high), "reserved")


def context(gpu: Accelerator, whole: bool = False) -> tuple[int, int]:
    """Bytes of the CUDA context, from and to: less on a GPU of few multiprocessors. `whole`:
    perhaps of a CUDA that loads every kernel when a process begins."""
    of, each, alone = constants.CUDA_CONTEXT, constants.CONTEXT_PER_SM, constants.CONTEXT_ALONE
    if gpu.vendor != "nvidia":
        return int(of.low), int(of.high)
    low, high = alone.low + gpu.sms * each.low, alone.high + gpu.sms * each.high
    most = constants.CONTEXT_WHOLE.high if whole else min(of.high, high)
    return int(min(of.low, low)), int(most)


def counted(overheads: Iterable[Any], counter: str, end: int) -> list[Read]:
    """Those that a counter is the first to count, at one end."""
    return [(o.low, o.high)[end] for o in overheads if o.counter == counter]


def reserved(x: Any, allocated: Read, overheads: Iterable[Any], end: int) -> Read:
    """What PyTorch's allocator holds: allocated with its slack, and cuBLAS's workspace."""
    return total([ceil(allocated * slack(x, end)), *counted(overheads, "reserved", end)])


def plan_overheads(plan: Plan, amounts: Amounts) -> tuple[Overhead, ...]:
    """What no shape determines, by the counter that it is first seen in."""
    gpu = plan.accelerator
    several = amounts.sizes["GPUS"] > 1
    found = []
    if FRAMEWORKS[plan.train.framework].facts.own and gpu.vendor == "nvidia":
        c = constants.cublas_workspace(gpu.architecture)
        found.append(_overhead(c, int(c.low), 2 * int(c.high), "reserved"))
    whole = plan.megatron_deepspeed
    c = constants.CONTEXT_WHOLE if whole else constants.CUDA_CONTEXT
    found.append(_overhead(c, *context(gpu, whole), "device"))
    if amounts.arrays or several:
        c = constants.NCCL_BUFFERS
        found.append(_overhead(c, int(c.low) * several, int(c.high) * several, "device"))
    groups = further_groups(amounts.sizes, plan.megatron_deepspeed)
    if amounts.arrays or groups:
        c = constants.NCCL_GROUP
        found.append(_overhead(c, int(c.low) * groups, int(c.high) * groups, "device"))
    framework = FRAMEWORKS[plan.train.framework]
    if framework.streams and plan.train.zero >= framework.facts.gathers:
        c, x = constants.STREAM_POOLS, Values(plan=plan)
        low, high = streamed(x, amounts, 0), streamed(x, amounts, 1)
        found.insert(0, _overhead(c, low, high, "reserved"))
    return tuple(found)


def further_groups(sizes: Mapping[str, Number], deepspeed: bool = False) -> Number:
    """Groups of ranks that a GPU communicates in, but for one: where there is one kind of
    parallelism that is all GPUs, where there are more it is each kind's and all GPUs.

    deepspeed   Megatron's layers under DeepSpeed's pipelines, which have groups of their own beside
                Megatron's tensor-parallel ranks: all that a model is cut over, for norms, and all
                GPUs; of a pipeline its stages, each neighbour or the other end that has the
                embedding too, and where ranks cut what is sent these ranks once more
                (runtime/pipe/topology.py: PipelineParallelGrid; p2p.py; module.py: tied_comms)
    """
    ranks = (sizes["DP"] * sizes["CP"], *(sizes[axis] for axis in ("TP", "CP", "PP", "EP")))
    kinds: Number = sum(1 * (n > 1) for n in ranks)
    if not deepspeed:
        return kinds * (kinds > 1)
    cut, staged = 1 * (sizes["TP"] > 1), 1 * (sizes["PP"] > 1)
    return kinds + 1 * (cut + staged > 0) + staged * (2 + cut)


def _overhead(c: constants.Constant, low: Number, high: Number, counter: str) -> Overhead:
    return Overhead(c.name, low, high, counter, c.certainty, c.source)


def streamed(x: Any, amounts: Amounts, end: int) -> Read:
    """What DeepSpeed's streams keep for weights of other ranks, all on a stream of its own: those
    that ZeRO-3 holds at once."""
    compute = COPIES[x.plan.train.framework, x.plan.train.precision].compute
    live = x.width(compute) * x.shape((LIVE,), amounts)
    return ceil(live * x.constant(constants.STREAM_POOLS, end))
