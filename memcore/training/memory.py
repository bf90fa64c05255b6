"""Memory: a plan's instants turned into bytes, the peak among them, and the verdict."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.quantity.interval import fitting, interval
from memcore.quantity.reading import Read, Values, at_least_zero, computed, named, quantity, total
from memcore.report import (
    CONSUMERS,
    VERDICTS,
    InstantMemory,
    LedgerRow,
    Memory,
    Overhead,
    Peak,
    RankMemory,
)
from memcore.step.states import MANAGED
from memcore.step.step import STEPPING, Alive, Instant, Step, saved_for_backward
from memcore.tape.dims import Number, maximum, where
from memcore.tape.kinds import Role
from memcore.tape.ledger import Amounts, Holding, Template
from memcore.training import offload
from memcore.training.overheads import by_rules, counted, plan_overheads, reserved, segments
from memcore.training.steps import step_of, training_sizes


def instant_bytes(instant: Instant, amounts: Amounts) -> tuple[Number, int]:
    """Bytes alive at one instant, and the step of its window where they peak."""
    within, step = amounts.peak(instant.window) if instant.window else (0, 0)
    return within + amounts.held(instant.holding), step


def peak_bytes(step: Step, amounts: Amounts) -> Number:
    """The allocated peak alone; for sweeps."""
    best: Number = 0
    for instant in step.instants:
        best = amounts.most(best, instant_bytes(instant, amounts)[0])
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
            seen[key] = moments, by_consumer(step.one_waiting, amounts)
        moments, each = seen[key]
        n, one = step.waiting, sum(each.values())
        top = max(moments, key=lambda m: m[1] + n * one * (m[0].id not in STEPPING))
        peak = at_peak.get(top[0]) or at_peak.setdefault(top[0], moment(*top, amounts, stage))
        more = 0 if peak.id in STEPPING else n
        consumers = {name: b + more * each[name] for name, b in peak.consumers.items()}
        ranks.append(RankMemory(stage, sum(consumers.values()), peak.id, peak.label, consumers))
    return tuple(ranks)


def count(
    plan: Plan, step: Step, amounts: Amounts, ranks: tuple[RankMemory, ...] = (), rows: bool = True
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
        timeline = [moment(i, *n, amounts, rank) for i, n in zip(schedule, sizes, strict=True)]
        peak = timeline[top]
        ledger = listed(rows_alive(schedule[top], sizes[top][1], amounts), amounts)
    else:
        peak = moment(schedule[top], *sizes[top], amounts, rank)
        timeline = [peak]
    best = peak.bytes
    of = amounts.bytes
    pages = step.optimizer.paged and paging(plan, step, amounts, best)[1]
    spilled = offload.paged(plan, step) if pages else []
    elsewhere = [
        (r, int(of(r.template.shape, r.template.dtype)))
        for r in (*offload.resting(plan, step), *spilled)
    ]
    if rows:
        found = ((r.template, r.times, each, r.tier) for r, each in elsewhere if r.times * each)
        ledger += tuple(_row(*row, amounts) for row in found)
    tiers = {"hbm": best, "dram": 0, "nvme": 0}
    for r, each in elsewhere:
        tiers[r.tier] += r.times * each
    given = _given(plan, step, amounts, tiers)
    values = Values(plan=plan, memory=given)
    x = values.memory
    memory = Memory(
        allocated_bytes=best,
        peak=Peak(rank, peak.id),
        consumers=peak.consumers,
        saved_for_backward_bytes=int(amounts.held(step.saved)),
        reserved_bytes=x.reserved_bytes,
        device_bytes=x.device_bytes,
        capacity_bytes=given.capacity_bytes,
        fits=x.fits,
        verdict=x.verdict,
        tiers=tiers,
        tier_capacities=x.tier_capacities,
        ranks=ranks or (RankMemory(0, best, peak.id, peak.label, peak.consumers),),
        timeline=tuple(timeline),
        overheads=given.overheads,
    )
    return Counted(memory, ledger)


def _peaks(steps: Sequence[Step], amounts: Amounts) -> list[Number]:
    """The allocated peak of every pipeline stage; those that run the same as in `by_rank`."""
    if len(steps) == 1:
        return [peak_bytes(steps[0], amounts)]
    seen: dict[tuple[bool, bool, Layers], _Alone] = {}
    found: list[Number] = []
    for step in steps:
        key = step.first, step.last, step.layers
        if key not in seen:
            seen[key] = _Alone.of(step.alone, amounts)
        found.append(seen[key].peak(step.waiting))
    return found


@dataclass(frozen=True, slots=True)
class _Alone:
    """Of a stage where no other forward waits, the most bytes while a micro-batch is under way and
    when the optimizer steps; and what each forward that waits adds to the former."""

    running: Number
    stepping: Number
    each: Number

    @classmethod
    def of(cls, step: Step, amounts: Amounts) -> _Alone:
        most: dict[bool, Number] = {True: 0, False: 0}
        for instant in step.instants:
            waits = instant.id not in STEPPING
            most[waits] = amounts.most(most[waits], instant_bytes(instant, amounts)[0])
        return cls(most[True], most[False], amounts.held(step.one_waiting))

    @classmethod
    def charted(cls, step: Step, amounts: Amounts) -> _Alone:
        """The same of many plans, as arrays."""
        running, stepping, each = step.charted(amounts)
        return cls(running.max(axis=0), stepping.max(axis=0), each)

    def peak(self, waiting: Number) -> Number:
        return maximum(self.running + waiting * self.each, self.stepping)


def _tiers(plan: Plan, step: Step, amounts: Amounts, peak: Number) -> dict[str, Number]:
    """Bytes in each tier where the peak of a stage is so high."""
    found: dict[str, Number] = {"hbm": peak, "dram": 0, "nvme": 0}
    for r in offload.resting(plan, step):
        each = amounts.whole(amounts.bytes(r.template.shape, r.template.dtype))
        found[r.tier] = found[r.tier] + r.times * each  # not in place: arrays may be shared
    if step.optimizer.paged:
        _, spilled = paging(plan, step, amounts, peak)
        each = amounts.held(step.holding("paged"))
        found["dram"] = found["dram"] + spilled * each * plan.gpus_in_node
    return found


def swept_memory(plan: Plan, steps: Sequence[Step], amounts: Amounts) -> SimpleNamespace:
    """What quantities of memory read, for arrays of sizes: of the stage that needs the most."""
    found: dict[str, Number] = {}
    peaks = _peaks(steps, amounts)
    for step, peak in zip(steps, peaks, strict=True):
        here = _tiers(plan, step, amounts, peak)
        if step.optimizer.paged:
            pages = paging(plan, step, amounts, peak)[0]
            here |= {"least pages": pages.low, "most pages": pages.high}
        first: Any = found["hbm"] >= here["hbm"] if found else False
        found = {t: where(first, found[t], n) for t, n in here.items()} if found else here
    tiers = dict(found)
    least, most = tiers.pop("least pages", None), tiers.pop("most pages", None)
    overheads = plan_overheads(plan, amounts)
    if by_rules(plan):
        overheads = _segments_of_fullest(plan, steps, peaks, amounts, tiers["hbm"]), *overheads
    given = _given(plan, steps[0], amounts, tiers, overheads)
    if least is not None:  # of another stage than the first
        *others, pages = given.overheads
        given.overheads = (*others, replace(pages, low=least, high=most))
    return given


def _segments_of_fullest(
    plan: Plan, steps: Sequence[Step], peaks: Sequence[Number], amounts: Amounts, most: Number
) -> Overhead:
    """What the native allocator reserves beyond what is allocated, of the first stage that needs
    the most: of each plan another one. Stages that are nowhere the fullest are not replayed."""
    import numpy as np

    fullest = np.argmax(np.broadcast_arrays(*peaks), axis=0)
    stages = [int(stage) for stage in np.unique(fullest)]
    found = segments(plan, steps[stages[0]], amounts, most)
    for stage in stages[1:]:
        here, of = fullest == stage, segments(plan, steps[stage], amounts, most)
        found = replace(
            found, low=where(here, of.low, found.low), high=where(here, of.high, found.high)
        )
    return found


class Room:
    """Whether one plan fits, for those who ask many plans and for nothing else.

    allocated_bytes   the peak of the stage that needs the most
    bytes             that the GPU has to spare; below 0: too much
    """

    def __init__(self, plan: Plan, steps: Sequence[Step], amounts: Amounts):
        peaks = _peaks(steps, amounts)
        self.allocated_bytes = max(peaks)
        self._plan, self._amounts = plan, amounts
        self._step = steps[peaks.index(self.allocated_bytes)]
        self._given = _given(plan, self._step, amounts, {"hbm": self.allocated_bytes})
        self._values = Values(plan=plan, memory=self._given)
        self.bytes: int = self._given.capacity_bytes - self._values.memory.device_bytes[1]

    @property
    def fits(self) -> bool:
        return self.bytes >= 0 and self.verdict == VERDICTS[0]

    @functools.cached_property
    def verdict(self) -> str:
        """As Memory's."""
        self._given.tiers = _tiers(self._plan, self._step, self._amounts, self.allocated_bytes)
        return str(self._values.memory.verdict)


