"""Over time: the instants of the memory ledger on the seconds of one optimizer step.

The ledger says how much is alive at each instant, the schedule in what order they come, and the
operations how long each takes. A pipeline is played through: a forward waits for the stage before,
a backward for the stage behind, and each stage keeps its own order of both. Each slot shows the
most that is alive in it. What the GPU waits for inside forward or backward is spread evenly over
it, and instants of one layer share its time equally. The first micro-batch is drawn as those after
it, whose gradients are summed up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memcore.plan.plan import Plan
from memcore.step.pipeline import in_round
from memcore.step.step import AFTER, BETWEEN, EMBEDDING_RUNS, HEAD_RUNS, Instant, Step
from memcore.tape.ledger import BACKWARD, FORWARD, Amounts, Holding, saved
from memcore.tape.tape import Tape
from memcore.timing.roofline import executions, run, seconds
from memcore.training.executions import run_again, speed_of
from memcore.training.memory import by_consumer, instant_bytes, moment
from memcore.training.stages import weight_gradients
from memcore.training.time import Whole
from memcore.training.training import Training
from memcore.words.training import GPIPE, ZERO_BUBBLE

FINE = 1200  # slots of one stage up to which each layer has its own
MOST = 256  # groups of micro-batches that a GPipe step is drawn in
WEIGHTS = "weights"  # ZB-H1's gradients of weights, computed when the GPU would wait
WAITING, REPEATED = "waiting", "repeated"
LABELS = {
    WEIGHTS: "Gradients of weights",
    REPEATED: "As those before",
    WAITING: "Waiting for other stages",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of one stage's step.

    start, seconds   when it begins, and how long it takes
    phase            'forward', 'backward', 'weights', 'after', 'waiting' or 'repeated'
    instant, label   of the ledger's instant: its id, and for people
    micro_batch      which, from 1 on; '' where it is of none
    waiting          forwards that wait for their backward meanwhile, besides the one that runs
    bytes            the most that is alive in it; consumers: the same, by consumer
    """

    start: float
    seconds: float
    phase: str
    instant: str
    label: str
    micro_batch: str
    waiting: int
    bytes: int
    consumers: Mapping[str, int]

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class Course:
    """Memory over one optimizer step on a GPU of one pipeline stage: slots without gaps."""

    rank: int
    slots: tuple[Slot, ...]

    @property
    def peak(self) -> Slot:
        """The fullest slot, the first of equal ones."""
        return max(self.slots, key=lambda s: s.bytes)

    def fullest(self, most: int) -> tuple[Slot, ...]:
        """At most so many slots, for a picture: neighbours as the fullest of them."""
        whole = self.slots[-1].end
        if len(self.slots) <= most or not whole:
            return self.slots
        groups: dict[int, list[Slot]] = {}
        for slot in self.slots:
            groups.setdefault(min(most - 1, int(slot.start / whole * most)), []).append(slot)
        return tuple(
            replace(
                max(of, key=lambda s: s.bytes),
                start=of[0].start,
                seconds=of[-1].end - of[0].start,
            )
            for of in groups.values()
        )


def over_time(plan: Plan, training: Training | None = None) -> tuple[Course, ...]:
    """Memory over the seconds of a step, for each pipeline stage, of a plan whose training is
    planned; `training`: its own, where it is there already. The fullest slot of all has the bytes
    of the Report's peak; each course ends with the step."""
    training = training or Training.planned(plan)
    amounts, steps = training.amounts, training.steps
    wholes = [whole for _, whole in training.wholes]
    step_seconds = max(whole.seconds for whole in wholes)
    chunks = [_chunks(plan, *pair) for pair in zip(steps, wholes, strict=True)]
    played = _play(plan, chunks)
    taken = max(runs[-1].end for runs in played)
    drawn: dict[tuple[object, ...], _Drawn] = {}
    found = []
    for rank, (step, whole) in enumerate(zip(steps, wholes, strict=True)):
        key = step.first, step.last, step.layers
        if key not in drawn:
            drawn[key] = _Drawn.of(plan, step, amounts, len(played[rank]))
        scale = (step_seconds - whole.after) / taken
        found.append(_course(rank, drawn[key], played[rank], scale, whole, step_seconds))
    return tuple(found)


