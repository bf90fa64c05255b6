"""Memory: a plan's instants turned into bytes, the peak among them, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.report import CONSUMERS, InstantMemory, LedgerRow, Memory, Peak, RankMemory
from memcore.step.step import Alive, Instant, Step, saved_for_backward
from memcore.tape.dims import Number, maximum
from memcore.tape.ledger import Amounts, Holding, Template
from memcore.training import offload
from memcore.training.overheads import plan_overheads, reserved_bytes
from memcore.training.steps import step_of, training_sizes


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
    overheads = plan_overheads(plan, amounts)
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
    beside = 0
    if plan.accelerator.unified_memory:  # the host's share is of the same memory
        beside, room["dram"] = tiers["dram"], max(0, capacity - device[0])
    roomy = all(tiers[t] <= room[t] for t in ("dram", "nvme"))
    fits = roomy and device[1] + beside <= capacity
    possible = roomy and device[0] + beside <= capacity
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
