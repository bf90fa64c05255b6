"""Memory: a plan's instants turned into bytes, the peak among them, and the verdict."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memcore import constants, deepspeed, offload, pipeline, policies
from memcore.blocks import Blocks, build, structure_of
from memcore.dims import LIVE, Number, ceil_div, derive, maximum
from memcore.families import FAMILIES
from memcore.instants import (
    Alive,
    Instant,
    Layers,
    Step,
    interned,
    saved_for_backward,
    sharded_layers,
    whole_model,
)
from memcore.ledger import Amounts, Holding, Template
from memcore.model import FULL, Model
from memcore.plan import Plan
from memcore.report import CONSUMERS, InstantMemory, LedgerRow, Memory, Overhead, Peak, RankMemory
from memcore.states import megatron_buffers
from memcore.structure import (
    BRIDGE,
    FIRST,
    HEAD,
    IDLE,
    OWN,
    SEQUENCE,
    TENSOR,
    TOWER,
    Adapters,
    Depths,
    LayerKind,
    Narrow,
    Structure,
)

SCHEDULES = {
    "pytorch": whole_model,
    "megatron": whole_model,
    "fsdp2": sharded_layers,
    "deepspeed": deepspeed.instants,
}
VOCAB_MULTIPLE = 128  # Megatron pads the vocabulary to this x tp (--make-vocab-size-divisible-by)


def step_of(plan: Plan, stage: int = 0) -> Step:
    """The words of a plan that decide its schedule on one pipeline stage."""
    return _stage(plan, stage, *_model_of(plan))


def steps_of(plan: Plan) -> list[Step]:
    """The same of every pipeline stage."""
    model = _model_of(plan)
    return [_stage(plan, stage, *model) for stage in range(plan.parallel.pp)]


def _model_of(plan: Plan) -> tuple[Blocks, Layers]:
    """The model's blocks as the plan runs them, and its whole stack of layers."""
    t, p = plan.train, plan.parallel
    copies = policies.COPIES[t.framework, t.precision]
    again = policies.CHECKPOINTING[t.checkpointing].recompute
    model = plan.architecture
    if p.pp > 1 and model.traits.tied_embeddings:  # the last stage has a copy of its own
        model = replace(model, traits=replace(model.traits, tied_embeddings=False))
    parallel = "" if p.tp == 1 else SEQUENCE if p.sequence_parallel else TENSOR
    structure = structure_of(
        model,
        policies.KEEPS_LIKE.get(t.attention, t.attention),
        t.kernels,
        t.cross_entropy,
        copies.compute,
        copies.autocast,
        parallel=parallel,
        exchanges=p.ep > 1,
        gathers=p.etp > 1,
        adapters=adapters_of(plan),
        narrow=narrow_of(plan),
        depths=depths_of(plan),
        frozen=frozen_of(plan),
        table=t.embedding_gradient,
        again=bool(again) and FAMILIES[model.family].carries,
        reached=bool(frozen_of(plan)) and again in (policies.OPERATIONS, policies.LAYER),
        regathers=copies.reduced if p.ep > 1 and t.framework == "fsdp2" else "",
    )
    leads = _leads(structure)
    held = max(model.layers - t.trained_layers, 0) if t.frozen == policies.LOWER else 0
    kinds, stack = layers_of(model, again, t.checkpoint_every, leads, held)
    return build(structure, kinds), stack


