"""Megatron-LM: its buffers, and what its data parallelism sends."""

from __future__ import annotations

from memcore.cache import cached
from memcore.frameworks import megatron_fsdp
from memcore.frameworks.ddp import whole_model
from memcore.frameworks.framework import Framework
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.step.step import Instant, Step
from memcore.tape.dims import CP, TP, VOCAB, B, D, S, positive
from memcore.tape.kinds import Role
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts, Group, Template
from memcore.tape.structure import SEQUENCE
from memcore.tape.tape import Tape
from memcore.timing.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    NOTHING,
    ONE_BACKWARD,
    ONE_FORWARD,
    REDUCE_SCATTER,
    Beside,
    Move,
    collective,
    links,
)
from memcore.timing.pieces import moved
from memcore.words.training import FRAMEWORKS


@cached
def megatron_buffers(layers: tuple[Tape, ...], parallel: str) -> Group:
    """What Megatron and Transformer Engine keep for good besides the states.

    One 16-bit tensor for each shape of weight, which stands for the gradients that were added into
    their buffer; and, under sequence parallelism, the room where a head that is trained gathers
    its input.
    """
    # Of stacked experts each has its own; a weight whose gradient autograd does get needs none.
    shapes = dict.fromkeys(
        p.shape[-2:]
        for tape in layers
        for p in tape.parameters
        if p.trained
        and len(p.shape) > 1
        and p.role is not Role.BIAS
        and VOCAB / TP not in p.shape  # the output layer is not Transformer Engine's
        and p.name not in {s.gradient_of for s in tape.storages}
    )
    rows = [
        Template(
            f"stand-in for a weight's gradient, {' x '.join(map(str, shape))}", "workspace", shape,
            "bf16", "always", "autograd wants a gradient; the true one is in their buffer",
            "transformer_engine/pytorch/module/base.py: get_dummy_wgrad",
        )
        for shape in shapes
    ]  # fmt: skip
    if parallel == SEQUENCE and not any(tape.adapters for tape in layers):
        rows.append(
            Template(
                "global memory buffer", "workspace", (B, S / CP, D), "bf16", "always",
                "the head's input, gathered from all ranks",
                "megatron/core/tensor_parallel: get_global_memory_buffer",
            )
        )  # fmt: skip
    return Group.of(rows)


def schedule(step: Step) -> list[Instant]:
    """Every GPU has all parameters of its stage, or its part of each layer's."""
    return megatron_fsdp.units(step) if step.sharded else whole_model(step)


def megatron(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """Megatron's data parallelism: gradients once a step, behind the last backward where
    they overlap it; with the distributed optimizer each rank gets its part, and everybody the
    updated weights, behind the first forward where they overlap."""
    if step.sharded:
        return megatron_fsdp.sent(plan, step, amounts, beside)
    return data_parallel(
        plan, amounts, beside, plan.train.zero == 0, plan.train.overlap_grad_reduce
    )


def data_parallel(
    plan: Plan, amounts: Amounts, beside: Beside, whole: bool, overlaps: bool
) -> list[Move]:
    """The same: whether gradients are summed whole, and whether what is sent `overlaps` anything.
    Experts have their own replicas, and share what hides both by their bytes."""
    t, found = plan.train, []
    there = []
    for axis, of_experts in (("DP", False), ("EDP", True)):
        over = links(plan, axis)
        grads, weights = (moved(beside, amounts, name) for name in DATA_PARALLEL[of_experts])
        if over.ranks > 1 and positive(sum(grads.values())):
            there.append((axis, over, of_experts, grads, weights))
    every = {name: n for *_, grads, _ in there for name, n in grads.items()}
    for axis, over, of_experts, grads, weights in there:
        whose = "experts" if of_experts else "weights"
        reduced = gathered = NOTHING, ""
        if overlaps:
            reduced = ONE_BACKWARD, BACKWARD
            if t.overlap_param_gather:
                gathered = ONE_FORWARD, FORWARD
        # Both share what hides them by the bytes of their gradients.
        among = grads | every if len(every) > 1 else None
        kind = ALL_REDUCE if whole else REDUCE_SCATTER
        name = f"{kind} gradients of {whose}"
        found.append(collective(name, kind, axis, over, grads, 1, *reduced, beside, among=among))
        if t.zero == 0:
            continue
        name = f"all-gather updated {whose}"
        found.append(
            collective(name, ALL_GATHER, axis, over, weights, 1, *gathered, beside, among=among)
        )
    return found


DATA_PARALLEL = {
    False: ("gradients of all weights", "weights of this rank"),
    True: ("gradients of all experts", "experts of this rank"),
}

MEGATRON = Framework(
    facts=FRAMEWORKS["megatron"],
    schedule=schedule,
    sends=megatron,
    slack=constants.ALLOCATOR_SLACK,
    accumulated=True,
    vocabulary=128,  # --make-vocab-size-divisible-by
    buffers=megatron_buffers,
    dimensions=megatron_fsdp.DIMENSIONS,
    complete=megatron_fsdp.complete,
)
