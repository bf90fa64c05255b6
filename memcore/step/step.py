"""Step: the moments of a training step at which memory can peak, and what is alive at each.

A schedule is a list of instants; an instant is a list of (group of rows, how many of them) and
perhaps a window of one block's tape. Between two neighbouring layers of a kind memory changes
linearly with the layer's index, so that the ends are enough: the first, second, last but one and
last layer, and the first and last of each kind between the same neighbours (FSDP2 holds the weights
of the next one and the gradients of the one before).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memcore.cache import cached, counted_apart
from memcore.models.blocks import Blocks
from memcore.models.stack import Layers
from memcore.step.chart import Chart
from memcore.step.states import BlockStates, block_states, lookup_tables
from memcore.tape.dims import CUBLAS, EP, HALF_ROTARY, Cut, Flat, Number, Shape
from memcore.tape.kinds import Role, is_stored
from memcore.tape.ledger import (
    AUTOGRAD,
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    Amounts,
    Group,
    Holding,
    Template,
    Window,
    besides,
    carried_gradients,
    checkpoint,
    gradients,
    held,
    history,
    leaves,
    outputs,
    pinned,
    saved,
    shared,
    weight_copies,
    window,
)
from memcore.tape.structure import BRIDGE, IDLE, MAIN, TOWER
from memcore.tape.tape import Tape
from memcore.words.optimizers import Optimizer
from memcore.words.precision import Precision
from memcore.words.training import AVERAGED, AVERAGED_FP32, LAYER, OPERATIONS

Alive = list[tuple[Group, Number]]

BETWEEN, AFTER = "between", "after"  # phases of an instant, besides FORWARD and BACKWARD
EMBEDDING_RUNS, HEAD_RUNS = -1, -2  # instead of a layer
# The instants at which no micro-batch is under way.
STEPPING = (
    "reduce-gradients", "keep-gradients", "gradient-norm", "gradient-cast", "optimizer-step",
    "optimizer-step-experts",
)  # fmt: skip
LEAST = "at least"  # what a step holds of `at_least`


@dataclass(frozen=True, eq=False)
class Instant:
    """One moment: what is alive besides the window, how often, and the window running then.

    phase   when it is: FORWARD or BACKWARD of a micro-batch, BETWEEN two, or AFTER all of them
    layer   of the stage, that runs then; HEAD_RUNS or EMBEDDING_RUNS
    """

    id: str
    label: str
    alive: Alive
    window: Window | None = None
    phase: str = "after"
    layer: int = 0

    @functools.cached_property
    def holding(self) -> Holding:
        return Holding.of(self.alive)


NOTHING_HANDED = Group(())


@counted_apart
@dataclass(frozen=True)
class Step:
    """The words that decide a training step's schedule, and the layers it runs.

    layers     that this GPU's pipeline stage has
    running    of them, those that one forward runs through: all, or one virtual stage's
    first, last   whether the stage has the embedding, and the head
    waiting    forwards through `running` layers, besides the present one, that wait for their
               backward; `losses`: of them, those that have been through the head too
    offload_parameters, offload_activations   where those live: 'none', 'cpu', 'nvme'
    schedule   the framework's: every instant at which memory can peak, in order of time
    buffers    what the framework keeps for good besides the states, of layers' tapes under a word
               of parallelism; None where it keeps nothing
    flat       whether states lie in flat buffers, as DeepSpeed has them, with its ZeRO stage and
               how many `buckets` gradients are reduced in
    outputs    whether the training loop keeps the logits through backward and the optimizer step
    together   layers that share a checkpoint, and run again one after the other
    each       whether instants are of every layer, not only of those where memory can peak
    handed     what each forward has handed to the next stage, or got from the one before, and holds
               until its backward
    """

    schedule: Callable[[Step], list[Instant]]
    blocks: Blocks
    copies: Precision
    optimizer: Optimizer
    layers: Layers
    keeps_gradients: bool  # they are there already when backward makes new ones
    sharded: bool  # FSDP owns the parameters
    reshards: bool  # FSDP frees a layer's gathered weights after its forward
    replicas: bool  # DistributedDataParallel averages gradients
    accumulated: bool  # gradients live in a buffer of their own always (Megatron's main_grad)
    offload: str  # where the optimizer states live: 'none', 'cpu', 'nvme'
    running: Layers
    first: bool = True
    last: bool = True
    waiting: int = 0
    losses: int = 0
    average: str = "none"  # of the weights that is kept besides (words.training.AVERAGES)
    sums: bool = False  # FSDP reduces gradients in the last micro-batch alone, until then whole
    reference: str = ""  # the dtype of a frozen copy of the model, where there is one
    forwards: int = 1  # that a micro-batch runs: two where a frozen reference does too
    to_end: bool = False  # what is run again runs to its end (words.training.EARLY_STOP)
    in_nodes: bool = False  # layers run in parts, beside those of another micro-batch
    offload_parameters: str = "none"
    offload_activations: str = "none"
    buffers: Callable[[tuple[Tape, ...], str], Group] | None = None
    flat: bool = False
    zero: int = 0
    buckets: int = 0
    outputs: bool = False
    together: int = 1
    each: bool = False
    handed: Group = NOTHING_HANDED

    @functools.cached_property
    def instants(self) -> tuple[Instant, ...]:
        """Every instant at which memory can peak, in order of time."""
        return self.moments()

    def moments(self) -> tuple[Instant, ...]:
        """The same, for who asks once."""
        found = self.schedule(self)
        if not (self.outputs and self.last):
            return tuple(found)
        # Up to the end of the head's backward they are part of its window.
        left = (outputs(self.blocks.head), 1)
        later = [i.id for i in found].index("loss-backward") + 1
        kept = (replace(i, alive=[*i.alive, left]) for i in found[later:])
        return *found[:later], *kept

    def charted(self, amounts: Amounts) -> tuple[Any, Any, Any]:
        """Of each plan bytes while a micro-batch is under way, and when the optimizer steps, at
        each instant; and what one forward that waits has left."""
        one = interned(self)
        return chart(one, lambda: (one,)).apart(amounts)

    def charted_least(self, amounts: Amounts) -> Any:
        """Of each plan the bytes that are there at least, and those of one forward that waits."""
        one = interned(self)
        return least_chart(one, lambda: (one,)).bytes(amounts)

    @functools.cached_property
    def charts(self) -> dict[Any, Chart]:
        """What was charted from this step."""
        return {}

    @functools.cached_property
    def saved(self) -> Holding:
        """What `saved_for_backward` lists."""
        return Holding.of(saved_for_backward(self))

    # A step that kept itself as one of these would stay, with its tapes, when nobody has it.
    @property
    def alone(self) -> Step:
        """The same step where no other forward waits."""
        return self._alone if self.waiting else self

    @functools.cached_property
    def _alone(self) -> Step:
        return interned(replace(self, waiting=0))

    @property
    def layer_by_layer(self) -> Step:
        """The same step with the instants of every layer, where no other forward waits."""
        return self._layer_by_layer if self.waiting or self.losses or not self.each else self

    @functools.cached_property
    def _layer_by_layer(self) -> Step:
        return interned(replace(self, waiting=0, losses=0, each=True))

    @functools.cached_property
    def one_waiting(self) -> Holding:
        """What `one_waiting` lists."""
        return Holding.of(one_waiting(self))

    def held(self, alive: Callable[[Step], Alive]) -> Holding:
        """What is `alive`."""
        return Holding.of(alive(self))

    def holding(self, name: str, alive: Callable[[Step], Alive] | None = None) -> Holding:
        """What is `alive`, kept under this name; one kind of state of every block, where only its
        name is given."""
        found = self._holdings.get(name)
        if found is None:
            found = self._holdings[name] = Holding.of(alive(self) if alive else self.every(name))
        return found

    @functools.cached_property
    def _holdings(self) -> dict[str, Holding]:
        return {}

    @functools.cached_property
    def optimizer_states(self) -> Holding:
        """What `optimizer_states` lists."""
        return Holding.of(optimizer_states(self))

    @functools.cached_property
    def embed(self) -> BlockStates:
        return self._states(self.blocks.embed, outer=True)

    @functools.cached_property
    def head(self) -> BlockStates:
        return self._states(self.blocks.head, outer=True)

    def layer(self, kind: int) -> BlockStates:
        return self._layer_states[kind]

    @functools.cached_property
    def _layer_states(self) -> tuple[BlockStates, ...]:
        """The states of one layer of each kind."""
        kinds = zip(self.blocks.layers, self.blocks.kinds, strict=False)
        return tuple(self._states(tape, outer=kind.place == BRIDGE) for tape, kind in kinds)

    def _states(self, tape: Tape, outer: bool) -> BlockStates:
        units = self.sharded and self.accumulated
        return block_states(
            tape, self.copies, self.optimizer, self.sharded, outer, self.flat, units,
            self.reference,
        )  # fmt: skip

    def recompute(self, kind: int) -> str:
        """What of layers of this kind is run again whole (words.training), or '': a traced layer's
        tape runs it again by itself."""
        still = self.blocks.kinds[kind].place == IDLE or self.blocks.structure.traced
        again = "" if still else self.blocks.kinds[kind].recompute
        return again if again in (OPERATIONS, LAYER) else ""

    @functools.cached_property
    def checkpointed(self) -> bool:
        """Whether any layer is run again, so that what layers are called with stays."""
        return any(self.recompute(k) for k in range(len(self.blocks.kinds)))

    @property
    def starts(self) -> list[tuple[str, str, int]]:
        """The layers at whose forward memory can peak, as (id, label, index): the last."""
        last = self.running.count - 1
        before = range(last) if self.each else ()
        found = [(f"forward-layer-{i}", f"Forward, layer {i}", i) for i in before]
        return [*found, ("forward-last-layer", "Forward, last layer", last)]

    @property
    def ends(self) -> list[tuple[str, str, int]]:
        """The layers at whose backward memory can peak; none reaches a frozen one."""
        of = self.running
        reached = [not (kind.frozen and kind.leads) for kind in self.blocks.kinds]
        named = {i: (name, label, i) for name, label, i in of.ends}
        full = of.count // self.together * self.together - 1  # the last to run again with all its
        every = reversed(range(of.count)) if self.each else sorted({*named, full}, reverse=True)
        ends = [named.get(i, (f"backward-layer-{i}", f"Backward, layer {i}", i)) for i in every]
        return [end for end in ends if reached[of.kind(end[2])]]

    def between(self, alive: Alive) -> list[Instant]:
        """The instant between two micro-batches, where instants are of each."""
        found = Instant(BETWEEN, "Between micro-batches", alive, phase=BETWEEN)
        return [found] if self.each else []

    def kept(self, kind: int) -> Group:
        """What one layer's forward leaves for its backward."""
        tape, again = self.blocks.layers[kind], self.recompute(kind)
        return checkpoint(tape, again) if again else saved(tape)

    def first_together(self, i: int) -> int:
        """The first of the layers that run again with layer `i`: those that share its checkpoint.
        Behind the last layer nothing runs again."""
        return i if i == self.running.count else i // self.together * self.together

    def ran_again(self, i: int) -> bool:
        """Whether layer `i` has run again before its backward begins, with a later one."""
        return (i + 1) % self.together > 0 and i + 1 < self.running.count

    def forward(self, i: int) -> Window:
        """Layer `i` running forward."""
        kind = self.running.kind(i)
        return window(self.blocks.layers[kind], FORWARD, recompute=self.recompute(kind))

    def backward(self, i: int, merge: bool = False, reduced: bool | None = None) -> Window:
        """Layer `i` running backward, again forward first where it is checkpointed; of that only
        what is before the gradients of its experts are `reduced`, or only what is after."""
        kind = self.running.kind(i)
        again = "" if self.ran_again(i) else self.recompute(kind)
        stretch = RECOMPUTE if again else BACKWARD
        return window(self.blocks.layers[kind], stretch, merge, again, reduced)

    def of_layers(self, state: str, counts: list[int]) -> Alive:
        """One kind of state of `counts` layers of each kind."""
        return [(getattr(self.layer(k), state), n) for k, n in enumerate(counts)]

    @functools.cached_property
    def grouped(self) -> list[int]:
        """How many layers of each kind are called as layers, each a group of FSDP's: what leads
        from a tower to the main stack belongs to the root."""
        of = zip(self.blocks.kinds, self.layers.counts, strict=False)
        return [0 if kind.place == BRIDGE else n for kind, n in of]

    def every(self, state: str) -> Alive:
        """One kind of state of every block."""
        return [
            *self.at_first((getattr(self.embed, state), 1)),
            *self.of_layers(state, self.layers.counts),
            *self.at_last((getattr(self.head, state), 1)),
        ]

    def at_first(self, *alive: tuple[Group, Number]) -> Alive:
        """These, if this stage has the embedding."""
        return list(alive) if self.first else []

    @property
    def embedded(self) -> Alive:
        """What the embedding leaves for backward. Its result too where more is made of it before
        the first layer, unless that is run again, and so begins with it."""
        embed, left = self.blocks.embed, saved(self.blocks.embed)
        read = not self.blocks.structure.tower and any(
            s.kind == "shared" and s.made_by for s in embed.storages
        )
        if read and self.recompute(self.running.kind(0)):
            out = embed.handed_on
            left = Group.of(row for row in left.rows if not out or row.name != out.name)
        return self.at_first((left, 1))

    def at_last(self, *alive: tuple[Group, Number]) -> Alive:
        """These, if this stage has the head."""
        return list(alive) if self.last else []

    def made(self, counts: list[int]) -> Alive:
        """Whole gradients of `counts` layers of each kind."""
        return [(gradients(self.blocks.layers[k]), n) for k, n in enumerate(counts)]


