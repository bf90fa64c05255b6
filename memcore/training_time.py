"""Training time: what one optimizer step costs on one GPU, what hides behind what, and why.

A pipeline takes the time of its slowest stage for every micro-batch, and that of the other stages
once: until the first micro-batch arrives and after the last has left. Then each stage updates its
own weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memcore import constants, host, offload
from memcore.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    AXES,
    REDUCE_SCATTER,
    SEND,
    Move,
    collective,
    links,
)
from memcore.dims import EP, Cut, Number, Shape, derive
from memcore.experts import active, is_matrix
from memcore.instants import Alive, Layers, Step
from memcore.ledger import Amounts, Group
from memcore.memory import layers_of
from memcore.ops import HIDDEN, slides
from memcore.plan import Plan
from memcore.policies import CHECKPOINTING, DTYPE_BYTES, NO_LAYER, TO_END
from memcore.report import OperationTime, StageTime, Time, Transfer
from memcore.roofline import (
    ATTENTION,
    EIGHT_BIT,
    OF_LAYERS,
    PRODUCT,
    Execution,
    Speed,
    by_phase,
    executions,
    operation,
    run,
    seconds,
    sends,
)
from memcore.structure import BRIDGE, IDLE, MAIN, TOWER
from memcore.tape import Send, Tape

LINKS = ("compute", "hbm", "nvlink", "network", "pcie", "dram", "nvme", "host")


@dataclass(slots=True)
class _Traffic:
    """Transfers so far, one for each link of each move, with busy and exposed seconds by link."""

    transfers: list[Transfer] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))
    exposed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))

    def add(self, move: Move, micro_batch: int) -> None:
        for link, each in move.seconds.items():
            shown = move.exposed if link == move.slowest else 0.0
            self.busy[link] += each * move.times
            self.exposed[link] += shown
            self.transfers.append(
                Transfer(
                    move.name, link, move.bytes * move.times, each * move.times, shown,
                    move.hidden_by, move.bytes / move.cover if move.cover > 0 else None,
                    micro_batch * each / move.cover if outgrown(move) else None,
                )
            )  # fmt: skip


def speed_of(plan: Plan, step: Step) -> Speed:
    t = plan.train
    return Speed.of(
        plan.accelerator, matmul_dtype(step), constants.LAUNCH.middle, t.kernels, t.attention
    )


def training_time(plan: Plan, steps: Sequence[Step], amounts: Amounts) -> Time:
    """Time of one optimizer step. Assumes that transfers overlap as the framework schedules them:
    FSDP2 gathers the next layer while one runs, DDP reduces buckets during backward.

    `steps`: of every pipeline stage. The one whose step takes longest is found here: besides its
    micro-batches each updates weights of its own, so that the slowest of one may not be it."""
    gpu, batches = plan.accelerator, plan.train.grad_accumulation
    speed = speed_of(plan, steps[0])
    every = stages(plan, steps, amounts, speed)
    like: dict[int, _Whole] = {}  # stages that run the same share their list of operations
    wholes = [
        like.get(key) or like.setdefault(key, _whole(plan, s, every, amounts, speed))
        for s in every
        for key in (id(s.operations),)
    ]
    rank = max(range(len(every)), key=lambda k: wholes[k].seconds)
    slowest, step, whole = every[rank], every[rank].step, wholes[rank]
    traffic, phases, operations = whole.traffic, by_phase(whole.operations), whole.operations

    tokens = plan.train.micro_batch * plan.train.seq_len * batches * plan.dp
    flops = sum([o.flops for o in operations])
    recomputed = sum([o.flops for o in operations if o.phase == "recompute"])
    model_flops = batches * _convention_flops(plan, step, amounts)
    peak = gpu.peak_flops(peak_dtype(step))
    bound_by = max(traffic.exposed, key=lambda link: traffic.exposed[link])
    phases["communication"] = traffic.exposed["nvlink"] + traffic.exposed["network"]
    phases["offload"] = sum(traffic.exposed[k] for k in ("pcie", "dram", "nvme"))
    phases["host"] = traffic.exposed["host"]
    phases["bubble"] = whole.bubble
    return Time(
        step_seconds=whole.seconds,
        tokens_per_second=tokens / whole.seconds,
        tokens_per_second_per_gpu=tokens / whole.seconds / plan.cluster.gpus,
        mfu=model_flops / whole.seconds / peak,
        hfu=(model_flops + recomputed) / whole.seconds / peak,
        bound_by=bound_by,
        resources=traffic.busy,
        exposed=traffic.exposed,
        phases=phases,
        model_flops=model_flops,
        hardware_flops=flops,
        recompute_flops=recomputed,
        operations=tuple(operations),
        transfers=tuple(traffic.transfers),
        stage=slowest.time.rank,
        bubble_seconds=whole.bubble,
        stages=tuple(replace(s.time, step=w.seconds) for s, w in zip(every, wholes, strict=True)),
        starts=whole.starts,
    )


@dataclass(frozen=True, slots=True)
class _Whole:
    """One stage's whole optimizer step, with what it waits for the others."""

    operations: list[OperationTime]
    traffic: _Traffic
    starts: dict[str, float]
    bubble: float
    seconds: float