Stages = Sequence[tuple[Step, Any]]
Overheads = tuple[Overhead, ...]


def rooms_for(
    plan: Plan, stages: Stages, amounts: Amounts, asked: Any, overheads: Overheads
) -> tuple[Any, Any]:
    """The same of many plans that run alike, as arrays, for those that are asked; where none of
    them fits with what is there at least, the room that this leaves. Of each kind of pipeline stage
    the first, before which the most forwards wait: its step where none does, and how many do, of
    each plan. Not for who follows the rules of the native allocator."""
    import numpy as np

    shape, room = asked.shape, most_room(plan, stages, amounts, overheads)
    fits = np.zeros(shape, dtype=bool)
    if not np.any(asked & (room >= 0)):
        return np.broadcast_to(room, shape), fits
    peaks = [
        np.broadcast_to(_Alone.charted(step, amounts).peak(waiting), shape)
        for step, waiting in stages
    ]
    fullest, most = np.argmax(peaks, axis=0), np.max(peaks, axis=0)
    room = np.empty(shape)
    for stage, (step, waiting) in enumerate(stages):
        here = fullest == stage
        if not here.any():
            continue
        given, spare = _spare(plan, step, amounts, most, overheads)
        room[here] = np.broadcast_to(spare, shape)[here]
        here = here & asked & (room >= 0)
        if not here.any():
            continue
        # What each forward that waits has left is on the host too.
        waited = replace(step, waiting=waiting) if step.offload_activations != "none" else step
        given.tiers = _tiers(plan, waited, amounts, most)
        values = Values(plan=plan, memory=given)
        fits[here] = np.broadcast_to(values.memory.fits, shape)[here]
    return room, fits


