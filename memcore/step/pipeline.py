"""Pipeline: which layers a stage has, and how many forwards wait there for their backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcore.tape.dims import Number, maximum, minimum
from memcore.words.training import FRAMEWORKS, GPIPE, ZERO_BUBBLE

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


def span_of(plan: Plan, layers: int, stage: int) -> tuple[int, int]:
    """`span` of a plan's pipeline."""
    p = plan.parallel
    return span(layers, p.pp, stage, *p.outer, spared=FRAMEWORKS[plan.train.framework].own)


def span(
    layers: int,
    stages: int,
    stage: int,
    embedding: bool = False,
    loss: bool = False,
    spared: bool = False,
) -> tuple[int, int]:
    """First layer of a stage, and the first of the next. What does not divide goes to the stages
    after the first, which has the embedding. The embedding and the loss may count as a layer each
    (Megatron-Core, transformer_block.py: get_num_layers_to_build).

    spared   where layers do not divide, the last stage has what the others leave it, which have as
             many as each other: Megatron takes such layers with a layout that somebody writes, and
             the last stage has the head, and the heads of tokens further (Megatron-Bridge 0.6,
             recipes of DeepSeek-V3 and Kimi K2: 16, 16, 16 and 13 of 61)
    """
    if embedding or loss:
        each = (layers + embedding + loss) // stages
        return max(stage * each - embedding, 0), min((stage + 1) * each - embedding, layers)
    full = -(-layers // stages)
    if spared and full * (stages - 1) < layers:
        return stage * full, min((stage + 1) * full, layers)
    each, more = divmod(layers, stages)
    before = min(max(stage - 1, 0), more)
    start = stage * each + before
    has_more = 0 < stage <= more
    return start, start + each + has_more


def virtual(layers: int, plan: Plan) -> int:
    """Layers of the largest virtual stage of a stage with so many."""
    p = plan.parallel
    return -(-layers // (p.virtual_stages if p.pp > 1 else 1))


def in_flight(plan: Plan, stage: int) -> int:
    """Forwards of a stage (of one of its virtual stages) alive at once, the present one included.

    1F1B: min(m, p - r) micro-batches (Narayanan et al. 2019); interleaved: what Megatron's warm-up
    runs ahead, 2 (p - r - 1) + (v - 1) p, and one (Narayanan et al. 2021), with `in_round` for that
    p; GPipe: all m; ZB-H1: as many as the first stage of 1F1B (Qi et al. 2023). Where one
    micro-batch's forward runs beside another's backward, one more
    (megatron/core/pipeline_parallel/schedules.py, combined_1f1b.py).
    """
    return int(flying(plan, stage, plan.train.grad_accumulation))


def flying(plan: Plan, stage: int, m: Number) -> Any:
    """The same of m micro-batches, or of several numbers of them."""
    p, beside = plan.parallel, sides_by_side(plan)
    if p.pp == 1:
        return minimum(m, 1 + beside)
    if p.schedule == GPIPE:
        return m * p.virtual_stages
    if p.schedule == ZERO_BUBBLE:
        return minimum(m, p.pp)
    behind = p.pp - stage
    if p.virtual_stages == 1:
        return minimum(m, behind)
    ahead = 2 * (behind - 1) + (p.virtual_stages - 1) * in_round(p.pp, m) + beside
    return minimum(m * p.virtual_stages, ahead + 1)


def in_round(stages: int, batches: Number) -> Any:
    """Micro-batches that pass through one virtual stage before the next has its turn: as many as
    there are stages, or what rounds of at least as many share (ScheduleInterleaved1F1B of
    torch/distributed/pipelining/schedules.py)."""
    return batches // maximum(1, batches // stages)


def idle_chunks(plan: Plan) -> int:
    """Chunks of a micro-batch that a stage waits for when a step begins and ends. The first ones of
    a round with fewer micro-batches than stages are late in every virtual stage."""
    p, m = plan.parallel, plan.train.grad_accumulation
    return p.pp - 1 + (p.virtual_stages - 1) * max(0, p.pp - m)


def sides_by_side(plan: Plan) -> bool:
    """Whether one micro-batch's forward runs beside another's backward."""
    t = plan.train
    return bool(FRAMEWORKS[t.framework].own and t.overlap_moe_expert_parallel_comm)
