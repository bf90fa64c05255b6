"""DeepSpeed: ZeRO 0 to 3 as deepspeed.initialize runs them, with their buffers and instants.

Follows DeepSpeed 0.19.2: runtime/zero/stage_1_and_2.py, stage3.py, partition_parameters.py,
partitioned_param_coordinator.py, and runtime/fp16/fused_optimizer.py for stage 0. Gradients are
contiguous (contiguous_gradients), reduce_scatter is on, and gradients are summed in their own
dtype, which are its defaults; allgather_bucket_size decides no memory, since the weights of stages
1 and 2 are gathered in place.

A flat group is padded once to the ranks; here each tensor's part is rounded up for itself, which is
less than one element a tensor more. Weights are grouped in the order of the model's layers, those
without weight decay among them, which torch's optimizers have in a small group of their own. Which
tensors' gradients a rank of stages 1 and 2 keeps whole
at the edges of its partition depends on the rank: the partition itself is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memcore.cache import cached
from memcore.frameworks.framework import Framework
from memcore.frameworks.fsdp2 import sharded
from memcore.frameworks.instants import forth_and_back, gradients_behind, whole_gradients
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.step.states import DEEPSPEED as SOURCE
from memcore.step.step import (
    BUFFERS,
    WORKSPACES,
    Alive,
    Instant,
    Step,
    optimizer_states,
    stepping,
    tables_of,
    weights,
)
from memcore.tape.dims import (
    ALLREDUCED,
    BUCKET,
    BUCKETED,
    GROUP,
    HOSTED,
    LARGEST,
    LIVE,
    LOADED,
    PARAMETER_BUFFER,
    PERSISTENT,
    PREFETCH,
    ROUNDED,
    SLICE,
    STATE,
    SUBGROUP,
    SWAPPED,
    UNREDUCED,
    Factor,
    Number,
    ceil_div,
    elements,
    flat,
    maximum,
    minimum,
    next_power_of_2,
    where,
)
from memcore.tape.ledger import BACKWARD, Amounts, Group, Template
from memcore.tape.tape import Storage, Tape
from memcore.timing.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    NOTHING,
    ONE_BACKWARD,
    REDUCE_SCATTER,
    Beside,
    Move,
    collective,
    links,
)
from memcore.timing.pieces import moved
from memcore.words.training import FRAMEWORKS, QUANTIZED
from memcore.words.word import DTYPE_BYTES

if TYPE_CHECKING:
    from memcore.plan.sections import Train

PLAIN_BUCKET = 500_000_000  # elements; engine.py: MEMORY_OPT_ALLREDUCE_SIZE, of stage 0
NORM_CHUNK = 250_000_000  # elements; stage3.py: _constant_buffered_norm2

DIMENSIONS = (
    *(GROUP, LARGEST, PERSISTENT, LIVE, PREFETCH, BUCKETED, UNREDUCED, ALLREDUCED, SUBGROUP, SLICE),
    *(HOSTED, SWAPPED, PARAMETER_BUFFER, ROUNDED, LOADED),
)


def buckets(overlap: str, zero: int) -> int:
    """Buffers that gradients are reduced in: two where reduction overlaps backward below stage 3
    (setup_buckets). By default it does under stage 3 alone."""
    return 2 if overlap == "on" and zero < 3 else 1


def complete(sizes: dict[str, Number], train: Train, step: Step) -> None:
    """Add the dimensions that DeepSpeed's buffers have.

    Frozen weights are gathered like the others; gradients and their buffers are of trained ones.
    LIVE: what is gathered at once. Prefetching goes on until more than stage3_max_live_parameters
    are, so that the last tensor may go over it; what is used again within the reuse distance stays.
    """
    tapes = step.blocks.counted(step.layers.counts)
    every: Number = 0
    group: Number = 0
    largest: Number = 0
    longest: Number = 0  # of those that are trained
    persistent: Number = 0
    for tape, times in tapes:
        for p in tape.parameters:
            n = _stored(p, sizes)
            every = every + n * times
            largest = maximum(largest, n)
            if p.trained:
                group = group + n * times
                longest = maximum(longest, n)
            stays = n <= train.stage3_param_persistence_threshold
            persistent = persistent + where(stays, n, 0 * n) * times
    ahead = max(train.stage3_max_live_parameters, train.stage3_max_reuse_distance)
    share = ceil_div(group, sizes["STATE"])
    whole = ceil_div(longest, sizes["SHARD"])
    # One rank alone gathers nothing: its part is the tensor (NoGatherHandle), unless on the host.
    copies = True if train.offload_parameters != "none" else sizes["SHARD"] > 1
    live = minimum(every - persistent, ahead + largest)
    prefetched = minimum(every, train.stage3_prefetch_bucket_size + 0 * every)
    sizes["GROUP"], sizes["LARGEST"] = group, largest
    sizes["PERSISTENT"] = where(copies, persistent, 0 * persistent)
    sizes["LIVE"] = where(copies, live, 0 * live)
    sizes["PREFETCH"] = where(copies, prefetched, 0 * prefetched)
    sizes["BUCKETED"] = minimum(group, train.reduce_bucket_size + 0 * group)
    sizes["UNREDUCED"] = group - sizes["BUCKETED"]
    sizes["ALLREDUCED"] = minimum(group, PLAIN_BUCKET + 0 * group)
    sizes["SUBGROUP"] = minimum(share, train.sub_group_size + 0 * share)
    of_stage_3 = minimum(whole, NORM_CHUNK + 0 * whole)
    swapping = train.offload_parameters == "nvme"
    held = minimum(share, train.offload_param_max_in_cpu + 0 * share) if swapping else 0 * share
    sizes["HOSTED"], sizes["SWAPPED"] = held, share - held if swapping else 0 * share
    sizes["PARAMETER_BUFFER"] = train.offload_param_buffer_size if swapping else 0
    sizes["SLICE"] = of_stage_3 if step.zero == 3 else minimum(longest, share)
    sizes["ROUNDED"] = sizes["LOADED"] = 0
    if train.offload_optimizer != "none" or train.offload_parameters != "none":
        _pinned(sizes, train, step)


def _pinned(sizes: dict[str, Number], train: Train, step: Step) -> None:
    """Add what page-locked buffers take beyond what lies in them: PyTorch makes each a power of two
    and keeps freed ones (aten/src/ATen/core/CachingHostAllocator.h).

    Stage 3 pins a rank's part of each tensor as it is loaded, then one buffer of all of them; all
    16-bit gradients; and those in fp32 of each sub-group, which ends with the tensor that fills it
    (stage3.py: _create_fp16_sub_groups, initialize_optimizer_states). Stages 1 and 2 pin the
    master copy, its 16-bit copy and gradients, a tensor's gradient on its way, and each tensor's
    gradient while they accumulate (stage_1_and_2.py).
    """
    half = DTYPE_BYTES[step.copies.compute]
    share = ceil_div(sizes["GROUP"], sizes["STATE"])
    rounded: Number = 0
    if train.offload_parameters == "cpu":
        rounded = rounded + _spare(half * share)  # pinned whatever the file says
    if train.offload_parameters == "nvme":
        swapped = train.offload_param_buffers * sizes["PARAMETER_BUFFER"]
        rounded = rounded + _spare(half * sizes["HOSTED"]) + _spare(half * swapped)
    if not train.offload_pin_memory:
        sizes["ROUNDED"] = rounded
        return
    if train.offload_parameters == "cpu":
        small = train.stage3_param_persistence_threshold
        for each in _in_order(step, sizes, trained=False):
            block = next_power_of_2(half * ceil_div(each, sizes["SHARD"]))
            sizes["LOADED"] = sizes["LOADED"] + where(each > small, block, 0 * block)
    if train.offload_optimizer != "none":
        rounded = rounded + _rounded_states(sizes, train, step, share, half)
    sizes["ROUNDED"] = rounded


def _rounded_states(
    sizes: dict[str, Number], train: Train, step: Step, share: Number, half: int
) -> Number:
    """Of pinned buffers of the optimizer and its gradients, what is beyond what lies in them."""
    if step.zero == 3:
        rounded = _spare(half * share)
        if train.offload_optimizer == "nvme":
            return rounded + train.offload_optimizer_buffers * _spare(4 * sizes["SUBGROUP"])
        filled: Number = 0
        for each in _in_order(step, sizes, trained=True):
            filled = filled + ceil_div(each, sizes["STATE"])
            full = filled >= train.sub_group_size
            rounded = rounded + where(full, _spare(4 * filled), 0 * filled)
            filled = where(full, 0 * filled, filled)
        return rounded + _spare(4 * filled)
    rounded = 2 * _spare(4 * share) + _spare(half * share) + _spare(half * sizes["LARGEST"])
    if train.grad_accumulation > 1:
        spare = sum(_spare(half * each) for each in _in_order(step, sizes, trained=True))
        rounded = rounded + ceil_div(spare, sizes["STATE"])
    return rounded


def _spare(n: Number) -> Number:
    """What a pinned buffer takes beyond its bytes."""
    return where(n > 0, next_power_of_2(maximum(n, 1)) - n, 0 * n)


def _in_order(step: Step, sizes: dict[str, Number], trained: bool) -> Iterator[Number]:
    """Elements of each tensor in the order of the model; `trained`: of those that are alone."""
    for tape, times in step.blocks.counted(step.layers.counts):
        for _ in range(times):
            for p in tape.parameters:
                if p.trained or not trained:
                    yield _stored(p, sizes)


def _stored(p: Storage, sizes: dict[str, Number]) -> Number:
    """Elements of a weight as stage 3 shares it out: nf4's values lie four to a 16-bit number
    (bnb_4bit_quant_storage), as peft's docs/source/accelerate/deepspeed.md asks for."""
    n = elements(p.shape, sizes)
    return ceil_div(n, 4) if p.quantized in QUANTIZED else n


