"""Exploring: one field of a plan, or two, against a number. What fits, up to where, and what takes
most of the memory from where on.

Every point is a plan of its own, judged as `evaluate` judges it; nothing here has a formula.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app import palette
from app.fields import Field
from app.fields import field as plan_field
from memcore import PlanError
from memcore.models import catalog
from memcore.models.standard import standard_config
from memcore.plan.plan import Plan, facts, field_of, field_paths, get, value_text
from memcore.plan.repair import followed
from memcore.report import CONSUMERS, VERDICTS
from memcore.search.sweep import swept
from memcore.serving.serve import servable
from memcore.serving.server import Server
from memcore.training.run import run_of
from memcore.training.training import Pool, Training, not_planned
from memcore.units import bytes_text, count_text, money_text, parse_count, seconds_text

# --- which numbers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the Report that can be drawn against a field.

    path       where it is in the Report; of an interval its worse end
    parts      whether it is a memory, which is drawn part by part against what there is of it
    zero_line  whether below zero does not fit
    """

    key: str
    title: str
    unit: str
    path: str
    text: Callable[[float], str]
    less_is_better: bool
    serves: bool = False
    parts: bool = False
    zero_line: bool = False
    timed: bool = False


def _plain_count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


_EVERY = (
    Figure("device", "Device memory", "GiB", "memory.device_bytes.1", bytes_text, True, parts=True),
    Figure("room", "Headroom", "GiB", "memory.room_bytes.0", bytes_text, False, zero_line=True),
    Figure("step", "Step time", "s", "time.step_seconds", seconds_text, True, timed=True),
    Figure("tokens", "Tokens per second", "tokens/s", "time.tokens_per_second", count_text, False,
           timed=True),
    Figure("mfu", "MFU", "", "time.mfu", _share, False, timed=True),
    Figure("run", "Time of the whole run", "s", "run.seconds", seconds_text, True, timed=True),
    Figure("cost", "Cost of the whole run", "USD", "run.cost", money_text, True, timed=True),
    Figure("serving", "Serving memory", "GiB", "serve.budget_bytes", bytes_text, True, serves=True,
           parts=True),
    Figure("kv", "Room for KV cache", "GiB", "serve.kv_budget_bytes", bytes_text, False,
           serves=True, zero_line=True),
    Figure("sequences", "Sequences that fit", "", "serve.max_concurrency", _plain_count, False,
           serves=True),
    Figure("out", "Output tokens per second", "tokens/s", "serve.tokens_per_second", count_text,
           False, serves=True),
    Figure("tpot", "Time per output token", "s", "serve.tpot_seconds", seconds_text, True,
           serves=True),
    Figure("ttft", "Time to first token", "s", "serve.ttft_seconds", seconds_text, True,
           serves=True),
)  # fmt: skip
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
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")  # as config.json calls them
FIRST = (  # the fields that are asked about most, in this order; the others follow
    *("train.seq_len", "train.micro_batch", "cluster.gpus", LAYERS, SIZE, "train.lora_rank"),
    *("serve.concurrency", "serve.prompt_len", "train.checkpointing", "train.zero"),
    *("train.precision", "train.optimizer", "train.cross_entropy", "serve.kv_dtype"),
    *("serve.weight_dtype", "parallel.tp", "parallel.pp"),
)
UNSWEPT = ("cluster.node", "model", "version", "serve.seed")
# Those that both training and serving depend on.
SHARED = ("cluster.", "parallel.", "model")
FOLLOWING = tuple(
    f"train.{name}" for name in ("framework", "zero", "kernels", "precision", "optimizer")
)
MORE = 8  # values of a sweep that are looked at beyond the others, until it does not fit
SIZES = ("125M", "350M", "1B", "3B", "7B", "13B", "30B", "70B", "175B", "405B", "1T")


def swept_fields(plan: Plan, serves: bool) -> tuple[str, ...]:
    """The fields that can be swept for a number of training or of the server, the first ones
    first."""
    mine, document = ("serve.",) if serves else ("train.", "run."), plan.document()
    found = [
        path
        for path in field_paths()
        if path.startswith((*mine, *SHARED)) and _varies(plan, document, path)
    ]
    found += [LAYERS] if _config(plan) else []
    found.append(SIZE)
    known = [path for path in FIRST if path in found]
    return (*known, *(path for path in found if path not in known))


