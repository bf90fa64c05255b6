"""Megatron-DeepSpeed: Megatron's older layers under DeepSpeed's pipelines and optimizers.

Follows DeepSpeed 0.7 (runtime/pipe/engine.py, runtime/bf16_optimizer.py, runtime/zero/
stage_1_and_2.py) and bigscience-workshop/Megatron-DeepSpeed. Autograd makes 16-bit gradients of
whole weights, which stay beside the weights. Under fp16, or where gradients are not reduced in
fp32, micro-batches add to them and stage 1 of ZeRO reduces them to their owners behind the last
backward. Under bf16 each backward makes them anew and adds them to a flat fp32 buffer, which is
summed whole.

Python's objects live as long as what refers to them: a graph's functions have the inputs of layers
that run again until nothing has the graph's result.

What an all-gather of a list writes into first (torch.distributed) is not counted: nothing that a
micro-batch needs is there then.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.cache import cached
from memcore.frameworks.deepspeed import buffer, partition
from memcore.frameworks.framework import Framework
from memcore.frameworks.instants import forth_and_back, gradients_behind, whole_gradients
from memcore.frameworks.megatron import MEGATRON, data_parallel
from memcore.layers.ops import HIDDEN
from memcore.plan.plan import Plan
from memcore.step.step import Alive, Instant, Step, resident, stepping, waiting
from memcore.tape.dims import BUCKET, CP, TP, VOCAB, B, D, S, Shape
from memcore.tape.ledger import Amounts, Group, Template
from memcore.timing.communication import Beside, Move
from memcore.words.training import COPIES, LAYER

SCATTERED: Shape = (*HIDDEN[:-1], D / TP)  # a rank's part of what one stage sends to the next
PIPELINE = "deepspeed/runtime/pipe/engine.py"
WIDENED = "deepspeed/runtime/bf16_optimizer.py: update_hp_grads"


def sums_in_fp32(plan: Plan) -> bool:
    """Whether gradients are summed in an fp32 buffer: BF16_Optimizer's."""
    t = plan.train
    return bool(t.grad_reduce_in_fp32 and COPIES[t.framework, t.precision].compute == "bf16")


@cached
def handed(first: bool, last: bool, cut: bool, dtype: str) -> Group:
    """What a pipeline stage holds of each micro-batch until its backward (pipe_buffers): its part
    of what it sent, and where ranks do not cut what it got, that beside the copy that runs."""
    sent = () if last else ("part of the output, as sent",)
    got = () if first or cut else ("input, as received",)
    why = "held until the micro-batch's backward"
    return Group.of(
        Template(name, "activations", SCATTERED, dtype, "forward to backward", why, PIPELINE)
        for name in (*sent, *got)
    )


@cached
def _received(first: bool, last: bool, dtype: str) -> Group:
    """The buffers that a stage receives in."""
    names = (*(() if first else ("input received",)), *(() if last else ("gradient received",)))
    return Group.of(
        Template(f"{name}, buffer", "workspace", SCATTERED, dtype, "always", "", PIPELINE)
        for name in names
    )


@cached
def _restored(dtype: str) -> Group:
    """Of the micro-batch that runs backward the output and its gradient, whole again."""
    why = "gathered from the tensor-parallel ranks"
    return Group.of(
        Template(f"{name}, whole", "workspace", HIDDEN, dtype, "backward", why, PIPELINE)
        for name in ("output", "output gradient")
    )


@cached
def _widened(table: Shape) -> Group:
    """The largest gradient on its way into the buffer."""
    why = "a gradient in fp32, which is added to the buffer"
    name = "weight of the vocabulary.grad (fp32)"
    return Group((Template(name, "workspace", table, "fp32", "one weight's sum", why, WIDENED),))


LOGITS = Group(
    (
        Template(
            "logits (fp32), as put out", "activations", (B, S / CP, VOCAB / TP), "fp32",
            "until its slot has another micro-batch",
            "pipe_buffers['outputs'] of the last stage, which nothing frees", PIPELINE,
        ),
    )
)  # fmt: skip


