"""Lens: what is done with each tensor, and what else could be.

A tensor is stored, recomputed, moved or delayed; each is a trade of bytes for seconds. What a row
of the ledger is, and what the other three would cost, is found by evaluating the plan without what
it does now and with what its framework could do. No number is estimated: each is the difference of
two evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import PlanError
from memcore.plan.plan import Plan, change_texts, get
from memcore.report import LedgerRow, fields_but
from memcore.search.change import Changes, differences
from memcore.search.levers import smaller_batches, with_changes
from memcore.training.memory import held, rested, saved_rows
from memcore.training.training import Pool, Training, not_planned
from memcore.words.training import CHECKPOINTING, FRAMEWORKS, OFFLOAD, OFFLOAD_ACTIVATIONS

STORED, RECOMPUTED, MOVED, DELAYED = STATES = ("stored", "recomputed", "moved", "delayed")
MEANS = {
    STORED: "on this GPU for as long as it is needed",
    RECOMPUTED: "dropped, and computed again when backward wants it",
    MOVED: "kept by other GPUs, each a share, by host DRAM or by NVMe",
    DELAYED: "a piece of it at a time; the others wait for their turn",
}
GPUS, DRAM, NVME = "gpus", "dram", "nvme"
PLACES = {"": "", GPUS: "other GPUs", DRAM: "host DRAM", NVME: "NVMe"}
TIERS = {"cpu": DRAM, "nvme": NVME}  # of a word of OFFLOAD
# Why a row cannot be so, where nothing does it.
NOTHING = {
    STORED: "nothing else keeps it",
    RECOMPUTED: "nothing computes it again",
    MOVED: "nothing moves it",
    DELAYED: "all of it is needed at once",
}
STATES_OF_WEIGHTS = ("parameters", "gradients", "optimizer_states")
OF_LAYERS = ("activations", "workspace")


@dataclass(frozen=True, slots=True)
class Trick:
    """One thing that a plan may do with rows of some consumers, so that they are in a state.

    on    changes that do it, or more of it, each with the tier that it moves rows to
    off   changes that undo it, the first that can be; none where the plan does not do it
    """

    state: str
    consumers: tuple[str, ...]
    on: Callable[[Plan], Iterable[tuple[str, Changes]]]
    off: Callable[[Plan], Sequence[Changes]]
    hides: bool = False  # rows are not in the ledger at all


@dataclass(frozen=True, slots=True)
class Way:
    """What a row could be in place of what it is.

    where          of what is moved: a word of PLACES
    label          the change that does it; changes: every field that differs
    row_bytes      the most that the row would take at any instant, where it is counted now
    freed_bytes    of the allocated peak of one GPU; below 0: it needs more
    added_seconds  per step, which has the same tokens
    """

    state: str
    where: str
    label: str
    changes: Mapping[str, Any]
    row_bytes: int
    freed_bytes: int
    added_seconds: float
    verdict: str
    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        """The way as plain JSON types, without its plan."""
        return fields_but(self, "changes", "plan") | {"changes": dict(self.changes)}


@dataclass(frozen=True, slots=True)
class LensRow:
    """A row of the ledger, or one that the plan keeps out of it, through the lens.

    bytes          at the peak, as the ledger has it; 0 of what is not alive then
    most_bytes     at any instant
    state          a word of STATES; where: of what is moved, a word of PLACES
    price_seconds  what a step is longer than with this row's like stored; 0 of what is stored, None
                   where nothing stores it
    ways           what it could be: of each other state those that there are
    missing        why there is none, by state
    """

    name: str
    consumer: str
    shape: str
    dtype: str
    tier: str
    bytes: int
    most_bytes: int
    state: str
    where: str
    price_seconds: float | None
    ways: tuple[Way, ...]
    missing: Mapping[str, str]

    @property
    def state_text(self) -> str:
        """Its state, with where it is."""
        return f"{self.state} ({self.where})" if self.where else self.state

    @property
    def stored_bytes(self) -> int:
        """What it takes at the peak, or would take at most if it were stored."""
        stored = self.best(STORED)
        return max(self.bytes, stored.row_bytes if stored else 0)

    def best(self, state: str) -> Way | None:
        """The way into a state that leaves least of the row; of equal ones the quickest."""
        ways = [way for way in self.ways if way.state == state]
        return min(ways, key=lambda way: (way.row_bytes, way.added_seconds), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The row as plain JSON types."""
        document = fields_but(self, "ways", "missing") | {"stored_bytes": self.stored_bytes}
        ways = [way.to_dict() for way in self.ways]
        return document | {"ways": ways, "missing": dict(self.missing)}

    def to_row(self) -> dict[str, Any]:
        """The row as one line of a table, with the best way into each state."""
        row = self.to_dict()
        del row["ways"], row["missing"]
        for state in STATES:
            way = self.best(state)
            row |= {
                f"{state}: change": way.label if way else "",
                f"{state}: freed_bytes": way.freed_bytes if way else None,
                f"{state}: added_seconds": way.added_seconds if way else None,
                f"{state}: why not": self.missing.get(state, ""),
            }
        return row


