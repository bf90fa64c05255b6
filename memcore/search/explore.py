"""Explore: one field of a plan, or two, against a number of its report: what fits, and up to where.

Every point is a plan of its own, judged as `evaluate` judges it; nothing here has a formula.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memcore.errors import PlanError
from memcore.models import catalog
from memcore.plan.models import DIMS, dims_of
from memcore.plan.plan import Plan, facts, field_of, field_paths, get, limits_of
from memcore.plan.repair import followed
from memcore.report import CONSUMERS, VERDICTS
from memcore.search.edges import between
from memcore.search.solver import config_of, layers_key, with_number
from memcore.serving.serve import servable
from memcore.serving.server import Server
from memcore.training.run import run_of
from memcore.training.training import Pool, Training, not_planned
from memcore.units import bytes_text, count_text, money_text, parse_count, seconds_text

# --- which numbers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the Report that is looked at against a field.

    path       where it is in the Report; of an interval its worse end
    parts      whether it is a memory, of which each part is told
    zero_line  whether below zero does not fit
    """

    key: str
    title: str
    unit: str
    path: str
    text: Callable[[float], str]
    less_is_better: bool = False
    parts: bool = False
    zero_line: bool = False

    @property
    def serves(self) -> bool:
        return self.path.startswith("serve.")


_EVERY = (
    Figure("device", "Device memory", "GiB", "memory.device_bytes.1", bytes_text, True, parts=True),
    Figure("room", "Headroom", "GiB", "memory.room_bytes.0", bytes_text, zero_line=True),
    Figure("step", "Step time", "s", "time.step_seconds", seconds_text, True),
    Figure("tokens", "Tokens per second", "tokens/s", "time.tokens_per_second", count_text),
    Figure("mfu", "MFU", "", "time.mfu", "{:.1%}".format),
    Figure("run", "Time of the whole run", "s", "run.seconds", seconds_text, True),
    Figure("cost", "Cost of the whole run", "USD", "run.cost", money_text, True),
    Figure("serving", "Serving memory", "GiB", "serve.budget_bytes", bytes_text, True, parts=True),
    Figure("kv", "Room for KV cache", "GiB", "serve.kv_budget_bytes", bytes_text, zero_line=True),
    Figure("sequences", "Sequences that fit", "", "serve.max_concurrency", "{:,.0f}".format),
    Figure("out", "Output tokens per second", "tokens/s", "serve.tokens_per_second", count_text),
    Figure("tpot", "Time per output token", "s", "serve.tpot_seconds", seconds_text, True),
    Figure("ttft", "Time to first token", "s", "serve.ttft_seconds", seconds_text, True),
)
FIGURES = {f.key: f for f in _EVERY}


def figures(plan: Plan) -> dict[str, Figure]:
    """Those that the plan has: of training where it is planned, of serving where it generates."""
    trains, serves = not not_planned(plan), servable(plan.architecture)
    priced = bool(plan.run.price_per_gpu_hour)
    return {
        key: f
        for key, f in FIGURES.items()
        if (serves if f.serves else trains) and (priced or key != "cost")
    }


# --- which fields, and which values of them ------------------------------------------------------

SIZE, LAYERS = "model.size", "model.layers"  # what a model is varied by; no fields of a plan
FIRST = (  # the fields that are asked about most, in this order; the others follow
    *("train.seq_len", "train.micro_batch", "cluster.gpus", LAYERS, SIZE, "train.lora_rank"),
    *("serve.concurrency", "serve.prompt_len", "train.checkpointing", "train.zero"),
    *("train.precision", "train.optimizer", "train.cross_entropy", "serve.kv_dtype"),
    *("serve.weight_dtype", "parallel.tp", "parallel.pp"),
)
UNSWEPT = ("cluster.node", "model", "version", "serve.seed")
SHARED = ("cluster.", "parallel.", "model")  # those that both training and serving depend on
MORE = 8  # values of a sweep that are looked at beyond the others, until it does not fit
SIZES = ("125M", "350M", "1B", "3B", "7B", "13B", "30B", "70B", "175B", "405B", "1T")


