"""Megatron-LM: its buffers, and what its data parallelism sends."""

from __future__ import annotations

from memcore.frameworks.ddp import whole_model
from memcore.frameworks.framework import Framework
from memcore.hardware import constants
from memcore.kept import kept
from memcore.plan.plan import Plan
from memcore.step.step import Step, owned
from memcore.tape.dims import CP, TP, VOCAB, B, D, S
from memcore.tape.ledger import Amounts, Group, Template
from memcore.tape.structure import SEQUENCE
from memcore.tape.tape import Tape
from memcore.timing.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Move,
    collective,
    links,
)


@kept
def megatron_buffers(layers: tuple[Tape, ...], parallel: str) -> Group:
    """What Megatron and Transformer Engine keep for good besides the states.

    One 16-bit tensor for each shape of weight, which stands for the gradients that were added into
    the fp32 buffer; and, under sequence parallelism, the room where the head gathers its input.
    """
    # Of stacked experts each has its own; a weight whose gradient autograd does get needs none.
    shapes = dict.fromkeys(
        p.shape[-2:]
        for tape in layers
        for p in tape.parameters
        if len(p.shape) > 1
        and VOCAB / TP not in p.shape  # the output layer is not Transformer Engine's
        and p.name not in {s.gradient_of for s in tape.storages}
    )
    rows = [
        Template(
            f"stand-in for a weight's gradient, {' x '.join(map(str, shape))}", "workspace", shape,
            "bf16", "always", "autograd wants a gradient; the true one is in the fp32 buffer",
            "transformer_engine/pytorch/module/base.py: get_dummy_wgrad",
        )
        for shape in shapes
    ]  # fmt: skip
    if parallel == SEQUENCE:
        rows.append(
            Template(
                "global memory buffer", "workspace", (B, S / CP, D), "bf16", "always",
                "the head's input, gathered from all ranks",
                "megatron/core/tensor_parallel: get_global_memory_buffer",
            )
        )  # fmt: skip
    return Group.of(rows)


def megatron(plan: Plan, step: Step, amounts: Amounts) -> list[Move]:
    """Megatron's data parallelism: gradients after the last backward, in fp32; with the distributed
    optimizer each rank gets its part, and everybody the updated weights (overlap_grad_reduce and
    overlap_param_gather are off by default). Experts have their own replicas."""
    found = []
    for axis, of_experts in (("DP", False), ("EDP", True)):
        over = links(plan, axis)
        whose = "experts" if of_experts else "weights"
        state = dict(zip(("gradients", "resident"), DATA_PARALLEL[of_experts], strict=True))
        grads, weights = (float(amounts.alive(owned(step, which, of_experts))) for which in state)
        if not grads or over.ranks <= 1:
            continue
        pieces = {state["gradients"]: grads}
        if plan.train.zero == 0:
            found.append(
                collective(f"all-reduce gradients of {whose}", ALL_REDUCE, axis, over, pieces, 1)
            )
            continue
        found += [
            collective(
                f"reduce-scatter gradients of {whose}", REDUCE_SCATTER, axis, over, pieces, 1
            ),
            collective(
                f"all-gather updated {whose}", ALL_GATHER, axis, over,
                {state["resident"]: weights}, 1,
            ),
        ]  # fmt: skip
    return found


DATA_PARALLEL = {
    False: ("gradients of all weights", "weights of this rank"),
    True: ("gradients of all experts", "experts of this rank"),
}

MEGATRON = Framework(
    schedule=whole_model,
    slack=constants.ALLOCATOR_SLACK,
    accumulated=True,
    to_end=True,
    vocabulary=128,  # --make-vocab-size-divisible-by
    buffers=megatron_buffers,
)