# --- what plans do -------------------------------------------------------------------------------


def _field(path: str, words: Sequence[str], *without: str) -> tuple[Any, Any]:
    """A field's words as changes, each doing more than the one before, and those that do
    nothing."""

    def on(plan: Plan) -> Iterable[tuple[str, Changes]]:
        here = get(plan, path)
        more = words[words.index(here) + 1 :] if here in words else words
        return [(TIERS.get(word, ""), {path: word}) for word in more if word not in without]

    def off(plan: Plan) -> Sequence[Changes]:
        return [] if get(plan, path) in without else [{path: word} for word in without]

    return on, off


def _offload(what: str, consumers: tuple[str, ...], words: Iterable[str]) -> Trick:
    return Trick(MOVED, consumers, *_field(f"train.offload_{what}", tuple(words), "none"))


def _stages(plan: Plan) -> Sequence[int]:
    """ZeRO stages that share anything out."""
    return () if plan.dp * plan.parallel.cp == 1 else FRAMEWORKS[plan.train.framework].zero


def _shared(plan: Plan) -> Iterable[tuple[str, Changes]]:
    return [(GPUS, {"train.zero": stage}) for stage in _stages(plan) if stage > plan.train.zero]


def _unshared(plan: Plan) -> Sequence[Changes]:
    return [{"train.zero": stage} for stage in _stages(plan) if stage < plan.train.zero]


def _smaller(plan: Plan) -> Iterable[tuple[str, Changes]]:
    return [("", changes) for changes in smaller_batches(plan)[:1]]


def _larger(plan: Plan) -> Sequence[Changes]:
    """The whole batch at once; where that is too many, half as often."""
    n, times = plan.train.micro_batch, plan.train.grad_accumulation
    return [
        {"train.micro_batch": n * part, "train.grad_accumulation": times // part}
        for part in (times, 2)
        if part > 1 and times % part == 0
    ]


_RECOMPUTING = tuple(name for name, word in CHECKPOINTING.items() if word.recompute)
_CHUNKED = _field("train.cross_entropy", ("chunked",), "eager", "fused")
# Of several that hold for a row the first names its state.
TRICKS = (
    Trick(RECOMPUTED, OF_LAYERS, *_field("train.checkpointing", _RECOMPUTING, "none"), hides=True),
    Trick(DELAYED, OF_LAYERS, *_CHUNKED, hides=True),
    Trick(MOVED, STATES_OF_WEIGHTS, _shared, _unshared),
    _offload("optimizer", ("optimizer_states", "gradients"), OFFLOAD),
    _offload("parameters", ("parameters", "gradients"), OFFLOAD),
    _offload("activations", ("activations",), OFFLOAD_ACTIVATIONS),
    Trick(DELAYED, OF_LAYERS, _smaller, _larger),
)


# --- what they come to ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tried:
    """A plan with a trick more or less, or why there is none."""

    trick: Trick
    place: str
    label: str
    why_not: str = ""
    then: _Evaluated | None = None


@dataclass(frozen=True, slots=True)
class _Evaluated:
    training: Training
    seconds: float
    held: Mapping[str, int]
    rested: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, plan: Plan, pool: Pool, rows: bool = False) -> _Evaluated | None:
        training = Training.of(plan, rows=rows, pool=pool)
        if training is None:
            return None
        step, amounts = training.step, training.amounts
        return cls(
            training,
            training.time().step_seconds,
            held(step, amounts),
            rested(plan, step, amounts),
        )

    def most(self, name: str, tier: str) -> int:
        """The most that rows of a name take in a tier."""
        return self.held.get(name, 0) if tier == "hbm" else self.rested.get((name, tier), 0)


def lens(plan: Plan) -> tuple[LensRow, ...]:
    """Every row of a plan's ledger, and those that recomputing or chunks keep out of it, the
    largest first; () where training is not planned."""
    pool: Pool = {}
    now = _Evaluated.of(plan, pool, rows=True)
    if now is None:
        return ()
    on = [_tried(plan, t, place, [c], pool) for t in TRICKS for place, c in t.on(plan)]
    off = [_tried(plan, t, "", c, pool) for t in TRICKS if (c := t.off(plan))]
    ledger = now.training.counted.ledger
    rows = [(row, row.bytes) for row in ledger]
    rows += [(row, 0) for row in _hidden(now, ledger, off)]
    seen = [_lens_row(row, size, now, on, off) for row, size in rows]
    return tuple(sorted(seen, key=lambda s: -s.stored_bytes))


def _hidden(
    now: _Evaluated, ledger: Sequence[LedgerRow], off: Sequence[_Tried]
) -> Iterable[LedgerRow]:
    """What the plan would hold for backward without a trick, and has not at the peak."""
    names = {row.name for row in ledger}
    for tried in off:
        if not tried.trick.hides or tried.then is None:
            continue
        other = tried.then.training
        for row in saved_rows(other.plan, other.memory.peak.rank):
            if row.name not in names and now.held.get(row.name, 0) < row.bytes:
                names.add(row.name)
                yield row