@cached
def interned(step: Step) -> Step:
    """The first step that is equal to this one: what it has found out about its schedule, which no
    size changes, serves every plan of the same words."""
    return step


BUFFERS = Group(
    (
        Template(
            "rotary inverse frequencies",
            "workspace",
            (HALF_ROTARY,),
            "fp32",
            "always",
            "buffers of the rotary embedding",
            AUTOGRAD,
            copies=2,
            role=Role.ANGLES,
        ),
    )
)

# Megatron's layers have Transformer Engine's products, whose workspace is another.
WORKSPACES = Group(
    (
        Template(
            "cuBLAS workspace", "workspace", (CUBLAS,), "int8", "always",
            "one for the thread of forward, one for that of backward",
            "aten/src/ATen/cuda/CublasHandlePool.cpp: getCUDABlasLtWorkspaceSize",
            copies=2,
            role=Role.KERNEL,
        ),
    )
)  # fmt: skip

AVERAGES_TAKEN = Group(
    (
        Template(
            "averages taken", "optimizer_states", (), "int64", "always", "how often so far",
            "torch.optim.swa_utils.AveragedModel: n_averaged",
        ),
    )
)  # fmt: skip

LOSS_SCALE = Group.of(
    Template(
        name, "workspace", (), dtype, "always", "keeps small fp16 gradients above zero",
        "torch.amp.GradScaler",
    )
    for name, dtype in (("loss scale", "fp32"), ("growth tracker", "int32"))
)  # fmt: skip