def most_room(plan: Plan, stages: Stages, amounts: Amounts, overheads: Overheads) -> Any:
    """No less than the GPU has to spare, of each plan: with what is there at least."""
    each = (least_bytes(step, waiting, amounts) for step, waiting in stages)
    return _spare(plan, stages[0][0], amounts, functools.reduce(maximum, each), overheads)[1]


def _spare(
    plan: Plan, step: Step, amounts: Amounts, peak: Number, overheads: Overheads | None = None
) -> tuple[SimpleNamespace, Any]:
    """What quantities of memory read where a peak is so high, but for other tiers; and bytes that
    the GPU has to spare."""
    given = _given(plan, step, amounts, {"hbm": peak, "dram": 0, "nvme": 0}, overheads)
    values = Values(plan=plan, memory=given)
    return given, given.capacity_bytes - values.memory.device_bytes[1]


def least_bytes(step: Step, waiting: Number, amounts: Amounts) -> Number:
    """Bytes that a stage has at least when its last layer runs forward: cheap to find, and never
    above the peak. `waiting`: forwards that wait there."""
    least, each = step.charted_least(amounts)
    return least + waiting * each


def _given(
    plan: Plan,
    step: Step,
    amounts: Amounts,
    tiers: Mapping[str, Number],
    overheads: Overheads | None = None,
) -> SimpleNamespace:
    """What quantities of memory read as it is. `step`: of one stage, where stages differ.
    overheads: what no shape determines, where that is known."""
    if overheads is None:
        overheads = _overheads(plan, step, amounts, tiers["hbm"])
    if step.optimizer.paged:
        overheads += (paging(plan, step, amounts, tiers["hbm"])[0],)
    return SimpleNamespace(
        allocated_bytes=tiers["hbm"],
        tiers=tiers,
        capacity_bytes=plan.accelerator.usable_bytes,
        overheads=overheads,
    )


def _overheads(plan: Plan, step: Step, amounts: Amounts, allocated: Number) -> tuple[Overhead, ...]:
    """What no shape determines, but for pages."""
    overheads = plan_overheads(plan, amounts)
    if by_rules(plan):
        overheads = segments(plan, step, amounts, allocated), *overheads
    return overheads


def paging(plan: Plan, step: Step, amounts: Amounts, allocated: Number) -> tuple[Overhead, Number]:
    """What of the states in unified memory has room on the GPU, where the device counts it, and
    whether others have none at the fullest instant: then they pass through the host."""
    every = amounts.held(step.holding("paged"))
    given = SimpleNamespace(
        allocated_bytes=allocated,
        capacity_bytes=plan.accelerator.usable_bytes,
        overheads=_overheads(plan, step, amounts, allocated),
    )
    values = Values(plan=plan, memory=given)
    room = [amounts.most(0, given.capacity_bytes - end) for end in values.memory.device_bytes]
    low, high = (amounts.least(every, n) for n in room)
    found = Overhead(PAGES, low, high, "device", "assumed", MANAGED)
    return found, every > room[1]


PAGES = "optimizer states in unified memory, as many as there is room for"


def spills(plan: Plan, step: Step, amounts: Amounts) -> Number:
    """Whether states in unified memory pass through the host in a step."""
    return paging(plan, step, amounts, peak_bytes(step, amounts))[1]


