"""Families: groups of a search whose plans run alike, so that the memory of all is read at once:
one schedule, with arrays in place of sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from memcore.frameworks import FRAMEWORKS
from memcore.plan.plan import Plan
from memcore.report import Overhead
from memcore.search.space import Changes, Group, changed
from memcore.search.sweep import Swept
from memcore.step.blend import LINEAR, Blend
from memcore.step.pipeline import flying, span_of, virtual
from memcore.step.step import Step
from memcore.tape.dims import is_array
from memcore.tape.ledger import BACKWARD, FORWARD, RECOMPUTE, Amounts
from memcore.tape.tape import Tape
from memcore.timing.communication import LAST_BACKWARD, Beside, Links, Move, links
from memcore.timing.roofline import Execution, Speed, by_phase, executions, run
from memcore.training.executions import run_again, speed_of, updated_parameters
from memcore.training.memory import most_room, rooms_for
from memcore.training.offload import activation_moves, optimizer_moves, parameter_moves, swaps
from memcore.training.overheads import by_rules, plan_overheads
from memcore.training.steps import kinds_of_stage, layer_counts, offloaded, shared_out
from memcore.training.training import Training
from memcore.training.transfers import beside_another, in_layer, sent
from memcore.words.training import BLOCK, NATIVE, ZERO_BUBBLE

BARE: Changes = dict.fromkeys(
    ("train.offload_optimizer", "train.offload_parameters", "train.offload_activations"), "none"
)
Batch = tuple[int, int]  # micro-batch and accumulation
Phases = tuple[Any, ...]  # seconds of forward, of what runs again, of backward; of what is sent
SIZED = ("micro_batch", "grad_accumulation")
# What plans of a family may differ in besides, and what their sizes call it.
RANKS = {"TP": "tp", "CP": "cp", "EP": "ep"}


def sized(batch: Batch) -> Changes:
    """What sets a micro-batch and its accumulation."""
    return {f"train.{name}": n for name, n in zip(SIZED, batch, strict=True)}


def alike(group: Group, lattice: Mapping[Any, Sequence[str]], known: dict[Any, int]) -> Any:
    """What plans of a family share: all words, the stages of a pipeline, which axes have more than
    one rank, and what may be recomputed and offloaded. known: of words that were seen, `uniform`.
    """
    plan = group.plan
    p, t = plan.parallel, plan.train
    words = tuple((name, n) for name, n in t if name not in SIZED)
    layers = known.get(words)
    if layers is None:
        layers = known[words] = uniform(plan)
    shape = blended(plan, layers)
    stages = ("pp", "virtual_stages")
    differ = (*RANKS.values(), "schedule", *(stages if shape else ()))
    axes = tuple((name, n) for name, n in p if name not in differ), shape
    several = (p.virtual_stages > 1, p.tp > 1, p.cp > 1, p.ep > 1, plan.dp > 1)
    gpu = plan.cluster.model_copy(update={"gpus": 1}).model_dump_json()
    return words, axes, several, gpu, tuple((w, tuple(of)) for w, of in lattice.items())


END, BETWEEN, FIRST = "last", "between", "first"  # where a stage is in a pipeline


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pipeline stage: where it is, the index of the first, its layers, and those that
    one forward runs through."""

    place: str
    stage: int
    layers: int
    running: int


def kinds_of(plan: Plan, layers: int) -> list[Kind]:
    """The kinds of stage of a pipeline with so many layers, as kinds_of_stage has them."""
    p, first_of = plan.parallel, dict[tuple[bool, int], int]()
    counts = [end - start for start, end in (span_of(plan, layers, n) for n in range(p.pp))]
    for n, count in enumerate(counts):
        first_of.setdefault((n == p.pp - 1, count), n)
    return [
        Kind(END if last else BETWEEN if n else FIRST, n, count, virtual(count, plan))
        for (last, count), n in first_of.items()
    ]