@cached
def buffer(
    name: str, size: Factor, dtype: str, lifetime: str, why: str, consumer: str = "workspace"
) -> Group:
    """One flat buffer."""
    return Group((Template(name, consumer, (size,), dtype, lifetime, why, SOURCE),))


@cached
def _parts(tape: Tape, dtype: str, lifetime: str, why: str) -> Group:
    """This GPU's part of the gradient of each of a block's parameters."""
    return Group.of(
        Template(
            f"{p.name}.grad (partition)", "gradients", (flat(p.shape, STATE),), dtype, lifetime,
            why, SOURCE,
        )
        for p in tape.parameters
        if p.trained
    )  # fmt: skip


def partition(step: Step, lifetime: str, why: str) -> Alive:
    """This GPU's part of all gradients."""
    dtype, blocks = step.copies.reduced, step.blocks
    of_layers = zip(blocks.layers, step.layers.counts, strict=False)
    return [
        *step.at_first((_parts(blocks.embed, dtype, lifetime, why), 1)),
        *((_parts(tape, dtype, lifetime, why), n) for tape, n in of_layers),
        *step.at_last((_parts(blocks.head, dtype, lifetime, why), 1)),
    ]


def always(step: Step) -> Alive:
    """What lives on the GPU from step to step."""
    alive, half = weights(step), step.copies.compute
    if step.offload == "none":
        alive += optimizer_states(step)
    if step.zero == 3:
        why = "tensors below stage3_param_persistence_threshold, never released"
        kept = buffer("small weights (gathered)", PERSISTENT, half, "always", why, "parameters")
        why = "where gradients lie side by side until they are reduce-scattered"
        alive += [(kept, 1), (buffer("gradient bucket", BUCKET, half, "always", why), 1)]
        if step.offload == "none":
            alive += partition(step, "always", "grad_partitions_flat_buffer")
    elif step.zero and step.offload != "none":
        why = "temp_grad_buffer_for_gpu_offload"
        alive.append((buffer("gradient on its way to the host", LARGEST, half, "always", why), 1))
    return [*alive, (BUFFERS, tables_of(step)), (WORKSPACES, 1)]


