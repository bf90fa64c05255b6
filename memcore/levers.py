"""Levers: every single change to a plan that a practitioner would try, and what it saves and costs.

A lever changes a few fields; what must follow them is mended by the rules. Its bytes and seconds
are the difference of two evaluations and nothing else. What is tried, and in which order a
practitioner would, is the table TRIES: a new word of a policy is a lever as soon as the policy's
table has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from memcore import link
from memcore.errors import PlanError
from memcore.evaluate import Pool, Training
from memcore.plan import Plan, get, put, title_of, value_text, words_of
from memcore.report import Memory, Time
from memcore.units import bytes_text


@dataclass(frozen=True, slots=True)
class Kind:
    """What a change leaves as it was. `rank`: kinds in the order in which they are thought of;
    `reluctance`: what more of a step's time people would rather pay than do it."""

    text: str
    rank: int
    reluctance: float = 0.0


SAME, ROUNDED, MACHINES, OTHER = "same", "rounded", "machines", "other"
FROZEN = "frozen"
KINDS = {
    SAME: Kind("trains the same", 0),
    # Adam's states in 8 bits train as well (Dettmers et al. 2022), but not bit by bit the same; the
    # tenth is assumed.
    ROUNDED: Kind("rounds optimizer states", 0, 0.1),
    MACHINES: Kind("takes more GPUs", 1),
    OTHER: Kind("changes the training itself", 2),
    # Cheap, as backward ends early, but tried after adapters, which learn more with fewer trained
    # parameters than the last layers do (Hu et al. 2021, LoRA, table 3: FT-Top2).
    FROZEN: Kind("freezes weights", 3),
}

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One thing to try: changes in the order in which they cost more. The first that fits is taken,
    or else the last. What is named is the first field of each."""

    kind: str
    ladder: Sequence[Changes]


Try = Callable[[Plan], Iterable[Way]]


@dataclass(frozen=True, slots=True)
class Lever:
    """One change of a plan, against the plan as it is.

    name                stable: 'checkpointing-full'
    changes             every field that differs, those that had to follow included
    saved_bytes         of the allocated peak of one GPU; below 0: it needs more
    saved_device_bytes  of the device memory that may be needed at most
    added_seconds       per step
    added_per_token     seconds per token, which say more where the batch differs
    price               GPU-seconds per token over those of the plan, less 1
    same_batch          whether a step has as many tokens as before
    """

    name: str
    label: str
    kind: str
    changes: Mapping[str, Any]
    saved_bytes: int
    saved_device_bytes: int
    added_seconds: float
    added_per_token: float
    price: float
    same_batch: bool
    verdict: str
    plan: Plan

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

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
    def kind_text(self) -> str:
        return KINDS[self.kind].text

    @property
    def followers(self) -> list[str]:
        """What else is set than what the label says: 'Framework PyTorch FSDP2'."""
        named = self.label.partition(":")[0]
        texts = {path: value_text(path, value) for path, value in self.changes.items()}
        return [f"{title_of(p)} {t}" for p, t in texts.items() if title_of(p) != named]

    def to_dict(self) -> dict[str, Any]:
        """The lever as plain JSON types."""
        names = [n for n in self.__slots__ if n not in ("changes", "plan")]
        return {n: getattr(self, n) for n in names} | {"changes": dict(self.changes)}


def levers(plan: Plan) -> tuple[Lever, ...]:
    """What can be changed about a plan, the best first.

    While it is not sure to fit: what makes it fit, the cheapest in time first, then what helps, the
    most first. When it fits: what is faster and fits too, then what saves memory. Of equal ones
    those that train the same come first, then those on more GPUs.
    """
    pool: Pool = {}
    now = Training.of(plan, rows=False, pool=pool)
    if now is None:
        return ()
    time, memory, found = now.time(), now.memory, []
    for attempt in TRIES:
        for way in attempt(plan):
            chosen = _climbed(plan, way, memory, pool)
            lever = chosen and _lever(now, time, way.kind, *chosen)
            if lever:
                found.append(lever)
    order = sorted(range(len(found)), key=lambda i: _rank(found[i], memory, i))
    return tuple(found[i] for i in order)


def headline(memory: Memory, found: Sequence[Lever]) -> str:
    """What the levers come to, in a sentence: '3.2 GiB too much: 5 changes fix it'."""
    fixes = sum(lever.fits for lever in found)
    changes = f"{fixes} single {'change makes' if fixes == 1 else 'changes make'}"
    if memory.fits:
        faster = sum(lever.faster and lever.fits for lever in found)
        return f"It fits. {faster} of {len(found)} single changes are faster and fit too"
    low, high = (size - memory.capacity_bytes for size in memory.device_bytes)
    over = (
        f"at least {bytes_text(low)} too much" if low > 0 else f"up to {bytes_text(high)} too much"
    )
    if not max(low, high) > 0:
        over = "host memory or NVMe is too small"
    if not fixes:
        return f"Not sure to fit, {over}: no single change fixes it; these help, the most first"
    return f"{over[:1].upper()}{over[1:]}: {changes} it fit, the cheapest in time first"


def _rank(lever: Lever, memory: Memory, order: int) -> tuple[Any, ...]:
    """The smallest first; of those that cost the same, in the order of TRIES. What has no time
    comes last of its kind."""
    kind = KINDS[lever.kind]
    price = round(lever.price + kind.reluctance, DIGITS)
    if memory.fits:
        return (not (lever.fits and lever.faster), kind.rank, price, order)
    if lever.fits:
        return (0, kind.rank, price, order)
    return (1, lever.verdict == "over", kind.rank, -lever.saved_device_bytes, order)


DIGITS = 2  # digits of a price: what differs by less than a per cent is as cheap
NOTICED = 0.001  # of a GPU's memory: what saves less is no lever
FASTER = 0.005  # of a step: what saves less time is none either


def _climbed(plan: Plan, way: Way, memory: Memory, pool: Pool) -> tuple[Changes, Training] | None:
    """The change of a ladder that is taken, and training with it; None where the rules forbid each,
    or where none saves memory or fits."""
    found = None
    for changes in way.ladder:
        changed = with_changes(plan, changes)
        then = changed and Training.of(changed, rows=False, pool=pool)
        if not then:
            continue
        fits = then.memory.fits
        if then.memory.device_bytes[1] < memory.device_bytes[1] or (memory.fits and fits):
            found = changes, then
            if fits:
                break
    return found


def _lever(now: Training, time: Time, kind: str, changes: Changes, then: Training) -> Lever | None:
    """The difference that a change makes, or None where it makes none that matters."""
    field, value = next(iter(changes.items()))
    plan, changed = now.plan, then.plan
    device = now.memory.device_bytes[1] - then.memory.device_bytes[1]
    noticed = device >= NOTICED * now.memory.capacity_bytes
    if not noticed and kind == OTHER:
        return None
    tokens, tokens_then = plan.tokens_per_step, changed.tokens_per_step
    before, after = time.step_seconds, then.time().step_seconds
    gpus = changed.cluster.gpus / plan.cluster.gpus
    price = (after / tokens_then) / (before / tokens) * gpus - 1
    saved = now.memory.allocated_bytes - then.memory.allocated_bytes
    if not noticed and price > -FASTER:
        return None
    return Lever(
        name=f"{field.rpartition('.')[2]}-{str(value).lower()}",
        label=f"{title_of(field)}: {value_text(field, value)}",
        kind=kind,
        changes=differences(plan, changed),
        saved_bytes=saved,
        saved_device_bytes=device,
        added_seconds=after - before,
        added_per_token=after / tokens_then - before / tokens,
        price=price,
        same_batch=tokens == tokens_then,
        verdict=then.memory.verdict,
        plan=changed,
    )


# Fields that may follow a change; where the rules would change others, it is not one change.
FOLLOWERS = (
    *("train.framework", "train.zero", "train.kernels", "train.attention", "train.cross_entropy"),
    *("parallel.sequence_parallel", "parallel.schedule", "parallel.virtual_stages"),
)


def with_changes(plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    """The plan with some fields changed and what must follow them, or None if that is no plan."""
    try:
        return plan.with_changes(changes)
    except PlanError as error:
        document = plan.document()
        for path, value in changes.items():
            put(document, path, value)
        fitted, _ = link.repair(document, given=changes, error=error)
    others = differences(plan, fitted).keys() - changes.keys() - set(FOLLOWERS)
    kept = all(get(fitted, path) == value for path, value in changes.items())
    return fitted if kept and not others else None


def differences(before: Plan, after: Plan) -> dict[str, Any]:
    """The fields in which two plans differ, with the second's values, in the order of a plan."""
    found: dict[str, Any] = {}
    for section in Plan.model_fields:
        was, now = getattr(before, section), getattr(after, section)
        if was is now:
            continue
        if section not in SECTIONS:
            if was != now:
                found[section] = now
            continue
        for name in type(now).model_fields:
            value = getattr(now, name)
            if value != getattr(was, name):
                described = isinstance(value, BaseModel)  # an object in place of a preset's name
                plain = value.model_dump(mode="json") if described else value
                found[f"{section}.{name}"] = plain
    return found