def _stage(plan: Plan, stage: int, blocks: Blocks, stack: Layers) -> Step:
    t, p = plan.train, plan.parallel
    layers = stack.part(*pipeline.span(stack.count, p.pp, stage))
    running = layers.part(0, -(-layers.count // (p.virtual_stages if p.pp > 1 else 1)))
    return interned(
        Step(
            schedule=SCHEDULES[t.framework],
            blocks=blocks,
            copies=policies.COPIES[t.framework, t.precision],
            optimizer=policies.OPTIMIZERS[t.optimizer],
            layers=layers,
            keeps_gradients=t.grad_accumulation > 1 or t.gradients == "kept",
            sharded=t.framework == "fsdp2" or (t.framework == "deepspeed" and t.zero == 3),
            reshards=t.zero == 3,
            replicas=t.framework == "pytorch" and plan.dp > 1,
            accumulated=t.framework == "megatron",
            offload=t.offload_optimizer,
            offload_parameters=t.offload_parameters,
            offload_activations=t.offload_activations,
            flat=t.framework == "deepspeed",
            buffers=megatron_buffers if t.framework == "megatron" else None,
            zero=t.zero,
            buckets=deepspeed.buckets(t.overlap_comm, t.zero),
            running=running,
            first=stage == 0,
            last=stage == p.pp - 1,
            waiting=pipeline.in_flight(plan, stage) - 1,
            losses=t.grad_accumulation - 1 if p.pp > 1 and p.schedule == "gpipe" else 0,
            average=t.ema,
            to_end=t.early_stop == "off" or (t.early_stop == "auto" and t.framework == "megatron"),
        )
    )


def _leads(structure: Structure) -> bool:
    """Whether nothing before the first layer is trained, so that its input needs no gradient."""
    if structure.frozen:
        return not structure.reached
    a = structure.adapters
    projected = structure.traits.projected_embeddings  # a linear layer, with an adapter of its own
    return a is not None and not a.inputs and not (projected and a.targets == "all-linear")


def frozen_of(plan: Plan) -> str:
    """Which blocks besides layers are frozen, as Structure has it."""
    t = plan.train
    if t.frozen == policies.NO_LAYER:
        return ""
    every = t.frozen == policies.LOWER and t.trained_layers == 0
    return policies.LOWER if every else policies.EMBEDDINGS


def narrow_of(plan: Plan) -> Narrow | None:
    """What Transformer Engine's linear layers have in 8 bits on the plan's GPU."""
    how = policies.eight_bit(plan.train.framework, plan.train.precision)
    return Narrow(how, bool(how.block) or not plan.accelerator.any_layout_fp8) if how else None


def adapters_of(plan: Plan) -> Adapters | None:
    """What the plan's adapters decide about which tensors exist, if it has any."""
    t = plan.train
    if t.adapter == "none":
        return None
    compute = policies.COPIES[t.framework, t.precision].compute
    # FSDP2 casts every weight of a layer to one dtype; elsewhere adapters keep theirs.
    own = t.adapter_dtype == "fp32" and t.framework == "pytorch"
    return Adapters(
        t.lora_targets,
        "fp32" if own else compute,
        own,
        t.lora_dropout > 0,
        policies.ADAPTERS[t.adapter].quantized,
        policies.CHECKPOINTING[t.checkpointing].recompute in (policies.OPERATIONS, policies.LAYER),
    )


def depths_of(plan: Plan) -> Depths | None:
    """What the plan's multi-token prediction decides about which tensors exist, if it has any."""
    t, model = plan.train, plan.architecture
    if not t.mtp_layers:
        return None
    tied, stages = model.traits.tied_embeddings, plan.parallel.pp
    table = FIRST if stages == 1 else HEAD if tied else OWN
    kind = model.kinds[-1] if model.kinds else FULL
    again = policies.CHECKPOINTING[t.checkpointing].recompute
    return Depths(t.mtp_layers, kind, again, table)


@functools.lru_cache(maxsize=256)
def layers_of(
    model: Model, recompute: str = "", every: int = 1, leads: bool = False, held: int = 0
) -> tuple[tuple[LayerKind, ...], Layers]:
    """The kinds of layer that a model's stack has, and the stack with kinds as indices into them.
    Of every `every` layers the last is run again in backward. `leads`: the input of the first layer
    that is trained needs no gradient, behind `held` layers that are frozen."""
    carries = FAMILIES[model.family].carries

    def run(of: Model, place: str) -> list[LayerKind]:
        words = of.kinds or (FULL,) * of.layers
        read = len(words) - of.idle
        return [
            LayerKind(
                attention,
                recompute if (i + 1) % every == 0 and (i >= held or not leads) else "",
                leads and i <= held,
                i < held,
                place if i < read else IDLE,
                carries and i == read - 1,
            )
            for i, attention in enumerate(words)
        ]

    tower = [*run(model.tower, TOWER), LayerKind("", place=BRIDGE)] if model.tower else []
    stack = tower + run(model, "")
    kinds = tuple(dict.fromkeys(stack))
    if len(kinds) == 1:
        return kinds, Layers(len(stack), ())
    index = {kind: i for i, kind in enumerate(kinds)}
    return kinds, Layers(len(stack), tuple(index[kind] for kind in stack))


def training_sizes(plan: Plan) -> dict[str, Number]:
    """The plan's sizes with those of its sharding and those that follow."""
    sizes = plan.sizes()
    complete(sizes, plan)
    return sizes


def complete(sizes: dict[str, Number], plan: Plan) -> None:
    """Add to a plan's sizes, or to a sweep's, what follows from its words and from the others.

    SHARD: ranks that share each parameter; STATE: ranks that share the optimizer states, and EDP:
    those of one expert.
    """
    t = plan.train
    sharded = t.zero >= {"fsdp2": 2, "deepspeed": 3}.get(t.framework, 4)
    ranks = sizes["DP"] * sizes["CP"]  # context-parallel ranks share states like data-parallel ones
    if plan.parallel.shard_group:
        ranks = plan.parallel.shard_group + 0 * ranks
    sizes["SHARD"] = ranks if sharded else 1
    partitioned = sharded or t.zero == 1 or (t.framework == "deepspeed" and t.zero)
    sizes["STATE"] = ranks if partitioned else 1
    # Each expert is on one of EP ranks, taken from all that run the same layers.
    holders = ranks * sizes["TP"] // (sizes["EP"] * sizes["ETP"])
    sizes["EDP"] = holders if sharded or t.zero == 1 else 1
    sizes["SEQ"] = sizes["TP"] if plan.parallel.sequence_parallel else 1
    sizes["SMS"] = plan.accelerator.sms
    if t.framework == "megatron":
        whole = VOCAB_MULTIPLE * sizes["TP"]
        sizes["VOCAB"] = ceil_div(sizes["VOCAB"], whole) * whole
    derive(sizes)
    if t.framework == "deepspeed":
        deepspeed.complete(sizes, plan.train, step_of(plan))
    else:
        sizes |= dict.fromkeys((d.name for d in deepspeed.DIMENSIONS), 0)


def instant_bytes(instant: Instant, amounts: Amounts) -> tuple[Number, int]:
    """Bytes alive at one instant, and the step of its window where they peak."""
    within, step = amounts.peak(instant.window) if instant.window else (0, 0)
    return within + amounts.held(instant.holding), step


def peak_bytes(step: Step, amounts: Amounts) -> Number:
    """The allocated peak alone; for sweeps."""
    best: Number = 0
    for instant in step.instants:
        best = maximum(best, instant_bytes(instant, amounts)[0])
    return best


@dataclass(frozen=True, slots=True)
class Counted:
    """A memory report with the rows behind it."""

    memory: Memory
    ledger: tuple[LedgerRow, ...]


def by_rank(steps: Sequence[Step], amounts: Amounts) -> tuple[RankMemory, ...]:
    """The peak of every pipeline stage.

    Stages that run the same differ in how many micro-batches wait: that much is added to each
    instant but the optimizer's step, so that a stage is evaluated once for all that are like it.
    """
    ranks: list[RankMemory] = []
    Sized = tuple[Instant, Number, int]  # an instant, its bytes, and where in its window
    seen: dict[tuple[bool, bool, Layers], tuple[list[Sized], dict[str, int]]] = {}
    at_peak: dict[Instant, InstantMemory] = {}
    for stage, step in enumerate(steps):
        key = step.first, step.last, step.layers
        if key not in seen:
            moments = [(i, *instant_bytes(i, amounts)) for i in step.alone.instants]
            seen[key] = moments, _consumers(step.one_waiting, amounts)
        moments, each = seen[key]
        n, one = step.waiting, sum(each.values())
        top = max(moments, key=lambda m: m[1] + n * one * (m[0].id != "optimizer-step"))
        peak = at_peak.get(top[0]) or at_peak.setdefault(top[0], _moment(*top, amounts, stage))
        more = 0 if peak.id == "optimizer-step" else n
        consumers = {name: b + more * each[name] for name, b in peak.consumers.items()}
        ranks.append(RankMemory(stage, sum(consumers.values()), peak.id, peak.label, consumers))
    return tuple(ranks)


def count(
    plan: Plan,
    step: Step,
    amounts: Amounts,
    ranks: tuple[RankMemory, ...] = (),
    rows: bool = True,
) -> Counted:
    """Everything about the memory of one training step on one GPU, of the stage that `step` is of.
    `ranks`: the peak of every pipeline stage, if there are several. Without `rows` the ledger is
    left out, and of the timeline all but the peak."""
    schedule = step.instants
    rank = max(ranks, key=lambda r: r.allocated_bytes).rank if ranks else 0
    sizes = [instant_bytes(i, amounts) for i in schedule]
    top = max(range(len(sizes)), key=lambda i: sizes[i][0])
    ledger: tuple[LedgerRow, ...] = ()
    if rows:
        timeline = [_moment(i, *n, amounts, rank) for i, n in zip(schedule, sizes, strict=True)]
        peak = timeline[top]
        ledger = listed(rows_alive(schedule[top], sizes[top][1], amounts), amounts)
    else:
        peak = _moment(schedule[top], *sizes[top], amounts, rank)
        timeline = [peak]
    best = peak.bytes
    of = amounts.bytes
    elsewhere = [
        (r, int(of(r.template.shape, r.template.dtype))) for r in offload.resting(plan, step)
    ]
    if rows:
        found = ((r.template, r.times, each, r.tier) for r, each in elsewhere if r.times * each)
        ledger += tuple(_row(*row, amounts) for row in found)
    overheads = _overheads(plan, amounts)
    reserved = reserved_bytes(plan, best, overheads)
    device = (
        reserved[0] + sum(o.low for o in overheads if o.counter == "device"),
        reserved[1] + sum(o.high for o in overheads if o.counter == "device"),
    )
    capacity = plan.accelerator.usable_bytes
    tiers = {"hbm": best}
    for tier in ("dram", "nvme"):
        tiers[tier] = sum(r.times * each for r, each in elsewhere if r.tier == tier)
    room = {"hbm": capacity, "dram": plan.node.dram_bytes, "nvme": plan.node.nvme_bytes}
    fits = device[1] <= capacity and all(tiers[t] <= room[t] for t in ("dram", "nvme"))
    possible = device[0] <= capacity and all(tiers[t] <= room[t] for t in ("dram", "nvme"))
    memory = Memory(
        allocated_bytes=best,
        peak=Peak(rank, peak.id),
        consumers=peak.consumers,
        saved_for_backward_bytes=int(amounts.held(step.saved)),
        reserved_bytes=reserved,
        device_bytes=device,
        capacity_bytes=capacity,
        fits=fits,
        verdict="fits" if fits else "tight" if possible else "over",
        tiers=tiers,
        tier_capacities=room,
        ranks=ranks or (RankMemory(0, best, peak.id, peak.label, peak.consumers),),
        timeline=tuple(timeline),
        overheads=overheads,
    )
    return Counted(memory, ledger)


def rows_at(plan: Plan, instant: int, stage: int = 0) -> tuple[LedgerRow, ...]:
    """What is alive at one instant of a pipeline stage's timeline: its bytes, row by row."""
    amounts, chosen = Amounts(training_sizes(plan)), step_of(plan, stage).instants[instant]
    return listed(rows_alive(chosen, instant_bytes(chosen, amounts)[1], amounts), amounts)


def saved_rows(plan: Plan, stage: int = 0) -> tuple[LedgerRow, ...]:
    """What one micro-batch's forward leaves for its backward on one stage, row by row."""
    return rows_of(saved_for_backward(step_of(plan, stage)), Amounts(training_sizes(plan)))


def rows_of(alive: Alive, amounts: Amounts) -> tuple[LedgerRow, ...]:
    """Groups of rows, row by row."""
    return listed(_templates(alive, amounts), amounts)


Row = tuple[Template, int, int]  # template, how many, bytes of one


def listed(rows: list[Row], amounts: Amounts) -> tuple[LedgerRow, ...]:
    """Rows as a ledger has them, without those that are empty."""
    return tuple(_row(t, n, each, "hbm", amounts) for t, n, each in rows if n * each)


def _templates(alive: Alive, amounts: Amounts) -> list[Row]:
    return [
        (template, times * template.copies, amounts.bytes(template.shape, template.dtype))
        for group, times in alive
        if times
        for template in group.rows
    ]


def rows_alive(instant: Instant, at: int, amounts: Amounts) -> list[Row]:
    """Every row alive at one instant, after step `at` of its window."""
    rows = _templates(instant.alive, amounts)
    if instant.window:
        here = instant.window
        rows += [
            (here.rows[i], 1, amounts.bytes(here.rows[i].shape, here.rows[i].dtype))
            for i in here.alive[at]
        ]
    return rows


def _consumers(holding: Holding, amounts: Amounts) -> dict[str, int]:
    """Bytes of a holding by consumer."""
    parts = holding.by_consumer
    return {name: amounts.held(parts[name]) if name in parts else 0 for name in CONSUMERS}


def _moment(instant: Instant, n: Number, at: int, amounts: Amounts, rank: int) -> InstantMemory:
    consumers = _consumers(instant.holding, amounts)
    where = ""
    if instant.window:
        where = instant.window.names[at]
        for i in instant.window.alive[at]:
            row = instant.window.rows[i]
            consumers[row.consumer] += amounts.bytes(row.shape, row.dtype)
    return InstantMemory(instant.id, instant.label, rank, int(n), consumers, where)


def _row(template: Template, times: int, each: int, tier: str, amounts: Amounts) -> LedgerRow:
    return LedgerRow(
        template.name,
        template.consumer,
        amounts.text(template.shape),
        template.dtype,
        each,
        times,
        times * each,
        tier,
        template.lifetime,
        template.certainty,
        template.source,
        template.why,
    )


def allocator_slack(plan: Plan) -> constants.Constant:
    """Reserved over allocated bytes, as runs of this plan's framework show it."""
    t = plan.train
    if t.framework == "deepspeed":
        sharded = t.zero == 3
        return constants.ALLOCATOR_SLACK_ZERO_3 if sharded else constants.ALLOCATOR_SLACK_DEEPSPEED
    sharded = t.framework == "fsdp2"
    return constants.ALLOCATOR_SLACK_FSDP2 if sharded else constants.ALLOCATOR_SLACK


def reserved_bytes(plan: Plan, allocated: int, overheads: tuple[Overhead, ...]) -> tuple[int, int]:
    """What PyTorch's allocator holds: allocated with its slack, and cuBLAS's workspace."""
    slack = allocator_slack(plan)
    low, high = slack.low, slack.high
    if plan.train.allocator == policies.NATIVE:
        gaps = constants.NATIVE_SEGMENTS
        low, high = low * gaps.low, high * gaps.high
    inside = [o for o in overheads if o.counter == "reserved"]
    return (
        math.ceil(allocated * low) + sum(o.low for o in inside),
        math.ceil(allocated * high) + sum(o.high for o in inside),
    )


# Architectures whose cuBLAS has PyTorch's larger workspace.
LARGE_WORKSPACE = ("Hopper", "Blackwell")


def _overheads(plan: Plan, amounts: Amounts) -> tuple[Overhead, ...]:
    """What no shape determines, by the counter that it is first seen in."""
    gpu = plan.accelerator
    found = [(constants.CUDA_CONTEXT, "device")]
    if plan.cluster.gpus > 1:
        found.append((constants.NCCL_BUFFERS, "device"))
    if gpu.vendor == "nvidia":
        large = gpu.architecture.startswith(LARGE_WORKSPACE)
        workspace = constants.CUBLAS_WORKSPACE_HOPPER if large else constants.CUBLAS_WORKSPACE
        found.insert(0, (workspace, "reserved"))
    overheads = [
        Overhead(c.name, int(c.low), int(c.high), counter, c.certainty, c.source)
        for c, counter in found
    ]
    if plan.train.framework == "deepspeed" and plan.train.zero == 3:
        c, live = constants.STREAM_POOLS, streamed_bytes(plan, amounts)
        low, high = (math.ceil(live * end) for end in (c.low, c.high))
        overheads.insert(0, Overhead(c.name, low, high, "reserved", c.certainty, c.source))
    return tuple(overheads)


def streamed_bytes(plan: Plan, amounts: Amounts) -> int:
    """Weights of other ranks that DeepSpeed's ZeRO-3 holds at once, all on a stream of its own."""
    compute = policies.COPIES[plan.train.framework, plan.train.precision].compute
    return int(amounts.bytes((LIVE,), compute))