def _tried(plan: Plan, trick: Trick, place: str, choices: Sequence[Changes], pool: Pool) -> _Tried:
    """The first of some changes that the framework allows."""
    why_not = ""
    for changes in choices:
        changed = with_changes(plan, changes)
        if changed is None or changed.train.framework != plan.train.framework:
            why_not = why_not or _refused(plan, changes)
        elif then := _Evaluated.of(changed, pool):
            return _Tried(trick, place, _label(changes), then=then)
        else:
            why_not = why_not or not_planned(changed)
    return _Tried(trick, place, _label(choices[0]), why_not)


def _label(changes: Changes) -> str:
    return " and ".join(change_texts(changes, ":"))


def _refused(plan: Plan, changes: Changes) -> str:
    try:
        plan.with_changes(changes)
    except PlanError as e:
        return e.issues[0].message
    return f"not under {FRAMEWORKS[plan.train.framework].label}"


def _lens_row(
    row: LedgerRow, size: int, now: _Evaluated, on: Sequence[_Tried], off: Sequence[_Tried]
) -> LensRow:
    """A row with its state and what it could be. `size`: at the peak."""
    here = now.most(row.name, row.tier)

    def reached(tried: _Tried, undone: bool) -> bool:
        """Whether a change makes less of the row; undoing a trick on the GPU, more."""
        if tried.then is None or row.consumer not in tried.trick.consumers:
            return False
        there = tried.then.most(row.name, row.tier)
        return there > here if undone and row.tier == "hbm" else there < here

    undoing = [tried for tried in off if reached(tried, undone=True)]
    state, where, back = STORED, "", None
    if row.tier != "hbm":
        state, where = MOVED, row.tier
        back = next((tried for tried in undoing if tried.trick.state == MOVED), None)
    elif undoing:
        back = undoing[0]
        state = back.trick.state
        where = GPUS if state == MOVED else ""
    ways = [_way(STORED, "", back, row, now)] if back else []
    ways += [
        _way(tried.trick.state, tried.place, tried, row, now)
        for tried in on
        if tried.trick.state != state and reached(tried, undone=False)
    ]
    reached_states = {state, *(way.state for way in ways)}
    return LensRow(
        name=row.name,
        consumer=row.consumer,
        shape=str(row.shape),
        dtype=row.dtype,
        tier=row.tier,
        bytes=size,
        most_bytes=max(here, size),
        state=state,
        where=PLACES[where],
        price_seconds=now.seconds - back.then.seconds if back and back.then
        else 0.0 if state == STORED else None,
        ways=tuple(ways),
        missing={s: _missing(row, s, on, now) for s in STATES if s not in reached_states},
    )  # fmt: skip


def _way(state: str, place: str, tried: _Tried, row: LedgerRow, now: _Evaluated) -> Way:
    then = tried.then
    assert then
    before, after = now.training.memory, then.training.memory
    return Way(
        state=state,
        where=PLACES[place],
        label=tried.label,
        changes=differences(now.training.plan, then.training.plan),
        row_bytes=then.most(row.name, row.tier),
        freed_bytes=before.allocated_bytes - after.allocated_bytes,
        added_seconds=then.seconds - now.seconds,
        verdict=after.verdict,
        plan=then.training.plan,
    )


def _missing(row: LedgerRow, state: str, on: Sequence[_Tried], now: _Evaluated) -> str:
    """Why a row cannot be in a state."""
    of_layers = row.consumer in OF_LAYERS
    if state == DELAYED and of_layers and now.training.plan.train.micro_batch == 1:
        return "a micro-batch of one sequence is the least"
    of = [t for t in on if t.trick.state == state and row.consumer in t.trick.consumers]
    refused = next((t for t in of if t.why_not), None)
    if refused:
        return f"{refused.label}: {refused.why_not}"
    if of:
        return f"{of[-1].label} does not change it"
    return NOTHING[state]


def way_text(seen: LensRow, state: str) -> str:
    """What would bring a row into a state, or why nothing does."""
    way = seen.best(state)
    if way is None:
        return seen.missing.get(state, "")
    return f"{way.label} ({way.where})" if way.where == PLACES[GPUS] else way.label


@dataclass(frozen=True, slots=True)
class Alike:
    """Rows of which the same is true: how many, the largest, and their bytes together."""

    first: LensRow
    rows: int
    bytes: int
    stored_bytes: int

    @property
    def name(self) -> str:
        more = self.rows - 1
        of = f"{self.first.consumer.replace('_', ' ')}: {self.first.name}"
        return f"{of} and {more} more" if more else of


def alike(seen: Sequence[LensRow]) -> tuple[Alike, ...]:
    """Rows of one consumer and state with the same ways as one line, the largest first."""
    groups: dict[tuple[Any, ...], list[LensRow]] = {}
    for s in seen:
        best = (s.best(state) for state in STATES)
        ways = tuple(way.label if way else "" for way in best)
        groups.setdefault((s.consumer, s.tier, s.state, s.where, ways), []).append(s)
    rows = [
        Alike(of[0], len(of), sum(s.bytes for s in of), sum(s.stored_bytes for s in of))
        for of in groups.values()
    ]
    return tuple(sorted(rows, key=lambda a: -a.stored_bytes))