def workspaces(amounts: Amounts) -> Number:
    """Bytes of cuBLAS's workspaces, which it asks the allocator for itself: PyTorch's dispatcher
    does not see them."""
    return amounts.alive([(WORKSPACES, 1)])


def optimizer_states(step: Step) -> Alive:
    tables = (lookup_tables(step.optimizer), 1)
    averages = step.every("average") if step.average == AVERAGED_FP32 else []
    return [*step.every("moments"), *step.every("master"), *step.every("steps"), *averages, tables]


def weights(step: Step) -> Alive:
    """The weights that rest on the GPU, and those of a frozen reference."""
    if step.offload_parameters != "none":
        return step.every("scales")
    return [*step.every("resident"), *(step.every("reference") if step.reference else [])]


def resident(step: Step) -> Alive:
    """What lives on the GPU from step to step."""
    alive = weights(step)
    if step.offload == "none":
        alive += optimizer_states(step)
    if step.average == AVERAGED:
        alive += [*step.every("second"), (AVERAGES_TAKEN, 1)]
    if step.accumulated:
        alive += step.every("gradients")
    if step.buffers:
        counted = zip(step.blocks.layers, step.layers.counts, strict=False)
        tapes = tuple(tape for tape, n in counted if n)
        if step.last and step.blocks.structure.depths:
            tapes += (step.blocks.head,)
        alive.append((step.buffers(tapes, step.blocks.structure.parallel), 1))
    if step.replicas:
        alive += step.every("buckets")
    if step.copies.scaled:
        alive.append((LOSS_SCALE, 1))
    return [*alive, (BUFFERS, tables_of(step)), (WORKSPACES, 1)]


