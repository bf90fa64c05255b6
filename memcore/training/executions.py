"""Executions: which operations a step runs, how often, in which dtype and at which speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.quantity.reading import PLAIN, Read
from memcore.step.step import Step, state_bytes
from memcore.tape.dims import Number
from memcore.tape.ledger import Amounts
from memcore.tape.tape import Tape
from memcore.timing import host
from memcore.timing.communication import Move
from memcore.timing.roofline import Execution, Executions, Speed, executions
from memcore.words.optimizers import WIDENED_TRAFFIC
from memcore.words.training import FULL_ITERATION, TO_END
from memcore.words.word import DTYPE_BYTES


def speed_of(plan: Plan, step: Step, x: Any = PLAIN) -> Speed:
    """Rates of a step's operations, read as numbers or as terms."""
    t = plan.train
    return Speed.of(
        plan.accelerator, matmul_dtype(step), constants.LAUNCH.middle, t.kernels, t.attention,
        half=half_dtype(step), x=x,
    )  # fmt: skip


def started(
    step: Step, amounts: Amounts, batches: int, transfers: Sequence[Move]
) -> tuple[float, float]:
    """Operations that the host starts in all forwards of a step, and in all backwards. Where one
    graph is all of both, it is replayed."""
    if whole_graph(step):
        return host.REPLAY.middle, 0.0
    forward, backward, _ = host.operations(step, amounts, ends_of(step), run_again(step))
    sent = host.collectives(transfers)
    return forward * batches * step.forwards + sent[0], backward * batches + sent[1]


def whole_graph(step: Step) -> bool:
    """Whether all forwards and backwards of a step are one CUDA graph."""
    return FULL_ITERATION in step.blocks.structure.graphs


def matmul_dtype(step: Step) -> str:
    return "bf16" if step.copies.autocast else step.copies.compute


def half_dtype(step: Step) -> str:
    """What products with weights of 4 bits run in: the 16 bits of the plan's precision, though what
    is around them may have been cast to fp32."""
    adapters = step.blocks.structure.adapters
    return adapters.computes if adapters and adapters.quantized else matmul_dtype(step)


def peak_dtype(step: Step) -> str:
    """Whose peak utilization is a share of: the narrowest dtype that products have."""
    if step.copies.eight_bit:
        return step.copies.eight_bit.dtype
    return "fp8" if step.copies.float8 else half_dtype(step)


def step_executions(step: Step, batches: int) -> list[Execution]:
    """Every operation of a step's forwards and backwards, in the order of `Time.operations`."""
    return [e for part in stage_executions(step, batches) for e in part]


def stage_executions(step: Step, batches: int) -> tuple[Executions, ...]:
    """Those of the ends, and those of the layers."""
    ends = ends_of(step)
    return (
        executions(ends, (1,) * len(ends), times=batches, forwards=step.forwards),
        executions(step.blocks.layers, step.layers.counts, run_again(step), batches, step.forwards),
    )


def ends_of(step: Step) -> tuple[Tape, ...]:
    """The embedding and the head, if this stage has them."""
    found = (step.blocks.embed, step.first), (step.blocks.head, step.last)
    return tuple(tape for tape, here in found if here)


def run_again(step: Step) -> tuple[str, ...]:
    """What of each kind of layer backward runs again. A compiler leaves out what backward does not
    need, whatever the policy says: of a llama layer under checkpoint() it runs six products of
    seven again (torch/_functorch/partitioners.py)."""
    words = (step.recompute(k) for k in range(len(step.blocks.kinds)))
    to_end = step.to_end and step.blocks.structure.kernels != "compile"
    return tuple(word + TO_END if word and to_end else word for word in words)


def updated(step: Step, amounts: Amounts) -> tuple[Number, Number]:
    """What the optimizer step updates on this GPU: parameters, and bytes of them and states."""
    states = amounts.held(step.holding("updated")) + amounts.held(step.optimizer_states)
    states = states + amounts.held(step.holding("paged"))
    return updated_parameters(step, amounts), states


def updated_parameters(step: Step, amounts: Amounts) -> Number:
    """Parameters that this GPU updates."""
    return state_bytes(step, "updated", amounts) / DTYPE_BYTES[updated_dtype(step)]


# What Megatron-LM reads and writes of gradients besides, by its own defaults: the buffer of all of
# them is cleared (zero_grad_buffer), looked through for what is not finite (check_grads) and
# divided by the ranks (gradient_scaling_factor); of those that a rank updates the norm is taken,
# and they are scaled by it. Sources: megatron/core/distributed/param_and_grad_buffer.py and
# megatron/core/optimizer/clip_grads.py.
BUFFER_TRAFFIC = 4  # written; read; read and written
CLIPPED_TRAFFIC = 3  # read; read and written


def update(
    step: Step, weights: Read, states: Read, buffer: Read = 0.0, x: Any = PLAIN
) -> tuple[Read, Read]:
    """FLOPs and bytes of the optimizer step on a GPU, from its parameters, the bytes of them and
    their states, and those of a buffer of gradients. It reads and writes states, and reads the
    gradients; those that were summed in fewer bits it writes in fp32 before (Megatron:
    _copy_model_grads_to_main_grads)."""
    of, summed = step.optimizer, step.copies.reduced
    each = x.known(
        "FLOPs per parameter", of.flops_per_parameter, source=f"the update of {of.label}"
    )
    moved, how = DTYPE_BYTES[summed], "are read once"
    if of.aware:
        moved, how = moved + 2 * WIDENED_TRAFFIC, "are read once, moments widened and narrowed"
    elif step.accumulated and summed != "fp32":
        moved, how = moved + 2 * DTYPE_BYTES["fp32"], "are written in fp32 first, and read"
    if step.accumulated:
        read = summed if of.aware else "fp32"
        moved, how = moved + CLIPPED_TRAFFIC * DTYPE_BYTES[read], f"{how}; clipped by their norm"
    gradient = x.known(f"bytes of {summed}", moved, "bytes", source=f"gradients {how}")
    found = 2 * states + weights * gradient
    if step.accumulated:
        times = x.known(
            "reads and writes of the buffer of gradients",
            BUFFER_TRAFFIC,
            source="cleared, checked and divided: memcore/training/executions.py",
        )
        found = found + times * buffer
    return each * weights, found


def buffer_bytes(step: Step, amounts: Amounts) -> Number:
    """Bytes of the buffer of gradients of this GPU, which its rank's weights are a part of."""
    return state_bytes(step, "gradients", amounts) if step.accumulated else 0


def updated_dtype(step: Step) -> str:
    """What trained weights are kept in: adapters' own dtype, where they have one."""
    for group, _ in step.every("updated"):
        if group.rows:
            return group.rows[0].dtype
    return step.copies.resident