def _whole(
    plan: Plan, stage: Stage, every: Sequence[Stage], amounts: Amounts, speed: Speed
) -> _Whole:
    step, operations, batches = stage.step, stage.operations, plan.train.grad_accumulation
    starts = dict.fromkeys(host.PHASES, 0.0)
    each = host.each_start(plan)
    late = 0.0
    if step.offload == "none":
        update = _optimizer(step, amounts, speed)
        operations = [*operations, update]
        starts[host.OPTIMIZER] = host.optimizer_starts(step, amounts)
        late = max(0.0, each * starts[host.OPTIMIZER] - update.seconds)

    traffic = _Traffic()
    traffic.busy["compute"] = sum([o.compute_seconds for o in operations])
    traffic.busy["hbm"] = sum([o.hbm_seconds for o in operations])
    exposed = traffic.exposed
    for o in operations:
        exposed[o.bound_by] += o.seconds
    transfers = _moves(plan, step, amounts, operations, stage.transfers)
    for move in transfers:
        traffic.add(move, plan.train.micro_batch)
    begun = _started(step, amounts, batches, transfers)
    starts |= zip(host.PHASES, begun, strict=False)
    taken = each * begun[0], each * begun[1]
    waits = host.waited(taken, host.on_gpu(by_phase(operations), transfers), batches)
    traffic.busy["host"] = each * sum(starts.values())
    exposed["host"] = late + waits
    bubble = bubble_seconds(plan, every, stage)
    return _Whole(operations, traffic, starts, bubble, sum(exposed.values()) + bubble)


def _started(
    step: Step, amounts: Amounts, batches: int, transfers: Sequence[Move]
) -> tuple[float, float]:
    """Operations that the host starts in all forwards of a step, and in all backwards."""
    forward, backward, _ = host.operations(step, amounts, ends_of(step), _again(step))
    sent = host.collectives(transfers)
    return forward * batches + sent[0], backward * batches + sent[1]


def matmul_dtype(step: Step) -> str:
    return "bf16" if step.copies.autocast else step.copies.compute


def peak_dtype(step: Step) -> str:
    """Whose peak utilization is a share of: the narrowest dtype that products have."""
    return "fp8" if step.copies.eight_bit else matmul_dtype(step)


# -- stages ---------------------------------------------------------------------------------------


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
    every = _executions(step, batches)
    operations = [o for part in every for o in run(part, amounts, speed)]
    transfers = in_layers(plan, step, amounts, speed)
    waited = sum(m.exposed for m in transfers) / batches
    phases = by_phase(operations)
    of = {p: n / batches for p, n in phases.items()}
    each = host.each_start(plan)
    begun = _started(step, amounts, batches, transfers)
    taken = each * begun[0], each * begun[1]
    gpu = host.on_gpu(phases, transfers)
    late = host.waited(taken, gpu, batches) / batches
    total = sum(of.values()) + waited + late
    bubble = total
    if plan.parallel.schedule == "zero-bubble":
        moved = 2 * weight_gradients(operations)
        weights = host.operations(step, amounts, ends_of(step), _again(step))[2]
        left = (taken[0], taken[1] - 2 * each * batches * weights), (gpu[0], gpu[1] - moved)
        bubble += (host.waited(*left, batches) - moved) / batches - late
    time = StageTime(
        rank, of["forward"], of["recompute"], of["backward"], waited, late, total, bubble, total
    )
    return Stage(step, operations, transfers, time)


def weight_gradients(operations: Sequence[OperationTime]) -> float:
    """Seconds in which backward computes gradients of weights: half of each product's, which has
    two. ZB-H1 does them while it would wait (Qi et al. 2023)."""
    products = (o for o in operations if host.is_product(o.name, o.phase, o.flops > 0))
    return sum(o.seconds for o in products) / 2