def _varies(plan: Plan, document: Mapping[str, Any], path: str) -> bool:
    if path in UNSWEPT:
        return False
    declared, f = facts(path), plan_field(path)
    if declared.when and not declared.when(lambda p: get(document, p), plan.architecture):
        return False
    if path == "cluster.gpu" or f.words:
        return path == "cluster.gpu" or len(f.words or {}) > 1
    return f.kind in (int, float, bool)


def title(path: str) -> str:
    """A field's name for people."""
    return {SIZE: "Model size", LAYERS: "Layers"}.get(path) or plan_field(path).title


def unit(path: str) -> str:
    return {SIZE: "", LAYERS: "layers"}.get(path) or (
        "" if path in (SIZE, LAYERS) else plan_field(path).unit
    )


def text(path: str, value: Any) -> str:
    """A value of a field for people."""
    if path == "cluster.gpu" and isinstance(value, str):
        return catalog.accelerator(value).label
    if path in (SIZE, LAYERS):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return value_text(path, value)


def named(path: str, value: Any) -> str:
    """A value with its unit: '17,920 tokens'; of what has none with its field: 'micro-batch 8'."""
    said = text(path, value)
    if of := unit(path):
        return f"{said} {of.removesuffix('s') if value == 1 else of}"
    if path == "cluster.gpus":
        return f"{said} GPU{'s' * (value != 1)}"
    return said if not is_number(path) else f"{title(path).lower()} {said}"


def is_number(path: str) -> bool:
    """Whether its values lie on an axis; else each is a word."""
    if path == LAYERS:
        return True
    if path in (SIZE, "cluster.gpu", "train.zero"):
        return False
    f = plan_field(path)
    return not f.words and f.kind in (int, float)


def is_whole(path: str) -> bool:
    return path == LAYERS or (is_number(path) and plan_field(path).kind is int)


def here(plan: Plan, path: str) -> Any:
    """The plan's own value of a field; of a model that has no size in words, none."""
    if path == LAYERS:
        return plan.architecture.layers
    if path == SIZE:
        return plan.model.get("size") if isinstance(plan.model, dict) else None
    return get(plan.document(), path)


def changes(plan: Plan, path: str, value: Any) -> dict[str, Any]:
    """What setting a field to a value sets."""
    if path == SIZE:
        return {"model": {"size": value}}
    if path == LAYERS:
        return {"model": _deep(_config(plan) or {}, value)}
    if path == "cluster.gpu" and plan.cluster.node is not None:
        return {path: value, "cluster.node": None}
    return {path: value}


def _config(plan: Plan) -> dict[str, Any] | None:
    """The model's config.json where its depth is one number in it."""
    if isinstance(plan.model, str):
        config = catalog.model_entry(plan.model)["config"]
    elif set(plan.model) == {"size"}:
        config = standard_config(plan.model["size"])
    else:
        config = plan.model
    return config if _depth(config) else None


def _depth(config: Mapping[str, Any]) -> str:
    """The key that says how many layers there are, or ''."""
    return next((k for k in DEPTHS if isinstance(config.get(k), int) and config[k] > 0), "")