SECTIONS = tuple(n for n, i in Plan.model_fields.items() if hasattr(i.annotation, "model_fields"))


# --- what is tried --------------------------------------------------------------------------------


def words(path: str, kind: str = SAME, **kinds: str) -> Try:
    """Each other word of a field; `kinds`: of words that are of another kind."""

    def ways(plan: Plan) -> Iterable[Way]:
        here = get(plan, path)
        for word in words_of(path) or ():
            if word != here:
                yield Way(kinds.get(word.replace("-", "_"), kind), [{path: word}])

    return ways


def switch(path: str, value: Any) -> Try:
    """A field set to one value."""

    def ways(plan: Plan) -> Iterable[Way]:
        if get(plan, path) != value:
            yield Way(SAME, [{path: value}])

    return ways


def _optimizers(plan: Plan) -> Iterable[Way]:
    """Another optimizer. Adam is the same one fused and in lists, and nearly so in 8 bits."""
    adam = {"adamw": SAME, "adamw-foreach": SAME, "adam8bit": ROUNDED}
    here = plan.train.optimizer
    for word in words_of("train.optimizer") or ():
        if word != here:
            kind = max(adam.get(here, OTHER), adam.get(word, OTHER), key=list(KINDS).index)
            yield Way(kind, [{"train.optimizer": word}])


