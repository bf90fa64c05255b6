"""Transfers: everything that a step sends, when, and what hides it."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.frameworks.deepspeed import deepspeed
from memcore.frameworks.megatron import megatron
from memcore.kept import kept
from memcore.layers.ops import HIDDEN
from memcore.plan.plan import Plan
from memcore.report import OperationTime
from memcore.step.step import Step, layers_reached, owned, root, state_bytes
from memcore.tape.dims import positive
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts
from memcore.tape.tape import Send, Tape
from memcore.timing.communication import (
    ALL_BACKWARD,
    ALL_GATHER,
    ALL_REDUCE,
    ATTENTION_MEANWHILE,
    AXES,
    CHUNK_FORWARD,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    NOTHING,
    NOTHING_AFTER,
    NOTHING_BEFORE,
    ONE_BACKWARD,
    PRODUCT_MEANWHILE,
    SEND,
    Cover,
    Move,
    collective,
    links,
)
from memcore.timing.roofline import (
    ATTENTION,
    EIGHT_BIT,
    PRODUCT,
    Speed,
    by_phase,
    executions,
    run,
    seconds,
    sends,
)
from memcore.training import offload
from memcore.training.executions import ends_of, run_again, speed_of, updated_parameters


def moves(plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]) -> list[Move]:
    """Every transfer of a step, in the order of `Time.transfers`, which has one for each link."""
    within = in_layers(plan, step, amounts, speed_of(plan, step))
    return with_ends(plan, step, amounts, operations, within)


def with_ends(
    plan: Plan,
    step: Step,
    amounts: Amounts,
    operations: list[OperationTime],
    within: Sequence[Move],
) -> list[Move]:
    """Those `within` a micro-batch, and all others."""
    every = [*within, *_communication(plan, step, amounts, operations)]
    found = [m for m in every if m.seconds]
    of = by_phase(operations)
    backward = of["recompute"] + of["backward"]
    waited = sum(m.exposed for m in found)
    cover = backward / plan.train.grad_accumulation + waited
    weights = float(updated_parameters(step, amounts))
    return found + offload.moves(plan, step, amounts, operations, cover, weights)


def outgrown(move: Move) -> bool:
    """Whether a larger micro-batch hides more of a transfer."""
    return positive(move.cover) and move.hidden_by.grows


def in_layers(plan: Plan, step: Step, amounts: Amounts, speed: Speed) -> list[Move]:
    """What the ranks that share a micro-batch send each other: tensor, context and expert
    parallelism, and pipeline stages."""
    p, batches = plan.parallel, plan.train.grad_accumulation
    if p.tp * p.cp * p.ep * p.etp * p.pp == 1:
        return []
    found = []
    every = _sent(ends_of(step), step.blocks.layers, tuple(step.layers.counts), run_again(step))
    over = {axis: links(plan, axis) for axis in {s.axis for s, _ in every}}
    for s, times in every:
        if over[s.axis].ranks <= 1:
            continue
        n = amounts.real(amounts.bytes(s.shape, s.dtype))
        cover, by, kernel = 0.0, NOTHING, ""
        if s.behind:
            flops = s.behind[0] * amounts.real(amounts.elements(s.behind[1]))
            narrow = step.copies.eight_bit and s.axis == "TP"
            kernel = ATTENTION if s.attention else EIGHT_BIT if narrow else PRODUCT
            cover = flops / speed.of_kernel(kernel)
            by = ATTENTION_MEANWHILE if s.attention else PRODUCT_MEANWHILE
        name = f"{s.kind} {s.what}, {AXES[s.axis]}, {s.phase}"
        found.append(
            collective(
                name, s.kind, s.axis, over[s.axis], {s.what: n}, times * batches, cover, by,
                FORWARD if s.phase == FORWARD else BACKWARD,
                ((s.shape, s.dtype),), s.behind, kernel,
            )
        )  # fmt: skip
    if p.pp > 1:
        found.append(_between_stages(plan, step, amounts, speed))
    return found


@kept
def _sent(
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


def _between_stages(plan: Plan, step: Step, amounts: Amounts, speed: Speed) -> Move:
    """Activations to the next stage and their gradients back, for each chunk of each micro-batch.
    Interleaved schedules send one chunk's while another runs (Megatron: overlap_p2p_comm)."""
    dtype, virtual = step.copies.compute, plan.parallel.virtual_stages
    n = amounts.real(amounts.bytes(HIDDEN, dtype))
    over = links(plan, "PP")
    times = 2 * virtual * plan.train.grad_accumulation
    cover, by, phase = 0.0, NOTHING, BACKWARD
    if virtual > 1:
        layers = run(executions(step.blocks.layers, step.layers.counts), amounts, speed)
        cover = seconds([o for o in layers if o.phase == FORWARD]) / virtual
        by, phase = CHUNK_FORWARD, FORWARD
    return Move(
        "activations and gradients between stages", {"activations": n}, over.send(n), times, cover,
        by, phase, SEND, "PP", ((HIDDEN, dtype),),
    )  # fmt: skip


