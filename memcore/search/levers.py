"""Levers: every single change to a plan that a practitioner would try, and what it saves and costs.

A lever changes a few fields; what must follow them is mended by the rules. Its bytes and seconds
are the difference of two evaluations and nothing else. What is tried, and in which order a
practitioner would, is the table TRIES. A field that is tried alone declares so itself, and a new
word of a policy is a lever as soon as the policy's table has it. Two at once are tried where no
single one makes a plan fit and trains the same.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.cache import seldom_collected
from memcore.plan.field import FROZEN, MACHINES, OTHER, ROUNDED, SAME, EachWord, Switch
from memcore.plan.plan import Plan, facts, field_paths, get, words_of
from memcore.plan.remedies import SHARDED, WHOLE
from memcore.plan.repair import planned, settled
from memcore.report import Memory
from memcore.search.change import (
    Changes,
    PlanChange,
    Way,
    climbed,
    differences,
    in_order,
    named,
)
from memcore.search.edges import first
from memcore.timing.certainty import apart
from memcore.training.training import Pool, Training
from memcore.units import bytes_text
from memcore.words.jobs import JOBS
from memcore.words.precision import PURE

# What a change makes of the training itself: the same numbers but for their rounding, optimizer
# states in fewer bits, or another training.
TRAINS = {SAME: "trains the same", ROUNDED: "rounds states", OTHER: "changes the training"}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a change leaves as it was. `trains`: a word of TRAINS; `rank`: kinds in the order in
    which they are thought of; `reluctance`: what more of a step's time people would rather pay
    than do it."""

    trains: str
    rank: int
    reluctance: float = 0.0


KINDS = {
    SAME: Kind(SAME, 0),
    # Adam's states in 8 bits train as well (Dettmers et al. 2022), but not bit by bit the same; the
    # tenth is assumed.
    ROUNDED: Kind(ROUNDED, 0, 0.1),
    MACHINES: Kind(SAME, 1),  # where the batch is the same
    OTHER: Kind(OTHER, 2),
    # Cheap, as backward ends early, but tried after adapters, which learn more with fewer trained
    # parameters than the last layers do (Hu et al. 2021, LoRA, table 3: FT-Top2).
    FROZEN: Kind(OTHER, 3),
}