def at_least(step: Step) -> Alive:
    """What is there under every framework, at least, when the last layer runs forward: weights and
    states, gradients that are kept, and what the layers before have left."""
    hosted = step.offload_parameters != "none"
    alive = step.every("scales" if hosted else "resident")
    if step.offload == "none":
        alive += optimizer_states(step)
    shards = step.sharded and step.keeps_gradients and not (hosted or step.flat)
    if step.accumulated or shards:
        alive += step.every("gradients")
    return [*alive, *_kept(step, step.running.count - 1)]


def chart(step: Step, points: Callable[[], Sequence[Step]], blend: int = 0) -> Chart:
    """The instants of some steps, of which this is the first and keeps it: what one forward that
    waits has left, those of the optimizer's step, then all others."""
    found = step.charts.get(blend)
    if found is None:
        every = []
        for one in points():
            ordered = sorted(one.moments(), key=lambda instant: instant.id not in STEPPING)
            every.append([(one.one_waiting, None), *((i.holding, i.window) for i in ordered)])
            stepping = sum(instant.id in STEPPING for instant in ordered)
        found = step.charts[blend] = Chart.of(every, stepping)
    return found


def least_chart(step: Step, points: Callable[[], Sequence[Step]], blend: int = 0) -> Chart:
    """The same of what is there at least."""
    found = step.charts.get((LEAST, blend))
    if found is None:
        every = [
            [(one.holding(LEAST, at_least), None), (one.one_waiting, None)] for one in points()
        ]
        found = step.charts[LEAST, blend] = Chart.of(every)
    return found