def gathered(step: Step) -> Alive:
    """What stage 3 holds of other ranks' weights while layers run."""
    if step.zero < 3:
        return []
    half = step.copies.compute
    live = buffer(
        "weights (gathered)", LIVE, half, "forward and backward",
        "weights in use, fetched ahead, or soon to be used again",
    )  # fmt: skip
    flying = buffer(
        "weights, coalesced", PREFETCH, half, "one all-gather",
        "the buffer of an all-gather of several tensors, copied out of when it has arrived",
    )  # fmt: skip
    if step.offload_parameters == "none":
        return [(live, 1), (flying, 1)]
    why = "this rank's part of a tensor, copied from the host before it is gathered"
    part = buffer("weights from the host", flat((LARGEST,), STATE), half, "one all-gather", why)
    return [(live, 1), (flying, 1), (part, 1)]


def bucket(step: Step) -> Alive:
    """Stages 1 and 2 make the buffers of reduction when the first gradient is there."""
    why = "where gradients lie side by side until they are reduced"
    one = buffer("gradient bucket", BUCKET, step.copies.gradient, "backward", why)
    return [(one, step.buckets)] if step.zero in (1, 2) else []


def reducing(step: Step) -> Alive:
    """What reduction holds while a layer's backward runs, besides what is always there."""
    half = step.copies.gradient
    if not step.zero:
        return []
    why = "what the reduction sends: the bucket's contents in the order of ranks"
    sent = [(buffer("gradient bucket, flattened", BUCKETED, half, "one reduction", why), 1)]
    why = "the norm of a part that leaves for the host is taken in double precision"
    norm: Alive = []
    if step.offload != "none":
        norm = [(buffer("gradient (fp64)", SLICE, "fp64", "one reduction", why), 1)]
    if step.zero == 1:
        return bucket(step)
    if step.zero == 3:
        return [*sent, *norm]
    own = partition(step, "backward to optimizer step", "grads_in_partition")
    return [*bucket(step), *sent, *(norm or own)]