def swept_fields(plan: Plan, serves: bool) -> tuple[str, ...]:
    """The fields that can be swept for a number of training or of the server, the first ones
    first."""
    mine, document = ("serve.",) if serves else ("train.", "run."), plan.document()
    fields = [
        path
        for path in field_paths()
        if path.startswith((*mine, *SHARED)) and _varies(plan, document, path)
    ]
    dims = [f"{DIMS}{name}" for name in dims_of(plan.model)]
    if not plan.architecture.traced:
        fields += [LAYERS] if isinstance(here(plan, LAYERS), int) else []
        fields.append(SIZE)
    fields += dims
    known = [path for path in (*dims, *FIRST) if path in fields]
    return (*known, *(path for path in fields if path not in known))


def _varies(plan: Plan, document: Mapping[str, Any], path: str) -> bool:
    if path in UNSWEPT:
        return False
    declared = facts(path)
    if declared.when and not declared.when(lambda p: get(document, p), plan.architecture):
        return False
    if path == "cluster.gpu" or declared.words:
        return path == "cluster.gpu" or len(declared.words or {}) > 1
    return field_of(path).annotation in (int, float, bool)


def is_number(path: str) -> bool:
    """Whether its values lie on an axis; else each is a word."""
    if path in (LAYERS, SIZE, "cluster.gpu", "train.zero"):
        return path == LAYERS
    return not facts(path).words and field_of(path).annotation in (int, float)


def is_whole(path: str) -> bool:
    return path == LAYERS or (is_number(path) and field_of(path).annotation is int)


def here(plan: Plan, path: str) -> Any:
    """The plan's own value of a field; of a model that has no size in words, none."""
    if path == LAYERS:
        config = config_of(plan)
        key = layers_key(config)
        return get(config, key) if key else None
    if path == SIZE:
        return plan.model.get("size") if isinstance(plan.model, dict) else None
    return get(plan.document(), path)


def changes(plan: Plan, path: str, value: Any) -> dict[str, Any]:
    """What setting a field to a value sets."""
    if path == SIZE:
        return {"model": {"size": value}}
    if path == LAYERS:
        config = config_of(plan)
        return {"model": with_number(config, layers_key(config), value)}
    if path == "cluster.gpu" and plan.cluster.node is not None:
        return {path: value, "cluster.node": None}
    return {path: value}


def values(plan: Plan, path: str) -> tuple[Any, ...]:
    """The values at which a field is looked at: each of its words, or numbers around the plan's."""
    current = here(plan, path)
    if path == SIZE:
        return tuple(sorted({*SIZES, *([current] if current else [])}, key=parse_count))
    if path == "cluster.gpu":
        known = catalog.priced_gpus()
        mine = [current] if isinstance(current, str) and current not in known else []
        return (*mine, *known)
    if path == LAYERS:
        return _around(current, 32, 1, 512)
    declared, kind = facts(path), field_of(path).annotation
    if declared.words:
        return tuple(declared.words)
    if kind is bool:
        return (False, True)
    if path == "train.zero":
        return tuple(range(4))
    if path == "cluster.gpus":
        return _counts(plan, current)
    low, high = limits_of(path)
    low = max(low, 0)
    if kind is float:
        return _shares(low, high, current)
    usual = field_of(path).default
    if declared.steps:
        first, final = _window(current, usual)
        near = [n for n in declared.steps if first <= max(n, 1) <= final]
        return tuple(sorted({*near, current}))
    return _around(current, usual, int(low), high)


def _window(current: int, usual: int) -> tuple[float, float]:
    """From where to where numbers are looked at: around the usual one, so that it stays where it is
    while the plan moves in it; around the plan's own where that is far away."""
    at = usual if usual / 8 <= current <= 16 * max(usual, 1) else current
    return at / 8, 32 * max(at, 1)


def _around(current: int, usual: int, low: int, high: float) -> tuple[int, ...]:
    """Whole numbers around one: 1, 2, 3, 4, 6, 8, 12, ..."""
    first, final = _window(current, usual)
    ladder = sorted({1 << k for k in range(32)} | {3 << k for k in range(30)})
    near = [n for n in ladder if max(low, first) <= n <= min(high, final)]
    return tuple(sorted({*near, current, *([low] if current == low else [])}))


