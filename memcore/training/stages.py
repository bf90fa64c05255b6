"""Stages: the pipeline's stages and their times, the slowest of which a step waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.report import OperationTime, StageTime
from memcore.step.pipeline import idle_chunks
from memcore.step.step import Step
from memcore.tape.ledger import Amounts
from memcore.timing import host
from memcore.timing.communication import Move
from memcore.timing.roofline import Speed, by_phase, run
from memcore.training.executions import ends_of, run_again, stage_executions, started
from memcore.training.transfers import in_layers
from memcore.words.training import ZERO_BUBBLE


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: the operations of all its micro-batches, and its time for one of them."""

    step: Step
    operations: list[OperationTime]
    transfers: list[Move]
    time: StageTime


def stages(plan: Plan, steps: Sequence[Step], amounts: Amounts, speed: Speed) -> list[Stage]:
    """Every pipeline stage; those that run the same are computed once."""
    if len(steps) == 1:
        return [_stage(plan, steps[0], amounts, speed, 0)]
    seen: dict[tuple[bool, bool, Layers], Stage] = {}
    found = []
    for rank, here in enumerate(steps):
        key = here.first, here.last, here.layers
        if key not in seen:
            seen[key] = _stage(plan, here, amounts, speed, rank)
        like = seen[key]
        found.append(replace(like, step=here, time=replace(like.time, rank=rank)))
    return found


def _stage(plan: Plan, step: Step, amounts: Amounts, speed: Speed, rank: int) -> Stage:
    batches = plan.train.grad_accumulation
    every = stage_executions(step, batches)
    operations = [o for part in every for o in run(part, amounts, speed)]
    transfers = in_layers(plan, step, amounts, speed, operations)
    waited = sum(m.exposed for m in transfers) / batches
    phases = by_phase(operations)
    of = {p: n / batches for p, n in phases.items()}
    each = host.each_start(plan)
    begun = started(step, amounts, batches, transfers)
    taken = each * begun[0], each * begun[1]
    gpu = host.on_gpu(phases, transfers)
    late = host.waited(taken, gpu, batches) / batches
    total = sum(of.values()) + waited + late
    bubble = total
    if plan.parallel.schedule == ZERO_BUBBLE:
        moved = 2 * weight_gradients(operations)
        weights = host.operations(step, amounts, ends_of(step), run_again(step))[2]
        left = (taken[0], taken[1] - 2 * each * batches * weights), (gpu[0], gpu[1] - moved)
        bubble += (host.waited(*left, batches) - moved) / batches - late
    time = StageTime(
        rank, of["forward"], of["recompute"], of["backward"], waited, late, total, bubble, total
    )
    return Stage(step, operations, transfers, time)


def weight_gradients(operations: Sequence[OperationTime]) -> float:
    """Seconds in which backward computes gradients of weights: half of each product's, which has
    two. ZB-H1 does them while it would wait (Qi et al. 2023)."""
    products = (o for o in operations if host.is_product(o))
    return sum(o.seconds for o in products) / 2


def bubble_seconds(plan: Plan, every: Sequence[Stage], one: Stage) -> float:
    """Seconds that one stage waits for the others: each of them takes one micro-batch
    before the pipeline is full or after it is empty, one chunk of it where stages are virtual
    (Narayanan et al. 2021: (p - 1) / v of a micro-batch's forward and backward), and more where
    micro-batches are fewer than stages."""
    if len(every) == 1:
        return 0.0
    others = sum(s.time.bubble for s in every) - one.time.bubble
    chunks = plan.parallel.virtual_stages * (len(every) - 1)
    return others * (idle_chunks(plan) / chunks)