def blended(plan: Plan, layers: int) -> tuple[tuple[str, int], ...]:
    """Where the kinds of stage of a pipeline are, and how many layers a forward runs through, up to
    LINEAR: a Blend says what plans with the same have. () where there is none. `layers`: all, of
    one kind; 0: of several."""
    framework, p = FRAMEWORKS[plan.train.framework], plan.parallel
    if p.pp == 1 or not layers or framework.complete or plan.train.mtp_layers:
        return ()
    kinds = kinds_of(plan, layers)
    if len({kind.place for kind in kinds}) < len(kinds) or not all(k.running for k in kinds):
        return ()
    return tuple((kind.place, min(kind.running, LINEAR)) for kind in kinds)


def uniform(plan: Plan) -> int:
    """Layers of a model where all run alike, each by itself; else 0."""
    t, counts = plan.train, layer_counts(plan)
    alone = t.recompute_num_layers == 1 and t.recompute_method != BLOCK and t.allocator != NATIVE
    return counts[0] if len(counts) == 1 and alone else 0


def _words(plan: Plan) -> tuple[str, ...]:
    """What is recomputed and offloaded: all that plans of a part differ in besides sizes."""
    t = plan.train
    return t.checkpointing, t.offload_optimizer, t.offload_parameters, t.offload_activations


class Operations:
    """What operations take in all families of a search whose plans have the same ones, found at
    once for all members: no operation reads how states are shared and sent."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.groups: list[Plan] = []  # a plan of each
        self._group_of: list[Any] = []
        self._differing: list[Mapping[str, Any]] = []
        self._members = 0
        self._phases: dict[Any, Phases] = {}
        self._links: dict[str, list[tuple[Links, Any, Amounts]]] = {}

    def add(self, family: Family) -> Work:
        """Further members, before anything is asked about."""
        start, self._members = self._members, self._members + len(family)
        self._group_of.append(family.group_of + len(self.groups))
        self._differing.append(family.differing)
        self.groups += (group.plan for group in family.groups)
        return Work(self, slice(start, self._members))

    @functools.cached_property
    def amounts(self) -> Amounts:
        names = self._differing[0]
        sizes: dict[str, Any] = {
            name: np.concatenate([of[name] for of in self._differing]) for name in names
        }
        sizes = self.plan.sizes() | sizes
        shared_out(sizes, self.plan)
        return Amounts(sizes)

    def phases(self, plan: Plan, step: Step, tape: Tape, again: str, speed: Speed) -> Phases:
        """What a tape takes of each member."""
        key = tape, again, speed
        if key not in self._phases:
            every: Iterable[Execution] = executions((tape,), (1,), (again,) if again else ())
            if again:  # nothing of the others is changed by it
                every = [e for e in every if e.work.phase == RECOMPUTE]
            of = by_phase(run(every, self.amounts, speed))
            forward, backward = of[FORWARD], of[BACKWARD]
            if again:
                forward, _, backward, _ = self.phases(plan, step, tape, "", speed)
            waited = self.waited(plan, step, tape, again, speed)
            self._phases[key] = forward, of[RECOMPUTE], backward, waited
        return self._phases[key]

    def waited(self, plan: Plan, step: Step, tape: Tape, again: str, speed: Speed) -> Any:
        """Seconds that ranks wait for what a tape sends, at least."""
        waits, hidden_by = np.zeros(self._members), Beside(plan, step, ())
        for s, times in sent((), (tape,), (1,), (again,)):
            if beside_another(plan, s):
                continue
            for over, of, amounts in self.links(s.axis):
                waits[of] += in_layer(step, s, times, over, amounts, speed, hidden_by).exposed
        return waits

    def links(self, axis: str) -> list[tuple[Links, Any, Amounts]]:
        """What the ranks of an axis are connected by, which members' are, and their amounts."""
        if axis not in self._links:
            members: dict[Links, list[int]] = {}
            for n, plan in enumerate(self.groups):
                members.setdefault(links(plan, axis), []).append(n)
            group_of, sizes = np.concatenate(self._group_of), self.amounts.sizes
            several = (
                (over, np.isin(group_of, groups).nonzero()[0])
                for over, groups in members.items()
                if over.ranks > 1
            )
            self._links[axis] = [
                (over, of, Amounts({name: _of(n, of) for name, n in sizes.items()}))
                for over, of in several
            ]
        return self._links[axis]


def _of(n: Any, at: Any) -> Any:
    """A number of some members, of one of all."""
    return n[at] if is_array(n) else n