def _counts(plan: Plan, current: int) -> tuple[int, ...]:
    """Numbers of GPUs: within one node each power of two, beyond it whole nodes."""
    node = plan.gpus_per_node
    inside = [1 << k for k in range(node.bit_length()) if 1 << k <= node]
    nodes = [n * node for n in _around(max(1, current // node), 1, 1, 4096)]
    return tuple(sorted({*inside, *nodes, current}))


def _shares(low: float, high: float, current: float) -> tuple[float, ...]:
    if high <= 1:
        ladder = [round(0.05 * k, 2) for k in range(21)]
        return tuple(sorted({n for n in ladder if low <= n <= high and n} | {current}))
    base = current or 1.0
    multiples = {round(base * k, 6) for k in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 8)} | {
        current
    }
    return tuple(sorted(n for n in multiples if low <= n <= high))


# --- points --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spot:
    """A plan at one value of a field, or at one of two fields.

    plan     None where the rules forbid it, and `why_not` says why
    with_    what had to follow the field
    verdict  'fits', 'tight' or 'over'; '' where it is not planned
    value    of the figure, in its own unit (bytes, seconds); None where there is none
    parts    of a memory, by what holds them; low and high: the ends of the whole
    limit    what there is of it
    instant  of the peak
    """

    value_at: Any
    plan: Plan | None
    why_not: str = ""
    with_: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = ""
    value: float | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    limit: int = 0
    instant: str = ""

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    @property
    def possible(self) -> bool:
        """Whether it may fit."""
        return self.verdict in VERDICTS[:2]

    @property
    def largest(self) -> str:
        """The part that takes most, or ''."""
        return max(self.parts, key=lambda name: self.parts[name]) if self.parts else ""


Look = Callable[[Any], Spot]


def spot(plan: Plan, wanted: Mapping[str, Any], at: Any, figure: Figure, pool: Pool) -> Spot:
    """What a figure is of the plan with some changes, and with what of the framework's words has to
    follow them."""
    with_: dict[str, Any] = {}
    try:
        try:
            there = plan.with_changes(wanted)
        except PlanError:
            every = followed(plan.document(), wanted)
            there = plan.with_changes(every)
            with_ = {p: v for p, v in every.items() if p not in wanted}
    except PlanError as e:
        return Spot(at, None, e.issues[0].message)
    except ValueError as e:  # a model that cannot be made so deep
        return Spot(at, None, str(e))
    start = Spot(at, there, with_=with_)
    return _served(start, there, figure) if figure.serves else _trained(start, there, figure, pool)


def _trained(start: Spot, plan: Plan, figure: Figure, pool: Pool) -> Spot:
    training = Training.of(plan, rows=False, pool=pool)
    if training is None:
        return replace(start, plan=None, why_not=not_planned(plan))
    m, (section, _, name) = training.memory, figure.path.partition(".")
    value: float | None = m.device_bytes[1]
    if figure.zero_line:
        value = m.capacity_bytes - m.device_bytes[1]
    elif section != "memory":
        time = training.time()
        value = getattr(run_of(plan, time) if section == "run" else time, name)
    return replace(
        start,
        verdict=m.verdict,
        value=value,
        parts={name: m.consumers[name] for name in CONSUMERS},
        low=m.device_bytes[0],
        high=m.device_bytes[1],
        limit=m.capacity_bytes,
        instant=m.ranks[m.peak.rank].label if m.peak.rank < len(m.ranks) else m.peak.instant,
    )


def _served(start: Spot, plan: Plan, figure: Figure) -> Spot:
    if not servable(plan.architecture):
        return replace(start, plan=None, why_not="this model generates nothing")
    s = Server.of(plan).numbers.serve  # of which no more is computed than is read
    parts = {
        "weights": s.weights_bytes + s.table_bytes,
        "kv_cache": s.sequence_bytes * plan.serve.concurrency,
        "activations": s.activation_bytes,
        "overhead": s.overhead_bytes,
    }
    total = sum(parts.values())
    return replace(
        start,
        verdict="fits" if s.fits else "over",
        value=total if figure.parts else getattr(s, figure.path.partition(".")[2]),
        parts=parts,
        low=total,
        high=total,
        limit=s.budget_bytes,
    )


# --- one field -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sweep:
    """One field against one number.

    edge   the last value (of a field of which more frees memory, the first) that fits: exact for
           whole numbers; None where all or none do. maybe: the same of what may fit.
    rises  whether more of the field takes more memory
    """

    path: str
    figure: Figure
    spots: tuple[Spot, ...]
    edge: Any = None
    maybe: Any = None
    rises: bool = True


def sweep(plan: Plan, path: str, key: str) -> Sweep:
    """A field's values against a figure, and exactly up to where it fits."""
    figure, pool = FIGURES[key], Pool()

    known: dict[Any, Spot] = {}

    def look(value: Any) -> Spot:
        if value not in known:
            known[value] = spot(plan, changes(plan, path, value), value, figure, pool)
        return known[value]

    spots = [look(value) for value in values(plan, path)]
    if not is_number(path):
        return Sweep(path, figure, tuple(spots))
    if is_whole(path) and path != "cluster.gpus":
        spots += _beyond(spots[-1], look, path)
    there = [s for s in spots if s.plan]
    rises = not there or there[0].high - there[0].limit <= there[-1].high - there[-1].limit
    ordered = there if rises else there[::-1]
    edge = _edge(ordered, look, lambda s: s.fits, is_whole(path))
    maybe = _edge(ordered, look, lambda s: s.possible, is_whole(path))
    every = {s.value_at: s for s in spots}
    every |= {at: look(at) for at in (edge, maybe) if at is not None}
    return Sweep(path, figure, tuple(every[at] for at in sorted(every)), edge, maybe, rises)


def _beyond(last: Spot, look: Look, path: str) -> Iterator[Spot]:
    """Further values, doubled, while it may fit."""
    most = 512 if path == LAYERS else limits_of(path)[1]
    for _ in range(MORE):
        value = 2 * last.value_at
        if not last.possible or value > most or not (last := look(value)).plan:
            return
        yield last


def _edge(known: Sequence[Spot], look: Look, ok: Callable[[Spot], bool], integers: bool) -> Any:
    """The last value that is ok before the first that is not, in the order of the spots."""
    for one, other in itertools.pairwise(known):
        if ok(one) and not ok(other):
            if not integers:
                return one.value_at
            return between(one.value_at, other.value_at, lambda value: ok(look(value)))
    return None


# --- two fields ----------------------------------------------------------------------------------

MOST_ACROSS, MOST_DOWN = 14, 10


@dataclass(frozen=True, slots=True)
class Map:
    """Two fields against one number: `spots` by rows (of `down`), each by columns (of `across`)."""

    across: str
    down: str
    figure: Figure
    columns: tuple[Any, ...]
    rows: tuple[Any, ...]
    spots: tuple[tuple[Spot, ...], ...]


def grid(plan: Plan, across: str, down: str, key: str) -> Map:
    """A figure at every pair of values of two fields."""
    figure, pool = FIGURES[key], Pool()
    columns = thinned(values(plan, across), here(plan, across), MOST_ACROSS)
    rows = thinned(values(plan, down), here(plan, down), MOST_DOWN)
    spots = tuple(
        tuple(
            spot(plan, changes(plan, down, y) | changes(plan, across, x), (x, y), figure, pool)
            for x in columns
        )
        for y in rows
    )
    return Map(across, down, figure, columns, rows, spots)


def thinned(every: Sequence[Any], current: Any, most: int) -> tuple[Any, ...]:
    """At most so many of them, the plan's own among them: of whole numbers first what is doubled
    from one to the next, of others evenly."""
    if len(every) <= most:
        return tuple(every)
    first = [current] if current in every else []
    first += [x for x in every if isinstance(x, int) and x.bit_count() == 1 and x not in first]
    step = (len(every) - 1) / (most - 1)
    first += [every[round(k * step)] for k in range(most)]
    chosen = list(dict.fromkeys(first))[:most]
    return tuple(x for x in every if x in chosen)