def bubble_seconds(plan: Plan, every: Sequence[Stage], one: Stage) -> float:
    """Seconds that one stage waits for the others: each of them takes one micro-batch
    before the pipeline is full or after it is empty, one chunk of it where stages are virtual
    (Narayanan et al. 2021: (p - 1) / v of a micro-batch's forward and backward)."""
    others = sum(s.time.bubble for s in every) - one.time.bubble
    return others / plan.parallel.virtual_stages


# -- operations -----------------------------------------------------------------------------------


def step_executions(step: Step, batches: int) -> list[Execution]:
    """Every operation of a step's forwards and backwards, in the order of `Time.operations`."""
    return [e for part in _executions(step, batches) for e in part]


def _executions(step: Step, batches: int) -> tuple[tuple[Execution, ...], ...]:
    """Those of the ends, and those of the layers."""
    ends = ends_of(step)
    return (
        executions(ends, (1,) * len(ends), times=batches),
        executions(step.blocks.layers, step.layers.counts, _again(step), batches),
    )


def ends_of(step: Step) -> tuple[Tape, ...]:
    """The embedding and the head, if this stage has them."""
    found = (step.blocks.embed, step.first), (step.blocks.head, step.last)
    return tuple(tape for tape, here in found if here)


def _again(step: Step) -> tuple[str, ...]:
    """What of each kind of layer backward runs again."""
    words = (step.recompute(k) for k in range(len(step.blocks.kinds)))
    to_end = step.to_end or step.blocks.structure.kernels == "compile"
    return tuple(word + TO_END if word and to_end else word for word in words)


def updated(step: Step, amounts: Amounts) -> tuple[Number, Number]:
    """What the optimizer step updates on this GPU: parameters, and bytes of them and states."""
    states = amounts.held(step.holding("updated")) + amounts.held(step.optimizer_states)
    return _count(step, amounts), states


def _optimizer(step: Step, amounts: Amounts, speed: Speed) -> OperationTime:
    """The optimizer step on the GPU: it reads and writes its states, and reads the gradients."""
    weights, states = updated(step, amounts)
    moved = 2.0 * states + weights * DTYPE_BYTES[step.copies.reduced]
    flops = float(weights) * step.optimizer.flops_per_parameter
    return operation("optimizer step", "optimizer", flops, moved, speed, 1)


def _sum(step: Step, state: str, amounts: Amounts) -> Number:
    return amounts.held(step.holding(state))


def _count(step: Step, amounts: Amounts) -> Number:
    """Parameters that this GPU updates."""
    return _sum(step, "updated", amounts) / DTYPE_BYTES[updated_dtype(step)]


def updated_dtype(step: Step) -> str:
    """What trained weights are kept in: adapters' own dtype, where they have one."""
    for group, _ in step.every("updated"):
        if group.rows:
            return group.rows[0].dtype
    return step.copies.resident


def _convention_flops(plan: Plan, step: Step, amounts: Amounts) -> float:
    """FLOPs of one micro-batch on one GPU as MFU counts them: 2 per matmul parameter and token, and
    4 x width x sequence per layer for attention, causal or not (PaLM, Chowdhery et al., app. B),
    three times over; a sliding layer counts its window. A frozen weight has no gradient: twice, and
    once where backward does not come."""
    if plan.architecture.tower:
        return sum(p.times * p.passes * (p.products + p.attention) for p in parts(step, amounts))
    z = amounts.sizes
    tokens = float(z["B"]) * float(z["S"])
    # Of an image one token alone is classified, which is next to nothing.
    head = 0.0 if plan.architecture.image else 2.0 * z["EMBED"] * z["VOCAB"]
    total: float = (2.0 if head_is_frozen(plan) else 3.0) * head
    for times, trained, frozen, reach, passes in convention_layers(plan, step, amounts):
        attention = 2.0 * (z["Q"] + z["VALUES"]) * reach
        fixed = min(2, passes) * 2.0 * frozen
        total += times * (passes * (2.0 * trained + attention) + fixed)
    return tokens * total / sharing(plan)


@dataclass(frozen=True, slots=True)
class StackPart:
    """One block of a model of several stacks, as MFU counts it: FLOPs of one forward, in products
    with weights and in attention, causal or not; how many such blocks, and how often its products
    are made: 3 times, once where nobody reads its result."""

    name: str
    times: int
    products: float
    attention: float
    passes: int