def tables_of(step: Step) -> int:
    """How many tables of rotary angles the model has."""
    return sum(r.role is Role.ANGLES for r in _shared(step)[0].rows + _shared(step)[1].rows)


def stepping(step: Step) -> Alive:
    """What the optimizer's step needs while it runs on the GPU."""
    if step.offload != "none":
        return []
    return [*step.every("temporaries"), *(step.every("widened") if step.accumulated else [])]


def optimizers(step: Step, alive: Alive) -> list[Instant]:
    """The optimizer's step, beside what is `alive`. Where gradients are summed in buffers experts
    have an optimizer of their own, which steps behind that of all else (ChainedOptimizer of
    megatron/core/optimizer/optimizer.py)."""
    apart = [
        [(group, n) for group, n in owned(step, "temporaries", of_experts) if group.rows]
        for of_experts in (False, True)
    ]
    if step.offload != "none" or not (step.accumulated and all(apart)):
        return [Instant("optimizer-step", "Optimizer step", [*alive, *stepping(step)])]
    shared, (others, experts) = [*alive, *step.every("widened")], apart
    return [
        Instant("optimizer-step", "Optimizer step", [*shared, *others]),
        Instant("optimizer-step-experts", "Optimizer step of experts", [*shared, *experts]),
    ]


def _shared(step: Step, places: tuple[str, ...] = (TOWER, IDLE, MAIN)) -> tuple[Group, Group]:
    """What the layers of these places read together: (until backward, forward only)."""
    return shared(_of_layers(step, places), step.checkpointed)