def instants(step: Step) -> list[Instant]:
    """Every instant of a step at which memory can peak, in order of time.

    Stages 0 and 1 keep whole gradients until backward is over; 2 and 3 copy each into the bucket as
    soon as it is there, so that it is gone then.
    """
    whole = step.zero < 2
    merge = step.keeps_gradients or not whole
    base = always(step)
    made = whole_gradients(step)
    before = list(base)
    if step.keeps_gradients and whole:
        before += made
    elif step.keeps_gradients and step.zero == 2 and step.offload == "none":
        before += partition(step, "until the optimizer step", "all_grad_tensors, summed up so far")
    running = [*before, *gathered(step)]
    backward = [*running, *reducing(step)]

    def so_far(counts: list[int]) -> Alive:
        return gradients_behind(step, counts, merge)

    return [
        *step.between(before),
        *forth_and_back(
            step, running, [*running, *bucket(step)], backward, so_far, merge, gathered(step)[:1]
        ),
        *_ending(step, base, made),
    ]


def _ending(step: Step, base: Alive, made: Alive) -> list[Instant]:
    """What comes after backward: the rest of reduction, the norm, the step."""
    half, offloaded = step.copies.gradient, step.offload != "none"

    def cast(size: Factor, name: str) -> Alive:
        why = "gradients in fp32, which the optimizer reads"
        return [(buffer(name, size, "fp32", "optimizer step", why), 1)]

    def norm() -> Alive:
        why = "the norm of each gradient is taken in double precision"
        return [(buffer("gradient (fp64)", SLICE, "fp64", "gradient norm", why), 1)]

    done = Instant("optimizer-step", "Optimizer step", [*base, *stepping(step)])
    if step.zero == 0:
        why = "gradients of one all-reduce, flattened"
        sent = buffer("gradients, flattened", ALLREDUCED, half, "one reduction", why)
        both = cast(GROUP, "gradients (fp32), flat")
        return [
            Instant("reduce-gradients", "Gradient reduction", [*base, *made, (sent, 1)]),
            Instant(
                "gradient-cast", "Gradients to fp32",
                [*base, *made, *cast(GROUP, "gradients (fp32)"), *both],
            ),
            Instant(done.id, done.label, [*done.alive, *both]),
        ]  # fmt: skip
    if step.zero == 3:
        if offloaded:
            return [done]
        taken = buffer("gradients, flattened", SUBGROUP, half, "optimizer step", "of a sub-group")
        wide = cast(SUBGROUP, "gradients (fp32), flat")
        return [
            Instant("gradient-norm", "Gradient norm", [*base, *norm()]),
            Instant("gradient-cast", "Gradients to fp32", [*base, (taken, 1), *wide]),
            Instant(done.id, done.label, [*done.alive, *wide]),
        ]
    out = []
    kept = partition(step, "backward to optimizer step", "grads_in_partition")
    if step.zero == 1:
        left = buffer(
            "gradients not reduced yet", UNREDUCED, half, "backward to reduction",
            "whole gradients, as backward made them", "gradients",
        )  # fmt: skip
        why = "what the reduction sends: the bucket's contents in the order of ranks"
        sent = buffer("gradient bucket, flattened", BUCKETED, half, "one reduction", why)
        first = [*base, *reducing(step), (left, 1)]
        out.append(Instant("reduce-gradients", "Gradient reduction", [*first, (sent, 1)]))
        if not offloaded:
            out.append(Instant("keep-gradients", "Gradients kept", [*first, *kept]))
    if offloaded:
        return [*out, done]
    why = "this GPU's part, made one tensor"
    taken = buffer("gradients, flattened", flat((GROUP,), STATE), half, "optimizer step", why)
    wide = cast(flat((GROUP,), STATE), "gradients (fp32), flat")
    return [
        *out,
        Instant("gradient-norm", "Gradient norm", [*base, *kept, *norm()]),
        Instant("gradient-cast", "Gradients to fp32", [*base, *kept, (taken, 1), *wide]),
        Instant(done.id, done.label, [*done.alive, *wide]),
    ]