def _checkpoints(step: Step, counts: list[int]) -> Alive:
    """What so many layers of each kind were called with: their functions' own attribute refers to
    it as long as the graph is there, whether it was run backward or not (runtime/
    activation_checkpointing/checkpointing.py: deepspeed_saved_tensors)."""
    if step.together > 1:
        return []
    return [(step.kept(k), n) for k, n in enumerate(counts) if step.recompute(k) == LAYER]


def _put_out(step: Step, slots: int) -> Alive:
    """What the last stage has of so many micro-batches that are through: the logits, which have
    their graph with them."""
    whole = _checkpoints(step, step.layers.counts)
    return step.at_last(*(slots * [(LOGITS, 1), *whole]))


def instants(step: Step) -> list[Instant]:
    """Every GPU has all 16-bit weights of its stage and gradients of all of them, and its part of
    the optimizer's states. The last stage has two slots for what it puts out, or as many as there
    are micro-batches."""
    half = step.copies.compute
    merge = step.keeps_gradients and not step.accumulated
    slots = 2 if step.keeps_gradients else 1
    base = [*resident(step), (_received(step.first, step.last, half), 1)]
    made = whole_gradients(step)
    before = base + (made if step.keeps_gradients else [])
    forward = [*before, *_put_out(step, slots)]
    # BF16_Optimizer drops those of the micro-batch before when backward begins (clear_lp_grads).
    begun = [*(before if merge else base), *_put_out(step, slots - 1)]
    there = [*begun, (step.handed, 1), (_restored(half), int(not step.last))]
    behind = [*there, *step.at_last((LOGITS, 1))]
    every = _checkpoints(step, step.running.counts)

    def so_far(counts: list[int]) -> Alive:
        return [*_checkpoints(step, counts), *gradients_behind(step, counts, merge)]

    ending = base + _put_out(step, slots)
    adding = [*behind, *every, *made, *waiting(step)]
    return [
        *step.between(forward),
        *forth_and_back(step, forward, there, behind, so_far, merge),
        *(_summing(step, adding, ending + made) if step.accumulated else []),
        *([] if step.accumulated else _reducing(step, ending, made)),
    ]


def _summing(step: Step, adding: Alive, ending: Alive) -> list[Instant]:
    """What comes after backward under BF16_Optimizer, whose 16-bit gradients stay."""
    ends = [step.blocks.embed] * step.first + [step.blocks.head] * step.last
    tables = [p.shape for tape in ends for p in tape.parameters if VOCAB / TP in p.shape]
    found = [Instant("optimizer-step", "Optimizer step", [*ending, *stepping(step)])]
    if tables:
        alive = [*adding, (_widened(tables[0]), 1)]
        found.insert(0, Instant("sum-gradients", "Gradients into the buffer", alive))
    return found


def _reducing(step: Step, base: Alive, made: Alive) -> list[Instant]:
    """What comes after backward under ZeRO's stage 1: gradients pass through one bucket, and each
    rank keeps those of its part, which it then has in fp32."""
    half = step.copies.gradient
    bucket = buffer(
        "gradient bucket", BUCKET, half, "reduction",
        "where gradients lie side by side until they are reduced",
    )  # fmt: skip
    own = partition(step, "reduction to optimizer step", "grads_in_partition")
    flat = partition(step, "optimizer step", "this GPU's part, made one tensor")
    wide = step.every("widened") if step.offload == "none" else []
    return [
        Instant("reduce-gradients", "Gradient reduction", [*base, *made, (bucket, 1)]),
        Instant("keep-gradients", "Gradients kept", [*base, *made, *own]),
        Instant("gradient-cast", "Gradients to fp32", [*base, *own, *flat, *wide]),
        Instant("optimizer-step", "Optimizer step", [*base, *wide, *stepping(step)]),
    ]


def sent(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """Gradients once a step, when backward is over: all of them summed in fp32 (_bf16_reduce_grads)
    or each part reduced to its owner (average_tensor); then everybody gets the updated weights."""
    return data_parallel(plan, amounts, beside, whole=step.accumulated, overlaps=False)


ZERO_1: Framework = replace(
    MEGATRON,
    facts=replace(MEGATRON.facts, flat=True),
    schedule=instants,
    sends=sent,
    accumulated=False,
    buffers=None,
    handed=handed,
)
BF16_OPTIMIZER: Framework = replace(ZERO_1, accumulated=True)