@interval("memory.reserved_bytes", "Reserved by PyTorch", "bytes", word="reserved")
def reserved_bytes(x: Any, end: int) -> Read:
    return reserved(x, x.memory.allocated_bytes, x.memory.overheads, end)


@interval("memory.device_bytes", "Device memory", "bytes", word="device")
def device_bytes(x: Any, end: int) -> Read:
    return total([x.memory.reserved_bytes[end], *counted(x.memory.overheads, "device", end)])


@interval(
    "memory.overhead_bytes",
    "Overhead beyond allocated",
    "bytes",
    "The allocator's slack, the CUDA context and NCCL's buffers.",
)
def overhead_bytes(x: Any, end: int) -> Read:
    return x.memory.device_bytes[end] - x.memory.allocated_bytes


@interval("memory.room_bytes", "To spare", "bytes", "What is left of the GPU; below 0: too much.")
def room_bytes(x: Any, end: int) -> Read:
    return x.memory.capacity_bytes - x.memory.device_bytes[1 - end]


def left_for_host(x: Any) -> Read:
    """Of unified memory, at most: what the GPU leaves."""
    return at_least_zero(x.memory.capacity_bytes - x.memory.device_bytes[0])


@computed("memory.tier_capacities")
def tier_capacities(x: Any) -> Mapping[str, Number]:
    """What each tier can hold: of one GPU, and of one node."""
    node, unified = x.plan.node, x.plan.accelerator.unified_memory
    dram = left_for_host(x) if unified else node.dram_bytes
    return {"hbm": x.memory.capacity_bytes, "dram": dram, "nvme": node.nvme_bytes}


TO_FIT = "Whether the step fits, on the counter that nvidia-smi shows."
HOST_TIERS = {"dram": "Host DRAM", "nvme": "NVMe"}


def _judged(x: Any) -> tuple[Read, Read]:
    m, needed = x.memory, x.memory.device_bytes
    if x.plan.accelerator.unified_memory:  # the host's share is of the same memory
        needed = [end + m.tiers["dram"] for end in needed]
    others = [(m.tiers[t], named(name, m.tier_capacities[t])) for t, name in HOST_TIERS.items()]
    return fitting(needed, m.capacity_bytes, others)


@quantity("memory.fits", "Verdict", "", TO_FIT)
def fits(x: Any) -> Read:
    return _judged(x)[0]


@quantity("memory.verdict", "Verdict", "", TO_FIT)
def verdict(x: Any) -> Read:
    return _judged(x)[1]


def rows_at(plan: Plan, instant: int, stage: int = 0) -> tuple[LedgerRow, ...]:
    """What is alive at one instant of a pipeline stage's timeline: its bytes, row by row."""
    amounts, chosen = Amounts(training_sizes(plan)), step_of(plan, stage).instants[instant]
    return listed(rows_alive(chosen, instant_bytes(chosen, amounts)[1], amounts), amounts)


def held(step: Step, amounts: Amounts) -> dict[str, int]:
    """The most bytes that the rows of a name take on the GPU at any instant of a step."""
    most: dict[str, int] = {}
    for instant in step.instants:
        here: dict[str, int] = {}
        for template, times, each in _templates(instant.alive, amounts):
            here[template.name] = here.get(template.name, 0) + times * each
        inside: dict[str, int] = {}
        for row in instant.window.rows if instant.window else ():
            size = int(amounts.bytes(row.shape, row.dtype))
            inside[row.name] = max(inside.get(row.name, 0), size)
        for name, size in inside.items():
            here[name] = here.get(name, 0) + size
        for name, size in here.items():
            most[name] = max(most.get(name, 0), size)
    return most


def rested(plan: Plan, step: Step, amounts: Amounts) -> dict[tuple[str, str], int]:
    """Bytes of the rows of a name in each tier of the host, per node."""
    found: dict[tuple[str, str], int] = {}
    for r in offload.resting(plan, step):
        key = r.template.name, r.tier
        size = r.times * int(amounts.bytes(r.template.shape, r.template.dtype))
        found[key] = found.get(key, 0) + size
    return found


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


def by_consumer(holding: Holding, amounts: Amounts) -> dict[str, int]:
    """Bytes of a holding by consumer."""
    parts = holding.by_consumer
    return {name: amounts.held(parts[name]) if name in parts else 0 for name in CONSUMERS}


def moment(instant: Instant, n: Number, at: int, amounts: Amounts, rank: int) -> InstantMemory:
    consumers = by_consumer(instant.holding, amounts)
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
        amounts.extents(template.shape),
        template.dtype,
        each,
        times,
        times * each,
        tier,
        template.lifetime,
        template.certainty,
        template.source,
        template.why,
        template.role is Role.ANGLES,
    )