def deepspeed(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """DeepSpeed with whole weights on every GPU: ZeRO 0 sums gradients, ZeRO 1 reduces them to
    their owners at the last micro-batch and ZeRO 2 at each; owners send the updated weights. With
    overlap_comm a reduction runs behind backward (deepspeed/runtime/zero/stage_1_and_2.py). ZeRO 3
    gathers and reduces as FSDP2 does."""
    if step.sharded:
        return sharded(plan, step, amounts, beside)
    t, over = plan.train, links(plan, "DP")
    grads = moved(beside, amounts, "gradients in buckets")
    overlaps = t.overlap_comm == "on"
    how = (ONE_BACKWARD, BACKWARD, beside) if overlaps else (NOTHING, "", beside)
    if t.zero == 0:
        return [collective("all-reduce gradients", ALL_REDUCE, "DP", over, grads, 1, *how)]
    times = t.grad_accumulation if t.zero == 2 else 1
    weights = moved(beside, amounts, "updated weights")
    return [
        collective("reduce-scatter gradients", REDUCE_SCATTER, "DP", over, grads, times, *how),
        collective("all-gather updated weights", ALL_GATHER, "DP", over, weights, 1),
    ]


DEEPSPEED = Framework(
    facts=FRAMEWORKS["deepspeed"],
    schedule=instants,
    sends=deepspeed,
    slack=constants.ALLOCATOR_SLACK,
    slack_sharded=constants.ALLOCATOR_SLACK_ZERO_3,
    slack_native=constants.ALLOCATOR_SLACK_ZERO_3,
    streams=True,
    buckets=buckets,
    dimensions=DIMENSIONS,
    complete=complete,
)