Try = Callable[[Plan], Iterable[Way]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever(PlanChange):
    """One change of how a plan trains, against the plan as it is.

    trains              what becomes of the training, a word of TRAINS
    saved_bytes         of the allocated peak of one GPU; below 0: it needs more
    saved_device_bytes  of the device memory that may be needed at most
    added_seconds       per step
    added_per_token     seconds per token, which say more where the batch differs
    price               GPU-seconds per token over those of the plan, less 1
    price_range         what it would be in eight of ten measured pairs (timing.certainty.apart)
    same_batch          whether a step has as many tokens as before
    """

    kind: str
    trains: str
    saved_bytes: int
    saved_device_bytes: int
    added_seconds: float
    added_per_token: float
    price: float
    price_range: tuple[float, float]
    same_batch: bool
    verdict: str

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def felt_price(self) -> float:
        """What it costs of a step's time, with what people would rather pay than do it."""
        return 1 + self.price + KINDS[self.kind].reluctance

    @property
    def saves(self) -> bool:
        return self.saved_device_bytes > 0

    @property
    def steps_compare(self) -> bool:
        """Whether a step is the same work on as many GPUs, so that its seconds can be compared."""
        return self.same_batch and "cluster.gpus" not in self.changes

    @property
    def faster(self) -> bool:
        return self.price <= -FASTER

    @property
    def single(self) -> bool:
        return len(self.fields) == 1

    @property
    def moves(self) -> bool:
        """Whether another framework has to run it with layers of its own: another program to write,
        and not a setting."""
        return {"train.framework", "train.kernels"} <= self.changes.keys()

    @property
    def trains_text(self) -> str:
        """What becomes of the training; where a step has another number of tokens, how many."""
        text = TRAINS[self.trains]
        return text if self.same_batch else f"{text}: {self.plan.tokens_per_step:,} tokens a step"


def levers(plan: Plan) -> tuple[Lever, ...]:
    """What can be changed about a plan, the best first.

    While it is not sure to fit: what makes it fit, then what helps, the most first. When it fits:
    what is faster and fits too, then what saves memory. They stand by kind, as ORDER says it.
    """
    with seldom_collected():
        return _levers(plan)


def _levers(plan: Plan) -> tuple[Lever, ...]:
    pool: Pool = {}
    now = Training.of(plan, rows=False, pool=pool)
    if now is None:
        return ()
    seconds, memory = now.seconds, now.memory
    levers: list[Lever] = []
    tried: list[_Tried] = []
    for attempt in TRIES:
        for way in attempt(plan):
            chosen = _climbed(plan, way, memory, pool)
            if chosen is None:
                continue
            tried.append(chosen)
            lever = _lever(now, seconds, chosen)
            if lever:
                levers.append(lever)
    if not memory.fits and not any(lever.fits and lever.kind == SAME for lever in levers):
        levers += _pairs(now, seconds, pool, [t for t in tried if t.kind in (SAME, ROUNDED)])
        if not any(lever.fits for lever in levers):
            levers += _pairs(now, seconds, pool, [t for t in tried if t.kind != MACHINES])
        if not any(lever.fits for lever in levers):
            levers += _in_turn(now, seconds, pool, tried)
    mended = memory.fits or any(lever.fits for lever in levers)
    return in_order(
        levers,
        lambda lever: _group(lever, memory, mended),
        lambda lever: _in_group(lever, memory),
        lambda lever: lever.felt_price if _priced(lever, memory) else None,
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """Changes that were tried; `parts`: one, or those of two at once. `then`: training with them,
    or None where the rules forbid them."""

    kind: str
    parts: tuple[Changes, ...]
    then: Training | None

    @property
    def changes(self) -> Changes:
        return {path: value for part in self.parts for path, value in part.items()}


# In which order levers stand, for people.
ORDER = (
    "By kind: settings that train the same, another program for it, more GPUs or two changes, what "
    "changes the training; of each the cheapest in GPU time per token first."
)


def headline(memory: Memory, levers: Sequence[Lever]) -> str:
    """What the levers come to: '3.2 GiB too much: 5 changes make it fit'."""
    if memory.fits:
        faster = sum(lever.faster and lever.fits for lever in levers)
        if not faster:
            return f"It fits, and none of {len(levers)} changes is faster and fits too"
        return f"It fits. {faster} of {len(levers)} changes are faster and fit too"
    low, high = (size - memory.capacity_bytes for size in memory.device_bytes)
    over = (
        f"at least {bytes_text(low)} too much" if low > 0 else f"up to {bytes_text(high)} too much"
    )
    if not max(low, high) > 0:
        over = "host memory or NVMe is too small"
    fixes = [lever for lever in levers if lever.fits]
    if not fixes:
        helps = ": these save the most" if levers else ""
        return f"{over[:1].upper()}{over[1:]}, and neither one change nor two make it fit{helps}"
    single = sum(lever.single for lever in fixes)
    counts = (
        (single, "change", "changes"),
        (len(fixes) - single, "pair of changes", "pairs of changes"),
    )
    named = " and ".join(f"{n:,} {one if n == 1 else more}" for n, one, more in counts if n)
    changes = f"{named} {'makes' if len(fixes) == 1 else 'make'} it fit"
    return f"{over[:1].upper()}{over[1:]}: {changes}"


def _in_group(lever: Lever, memory: Memory) -> tuple[float, ...]:
    """What levers of a group are sorted by, the smallest first: the price to a percent; of what
    does not make the plan fit, the bytes that it saves."""
    if not _priced(lever, memory):
        return (-lever.saved_device_bytes,)
    trains = list(TRAINS).index(lever.trains) if not memory.fits else 0
    return round(lever.felt_price, DIGITS), trains


def _priced(lever: Lever, memory: Memory) -> bool:
    return memory.fits or lever.fits


def _group(lever: Lever, memory: Memory, mended: bool) -> tuple[int, ...]:
    """What levers are sorted by first, the smallest first.

    Where the plan fits: what fits too and is faster. Where it does not: what makes it fit, then
    what may, then the rest. Within each: what trains the same, then more machines (and a pair of
    changes, if it trains the same), then what changes the training. Within these: settings before
    another program. Where no lever makes it fit (`mended` is false), more machines last."""
    kind = KINDS[lever.kind]
    rank = kind.rank if lever.single else max(kind.rank, KINDS[MACHINES].rank)
    # Nobody with one GPU goes to a framework that is there to share a model among many.
    alone = lever.moves and lever.plan.cluster.gpus == 1
    if memory.fits:
        return alone, not (lever.fits and lever.faster), rank, lever.moves
    if lever.fits:
        return 0, alone, rank, lever.moves
    of_kind = (alone, rank, lever.moves) if mended else (lever.kind == MACHINES,)
    return (1, lever.verdict == "over", *of_kind)


DIGITS = 2  # digits of a price: what differs by less than a per cent is as cheap
NOTICED = 0.001  # of a GPU's memory: what saves less is no lever
FASTER = 0.005  # of a step: what saves less time is none either


def _climbed(plan: Plan, way: Way, memory: Memory, pool: Pool) -> _Tried | None:
    """The change of a ladder that is taken; None where none saves memory or fits."""
    tried: dict[int, Training | None] = {}

    def then(i: int) -> Training | None:
        if i not in tried:
            changed = with_changes(plan, way.ladder[i])
            tried[i] = Training.of(changed, rows=False, pool=pool) if changed else None
        return tried[i]

    def fits(i: int) -> bool:
        there = then(i)
        return there is not None and there.room.fits

    best = climbed(
        way.looked_at or range(len(way.ladder)),
        then,
        lambda t: _device(t) < memory.device_bytes[1] or (memory.fits and t.room.fits),
        lambda t: t.room.fits,
    )
    if best is None:
        forbidden = tried and not any(tried.values())
        return _Tried(way.kind, (way.ladder[0],), None) if forbidden else None
    i, _ = best
    if way.looked_at and fits(i):
        i = _first(i, max([k for k in way.looked_at if k < i], default=-1) + 1, fits)
    return _Tried(way.kind, (way.ladder[i],), then(i))


def _device(training: Training) -> int:
    """Bytes of a GPU at most; told sooner than all of `memory`."""
    return training.plan.accelerator.usable_bytes - training.room.bytes


BELOW = 16  # smaller counts that are looked at beside those that halving comes by


def _first(top: int, low: int, fits: Callable[[int], bool]) -> int:
    """The first of a ladder that fits; `top` does, and below `low` nothing did. Found by halving,
    and then downwards: a count that pads experts less may fit below one that does not."""
    top = low + first(top - low, lambda i: fits(low + i))
    return min(filter(fits, range(max(0, top - BELOW), top)), default=top)


PAIRS = 24  # that are evaluated
PARTNERS = 3  # of those that save most, which are tried with what is forbidden by itself
BEST = 3  # pairs that are listed


def _pairs(now: Training, seconds: float, pool: Pool, tried: Sequence[_Tried]) -> list[Lever]:
    """Two changes at once that make a plan fit, the best few. Neither does by itself; the one may
    even be forbidden without the other."""
    plan, before = now.plan, now.memory.device_bytes[1]
    saved = {i: before - _device(t.then) for i, t in enumerate(tried) if t.then}
    helping = sorted((i for i, n in saved.items() if n > 0), key=lambda i: -saved[i])
    together = [(saved[i] + saved[k], i, k) for i, k in itertools.combinations(helping, 2)]
    together.sort(key=lambda t: -t[0])
    forbidden = [i for i, t in enumerate(tried) if t.then is None and t.kind == SAME]
    first = [(0, i, k) for k in forbidden for i in helping[:PARTNERS]]
    levers, evaluated = [], 0
    for _, i, k in [*first, *together]:
        if evaluated >= PAIRS:
            break
        a, b = sorted((tried[i], tried[k]), key=lambda t: list(KINDS).index(t.kind))
        if a.changes.keys() & b.changes.keys():
            continue
        changes = a.changes | b.changes
        changed = planned(plan, changes)
        if b.then is not None and a.then is not None:
            changed = changed or with_changes(plan, changes)
        then = changed and Training.of(changed, rows=False, pool=pool)
        evaluated += then is not None
        if then and then.room.fits:
            pair = _Tried(b.kind, (*a.parts, *b.parts), then)
            if lever := _lever(now, seconds, pair):
                levers.append(lever)
    return _best(levers, now.memory)


def _best(pairs: Sequence[Lever], memory: Memory) -> list[Lever]:
    """The best few."""
    return sorted(pairs, key=lambda v: (_group(v, memory, True), _in_group(v, memory)))[:BEST]


def _in_turn(now: Training, seconds: float, pool: Pool, tried: Sequence[_Tried]) -> list[Lever]:
    """One change, and then what makes the plan fit that has it, of those that come nearest to
    fitting; the best few. The second may save nothing by itself: an adapter takes the peak from
    the optimizer to the loss, and then a loss in chunks saves what is missing."""
    near = sorted(
        ((_device(t.then), i) for i, t in enumerate(tried) if t.then and t.kind != MACHINES)
    )
    levers = []
    for _, i in near[:PARTNERS]:
        one = tried[i]
        assert one.then
        for attempt in TRIES:
            for way in attempt(one.then.plan):
                other = _climbed(one.then.plan, way, one.then.memory, pool)
                if not other or not other.then or not other.then.room.fits:
                    continue
                if other.kind == MACHINES or one.changes.keys() & other.changes.keys():
                    continue
                kind = max((one.kind, other.kind), key=list(KINDS).index)
                pair = _Tried(kind, (*one.parts, *other.parts), other.then)
                if lever := _lever(now, seconds, pair):
                    levers.append(lever)
    return _best(levers, now.memory)


def _lever(now: Training, before: float, tried: _Tried) -> Lever | None:
    """The difference that a change makes, or None where it makes none that matters.
    `before`: seconds of a step without it."""
    kind, then = tried.kind, tried.then
    if then is None:
        return None
    plan, changed = now.plan, then.plan
    device = now.memory.device_bytes[1] - _device(then)
    noticed = device >= NOTICED * now.memory.capacity_bytes
    if not noticed and kind == OTHER:
        return None
    tokens, tokens_then = plan.tokens_per_step, changed.tokens_per_step
    after = then.seconds
    gpus = changed.cluster.gpus / plan.cluster.gpus
    price = (after / tokens_then) / (before / tokens) * gpus - 1
    saved = now.memory.allocated_bytes - int(then.room.allocated_bytes)
    if not noticed and price > -FASTER:
        return None
    same_batch = tokens == tokens_then
    apart_by = apart(plan, changed).ratio
    return Lever(
        **named(tried.parts, plan, changed),
        kind=kind,
        trains=KINDS[kind].trains if same_batch else OTHER,
        saved_bytes=saved,
        saved_device_bytes=device,
        added_seconds=after - before,
        added_per_token=after / tokens_then - before / tokens,
        price=price,
        price_range=((1 + price) / apart_by - 1, (1 + price) * apart_by - 1),
        same_batch=same_batch,
        verdict=then.room.verdict,
    )


# Fields that may follow a change; where the rules would change others, it is not one change.
FOLLOWERS = (
    *("train.framework", "train.zero", "train.kernels", "train.attention", "train.cross_entropy"),
    *("parallel.sequence_parallel", "parallel.schedule", "parallel.virtual_stages"),
)


def with_changes(plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    """The plan with some fields changed and what must follow them, or None if that is no plan."""
    fitted = settled(plan, changes)
    others = differences(plan, fitted).keys() - changes.keys() - set(FOLLOWERS) if fitted else ()
    return fitted if fitted and not others else None


def meant(plan: Plan, path: str) -> bool:
    """Whether a field has a meaning in this plan."""
    when = facts(path).when
    return when is None or when(functools.partial(get, plan), plan.architecture)


def declared(path: str) -> Try:
    """What a field declares as its levers: each other word of it, or one value."""
    lever = facts(path).lever

    def ways(plan: Plan) -> Iterable[Way]:
        here = get(plan, path)
        if not meant(plan, path):
            return
        if isinstance(lever, Switch) and here != lever.to:
            yield Way(SAME, [{path: lever.to}])
        if isinstance(lever, EachWord):
            for word in words_of(path) or ():
                if word != here:
                    yield Way(lever.kind, [{path: word}])

    return ways


ADAMS = {  # as each takes a step of Adam
    "adamw": SAME,
    "adamw-foreach": SAME,
    "paged-adamw32bit": SAME,
    "adam8bit": ROUNDED,
    "paged-adamw8bit": ROUNDED,
}


def _optimizers(plan: Plan) -> Iterable[Way]:
    """Another optimizer. Adam is the same one fused and in lists, and nearly so in 8 bits."""
    here = plan.train.optimizer
    for word in words_of("train.optimizer") or ():
        if word != here:
            kind = max(ADAMS.get(here, OTHER), ADAMS.get(word, OTHER), key=list(KINDS).index)
            yield Way(kind, [{"train.optimizer": word}])


def smaller_batches(plan: Plan) -> list[Changes]:
    """Fewer sequences at a time, and as many more times: the step has the same tokens."""
    n, times = plan.train.micro_batch, plan.train.grad_accumulation
    return [
        {"train.micro_batch": d, "train.grad_accumulation": times * n // d}
        for d in range(n // 2, 0, -1)
        if n % d == 0
    ]


def _smaller_batches(plan: Plan) -> Iterable[Way]:
    yield Way(SAME, smaller_batches(plan))


def _larger_batches(plan: Plan) -> Iterable[Way]:
    n, times = plan.train.micro_batch, plan.train.grad_accumulation
    if times % 2 == 0:
        yield Way(SAME, [{"train.micro_batch": 2 * n, "train.grad_accumulation": times // 2}])


def _stages_of_zero(plan: Plan) -> Iterable[Way]:
    for stage in range(4):
        if stage != plan.train.zero and plan.dp * plan.parallel.cp > 1:
            yield Way(SAME, [{"train.zero": stage}])


HALVES = ("bf16", "fp16")


def _shared_adapters(plan: Plan) -> Iterable[Way]:
    """Adapters on a model that every GPU has whole, with the model shared out: by DeepSpeed, as the
    guides of PEFT have it, which keeps the adapters' states in fp32, or else by FSDP2."""
    t = plan.train
    of = t.precision.partition("-")[0]
    if t.framework not in WHOLE or plan.dp == 1 or t.adapter == "none" or of not in HALVES:
        return
    shared = {"train.zero": 3, "train.framework": "deepspeed", "train.precision": f"{of}-mixed"}
    yield Way(SAME if t.precision in PURE else ROUNDED, [shared])
    pure = {"train.precision": f"{of}-pure", "train.adapter_dtype": "base"}
    yield Way(ROUNDED, [{"train.framework": "fsdp2", "train.zero": 3} | pure])


def _layers_checkpointed(plan: Plan) -> Iterable[Way]:
    """Only every n-th layer, where that is enough; or fewer of them than now."""
    t = plan.train
    if t.checkpointing == "none":
        rarer = [n for n in (4, 3, 2) if n != t.checkpoint_every]
        yield Way(
            SAME, [{"train.checkpoint_every": n, "train.checkpointing": "full"} for n in rarer]
        )
    else:
        yield Way(SAME, [{"train.checkpoint_every": n} for n in (1, 2) if n != t.checkpoint_every])


def _ranks(path: str) -> Try:
    """Twice, four and eight times the ranks of an axis, on the same GPUs; the tokens of a step
    stay by more accumulation."""

    def ways(plan: Plan) -> Iterable[Way]:
        here, ladder = get(plan, path), []
        if path == "parallel.ep" and not plan.architecture.experts:
            return
        for more in (2, 4, 8):
            changes: Changes = {path: here * more}
            if path != "parallel.ep":
                if plan.dp % more:
                    break
                changes["train.grad_accumulation"] = plan.train.grad_accumulation * more
            if path in ("parallel.tp", "parallel.ep") and here * more > plan.gpus_per_domain:
                break
            ladder.append(changes)
        yield Way(SAME, ladder)

    return ways


MORE = 16  # times the GPUs, or the nodes, of a plan: no lever takes more


@dataclass(frozen=True, slots=True)
class _Counts(Sequence[Changes]):
    """Changes to more and more GPUs, with the batch as it was where it can be divided by them."""

    plan: Plan
    counts: Sequence[int]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, i: Any) -> Any:
        return {"cluster.gpus": self.counts[i], **self.divided(self.counts[i])}

    def divided(self, gpus: int) -> Changes:
        here, t = self.plan.cluster.gpus, self.plan.train
        if t.grad_accumulation * here % gpus == 0:
            return {"train.grad_accumulation": t.grad_accumulation * here // gpus}
        if t.micro_batch * here % gpus == 0:
            return {"train.micro_batch": t.micro_batch * here // gpus}
        return {}

    def looked_at(self) -> list[int]:
        """Twice as many and twice again, and each that divides the batch, which needs less than a
        greater one that does not."""
        last = len(self) - 1
        doubled = {2**n - 1 for n in range(last.bit_length() + 1)}
        times = (self.plan.cluster.gpus * k for k in range(2, MORE + 1))
        near = {*self.counts[: 2 * MORE], *(n for n in times if n in self.counts)}
        indices = {self.counts.index(n) for n in near if self.divided(n)}
        return sorted(i for i in indices | doubled | {last} if 0 <= i <= last)


def whole_nodes(plan: Plan) -> Sequence[int]:
    """Numbers of GPUs above a plan's that can be booked for it, the fewest first: an even part of a
    node, and whole nodes."""
    here, each, ranks = plan.cluster.gpus, plan.gpus_per_node, plan.sharing
    if plan.node.up_to:  # which grows by two, and not to a server's eight at once
        each = min(each, 2)
    step = math.lcm(each, ranks)
    nodes = range((here // step + 1) * step, MORE * -(-here // each) * each + 1, step)
    parts = [n for n in range(here + 1, each) if each % n == 0 and n % ranks == 0]
    return [*parts, *nodes] if parts else nodes


def _gpus(plan: Plan) -> Iterable[Way]:
    """More GPUs: the fewest that fit and that can be booked."""
    counts = _Counts(plan, whole_nodes(plan))
    yield Way(MACHINES, counts, counts.looked_at())


def _adapters(plan: Plan) -> Iterable[Way]:
    """Adapters, with what they need beside them."""
    t = plan.train
    for word in words_of("train.adapter") or ():
        if word in (t.adapter, "none"):
            continue
        changes: Changes = {"train.adapter": word, "train.kernels": "hf"}
        changes["train.offload_optimizer"] = "none"
        if word != "lora" or t.framework not in SHARDED:
            changes |= {"train.framework": WHOLE[0], "train.zero": 0}
            bf16 = plan.accelerator.runs_as("bf16") == "bf16"
            usual = JOBS["lora" if word == "lora" else "qlora"]["train.precision"]
            usual = usual if bf16 else "fp16-pure"
            changes["train.precision"] = usual if t.precision != "fp32" else "fp32"
        elif t.precision in PURE:
            changes["train.adapter_dtype"] = "base"
        yield Way(OTHER, [changes])


def adapter_changes(plan: Plan) -> list[Changes]:
    """What each adapter that the plan has not wants changed."""
    return [way.ladder[0] for way in _adapters(plan)]


def _shorter(plan: Plan) -> Iterable[Way]:
    n = plan.train.seq_len
    yield Way(OTHER, [{"train.seq_len": n // part} for part in (2, 4, 8) if n % part == 0])


# In the order in which a practitioner tries them: first what costs nothing, last what changes the
# training. Sources: transformers' guide to training on one GPU, torchtune's overview of memory
# optimizations, DeepSpeed's and torchtitan's guides. A path stands for what that field declares; a
# field with a lever that is not named here comes last.
_ORDER: tuple[Try | str, ...] = (
    "train.allocator",
    "train.gradients",
    "train.attention",
    "parallel.sequence_parallel",
    "parallel.schedule",
    "parallel.virtual_stages",
    "train.cross_entropy",
    "train.kernels",
    _larger_batches,
    _smaller_batches,
    "parallel.shard_group",
    _stages_of_zero,
    _shared_adapters,
    "train.checkpointing",
    _layers_checkpointed,
    _optimizers,
    _ranks("parallel.tp"),
    _ranks("parallel.cp"),
    _ranks("parallel.ep"),
    _ranks("parallel.pp"),
    "train.offload_optimizer",
    "train.offload_activations",
    "train.offload_parameters",
    _gpus,
    "train.precision",
    "train.frozen",
    "train.ema",
    "train.embedding_gradient",
    _adapters,
    _shorter,
)
_LAST = [p for p in field_paths() if facts(p).lever and p not in _ORDER]
TRIES = tuple(declared(t) if isinstance(t, str) else t for t in (*_ORDER, *_LAST))
