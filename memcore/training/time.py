"""Training time: what one optimizer step costs on one GPU, what hides behind what, and why.

A pipeline takes the time of its slowest stage for every micro-batch, and that of the other stages
once: until the first micro-batch arrives and after the last has left. Then each stage updates its
own weights.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

from memcore.plan.plan import Plan
from memcore.quantity.interval import interval
from memcore.quantity.reading import Read, Values, quantity
from memcore.report import OperationTime, Time, Transfer
from memcore.step.step import Step
from memcore.tape.dims import Number, maximum, where
from memcore.tape.ledger import Amounts
from memcore.timing import host
from memcore.timing.certainty import compared
from memcore.timing.communication import Move
from memcore.timing.roofline import Speed, by_phase, operation
from memcore.training.convention import convention_flops
from memcore.training.executions import buffer_bytes, peak_dtype, speed_of, started, update, updated
from memcore.training.stages import Stage, bubble_seconds, stages
from memcore.training.transfers import outgrown, with_ends

LINKS = ("compute", "hbm", "nvlink", "network", "pcie", "dram", "nvme", "host")


@dataclass(slots=True)
class _Traffic:
    """Transfers so far, one for each link of each move where they are `listed`, with busy and
    exposed seconds by link."""

    listed: bool
    transfers: list[Transfer] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))
    exposed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINKS, 0.0))

    def add(self, move: Move, micro_batch: int) -> None:
        exposed = move.exposed_by_link
        for link, each in move.seconds.items():
            shown = exposed[link]
            # Not in place: arrays may be shared.
            self.busy[link] = self.busy[link] + each * move.times
            self.exposed[link] = self.exposed[link] + shown
            if not self.listed:
                continue
            self.transfers.append(
                Transfer(
                    move.name, link, move.bytes * move.times, each * move.times, shown,
                    str(move.hidden_by), move.bytes / move.cover if move.cover > 0 else None,
                    micro_batch * each / move.cover if outgrown(move) else None,
                )
            )  # fmt: skip


def training_time(plan: Plan, every: Sequence[tuple[Stage, Whole]], amounts: Amounts) -> Time:
    """Time of one optimizer step. Assumes that transfers overlap as the framework schedules them:
    FSDP2 gathers the next layer while one runs, DDP reduces buckets during backward.

    `every`: all pipeline stages. The one whose step takes longest is found here: besides its
    micro-batches each updates weights of its own, so that the slowest of one may not be it."""
    wholes = [whole for _, whole in every]
    rank = max(range(len(every)), key=lambda k: wholes[k].seconds)
    slowest, whole = every[rank]
    traffic, phases, operations = whole.traffic, by_phase(whole.operations), whole.operations
    of = _numbers(plan, slowest, whole, amounts)

    values = Values(plan=plan, time=SimpleNamespace(step_seconds=whole.seconds))
    rates = values.time
    bound_by = max(traffic.exposed, key=lambda link: traffic.exposed[link])
    phases["communication"] = traffic.exposed["nvlink"] + traffic.exposed["network"]
    phases["offload"] = sum(traffic.exposed[k] for k in ("pcie", "dram", "nvme"))
    phases["host"] = traffic.exposed["host"]
    phases["bubble"] = whole.bubble
    return Time(
        step_seconds=whole.seconds,
        step_interval=rates.step_interval,
        compared=compared(plan).words(plan),
        tokens_per_second=rates.tokens_per_second,
        tokens_per_second_per_gpu=rates.tokens_per_second_per_gpu,
        mfu=of.mfu,
        hfu=of.hfu,
        bound_by=bound_by,
        resources=traffic.busy,
        exposed=traffic.exposed,
        phases=phases,
        model_flops=of.model_flops,
        hardware_flops=of.hardware_flops,
        recompute_flops=of.recompute_flops,
        operations=tuple(operations),
        transfers=tuple(traffic.transfers),
        stage=slowest.time.rank,
        bubble_seconds=whole.bubble,
        stages=tuple(replace(s.time, step=w.seconds) for s, w in every),
        starts=whole.starts,
    )


def wholes_of(
    plan: Plan, steps: Sequence[Step], amounts: Amounts, listed: bool = False
) -> list[tuple[Stage, Whole]]:
    """Every pipeline stage with its whole step; `listed`: with its transfers."""
    speed = speed_of(plan, steps[0])
    every = stages(plan, steps, amounts, speed)
    like: dict[int, Whole] = {}  # stages that run the same share their list of operations
    return [
        (s, like.get(key) or like.setdefault(key, _whole(plan, s, every, amounts, speed, listed)))
        for s in every
        for key in (id(s.operations),)
    ]


@dataclass(frozen=True, slots=True)
class SweptTime:
    """Numbers of `Time` as arrays, each of the stage that is the slowest there."""

    step_seconds: Number
    bubble_seconds: Number
    mfu: Number
    hfu: Number
    model_flops: Number
    hardware_flops: Number
    recompute_flops: Number
    exposed: Mapping[str, Number]
    resources: Mapping[str, Number]


def swept_time(plan: Plan, steps: Sequence[Step], amounts: Amounts) -> SweptTime:
    """Time of one optimizer step for arrays of sizes."""
    every = (_numbers(plan, s, whole, amounts) for s, whole in wholes_of(plan, steps, amounts))
    return functools.reduce(_slower, every)


def _numbers(plan: Plan, stage: Stage, whole: Whole, amounts: Amounts) -> SweptTime:
    """Those of one stage."""
    recomputed = sum([o.flops for o in whole.operations if o.phase == "recompute"])
    model_flops = plan.train.grad_accumulation * convention_flops(plan, stage.step, amounts)
    peak = plan.accelerator.peak_flops(peak_dtype(stage.step))
    return SweptTime(
        whole.seconds,
        whole.bubble,
        model_flops / whole.seconds / peak,
        (model_flops + recomputed) / whole.seconds / peak,
        model_flops,
        sum([o.flops for o in whole.operations]),
        recomputed,
        whole.traffic.exposed,
        whole.traffic.busy,
    )


def _slower(a: SweptTime, b: SweptTime) -> SweptTime:
    """Element by element the one whose step takes longer; of equal ones the first."""
    first = a.step_seconds >= b.step_seconds

    def chosen(x: Any, y: Any) -> Any:
        if isinstance(x, dict):
            return {k: where(first, x[k], y[k]) for k in x}
        return where(first, x, y)

    return SweptTime(*(chosen(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)))


@dataclass(frozen=True, slots=True)
class Whole:
    """One stage's whole optimizer step, with what it waits for the others. on_gpu: seconds of all
    forwards and all backwards, with their transfers; after: of what follows the last."""

    operations: list[OperationTime]
    traffic: _Traffic
    starts: dict[str, float]
    bubble: float
    seconds: float
    on_gpu: tuple[float, float]
    after: float


def _whole(
    plan: Plan, stage: Stage, every: Sequence[Stage], amounts: Amounts, speed: Speed, listed: bool
) -> Whole:
    step, operations, batches = stage.step, stage.operations, plan.train.grad_accumulation
    starts = dict.fromkeys(host.PHASES, 0.0)
    each = host.each_start(plan)
    late = updating = 0.0
    if step.offload == "none":
        update = _optimizer(step, amounts, speed)
        operations = [*operations, update]
        starts[host.OPTIMIZER] = host.optimizer_starts(step, amounts)
        late = maximum(0.0, each * starts[host.OPTIMIZER] - update.seconds)
        updating = update.seconds + late

    traffic = _Traffic(listed)
    traffic.busy["compute"] = sum([o.compute_seconds for o in operations])
    traffic.busy["hbm"] = sum([o.hbm_seconds for o in operations])
    exposed = traffic.exposed
    for o in operations:
        if not amounts.arrays:
            exposed[o.bound_by] += o.seconds
            continue
        for link in ("compute", "hbm"):
            here: Any = o.bound_by == link
            exposed[link] = exposed[link] + where(here, o.seconds, 0.0)
    transfers = with_ends(plan, step, amounts, operations, stage.transfers)
    for move in transfers:
        traffic.add(move, plan.train.micro_batch)
    begun = started(step, amounts, batches, transfers)
    starts |= zip(host.PHASES, begun, strict=False)
    taken = each * begun[0], each * begun[1]
    on_gpu = host.on_gpu(by_phase(operations), transfers)
    waits = host.waited(taken, on_gpu, batches)
    after = updating + sum(m.exposed for m in transfers if host.at_end(m))
    traffic.busy["host"] = each * sum(starts.values())
    exposed["host"] = late + waits
    bubble = bubble_seconds(plan, every, stage)
    seconds = sum(exposed.values()) + bubble
    return Whole(operations, traffic, starts, bubble, seconds, on_gpu, after)


def _optimizer(step: Step, amounts: Amounts, speed: Speed) -> OperationTime:
    """The optimizer step on the GPU: it reads and writes its states, and reads the gradients, which
    it may widen first."""
    weights, states = updated(step, amounts)
    flops, moved = update(step, float(weights), states, buffer_bytes(step, amounts))
    kernel = step.optimizer.kernel
    return operation("optimizer step", "optimizer", flops, moved, speed, 1, kernel=kernel)


@interval(
    "time.step_interval", "Step time, from and to", "seconds",
    "What 9 of 10 measured steps of the like would lie between, had they been as far off ours.",
)  # fmt: skip
def step_interval(x: Any, end: int) -> Read:
    of = compared(x.plan)
    share = x.known(
        "measured over predicted",
        (of.low, of.high)[end],
        source="presets/evidence/times.toml, by distance: presets/evidence/intervals.toml",
        note=of.words(x.plan),
        certainty="measured",
    )
    return x.time.step_seconds * share


@quantity("time.tokens", "Tokens of a step", "tokens")
def tokens(x: Any) -> Read:
    ranks = x.known(
        "data-parallel ranks",
        x.plan.dp,
        source="the plan: cluster.gpus",
        note="GPUs / (tp x pp x cp)",
    )
    train = x.plan.train
    return train.micro_batch * train.seq_len * train.grad_accumulation * ranks


@quantity("time.tokens_per_second", "Tokens per second", "tokens/s", "Of all GPUs together.")
def tokens_per_second(x: Any) -> Read:
    return x.time.tokens / x.time.step_seconds


@quantity("time.tokens_per_second_per_gpu", "Tokens per second and GPU", "tokens/s")
def tokens_per_second_per_gpu(x: Any) -> Read:
    return x.time.tokens_per_second / x.plan.cluster.gpus
