"""Transfers: everything that a step sends, when, and what hides it."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.cache import cached
from memcore.frameworks import FRAMEWORKS, framework_of
from memcore.frameworks.megatron_deepspeed import SCATTERED
from memcore.layers.ops import HIDDEN
from memcore.plan.plan import Plan
from memcore.report import OperationTime
from memcore.step.pipeline import sides_by_side
from memcore.step.step import Step
from memcore.tape.dims import positive
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts
from memcore.tape.tape import Send, Tape
from memcore.timing.communication import (
    ALL_TO_ALL,
    ATTENTION_MEANWHILE,
    AXES,
    CHUNK_FORWARD,
    DISPATCH,
    NOTHING,
    OTHER_BACKWARD,
    OTHER_FORWARD,
    PIECES_MEANWHILE,
    PRODUCT_MEANWHILE,
    SEND,
    Beside,
    Links,
    Move,
    collective,
    links,
)
from memcore.timing.roofline import ATTENTION, NARROW, PRODUCT, Speed, sends
from memcore.training import offload
from memcore.training.executions import ends_of, peak_dtype, run_again, speed_of, updated_parameters
from memcore.training.memory import spills


def moves(plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]) -> list[Move]:
    """Every transfer of a step, in the order of `Time.transfers`, which has one for each link."""
    within = in_layers(plan, step, amounts, speed_of(plan, step), operations)
    return with_ends(plan, step, amounts, operations, within)


def with_ends(
    plan: Plan,
    step: Step,
    amounts: Amounts,
    operations: list[OperationTime],
    within: Sequence[Move],
) -> list[Move]:
    """Those `within` a micro-batch, and all others."""
    beside = Beside(plan, step, operations)
    every = [*within, *_communication(plan, step, amounts, beside)]
    found = [m for m in every if m.seconds]
    beside.sent = found
    weights = float(updated_parameters(step, amounts))
    spilled = spills(plan, step, amounts) if step.optimizer.paged else 0
    return found + offload.moves(plan, step, amounts, beside, weights, spilled)


def outgrown(move: Move) -> bool:
    """Whether a larger micro-batch hides more of a transfer."""
    return positive(move.cover) and move.hidden_by.grows


def in_layers(
    plan: Plan, step: Step, amounts: Amounts, speed: Speed, operations: Sequence[OperationTime]
) -> list[Move]:
    """What the ranks that share a micro-batch send each other: tensor, context and expert
    parallelism, and pipeline stages."""
    p, batches = plan.parallel, plan.train.grad_accumulation
    if p.tp * p.cp * p.ep * p.etp * p.pp == 1 and not step.blocks.structure.tables:
        return []
    found, beside = [], Beside(plan, step, operations)
    every = sent(ends_of(step), step.blocks.layers, tuple(step.layers.counts), run_again(step))
    over = {axis: links(plan, axis) for axis in {s.axis for s, _ in every}}
    for s, times in every:
        if over[s.axis].ranks > 1:
            runs = times * batches * (step.forwards if s.phase == FORWARD else 1)
            found.append(in_layer(step, s, runs, over[s.axis], amounts, speed, beside))
    if p.pp > 1:
        found.append(_between_stages(plan, step, amounts, beside))
    return found


def in_layer(
    step: Step, s: Send, times: float, over: Links, amounts: Amounts, speed: Speed, beside: Beside
) -> Move:
    """One of them."""
    plan = beside.plan
    t, own = plan.train, FRAMEWORKS[plan.train.framework].facts.own
    in_pieces = (t.tp_comm_overlap if own else t.async_tp) and plan.parallel.sequence_parallel
    n = amounts.real(amounts.bytes(s.shape, s.dtype))
    cover, by, kernel = 0.0, NOTHING, ""
    behind = (s.behind,) if s.behind else s.beside if in_pieces else ()
    if beside_another(plan, s):
        # A layer sends rows and gets results: two transfers behind what the other one computes.
        by = OTHER_BACKWARD if s.phase == FORWARD else OTHER_FORWARD
    if behind:
        flops = sum(n * amounts.real(amounts.elements(shape)) for n, shape in behind)
        products = NARROW.get(peak_dtype(step), PRODUCT) if s.axis == "TP" else PRODUCT
        kernel = ATTENTION if s.attention else products
        cover = flops / speed.of_kernel(kernel)
        by = ATTENTION_MEANWHILE if s.attention else PRODUCT_MEANWHILE
        if not s.behind:  # the first piece is waited for
            cover, by = cover * (over.ranks - 1) / over.ranks, PIECES_MEANWHILE
    kind = DISPATCH if over.reached and s.kind == ALL_TO_ALL else s.kind
    name = f"{kind} {s.what}, {AXES[s.axis]}, {s.phase}"
    return collective(
        name, kind, s.axis, over, {s.what: n}, times, by,
        FORWARD if s.phase == FORWARD else BACKWARD, beside, cover,
        ((s.shape, s.dtype),), behind, kernel,
    )  # fmt: skip


def beside_another(plan: Plan, s: Send) -> bool:
    """Whether a collective passes behind what another micro-batch computes."""
    return s.axis == "EP" and s.kind == ALL_TO_ALL and sides_by_side(plan)


@cached
def sent(
    ends: tuple[Tape, ...],
    layers: tuple[Tape, ...],
    counts: tuple[int, ...],
    again: tuple[str, ...],
) -> tuple[tuple[Send, int], ...]:
    """The collectives of a stage's blocks, and how many a micro-batch has of each."""
    counted: dict[Send, int] = {}
    for s, where in sends(ends, ("",) * len(ends)):
        counted[s] = counted.get(s, 0) + len(where)
    for s, where in sends(layers, again):
        if times := sum(counts[k] for k in where if k < len(counts)):
            counted[s] = counted.get(s, 0) + times
    return tuple(counted.items())


def _between_stages(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> Move:
    """Activations to the next stage and their gradients back, for each chunk of each micro-batch.
    Interleaved schedules send one chunk's while another runs (Megatron: overlap_p2p_comm)."""
    dtype, virtual = step.copies.compute, plan.parallel.virtual_stages
    cut = plan.megatron_deepspeed and not plan.parallel.sequence_parallel
    shape = SCATTERED if cut else HIDDEN
    n = amounts.real(amounts.bytes(shape, dtype))
    times = 2 * virtual * plan.train.grad_accumulation
    how = (CHUNK_FORWARD, FORWARD) if virtual > 1 else (NOTHING, BACKWARD)
    return collective(
        "activations and gradients between stages", SEND, "PP", links(plan, "PP"),
        {"activations": n}, times, *how, beside, shapes=((shape, dtype),),
    )  # fmt: skip


def _communication(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """What data parallelism sends in one step."""
    if links(plan, "DP").ranks <= 1 and links(plan, "EDP").ranks <= 1:
        return []
    return framework_of(plan).sends(plan, step, amounts, beside)