@dataclass(frozen=True, eq=False)
class Work:
    """What is known of the operations of a family: it is the same of all that differ in their ZeRO
    stage alone.

    of      operations of its members, which are `at` these among all that have them
    known   by what was asked about
    """

    of: Operations
    at: slice
    known: dict[Any, Any] = field(default_factory=dict)

    def phases(self, plan: Plan, step: Step, tape: Tape, again: str, speed: Speed) -> Phases:
        """What a tape takes."""
        return tuple(_of(n, self.at) for n in self.of.phases(plan, step, tape, again, speed))


class Timed:
    """The work of all families of a search."""

    def __init__(self) -> None:
        self._operations: dict[Any, Operations] = {}
        self._works: dict[Any, Work] = {}

    def work(self, family: Family) -> Work:
        """That of one. ZeRO shares states out; of a model with experts its stage says who shares
        those, which their operations read."""
        plan, p = family.plan, family.plan.parallel
        one = changed(plan, dict.fromkeys((f"train.{name}" for name in SIZED), 1))
        if not plan.architecture.experts:
            one = changed(one, {"train.zero": 0})
        several = p.tp > 1, p.ep > 1, p.pp > 1, p.sequence_parallel
        runs = plan.gpu_name, tuple(one.train), several
        of = tuple((g.batches, g.plan.cluster.gpus, tuple(g.plan.parallel)) for g in family.groups)
        if (runs, of) not in self._works:
            operations = self._operations.setdefault(runs, Operations(plan))
            self._works[runs, of] = operations.add(family)
        return self._works[runs, of]


class Family:
    """Plans of some groups, each with each micro-batch that its group tries: the members. timed: of
    all families of a search, none of which was asked about yet."""

    def __init__(self, groups: Sequence[Group], timed: Timed | None = None):
        self.groups = groups
        self.batches = np.concatenate([group.batches for group in groups])
        self.group_of = np.repeat(range(len(groups)), [len(group.batches) for group in groups])
        self.work = (timed or Timed()).work(self)

    @property
    def plan(self) -> Plan:
        return self.groups[0].plan

    def __len__(self) -> int:
        return len(self.group_of)

    def batch(self, member: int) -> Batch:
        micro, accumulation = self.batches[member].tolist()
        return micro, accumulation

    def of_groups(self, number: Callable[[Plan], Any]) -> Any:
        """A number that the plans of a group share, of each member."""
        return np.array([number(group.plan) for group in self.groups])[self.group_of]

    @functools.cached_property
    def differing(self) -> dict[str, Any]:
        """Sizes of each, by name."""

        def sizes(plan: Plan) -> list[int]:
            ranks = [getattr(plan.parallel, axis) for axis in RANKS.values()]
            return [plan.cluster.gpus, plan.gpus_in_node, plan.dp, plan.parallel.pp, *ranks]

        of_plans = self.of_groups(sizes)
        names = ("B", "ACCUMULATION", "GPUS", "GPUS_PER_NODE", "DP", "PP", *RANKS)
        return dict(zip(names, np.hstack([self.batches, of_plans]).T.copy(), strict=True))

    @functools.cached_property
    def once(self) -> Any:
        """Whether a step of a member has one micro-batch, before which no gradients are kept."""
        return self.differing["ACCUMULATION"] == 1

    @functools.cached_property
    def parts(self) -> tuple[_Part | None, _Part | None]:
        """Members with one micro-batch in a step; and all, as if gradients were kept."""
        first, several = self.once.nonzero()[0], (~self.once).nonzero()[0]
        return (
            _Part(self, first) if len(first) else None,
            _Part(self, np.arange(len(self)), several[0]) if len(several) else None,
        )

    def forget(self) -> None:
        """Let go of what was found of its members: nobody looks for cycles during a search."""
        self.__dict__.pop("parts", None)

    def room(self, words: Changes, wanted: Any, exact: bool = True) -> tuple[Any, Any]:
        """Bytes that the GPU has to spare, or somewhat more where none of the members fits, and
        whether it fits; of those members that are asked, with other words. If not `exact`, less may
        be told of what fits: what would fit if gradients were kept does so without."""
        room = np.full(len(self), -1.0)
        fits = np.zeros(len(self), dtype=bool)
        first, every = self.parts
        here = wanted & ~self.once
        if every and here.any():
            room, fits = every.room(words, here if exact else wanted)
            fits = fits & wanted
        left = wanted & self.once & (exact | ~fits)
        if first and left.any():
            room, fits = room.copy(), fits.copy()
            own_room, own_fits = first.room(words, left[first.at])
            of, at = left[first.at], first.at[left[first.at]]
            room[at], fits[at] = np.asarray(own_room)[of], np.asarray(own_fits)[of]
        return room, fits

    @property
    def all_members(self) -> _Part:
        """All members, whatever is kept between micro-batches."""
        first, every = self.parts
        part = every or first
        assert part
        return part

    def least_seconds(self, words: Changes) -> Any:
        """About no more than a token of each member takes: quickly found."""
        if BARE.items() <= words.items():
            key, known = ("least", words["train.checkpointing"]), self.work.known
            if key not in known:
                known[key] = self.all_members.least_seconds(words)
            return known[key]
        return self.all_members.least_seconds(words)