def _communication(
    plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]
) -> list[Move]:
    """What data parallelism sends in one step."""
    over = links(plan, "DP")
    experts = links(plan, "EDP")
    if over.ranks <= 1 and experts.ranks <= 1:
        return []
    t, layers = plan.train, sum(step.grouped)
    batches = t.grad_accumulation
    inner = [o for o in operations if o.of_layers]
    per = layers * batches
    of = by_phase(inner)
    forward = of["forward"] / per
    trained = layers_reached(step)
    of_backward = (of["recompute"] + of["backward"]) / batches
    backward = of_backward / max(1, trained)
    if step.accumulated:
        return megatron(plan, step, amounts)
    if step.flat and not step.sharded:
        return deepspeed(plan, step, amounts, of_backward)
    if not step.sharded:
        pieces = {"gradients in buckets": state_bytes(step, "buckets", amounts)}
        found = [
            collective(
                "all-reduce gradients", ALL_REDUCE, "DP", over, pieces, 1, of_backward,
                ONE_BACKWARD, BACKWARD,
            )
        ]  # fmt: skip
        if t.zero:
            weights = {"updated weights": state_bytes(step, "resident", amounts)}
            found.append(
                collective("all-gather updated weights", ALL_GATHER, "DP", over, weights, 1)
            )
        return found
    # Kinds of layer differ little in their weights: a mean layer stands for each.
    gathered = amounts.held(step.holding("gathered", ends=False)) / layers
    all_reduced = amounts.held(step.holding("reduction", ends=False))
    reduced = all_reduced / max(1, trained)
    root_gathered = amounts.alive(root(step, "gathered"))
    root_reduced = amounts.alive(root(step, "reduction"))

    def gather(
        name: str, pieces: dict[str, float], times: float, cover: float, by: Cover, phase: str
    ) -> Move:
        """One collective for each piece: an all-gather or a reduce-scatter, which cost the same."""
        return collective(name, ALL_GATHER, "DP", over, pieces, times, cover, by, phase)

    if t.zero == 0:
        pieces = {
            "gradients of the layers": all_reduced,
            "gradients of the root": root_reduced,
        }
        return [
            collective(
                "all-reduce gradients", ALL_REDUCE, "DP", over, pieces, batches, of_backward,
                ALL_BACKWARD, BACKWARD,
            )
        ]  # fmt: skip
    weights, grads = {"weights of a layer": gathered}, {"gradients of a layer": reduced}
    first = {"weights of the root and of a layer": root_gathered + gathered}
    last = {"gradients of the root and of a layer": root_reduced + reduced}
    others, again = ((max(1, n) - 1) * batches for n in (layers, trained))
    found = [
        gather(
            "all-gather root and first layer, forward", first, batches, 0.0, NOTHING_BEFORE, FORWARD
        ),
        gather("all-gather layers, forward", weights, others, forward, LAYER_FORWARD, FORWARD),
    ]
    if step.reshards:
        whole = {"weights of the root": root_gathered}
        found += [
            gather("all-gather root, backward", whole, batches, 0.0, NOTHING_BEFORE, BACKWARD),
            gather(
                "all-gather and reduce-scatter layers, backward", weights | grads, again,
                backward, LAYER_BACKWARD, BACKWARD,
            ),
        ]  # fmt: skip
    else:
        name = "reduce-scatter layers"
        found.append(gather(name, grads, again, backward, LAYER_BACKWARD, BACKWARD))
    name = "reduce-scatter first layer and root"
    found.append(gather(name, last, batches, 0.0, NOTHING_AFTER, ""))
    if plan.parallel.shard_group:
        # All-reduced where they are, in the result of the reduce-scatter: no further buffer.
        shards = {"gradients of all weights": amounts.alive(owned(step, "gradients", False))}
        found.append(
            collective(
                "all-reduce shards of gradients between groups", ALL_REDUCE, "REPLICAS",
                links(plan, "REPLICAS"), shards, batches, of_backward, ALL_BACKWARD, BACKWARD,
            )
        )  # fmt: skip
    return found