def parts(step: Step, amounts: Amounts) -> list[StackPart]:
    """Every block of a model of several stacks. Each works on tokens of its own, so that products
    are those that its operations declare."""
    z, kinds = amounts.sizes, step.blocks.kinds
    structure = step.blocks.structure
    tower = structure.tower.stack if structure.tower else ""

    def attends(stack: str, reach: Number) -> float:
        dims = (z[f"{stack}{name}"] for name in ("B", "S", "Q", "VALUES"))
        batch, tokens, queries, values = map(float, dims)
        return 2.0 * batch * tokens * (queries + values) * float(reach)

    found = [StackPart("embedding", 1, products(step.blocks.embed, amounts), 0.0, 3)]
    for tape, kind, times in zip(step.blocks.layers, kinds, step.layers.counts, strict=False):
        attention = 0.0
        if kind.place in (TOWER, IDLE):
            attention = attends(f"{tower}.", z[f"{tower}.S"])
        elif kind.place == MAIN:
            reach = min(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
            heard = z[f"{tower}.S"] if step.blocks.carries else 0
            attention = attends("", reach + heard)
        passes = 1 if kind.place == IDLE else 3
        name = "what leads to the main stack" if kind.place == BRIDGE else f"layer, {kind.label}"
        found.append(StackPart(name, times, products(tape, amounts), attention, passes))
    found.append(StackPart("head", 1, products(step.blocks.head, amounts), 0.0, 3))
    return found


def products(tape: Tape, amounts: Amounts) -> float:
    """FLOPs of one forward of a block, attention left out."""
    return sum(
        count * float(amounts.elements(shape))
        for work in tape.work
        if work.phase == "forward" and ".core." not in work.name
        for count, shape in work.flops
    )


def head_is_frozen(plan: Plan) -> bool:
    """Whether the matrix of the head is not trained: it is the frozen embedding, or has adapters
    before it."""
    tied = plan.architecture.traits.tied_embeddings
    return plan.train.adapter != "none" or (plan.train.frozen != NO_LAYER and tied)


def sharing(plan: Plan) -> int:
    """GPUs that share a micro-batch."""
    return plan.parallel.tp * plan.parallel.pp * plan.parallel.cp


def convention_layers(
    plan: Plan, step: Step, amounts: Amounts
) -> list[tuple[int, Number, Number, Number, int]]:
    """Of each kind of layer of the whole model: how many, its matmul parameters (of experts those
    that a token is sent to), trained and frozen, the keys a token attends to, and how often its
    products are made: 3 times, once where backward does not come."""
    whole = undivided(plan, amounts)
    z, found = whole.sizes, []
    kinds, stack = step.blocks.kinds, _stack(plan, step)
    for tape, kind, times in zip(step.blocks.layers, kinds, stack.counts, strict=False):
        sums: dict[bool, Number] = {True: 0, False: 0}
        for p in tape.parameters:
            if is_matrix(p):
                sums[p.trained] += whole.elements(active(p.shape))
        reach = min(z["S"], z["WINDOW"]) if slides(kind.attention) else z["S"]
        passes = 1 if kind.frozen and kind.leads else 3
        found.append((times, sums[True], sums[False], reach, passes))
    return found


def _stack(plan: Plan, step: Step) -> Layers:
    """All layers of the model, by the kinds of this step's blocks."""
    if plan.parallel.pp == 1:
        return step.layers
    t = plan.train
    again = CHECKPOINTING[t.checkpointing].recompute
    leads = any(kind.leads for kind in step.blocks.kinds)
    return layers_of(plan.architecture, again, t.checkpoint_every, leads)[1]


def undivided(plan: Plan, amounts: Amounts) -> Amounts:
    """Sizes of the model itself, whatever shares it."""
    p = plan.parallel
    if p.tp * p.ep * p.etp * p.cp == 1:
        return amounts
    kept = plan.sizes()
    sizes = {**kept, "TP": 1, "EP": 1, "ETP": 1, "CP": 1, "SEQ": 1, "VOCAB": amounts.sizes["VOCAB"]}
    derive(sizes)
    return Amounts(sizes)


# -- transfers ------------------------------------------------------------------------------------


def moves(plan: Plan, step: Step, amounts: Amounts, operations: list[OperationTime]) -> list[Move]:
    """Every transfer of a step, in the order of `Time.transfers`, which has one for each link."""
    within = in_layers(plan, step, amounts, speed_of(plan, step))
    return _moves(plan, step, amounts, operations, within)


def _moves(
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
    weights = float(_count(step, amounts))
    return found + offload.moves(plan, step, amounts, operations, cover, weights)


NOTHING_BEFORE = "nothing: the first has no layer before it"
NOTHING_AFTER = "nothing: backward is over"
NOTHING = "nothing"
PRODUCT_MEANWHILE = "the product that runs meanwhile"
ATTENTION_MEANWHILE = "attention to the keys that are there"
CHUNK_FORWARD = "another chunk's forward"
LAYER_FORWARD = "the forward of the layer before"
LAYER_BACKWARD = "the backward of the layer before"
ONE_BACKWARD = "backward of one batch"
ALL_BACKWARD = "backward"


GROWS_WITH_BATCH = (  # what hides weights and gradients, which do not
    LAYER_FORWARD,
    LAYER_BACKWARD,
    ONE_BACKWARD,
    ALL_BACKWARD,
    offload.BATCH_FORWARD,
    offload.BATCH_BACKWARD,
    offload.LAST_BACKWARD,
)


def outgrown(move: Move) -> bool:
    """Whether a larger micro-batch hides more of a transfer."""
    return move.cover > 0 and move.hidden_by in GROWS_WITH_BATCH


def in_layers(plan: Plan, step: Step, amounts: Amounts, speed: Speed) -> list[Move]:
    """What the ranks that share a micro-batch send each other: tensor, context and expert
    parallelism, and pipeline stages."""
    p, batches = plan.parallel, plan.train.grad_accumulation
    if p.tp * p.cp * p.ep * p.etp * p.pp == 1:
        return []
    found = []
    every = _sent(ends_of(step), step.blocks.layers, tuple(step.layers.counts), _again(step))
    over = {axis: links(plan, axis) for axis in {s.axis for s, _ in every}}
    for s, times in every:
        if over[s.axis].ranks <= 1:
            continue
        n = float(amounts.bytes(s.shape, s.dtype))
        cover, by, kernel = 0.0, NOTHING, ""
        if s.behind:
            flops = s.behind[0] * float(amounts.elements(s.behind[1]))
            narrow = step.copies.eight_bit and s.axis == "TP"
            kernel = ATTENTION if s.attention else EIGHT_BIT if narrow else PRODUCT
            cover = flops / speed.of_kernel(kernel)
            by = ATTENTION_MEANWHILE if s.attention else PRODUCT_MEANWHILE
        name = f"{s.kind} {s.what}, {AXES[s.axis]}, {s.phase}"
        found.append(
            collective(
                name, s.kind, s.axis, over[s.axis], {s.what: n}, times * batches, cover, by,
                ((s.shape, s.dtype),), s.behind, kernel,
            )
        )  # fmt: skip
    if p.pp > 1:
        found.append(_between_stages(plan, step, amounts, speed))
    return found


@functools.lru_cache(maxsize=512)
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
    n = float(amounts.bytes(HIDDEN, dtype))
    over = links(plan, "PP")
    times = 2 * virtual * plan.train.grad_accumulation
    cover, by = 0.0, NOTHING
    if virtual > 1:
        layers = run(executions(step.blocks.layers, step.layers.counts), amounts, speed)
        cover = seconds([o for o in layers if o.phase == "forward"]) / virtual
        by = CHUNK_FORWARD
    return Move(
        "activations and gradients between stages", {"activations": n}, over.send(n), times, cover,
        by, SEND, "PP", ((HIDDEN, dtype),),
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
    inner = [o for o in operations if o.name.startswith(OF_LAYERS)]
    per = layers * batches
    of = by_phase(inner)
    forward = of["forward"] / per
    trained = layers_reached(step)
    of_backward = (of["recompute"] + of["backward"]) / batches
    backward = of_backward / max(1, trained)
    if step.accumulated:
        return _megatron(plan, step, amounts)
    if t.framework == "deepspeed" and not step.sharded:
        return _deepspeed(plan, step, amounts, of_backward)
    if not step.sharded:
        pieces = {"gradients in buckets": _sum(step, "buckets", amounts)}
        found = [
            collective(
                "all-reduce gradients", ALL_REDUCE, "DP", over, pieces, 1, of_backward,
                ONE_BACKWARD,
            )
        ]  # fmt: skip
        if t.zero:
            weights = {"updated weights": _sum(step, "resident", amounts)}
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

    def gather(name: str, pieces: dict[str, float], times: float, cover: float, by: str) -> Move:
        """One collective for each piece: an all-gather or a reduce-scatter, which cost the same."""
        return collective(name, ALL_GATHER, "DP", over, pieces, times, cover, by)

    if t.zero == 0:
        pieces = {
            "gradients of the layers": all_reduced,
            "gradients of the root": root_reduced,
        }
        return [
            collective(
                "all-reduce gradients", ALL_REDUCE, "DP", over, pieces, batches, of_backward,
                ALL_BACKWARD,
            )
        ]  # fmt: skip
    weights, grads = {"weights of a layer": gathered}, {"gradients of a layer": reduced}
    first = {"weights of the root and of a layer": root_gathered + gathered}
    last = {"gradients of the root and of a layer": root_reduced + reduced}
    others, again = ((max(1, n) - 1) * batches for n in (layers, trained))
    found = [
        gather("all-gather root and first layer, forward", first, batches, 0.0, NOTHING_BEFORE),
        gather("all-gather layers, forward", weights, others, forward, LAYER_FORWARD),
    ]
    if step.reshards:
        whole = {"weights of the root": root_gathered}
        found += [
            gather("all-gather root, backward", whole, batches, 0.0, NOTHING_BEFORE),
            gather(
                "all-gather and reduce-scatter layers, backward", weights | grads, again,
                backward, LAYER_BACKWARD,
            ),
        ]  # fmt: skip
    else:
        found.append(gather("reduce-scatter layers", grads, again, backward, LAYER_BACKWARD))
    found.append(gather("reduce-scatter first layer and root", last, batches, 0.0, NOTHING_AFTER))
    if plan.parallel.shard_group:
        # All-reduced where they are, in the result of the reduce-scatter: no further buffer.
        shards = {"gradients of all weights": amounts.alive(owned(step, "gradients", False))}
        found.append(
            collective(
                "all-reduce shards of gradients between groups", ALL_REDUCE, "REPLICAS",
                links(plan, "REPLICAS"), shards, batches, of_backward, ALL_BACKWARD,
            )
        )  # fmt: skip
    return found


def _deepspeed(plan: Plan, step: Step, amounts: Amounts, backward: float) -> list[Move]:
    """DeepSpeed with whole weights on every GPU: ZeRO 0 sums gradients, ZeRO 1 reduces them to
    their owners at the last micro-batch and ZeRO 2 at each; owners send the updated weights. With
    overlap_comm a reduction runs behind backward (deepspeed/runtime/zero/stage_1_and_2.py)."""
    t, over = plan.train, links(plan, "DP")
    pieces = {"gradients in buckets": float(_sum(step, "buckets", amounts))}
    cover, by = (backward, ONE_BACKWARD) if t.overlap_comm == "on" else (0.0, NOTHING)
    if t.zero == 0:
        return [collective("all-reduce gradients", ALL_REDUCE, "DP", over, pieces, 1, cover, by)]
    times = t.grad_accumulation if t.zero == 2 else 1
    weights = {"updated weights": float(_sum(step, "resident", amounts))}
    return [
        collective(
            "reduce-scatter gradients", REDUCE_SCATTER, "DP", over, pieces, times, cover, by
        ),
        collective("all-gather updated weights", ALL_GATHER, "DP", over, weights, 1),
    ]


def layers_reached(step: Step) -> int:
    """Layers that backward reaches: all but frozen ones before the first that is trained, and those
    of a tower whose result nobody reads, whose weights FSDP2 does not gather again."""
    of = zip(step.blocks.kinds, step.grouped, strict=False)
    return sum(n for kind, n in of if not (kind.frozen and kind.leads) and kind.place != IDLE)


def root(step: Step, state: str) -> Alive:
    """One kind of state of embedding and head, if this stage has them, and of what leads from a
    tower to the main stack."""
    between = (k for k, kind in enumerate(step.blocks.kinds) if kind.place == BRIDGE)
    return [
        *step.at_first((getattr(step.embed, state), 1)),
        *((getattr(step.layer(k), state), 1) for k in between),
        *step.at_last((getattr(step.head, state), 1)),
    ]


def _megatron(plan: Plan, step: Step, amounts: Amounts) -> list[Move]:
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


def owned(step: Step, state: str, of_experts: bool) -> Alive:
    """One kind of state of a stage's experts, or of everything else."""
    return [(_part(group, of_experts), n) for group, n in step.every(state)]


@functools.lru_cache(maxsize=1024)
def _part(group: Group, of_experts: bool) -> Group:
    return Group(tuple(row for row in group.rows if _is_expert(row.shape) == of_experts))


def _is_expert(shape: Shape) -> bool:
    """Whether a weight of this shape is shared out over expert-parallel ranks."""
    return any(isinstance(f, Cut) and f.axis is EP for f in shape)