def _smaller_batches(plan: Plan) -> Iterable[Way]:
    """Fewer sequences at a time, and as many more times: the step has the same tokens."""
    n, times = plan.train.micro_batch, plan.train.grad_accumulation
    yield Way(
        SAME,
        [
            {"train.micro_batch": d, "train.grad_accumulation": times * n // d}
            for d in range(n // 2, 0, -1)
            if n % d == 0
        ],
    )


def _larger_batches(plan: Plan) -> Iterable[Way]:
    n, times = plan.train.micro_batch, plan.train.grad_accumulation
    if times % 2 == 0:
        yield Way(SAME, [{"train.micro_batch": 2 * n, "train.grad_accumulation": times // 2}])


def _stages_of_zero(plan: Plan) -> Iterable[Way]:
    for stage in range(4):
        if stage != plan.train.zero and plan.dp * plan.parallel.cp > 1:
            yield Way(SAME, [{"train.zero": stage}])


def _layers_checkpointed(plan: Plan) -> Iterable[Way]:
    """Only every n-th layer, where that is enough; or fewer of them than now."""
    t = plan.train
    if t.checkpointing == "none":
        yield Way(
            SAME, [{"train.checkpoint_every": n, "train.checkpointing": "full"} for n in (4, 3, 2)]
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


def _gpus(plan: Plan) -> Iterable[Way]:
    """More GPUs, with the batch as it was where it can be divided by them."""
    t, ladder = plan.train, []
    for more in (2, 4, 8, 16):
        changes: Changes = {"cluster.gpus": plan.cluster.gpus * more}
        if t.grad_accumulation % more == 0:
            changes["train.grad_accumulation"] = t.grad_accumulation // more
        elif t.micro_batch % more == 0:
            changes["train.micro_batch"] = t.micro_batch // more
        ladder.append(changes)
    yield Way(MACHINES, ladder)


def _adapters(plan: Plan) -> Iterable[Way]:
    """Adapters, with what they need beside them."""
    t = plan.train
    for word in words_of("train.adapter") or ():
        if word in (t.adapter, "none"):
            continue
        changes: Changes = {"train.adapter": word, "train.kernels": "hf"}
        changes["train.offload_optimizer"] = "none"
        if word != "lora" or t.framework != "fsdp2":
            changes |= {"train.framework": "pytorch", "train.zero": 0}
            changes["train.precision"] = "bf16-pure" if t.precision != "fp32" else "fp32"
        elif t.precision == "bf16-pure":
            changes["train.adapter_dtype"] = "base"
        yield Way(OTHER, [changes])


def _shorter(plan: Plan) -> Iterable[Way]:
    n = plan.train.seq_len
    yield Way(OTHER, [{"train.seq_len": n // part} for part in (2, 4, 8) if n % part == 0])


# In the order in which a practitioner tries them: first what costs nothing, last what changes the
# training. Sources: transformers' guide to training on one GPU, torchtune's overview of memory
# optimizations, DeepSpeed's and torchtitan's guides.
TRIES: tuple[Try, ...] = (
    switch("train.allocator", "expandable"),
    switch("train.gradients", "freed"),
    words("train.attention"),
    switch("parallel.sequence_parallel", True),
    words("parallel.schedule"),
    switch("parallel.virtual_stages", 1),
    words("train.cross_entropy"),
    words("train.kernels"),
    _larger_batches,
    _smaller_batches,
    switch("parallel.shard_group", 0),
    _stages_of_zero,
    words("train.checkpointing"),
    _layers_checkpointed,
    _optimizers,
    _ranks("parallel.tp"),
    _ranks("parallel.cp"),
    _ranks("parallel.ep"),
    _ranks("parallel.pp"),
    words("train.offload_optimizer"),
    words("train.offload_activations"),
    words("train.offload_parameters"),
    _gpus,
    words("train.precision", OTHER),
    words("train.frozen", FROZEN),
    words("train.ema", OTHER),
    words("train.embedding_gradient", OTHER),
    _adapters,
    _shorter,
)