class _Part:
    """Members of a family with the same schedule, and where they are."""

    def __init__(self, family: Family, at: Any, typical: int = 0):
        self.family, self.at = family, at
        self.group_of = family.group_of[at]
        self.groups = [family.groups[n] for n in dict.fromkeys(self.group_of.tolist())]
        self.plan = self.plan_of(typical)
        self._amounts: dict[Any, Amounts] = {}
        self._amounts_of: dict[Any, Amounts] = {}  # by what is recomputed and offloaded
        self._exposed: dict[Any, Any] = {}  # seconds of what offload moves, by what decides them
        self._waiting: dict[Any, Any] = {}
        self._stages: dict[Any, list[tuple[Any, Any]]] = {}  # by what is recomputed and offloaded
        self._steps: dict[str, list[tuple[int, Step]]] = {}  # by what is recomputed
        self._overheads: dict[Amounts, tuple[Overhead, ...]] = {}

    def plan_of(self, member: int) -> Plan:
        """The plan of a member of it."""
        group, batch = self.group_of[member], self.family.batch(self.at[member])
        return changed(self.family.groups[group].plan, sized(batch))

    @functools.cached_property
    def differing(self) -> dict[str, Any]:
        """Sizes of each, by name; of a single one plain numbers, which are quicker than arrays."""
        sizes_of = {name: sizes[self.at] for name, sizes in self.family.differing.items()}
        return sizes_of if len(self.at) > 1 else {name: int(n[0]) for name, n in sizes_of.items()}

    @functools.cached_property
    def _sizes(self) -> dict[str, Any]:
        """Of all members, but for those that a framework's buffers have."""
        sizes = self.plan.sizes() | self.differing
        shared_out(sizes, self.plan)
        return sizes

    def amounts(self, plan: Plan) -> Amounts:
        """Of all members with the words of this one: what is computed for others serves it too."""
        framework = FRAMEWORKS[plan.train.framework]
        words = _words(plan) if framework.complete else ()
        if words not in self._amounts_of:
            sizes = dict(self._sizes)
            if framework.complete:
                framework.complete(sizes, plan.train, self.steps(plan)[0][1])
            buffers = (np.asarray(sizes[d.name]) for d in framework.dimensions)
            key = tuple(n.tobytes() for n in buffers)
            self._amounts_of[words] = self._amounts.setdefault(key, Amounts(sizes))
        return self._amounts_of[words]

    def waiting(self, stages: Mapping[int, int]) -> Any:
        """Forwards that wait at a pipeline stage, of each; `stages`: which, by ranks of the
        pipeline."""
        key = tuple(stages.items())
        if key not in self._waiting:
            known: dict[Any, Any] = {}
            each = []
            for group in self.family.groups:
                p = group.plan.parallel
                here = p.schedule, p.pp, p.virtual_stages, group.batches
                if here not in known:
                    batches = np.array([batch[1] for batch in group.batches])
                    known[here] = flying(group.plan, stages.get(p.pp, 0), batches) - 1
                each.append(known[here])
            self._waiting[key] = np.concatenate(each)[self.at]
        return self._waiting[key]

    @functools.cached_property
    def pipelines(self) -> set[tuple[int, int]]:
        """Stages, and virtual ones of each, that members have."""
        every = (group.plan.parallel for group in self.groups)
        return {(p.pp, p.virtual_stages) for p in every}

    def steps(self, plan: Plan) -> list[tuple[int, Step]]:
        """The first of each kind of pipeline stage and its step, whatever is offloaded."""
        again = plan.train.checkpointing
        if again not in self._steps:
            self._steps[again] = kinds_of_stage(plan)
        return self._steps[again]

    def stages(self, plan: Plan) -> list[tuple[Any, Any]]:
        """The first of each kind of pipeline stage, with how many forwards wait there."""
        t, words = plan.train, _words(plan)
        stages = self._stages.get(words)
        if stages is None:
            steps = self.steps(plan)
            if len(self.pipelines) > 1:
                stages = self._blends([offloaded(s, t) for _, s in steps])
            else:
                here = plan.parallel.pp
                stages = [(offloaded(s, t), self.waiting({here: n})) for n, s in steps]
            self._stages[words] = stages
        return stages

    def _blends(self, steps: Sequence[Step]) -> list[tuple[Any, Any]]:
        """The same of pipelines that differ in how many layers their stages have."""
        return [
            (Blend.of(step, counts, running), waiting)
            for step, (counts, running, waiting) in zip(steps, self._counted, strict=True)
        ]

    @functools.cached_property
    def _counted(self) -> list[tuple[Any, Any, Any]]:
        """Of each kind of stage of these pipelines the layers, those that one forward runs through,
        and the forwards that wait."""
        layers, known = sum(layer_counts(self.plan)), dict[tuple[int, int], list[Kind]]()

        def kinds(plan: Plan) -> list[Kind]:
            key = plan.parallel.pp, plan.parallel.virtual_stages
            return known.get(key) or known.setdefault(key, kinds_of(plan, layers))

        of_groups = self.family.of_groups
        counts = of_groups(lambda plan: [kind.layers for kind in kinds(plan)])
        running = of_groups(lambda plan: [kind.running for kind in kinds(plan)])
        stages = (
            {pp: of[i].stage for (pp, _), of in known.items()} for i in range(counts.shape[1])
        )
        return [
            (counts[self.at, i], running[self.at, i], self.waiting(here))
            for i, here in enumerate(stages)
        ]

    def room(self, words: Changes, wanted: Any) -> tuple[Any, Any]:
        """As a family's."""
        plan = changed(self.plan, words)
        among = self.swept(plan), self.stages(plan), self.amounts(plan)
        if not by_rules(plan):
            return rooms_for(*among, wanted, self.overheads(plan))
        # One by one: gaps are found by running through a step.
        room = np.array(np.broadcast_to(most_room(*among, self.overheads(plan)), wanted.shape))
        fits = np.zeros(wanted.shape, dtype=bool)
        for i in np.flatnonzero(wanted & (room >= 0)):
            one = Training.planned(changed(self.plan_of(int(i)), words), rows=False).room
            room[i], fits[i] = one.bytes, one.fits
        return room, fits

    def overheads(self, plan: Plan) -> tuple[Overhead, ...]:
        """What no shape determines: no word of recomputation or offload changes it."""
        amounts = self.amounts(plan)
        overheads = self._overheads.get(amounts)
        if overheads is None:
            overheads = self._overheads[amounts] = plan_overheads(plan, amounts)
        return overheads

    def swept(self, plan: Plan, **more: Any) -> Any:
        return Swept(plan, {"gpus_in_node": self.differing["GPUS_PER_NODE"]} | more)

    def least_seconds(self, words: Changes) -> Any:
        """As a family's: the arithmetic of one pipeline stage for all its micro-batches, with what
        its ranks send each other, that of the others for one, and what is offloaded from it, where
        nothing hides that."""
        plan, sizes = changed(self.plan, words), self.differing
        once, stages = self.arithmetic(plan)
        batches, tokens = sizes["ACCUMULATION"], sizes["B"] * sizes["DP"] * plan.train.seq_len
        virtual_stages, waits = self._bubbles
        seconds = np.zeros(len(self.at))
        for stage, ((step, _), phases) in enumerate(zip(self.stages(plan), stages, strict=True)):
            others = [(of - here) / virtual_stages for of, here in zip(once, phases, strict=True)]
            waited = others[0] + others[1] + waits * others[2] + others[3]
            here = batches * sum(phases) + waited + self.offloading(plan, stage, step, phases)
            seconds = np.maximum(seconds, here)
        return seconds / (batches * tokens)

    @functools.cached_property
    def _bubbles(self) -> tuple[Any, Any]:
        """Of each member its virtual stages, and whether a stage waits for others' backward:
        zero-bubble pipelines fill that with gradients of weights."""
        of_groups = self.family.of_groups
        virtual_stages = of_groups(lambda one: one.parallel.virtual_stages)[self.at]
        return virtual_stages, of_groups(lambda one: one.parallel.schedule != ZERO_BUBBLE)[self.at]

    def arithmetic(self, plan: Plan) -> tuple[Phases, list[Phases]]:
        """Seconds of forward, of what runs again, of backward, and that ranks wait for each other,
        of a micro-batch: of all layers, and of the first of each kind of pipeline stage."""
        key, work = ("arithmetic", plan.train.checkpointing), self.family.work
        known = work.known
        if key not in known:
            steps = [step for step, _ in self.stages(plan)]
            blocks, speed = steps[0].blocks, speed_of(plan, steps[0])
            words = zip(blocks.layers, run_again(steps[0]), strict=True)
            embed, head = (
                work.phases(plan, steps[0], t, "", speed) for t in (blocks.embed, blocks.head)
            )
            layers = [work.phases(plan, steps[0], *of, speed) for of in words]

            def counts_of(step: Any) -> Sequence[Any]:
                counts: Sequence[Any] = step.layers.counts
                return [counts[0] + step.more] if isinstance(step, Blend) else counts

            def added(counts: Sequence[Any], first: bool, last: bool) -> Phases:
                every = [(embed, int(first)), (head, int(last))]
                every += zip(layers, counts, strict=False)
                return tuple(sum(of[i] * n for of, n in every) for i in range(4))

            of_stages = [added(counts_of(step), step.first, step.last) for step in steps]
            known[key] = added(layer_counts(plan), True, True), of_stages
        phases: tuple[Phases, list[Phases]] = known[key]
        return phases

    def offloading(self, plan: Plan, stage: int, step: Step, phases: Phases) -> Any:
        """Seconds of a step that offload adds at least. What leaves during the last backward is
        left out, since that takes longer where it waits for other GPUs. What optimizer, parameters
        and activations move is found each by itself, as few of their words decide it."""
        t = plan.train
        states, parameters = t.offload_optimizer, t.offload_parameters
        if {states, parameters, t.offload_activations} == {"none"}:
            return 0.0
        amounts, batches = self.amounts(plan), self.differing["ACCUMULATION"]
        swept = self.swept(plan, **{"train.grad_accumulation": batches})
        ran = [
            SimpleNamespace(phase=phase, seconds=n * batches, of_layers=True)
            for phase, n in zip((FORWARD, RECOMPUTE, BACKWARD), phases, strict=False)
        ]
        hidden_by = Beside(swept, step, ran)  # type: ignore[arg-type]

        def state_moves(plan: Plan, *_: Any) -> list[Move]:
            weights = updated_parameters(step, amounts) * 1.0
            return optimizer_moves(plan, step, amounts, hidden_by, weights)

        ways: tuple[tuple[Callable[..., list[Move]], Any], ...] = (
            (state_moves, states != "none" and (states, parameters)),
            (parameter_moves, parameters != "none" and (t.checkpointing, parameters)),
            (activation_moves, t.offload_activations != "none" and _words(plan)[::3]),
            (swaps, parameters == "nvme"),
        )
        seconds: Any = 0.0
        for way, words in ways:
            if words:
                key = way.__name__, words, stage
                if key not in self._exposed:
                    self._exposed[key] = sum(
                        move.exposed
                        for move in way(swept, step, amounts, hidden_by)
                        if move.hidden_by is not LAST_BACKWARD
                    )
                seconds = seconds + self._exposed[key]
        return seconds