def _of_layers(step: Step, places: tuple[str, ...]) -> tuple[Tape, ...]:
    """The tapes of what is called as a layer, with the main ones a head that reads a tower."""
    kinds = zip(step.blocks.layers, step.blocks.kinds, strict=True)
    layers = tuple(tape for tape, kind in kinds if kind.place in places)
    return layers + (_reads(step) if MAIN in places else ())


def _reads(step: Step) -> tuple[Tape, ...]:
    """The head, if it reads what a tower made."""
    return (step.blocks.head,) if step.blocks.head.carried else ()


def saved_for_backward(step: Step) -> Alive:
    """What one micro-batch's forward leaves for its backward, as saved_tensors_hooks counts it."""
    blocks = step.blocks
    kinds = range(len(blocks.kinds))
    layers = [k for k in kinds if blocks.kinds[k].place != BRIDGE]
    whole = (*(blocks.layers[k] for k in layers if not step.recompute(k)), *_reads(step))
    until_backward, _ = shared(whole, False)
    compiled = blocks.structure.kernels == "compile"  # they are inputs of a compiled graph
    if step.checkpointed:  # saved, as arguments given by position
        given = [r for r in _shared(step)[0].rows if compiled or blocks.given(r.name, r.role)]
        until_backward = Group.of(dict.fromkeys((*until_backward.rows, *given)))
    return [
        *step.embedded,
        (until_backward, 1),
        *_kept(step, step.running.count),
        *step.at_last((saved(blocks.head), 1)),
    ]


def _kept(step: Step, layers: int) -> Alive:
    """What the first `layers` layers have left on the GPU for their backward."""
    return [] if step.offload_activations != "none" else kept_of_layers(step, layers)


def kept_of_layers(step: Step, layers: int | None = None) -> Alive:
    """What the first `layers` layers, or all, leave for their backward, wherever it is."""
    layers = step.running.count if layers is None else layers
    if step.together == 1:
        return [(step.kept(k), n) for k, n in enumerate(step.running.first(layers))]
    return [(step.kept(step.running.kind(i)), 1) for i in range(0, layers, step.together)]


def waiting(step: Step) -> Alive:
    """What the forwards that wait for their backward have left, besides the present one's."""
    n = step.waiting
    if not n + step.losses:
        return []
    heads = step.at_last((saved(step.blocks.head), step.losses))
    return [*((group, times * n) for group, times in one_waiting(step)), *heads]


def one_waiting(step: Step) -> Alive:
    """What one of them has left, but for the head."""
    return [*step.embedded, *_kept(step, step.running.count), (step.handed, 1)]


def _place(step: Step, i: int) -> str:
    return step.blocks.kinds[step.running.kind(i)].place


def left_until_end(step: Step) -> Alive:
    """What the main layers leave until all of backward is over."""
    left = [(leaves(tape), 1) for tape in _of_layers(step, (MAIN,)) if leaves(tape).rows]
    counts = step.layers.counts
    return [*left, *_pinned(step, counts), *_remembered(step, counts)]