def rows(courses: Sequence[Course]) -> Iterator[dict[str, Any]]:
    """Courses as a table: a row for each slot, of whole stages one after the other."""
    for course in courses:
        for s in course.slots:
            yield {
                "rank": course.rank,
                "start_seconds": s.start,
                "seconds": s.seconds,
                "micro_batch": s.micro_batch,
                "phase": s.phase,
                "instant": s.instant,
                "label": s.label,
                "waiting": s.waiting,
                "bytes": s.bytes,
                **s.consumers,
            }


# ---- what one chunk looks like: its instants, and what share of its time each has


@dataclass(frozen=True, slots=True)
class _Moment:
    id: str
    label: str
    bytes: int
    consumers: Mapping[str, int]

    def beside(self, each: Mapping[str, int], n: int, heads: Mapping[str, int], k: int) -> _Moment:
        """The same with `n` forwards waiting, `k` of them behind their loss."""
        consumers = {c: b + n * each[c] + k * heads[c] for c, b in self.consumers.items()}
        return _Moment(self.id, self.label, sum(consumers.values()), consumers)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Stages that run the same. shares: of FORWARD and BACKWARD, each instant with its share of
    the time; one: what a waiting forward has left, head: what its loss has; losses: how many wait
    behind their loss at most."""

    shares: Mapping[str, Sequence[tuple[_Moment, float]]]
    after: Sequence[_Moment]
    between: _Moment
    one: Mapping[str, int]
    head: Mapping[str, int]
    losses: int

    @classmethod
    def of(cls, plan: Plan, step: Step, amounts: Amounts, pieces: int) -> _Drawn:
        each = step.layer_by_layer
        found: dict[str, list[tuple[Instant, _Moment]]] = {}
        for i in each.instants:
            m = moment(i, *instant_bytes(i, amounts), amounts, 0)
            found.setdefault(i.phase, []).append((i, _Moment(m.id, m.label, m.bytes, m.consumers)))
        shares = {p: _shares(plan, each, p, found[p], amounts) for p in (FORWARD, BACKWARD)}
        if pieces / 2 * sum(map(len, shares.values())) > FINE:
            shares = {
                phase: [(max((m for m, _ in of), key=lambda m: m.bytes), 1.0)]
                for phase, of in shares.items()
            }
        head = Holding.of([(saved(step.blocks.head), 1)] if step.last else [])
        return cls(
            shares,
            [m for _, m in found[AFTER]],
            found[BETWEEN][0][1],
            by_consumer(each.one_waiting, amounts),
            by_consumer(head, amounts),
            step.losses,
        )

    def at(self, moment: _Moment, waiting: int) -> _Moment:
        return moment.beside(self.one, waiting, self.head, min(waiting, self.losses))


def _shares(
    plan: Plan,
    step: Step,
    phase: str,
    found: Sequence[tuple[Instant, _Moment]],
    amounts: Amounts,
) -> list[tuple[_Moment, float]]:
    """Each instant of a forward or a backward with its share of the time."""
    speed = speed_of(plan, step)

    def taken(tape: Tape, again: str) -> float:
        of = run(executions((tape,), (1,), (again,)), amounts, speed)
        return seconds(o for o in of if (o.phase == FORWARD) == (phase == FORWARD))

    again = run_again(step)
    kinds = [taken(tape, word) for tape, word in zip(step.blocks.layers, again, strict=True)]
    times = {i: kinds[step.running.kind(i)] for i in range(step.running.count)}
    times[EMBEDDING_RUNS] = taken(step.blocks.embed, "") if step.first else 0.0
    times[HEAD_RUNS] = taken(step.blocks.head, "") if step.last else 0.0
    layers = [i.layer for i, _ in found]
    there = {layer: times[layer] / layers.count(layer) for layer in layers}
    whole = sum(there[layer] for layer in layers)
    if not whole:
        return [(m, 1 / len(found)) for _, m in found]
    return [(m, there[i.layer] / whole) for i, m in found]


# ---- when each stage runs which chunk


@dataclass(frozen=True, slots=True)
class _Chunks:
    """One stage's pieces of work: seconds of one forward, one backward (without gradients of
    weights where those come later) and of those; ahead: forwards that are alive at once."""

    forward: float
    backward: float
    weights: float
    ahead: int


@dataclass(frozen=True, slots=True)
class _Run:
    """One piece of work of a stage: when, of which micro-batches, how many forwards wait for their
    backward besides it, and how many when it is over."""

    phase: str
    start: float
    seconds: float
    name: str
    waiting: int
    left: int

    @property
    def end(self) -> float:
        return self.start + self.seconds


Chunk = tuple[int, int]  # virtual stage, group of micro-batches
Done = dict[tuple[str, int, Chunk], float]  # when a stage was through with a chunk


def _chunks(plan: Plan, step: Step, whole: Whole) -> _Chunks:
    pieces = plan.train.grad_accumulation * plan.parallel.virtual_stages
    inside = whole.seconds - whole.bubble - whole.after
    gpu = sum(whole.on_gpu)
    forward, backward = (inside * s / gpu / pieces for s in whole.on_gpu)
    late = 0.0
    if plan.parallel.schedule == ZERO_BUBBLE:
        late = weight_gradients(whole.operations) / plan.train.grad_accumulation
    return _Chunks(forward, backward - late, late, step.waiting + 1)


def _order(first: int, groups: int, plan: Plan) -> list[tuple[str, Chunk]]:
    """A stage's own order: its `first` forwards, then a backward and a forward in turn, then the
    backwards that are left. Interleaved stages take a round of micro-batches through one chunk
    before the next (Narayanan et al. 2021)."""
    v = plan.parallel.virtual_stages
    each = in_round(plan.parallel.pp, plan.train.grad_accumulation)
    rounds = [range(i, min(i + each, groups)) for i in range(0, groups, each)]
    forwards = [(vs, m) for of in rounds for vs in range(v) for m in of]
    found = [(FORWARD, c) for c in forwards[:first]]
    backwards = [(vs, m) for of in rounds for vs in reversed(range(v)) for m in of]
    for k, chunk in enumerate(backwards):
        found.append((BACKWARD, chunk))
        found += [(FORWARD, c) for c in forwards[first + k : first + k + 1]]
    return found


@dataclass(slots=True)
class _Stage:
    """A stage as it is played.

    order    what it has to do, one after the other; at: how far it is
    sizes    micro-batches of each group
    hold     seconds of the micro-batches that are not played, `more` of them, which come after the
             first `middle` backwards
    late     groups whose gradients of weights are to come
    """

    of: _Chunks
    order: list[tuple[str, Chunk]]
    sizes: Sequence[int]
    hold: float
    more: int
    middle: int
    at: int = 0
    held: int = 0
    passed: int = 0
    late: list[Chunk] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)

    @property
    def clock(self) -> float:
        return self.runs[-1].end if self.runs else 0.0

    def go(self, phase: str, chunk: Chunk, ready: float) -> float:
        """Forward or backward of one chunk, whose input is there from `ready` on: when it ends."""
        size = self.sizes[chunk[1]]
        if phase == FORWARD:
            while self.late and self.held + size > self.of.ahead:
                self._weights()
            self.held += size
            self._run(FORWARD, chunk, ready, self.of.forward, self.held)
        else:
            # Waits are filled when no forward is left whose room is wanted.
            last = all(word == BACKWARD for word, _ in self.order[self.at - 1 :])
            while last and self.late and self.clock < ready:
                self._weights()
            left = self.held if self.of.weights else self.held - size
            self._run(BACKWARD, chunk, ready, self.of.backward, left)
            if self.of.weights:
                self.late.append(chunk)
            self.passed += 1
        self.at += 1
        end = self.clock
        if self.at == len(self.order):
            while self.late:
                self._weights()
        if phase == BACKWARD and self.more and self.passed == self.middle:
            first = chunk[1] + 2
            name = f"{first:,} to {first + self.more - 1:,}"
            kept = self.of.ahead - 1
            self.runs.append(_Run(REPEATED, self.clock, self.hold, name, kept, self.held))
        return end

    def _weights(self) -> None:
        chunk = self.late.pop(0)
        left = self.held - self.sizes[chunk[1]]
        self._run(WEIGHTS, chunk, self.clock, self.of.weights, left)

    def _run(self, phase: str, chunk: Chunk, ready: float, each: float, left: int) -> None:
        size, before = self.sizes[chunk[1]], sum(self.sizes[: chunk[1]])
        first = before + 1 + (self.more if self.passed >= self.middle else 0)
        name = f"{first:,}" if size == 1 else f"{first:,} to {first + size - 1:,}"
        start = max(self.clock, ready)
        kept = min(self.held, self.of.ahead) - 1  # what the ledger counts with
        self.runs.append(_Run(phase, start, each * size, name, kept, min(left, kept + 1)))
        self.held = left


def _needs(phase: str, rank: int, chunk: Chunk, p: int, v: int) -> tuple[str, int, Chunk] | None:
    """What has to be done before a stage runs a chunk."""
    virtual, group = chunk
    if phase == FORWARD:
        if rank:
            return FORWARD, rank - 1, chunk
        return (FORWARD, p - 1, (virtual - 1, group)) if virtual else None
    if rank < p - 1:
        return BACKWARD, rank + 1, chunk
    return (BACKWARD, 0, (virtual + 1, group)) if virtual < v - 1 else (FORWARD, rank, chunk)


def _play(plan: Plan, chunks: Sequence[_Chunks]) -> list[list[_Run]]:
    """What every stage runs when, each piece as soon as what it needs is done. Where there are many
    micro-batches, those in the middle are one piece; under GPipe, which has all of them alive at
    once, some are run as one."""
    p, v, batches = plan.parallel.pp, plan.parallel.virtual_stages, plan.train.grad_accumulation
    schedule, each = plan.parallel.schedule, 1
    if schedule == GPIPE:
        each = math.ceil(batches / MOST)
        groups = math.ceil(batches / each)
    else:
        ahead = max(c.ahead for c in chunks)
        of = in_round(p, batches)
        groups = min(batches, of * math.ceil((2 * ahead / v + 4) / of))
    sizes = [min(each, batches - i * each) for i in range(groups)]
    more = batches - sum(sizes)
    hold = more * v * max(c.forward + c.backward + c.weights for c in chunks)
    stages = []
    for rank, c in enumerate(chunks):
        # ZB-H1 begins as 1F1B does; what is alive besides waits for its gradients of weights.
        first = min(batches, p - rank) if schedule == ZERO_BUBBLE else min(c.ahead, groups * v)
        order = _order(first, groups, plan)
        stages.append(_Stage(c, order, sizes, hold, more, groups * v // 2))
    done: Done = {}
    while any(stage.at < len(stage.order) for stage in stages):
        for rank, stage in enumerate(stages):
            _go_on(stage, rank, p, v, done)
    return [stage.runs for stage in stages]


def _go_on(stage: _Stage, rank: int, p: int, v: int, done: Done) -> None:
    """As far as a stage gets with what the others have done."""
    while stage.at < len(stage.order):
        phase, chunk = stage.order[stage.at]
        needs = _needs(phase, rank, chunk, p, v)
        if needs and needs not in done:
            break
        done[phase, rank, chunk] = stage.go(phase, chunk, done[needs] if needs else 0.0)


# ---- both together


def _course(
    rank: int, drawn: _Drawn, runs: Sequence[_Run], scale: float, whole: Whole, end: float
) -> Course:
    slots: list[Slot] = []

    def add(phase: str, moment: _Moment, taken: float, label: str, name: str, waiting: int) -> None:
        start = slots[-1].end if slots else 0.0
        m = drawn.at(moment, waiting)
        slots.append(Slot(start, taken, phase, m.id, label, name, waiting, m.bytes, m.consumers))

    def idle(until: float, held: int) -> None:
        gap = until - (slots[-1].end if slots else 0.0)
        if gap > 1e-9 * end:
            add(WAITING, drawn.between, gap, LABELS[WAITING], "", held)

    held = 0
    for r in runs:
        idle(scale * r.start, held)
        held, taken = r.left, scale * r.seconds
        if r.phase == REPEATED:
            every = [m for of in drawn.shares.values() for m, _ in of]
            fullest = max(every, key=lambda m: m.bytes)
            add(REPEATED, fullest, taken, LABELS[REPEATED], r.name, r.waiting)
        elif r.phase == WEIGHTS:
            add(WEIGHTS, drawn.between, taken, LABELS[WEIGHTS], r.name, r.waiting + 1)
        else:
            for m, share in drawn.shares[r.phase]:
                add(r.phase, m, taken * share, m.label, r.name, r.waiting)
    idle(end - whole.after, held)
    for m in drawn.after:
        add(AFTER, m, whole.after / len(drawn.after), m.label, "", 0)
    return Course(rank, tuple(slots))