def _deep(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same model with more or fewer layers; what is said of each goes on as it began."""
    key = _depth(config)
    was = config[key]
    return {
        name: list(itertools.islice(itertools.cycle(value), layers))
        if isinstance(value, list) and len(value) == was
        else value
        for name, value in config.items()
    } | {key: layers}


def values(plan: Plan, path: str) -> tuple[Any, ...]:
    """The values at which a field is looked at: each of its words, or numbers around the plan's."""
    own = here(plan, path)
    if path == SIZE:
        return tuple(sorted({*SIZES, *([own] if own else [])}, key=parse_count))
    if path == "cluster.gpu":
        known = catalog.priced_gpus()
        mine = [own] if isinstance(own, str) and own not in known else []
        return (*mine, *known)
    if path == LAYERS:
        return _around(own, 32, 1, 512)
    f = plan_field(path)
    if f.words:
        return tuple(f.words)
    if f.kind is bool:
        return (False, True)
    if path == "train.zero":
        return tuple(range(4))
    low, high = f.low or 0, f.high if f.high is not None else math.inf
    if path == "cluster.gpus":
        return _counts(plan, own)
    if f.kind is float:
        return _shares(f, own)
    usual, steps = field_of(path).default, facts(path).steps
    if steps:
        first, final = _window(own, usual)
        near = [n for n in steps if first <= max(n, 1) <= final]
        return tuple(sorted({*near, own}))
    return _around(own, usual, int(low), high)


def _window(own: int, usual: int) -> tuple[float, float]:
    """From where to where numbers are looked at: around the usual one, so that it stays where it is
    while the plan moves in it; around the plan's own where that is far away."""
    at = usual if usual / 8 <= own <= 16 * max(usual, 1) else own
    return at / 8, 32 * max(at, 1)


def _around(own: int, usual: int, low: int, high: float) -> tuple[int, ...]:
    """Whole numbers around one: 1, 2, 3, 4, 6, 8, 12, ..."""
    first, final = _window(own, usual)
    ladder = sorted({1 << k for k in range(32)} | {3 << k for k in range(30)})
    near = [n for n in ladder if max(low, first) <= n <= min(high, final)]
    return tuple(sorted({*near, own, *([low] if own == low else [])}))


def _counts(plan: Plan, own: int) -> tuple[int, ...]:
    """Numbers of GPUs: within one node each power of two, beyond it whole nodes."""
    node = plan.gpus_per_node
    inside = [1 << k for k in range(node.bit_length()) if 1 << k <= node]
    nodes = [n * node for n in _around(max(1, own // node), 1, 1, 4096)]
    return tuple(sorted({*inside, *nodes, own}))


def _shares(f: Field, own: float) -> tuple[float, ...]:
    if f.high is not None and f.high <= 1:
        ladder = [round(0.05 * k, 2) for k in range(21)]
        return tuple(sorted({n for n in ladder if (f.low or 0) <= n <= f.high and n} | {own}))
    base = own or 1.0
    found = {round(base * k, 6) for k in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 8)} | {own}
    return tuple(sorted(n for n in found if (f.low or 0) <= n <= (f.high or math.inf)))


# --- points --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spot:
    """A plan at one value of a field.

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


def changed(plan: Plan, wanted: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan with these changes, and what of the framework's own words had to follow them. Raises
    PlanError."""
    try:
        return plan.with_changes(wanted), {}
    except PlanError:
        every = followed(plan.document(), wanted, FOLLOWING)
        return plan.with_changes(every), {p: v for p, v in every.items() if p not in wanted}


def spot(plan: Plan, wanted: Mapping[str, Any], at: Any, figure: Figure, pool: Pool) -> Spot:
    """What a figure is of the plan with some changes."""
    try:
        there, with_ = changed(plan, wanted)
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
    m = training.memory
    value: float | None = m.device_bytes[1]
    if figure.zero_line:
        value = m.capacity_bytes - m.device_bytes[1]
    elif figure.timed:
        time = training.time()
        owner = run_of(plan, time) if figure.path.startswith("run.") else time
        value = getattr(owner, figure.path.partition(".")[2])
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
    whole = sum(parts.values())
    return replace(
        start,
        verdict="fits" if s.fits else "over",
        value=whole if figure.parts else getattr(s, figure.path.partition(".")[2]),
        parts=parts,
        low=whole,
        high=whole,
        limit=s.budget_bytes,
    )


PART_NAMES = {
    **palette.CONSUMER_LABELS,
    "weights": "Weights",
    "overhead": "Overhead",
}


# --- a sweep -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """From this value on another part is the largest."""

    at: Any
    part: str
    instant: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """One field against one number.

    edge   the last value (of a field of which more frees memory, the first) that fits: exact for
           whole numbers; None where all or none do. maybe: the same of what may fit.
    rises  whether more of the field takes more memory
    turns  which part takes most, from which value on
    """

    path: str
    figure: Figure
    spots: tuple[Spot, ...]
    edge: Any = None
    maybe: Any = None
    rises: bool = True
    turns: tuple[Turn, ...] = ()


def sweep(plan: Plan, path: str, key: str) -> Sweep:
    """A field's values against a figure, with what lies between them where something changes."""
    figure, pool = FIGURES[key], Pool()

    @functools.cache
    def look(value: Any) -> Spot:
        return spot(plan, changes(plan, path, value), value, figure, pool)

    found = [look(value) for value in values(plan, path)]
    if not is_number(path):
        return Sweep(path, figure, tuple(found))
    if is_whole(path) and path != "cluster.gpus":
        found += _beyond(found, look, path)
    rises = _rises(found)
    ordered = found if rises else found[::-1]
    edge = _edge(ordered, look, lambda s: s.fits, is_whole(path))
    maybe = _edge(ordered, look, lambda s: s.possible, is_whole(path))
    every = {s.value_at: s for s in found}
    for at in (edge, maybe):
        if at is not None:
            every[at] = look(at)
    spots = tuple(every[at] for at in sorted(every))
    turns = _turns(spots, look, is_whole(path))
    return Sweep(path, figure, spots, edge, maybe, rises, turns)


def _beyond(found: Sequence[Spot], look: Look, path: str) -> list[Spot]:
    """Further values, doubled, while everything fits."""
    most = 512 if path == LAYERS else plan_field(path).high or math.inf
    more: list[Spot] = []
    while len(more) < MORE and (found[-1] if not more else more[-1]).possible:
        value = 2 * (found[-1] if not more else more[-1]).value_at
        if value > most or not (there := look(value)).plan:
            break
        more.append(there)
    return more


def _rises(found: Sequence[Spot]) -> bool:
    known = [s for s in found if s.plan]
    if len(known) < 2:
        return True
    first, final = known[0], known[-1]
    return first.high - first.limit <= final.high - final.limit


def _edge(found: Sequence[Spot], look: Look, ok: Callable[[Spot], bool], whole: bool) -> Any:
    """The last value that is ok before the first that is not, in the order of the spots."""
    known = [s for s in found if s.plan]
    for one, other in itertools.pairwise(known):
        if ok(one) and not ok(other):
            if not whole:
                return one.value_at
            return _between(one.value_at, other.value_at, lambda value: ok(look(value)))
    return None


def _between(good: int, bad: int, ok: Callable[[int], bool]) -> int:
    """The last whole number from `good` towards `bad` that is ok, if all up to it are."""
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if ok(middle) else (good, middle)
    return good


def _turns(spots: Sequence[Spot], look: Look, whole: bool) -> tuple[Turn, ...]:
    known = [s for s in spots if s.plan and s.largest]
    if not known:
        return ()
    found = [Turn(known[0].value_at, known[0].largest, known[0].instant)]
    for one, other in itertools.pairwise(known):
        if one.largest == other.largest:
            continue
        there = other
        if whole:
            as_before = one.largest
            at = _between(one.value_at, other.value_at, lambda v, p=as_before: look(v).largest == p)  # type: ignore[misc]
            there = look(at + 1)
            there = there if there.plan else other
        found.append(Turn(there.value_at, there.largest, there.instant))
    return tuple(found)


def says(plan: Plan, found: Sweep) -> list[str]:
    """What a sweep shows, in sentences."""
    lines = [_fitting_words(found)] if not is_number(found.path) else [_fitting(found)]
    if found.figure.parts and is_number(found.path):
        lines.append(_dominating(found))
    elif not found.figure.parts:
        lines.append(_best(found))
    return [line for line in lines if line]


def _fitting(found: Sweep) -> str:
    """Up to where it fits, and up to where it may."""
    known = [s for s in found.spots if s.plan]
    if not known:
        return f"No value of {title(found.path).lower()} can be planned here."
    first, final = known[0].value_at, known[-1].value_at
    where = f"from {text(found.path, first)} to {named(found.path, final)}"
    if found.edge is None:
        if all(s.fits for s in known):
            return f"Fits at every value that was tried, {where}."
        if any(s.possible for s in known):
            return f"Fits for sure at none of these values, {where}; some may fit."
        return f"Fits at no value that was tried, {where}."
    to = "up to" if found.rises else "from"
    said = f"Fits {to} {named(found.path, found.edge)}"
    if found.maybe is None:
        also = "; the others may fit too"
    elif found.maybe != found.edge:
        also = f"; may fit {to} {named(found.path, found.maybe)}"
    else:
        also = ""
    return f"{said}{also}{'' if found.rises else ' on'}."


def _fitting_words(found: Sweep) -> str:
    known = [s for s in found.spots if s.plan]
    groups = {
        "Fits": [s for s in known if s.fits],
        "May fit": [s for s in known if s.possible and not s.fits],
        "Does not fit": [s for s in known if not s.possible],
    }
    said = [
        f"{word}: {', '.join(text(found.path, s.value_at) for s in spots[:6])}"
        + (f" and {len(spots) - 6} more" if len(spots) > 6 else "")
        for word, spots in groups.items()
        if spots
    ]
    if forbidden := len(found.spots) - len(known):
        said.append(f"{forbidden} cannot be planned here; the table says why")
    return ". ".join(said) + "." if said else ""


def _dominating(found: Sweep) -> str:
    """What takes most of the memory, from where on."""
    if not found.turns:
        return ""
    first, *others = found.turns
    name = PART_NAMES[first.part]
    if not others:
        return f"{name} take most throughout." if _many(name) else f"{name} takes most throughout."
    said = [f"{name} {'take' if _many(name) else 'takes'} most at first"]
    for turn in others:
        at = f" (peak: {turn.instant[0].lower()}{turn.instant[1:]})" if turn.instant else ""
        said.append(f"from {named(found.path, turn.at)} on {_lower(PART_NAMES[turn.part])}{at}")
    return "; ".join(said) + "."


def _many(name: str) -> bool:
    return name.endswith("s") and name != "Workspace"


def _lower(name: str) -> str:
    return name if name[:2].isupper() else f"{name[0].lower()}{name[1:]}"


def _best(found: Sweep) -> str:
    """The best of what fits."""
    fit = [s for s in found.spots if s.fits and s.value is not None]
    if not fit:
        return ""
    sign = 1 if found.figure.less_is_better else -1
    best = min(fit, key=lambda s: sign * (s.value or 0))
    word = "Least" if found.figure.less_is_better else "Most"
    value = found.figure.text(best.value or 0)
    return f"{word} of what fits: {value}, at {named(found.path, best.value_at)}."


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
    figure = FIGURES[key]
    columns = thinned(values(plan, across), here(plan, across), MOST_ACROSS)
    rows = thinned(values(plan, down), here(plan, down), MOST_DOWN)
    if not figure.serves and all(is_number(p) and p != LAYERS for p in (across, down)):
        return Map(across, down, figure, columns, rows, _by_arrays(plan, across, down, figure))
    pool = Pool()
    spots = tuple(
        tuple(
            spot(plan, changes(plan, down, y) | changes(plan, across, x), (x, y), figure, pool)
            for x in columns
        )
        for y in rows
    )
    return Map(across, down, figure, columns, rows, spots)


ENDS = ("memory.device_bytes.0", "memory.device_bytes.1", "memory.capacity_bytes", "memory.fits")


def _by_arrays(plan: Plan, across: str, down: str, figure: Figure) -> tuple[tuple[Spot, ...], ...]:
    """The same of training and numbers, whose cells the engine evaluates together."""
    columns = thinned(values(plan, across), here(plan, across), MOST_ACROSS)
    rows = thinned(values(plan, down), here(plan, down), MOST_DOWN)
    wanted = tuple(dict.fromkeys((*ENDS, figure.path)))
    found = swept(plan, {down: rows, across: columns}, wanted)
    cells = zip(*(found[name].ravel().tolist() for name in wanted), strict=True)
    spots = [
        _cell(at, dict(zip(wanted, cell, strict=True)), figure, plan)
        for at, cell in zip(itertools.product(rows, columns), cells, strict=True)
    ]
    n = len(columns)
    return tuple(tuple(spots[i : i + n]) for i in range(0, len(spots), n))


def _cell(at: tuple[Any, Any], cell: Mapping[str, float], figure: Figure, plan: Plan) -> Spot:
    where, (low, high, limit, fits) = (at[1], at[0]), (cell[name] for name in ENDS)
    if math.isnan(low):
        return Spot(where, None, "another field of the plan forbids it")
    verdict = "fits" if fits else "tight" if low <= limit < high else "over"
    value = cell[figure.path]
    return Spot(
        where,
        plan,
        verdict=verdict,
        value=None if math.isnan(value) else value,
        low=int(low),
        high=int(high),
        limit=int(limit),
    )


def thinned(every: Sequence[Any], own: Any, most: int) -> tuple[Any, ...]:
    """At most so many of them, the plan's own among them: of whole numbers first what is doubled
    from one to the next, of others evenly."""
    if len(every) <= most:
        return tuple(every)
    first = [own] if own in every else []
    first += [x for x in every if isinstance(x, int) and x.bit_count() == 1 and x not in first]
    step = (len(every) - 1) / (most - 1)
    first += [every[round(k * step)] for k in range(most)]
    kept = list(dict.fromkeys(first))[:most]
    return tuple(x for x in every if x in kept)


# --- on which GPUs -------------------------------------------------------------------------------


def accelerators(every: bool) -> tuple[str, ...]:
    """Those with a list price, or every one."""
    return tuple(catalog.gpu_names() if every else catalog.priced_gpus())