def _pinned(step: Step, counts: list[int]) -> Alive:
    """What the graph of so many layers of each kind refers to by itself."""
    tapes = enumerate(zip(step.blocks.layers, counts, strict=False))
    found = ((pinned(tape, step.recompute(k)), n) for k, (tape, n) in tapes)
    return [(group, n) for group, n in found if group.rows]


def _remembered(step: Step, counts: list[int]) -> Alive:
    """What so many layers of each kind left when they ran again and made others' keys anew."""
    return [
        (history(step.blocks.layers[k]), n)
        for k, n in enumerate(counts)
        if n and step.recompute(k) and is_stored(step.blocks.kinds[k].attention)
    ]


def crossing(step: Step, i: int) -> Alive:
    """While layer `i` runs backward: what graphs of layers behind it still refer to; of a tower's,
    the gradient of what the model ran before the tower, which waits for the embedding's
    backward."""
    blocks, place = step.blocks, _place(step, i)
    if place == MAIN:
        over, kind = step.running.after(i), step.running.kind(i)
        remembered = _remembered(step, over)
        over[kind] += bool(step.recompute(kind))  # its first graph, beside that of its second run
        left = _pinned(step, over) + remembered
    else:
        left = left_until_end(step)
    if place not in (TOWER, IDLE):
        return left
    return left + [
        (carried_gradients(tape), 1)
        for tape, kind in zip(blocks.layers, blocks.kinds, strict=True)
        if kind.place == BRIDGE
    ]


def _read_together(step: Step, i: int, forward: bool) -> tuple[Group, Group]:
    """Of what layers read together, what is there while layer `i` runs: in a tower's backward
    nothing of the main layers; in forward nothing of the tower that backward does not want."""
    if i == step.running.count:
        until_backward, forward_only = _shared(step)
        return until_backward, Group(()) if step.blocks.carries else forward_only
    until_backward, _ = _shared(step) if _place(step, i) == MAIN else _shared(step, (TOWER, IDLE))
    kind = step.running.kind(i)
    if not forward and step.recompute(kind) and not step.ran_again(i):
        until_backward = besides(until_backward, step.blocks.layers[kind])
    return until_backward, _shared(step, (MAIN,))[1]


def activations(step: Step, layers: int, forward: bool) -> Alive:
    """What forward has left so far: the embedding's, the shared tensors', and `layers` layers'."""
    until_backward, forward_only = _read_together(step, layers, forward)
    alive: Alive = [
        *step.embedded,
        (until_backward, 1),
        *_kept(step, layers if forward else step.first_together(layers)),
        *waiting(step),
    ]
    if not forward:  # those before it that share its checkpoint have run again
        before = range(step.first_together(layers), layers)
        alive += [(saved(step.blocks.layers[step.running.kind(k)]), 1) for k in before]
    if forward:
        alive += [(forward_only, 1), *step.at_first((held(step.blocks.embed), 1))]
        # Autocast's cached weights outlive checkpointed layers until autocast ends.
        counts = enumerate(step.running.first(layers))
        alive += [(weight_copies(step.blocks.layers[k]), n) for k, n in counts if step.recompute(k)]
    return alive


def state_bytes(step: Step, state: str, amounts: Amounts) -> Number:
    return amounts.held(step.holding(state))


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


def owned(step: Step, state: str, of_experts: bool) -> Alive:
    """One kind of state of a stage's experts, or of everything else."""
    return apart(step.every(state), of_experts)


def apart(alive: Alive, of_experts: bool) -> Alive:
    """Of what is alive experts, or everything else."""
    return [(_part(group, of_experts), n) for group, n in alive]


@cached
def _part(group: Group, of_experts: bool) -> Group:
    return Group(tuple(row for row in group.rows if _is_expert(row.shape) == of_experts))


def _is_expert(shape: Shape) -> bool:
    """Whether a weight of this shape is shared out over expert-parallel ranks."""
    flats = (f.shape for f in shape if isinstance(f, Flat))
    return any(isinstance(f, Cut) and f.axis is EP for f in shape) or any(map(_is_expert, flats))
