"""Solver: the largest or the smallest value of any number of a plan with which it still fits.

A field of which more takes memory is made as large as it can be, one of which more frees memory as
small. A candidate is a plan of its own, judged as `evaluate` judges it; there is no formula here.
Few candidates are all judged, and so are all numbers of GPUs, with arrays. Of many, the last that
fits is found by halving, as memory only grows along a field, and those next to it are judged one by
one, as rounding and padding may make it step back a little.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import did_you_mean, refusal
from memcore.hardware.accelerator import Accelerator, Node
from memcore.models import catalog
from memcore.models.standard import standard_config
from memcore.plan.field import Facts
from memcore.plan.models import DIMS, dims_of
from memcore.plan.plan import Plan, facts, field_of, field_paths, get, limits_of, meant, put
from memcore.plan.repair import planned
from memcore.report import Run
from memcore.search.edges import first, last
from memcore.search.fitting import WITHIN, Within, limit_of
from memcore.search.solve import ANY, Targets
from memcore.search.sweep import swept
from memcore.serving.serve import servable
from memcore.training.run import run_of
from memcore.training.training import Training, not_planned
from memcore.units import DAY

LARGEST, SMALLEST = "largest", "smallest"
FEW = 64  # candidates that are all judged
NEAR = 16  # candidates beside what halving finds that are judged too
FLOAT_STEPS = 1000  # of one unit: what a number that is not whole is found to
MOST_BYTES = 1 << 50  # of a memory that is looked for
MOST_LAYERS = 4096
HARDWARE = {"cluster.gpu": Accelerator, "cluster.node": Node}
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")  # as config.json calls them


@dataclass(frozen=True, slots=True)
class Solved:
    """What was found.

    field   a path of the plan, of its model's config.json ('model.num_hidden_layers') or of its
            hardware ('cluster.node.dram_bytes')
    goal    'largest' or 'smallest'
    value   None where no value fits
    plan    that has it; the one asked about where none fits
    limit   what forbids the next value: 'memory', 'rule' (another field of the plan), 'ttft',
            'tpot', 'days' and 'cost' (of the whole run), 'kind' (that cannot be planned) or 'range'
            (no plan goes further)
    """

    field: str
    goal: str
    value: Any
    plan: Plan
    limit: str

    def to_dict(self) -> dict[str, Any]:
        names = ("field", "goal", "value", "limit")
        return {n: getattr(self, n) for n in names} | {"plan": self.plan.document()}


def solve(
    plan: Plan,
    field: str,
    goal: str = "",
    targets: Targets = ANY,
    serves: bool | None = None,
    most: int | None = None,
) -> Solved:
    """The largest or the smallest value of a numeric field with which the plan fits.

    goal    'largest' or 'smallest'; '' is what the field asks for
    serves  whether serving has to fit rather than training; None is what the field is of
    most    GPUs that are tried at most; None: as many as a plan says

    GPUs to train on are as many as the whole run needs to keep to run.target_days and
    run.target_cost, each with the micro-batch and the accumulation of the plan.

    Raises PlanError for a field that has no number.
    """
    path = named(plan, field)
    axis = _axis(plan, path, most)
    goal = goal or (SMALLEST if axis.frees else LARGEST)
    if goal not in (LARGEST, SMALLEST):
        raise refusal("goal", f"is {LARGEST} or {SMALLEST}, not '{goal}'")
    section = path.partition(".")[0]
    of_server = section == "serve" if serves is None else serves
    if of_server and not servable(plan.architecture):
        raise refusal(path, f"{plan.architecture.label} cannot be served")
    to_train_on = path == "cluster.gpus" and not of_server
    trained = to_train_on or (section in ("train", "parallel") and not of_server)
    if trained and (why := not_planned(plan)):
        raise refusal(path, f"training is not planned: {why}")

    within = Within.of(plan) if to_train_on else Within(0.0, 0.0)

    def limit(value: Any) -> str:
        there = axis.at(value)
        why = limit_of(there, of_server, targets)
        if why or not there or not within.limits_anything:
            return why
        run = _run_on(there)
        return within.missed(run.seconds, run.cost) if run else ""

    def run(gpus: int) -> Run | None:
        there = axis.at(gpus)
        return _run_on(there) if there and not limit_of(there, serves=False) else None

    values, ends = _valid(axis)
    backwards = goal == LARGEST
    if to_train_on:
        found = of_gpus(plan, values, run, within, backwards)
    else:
        # With more of what frees memory it fits from some value on, else up to one.
        found = _edge(values, lambda v: not limit(v), axis.frees, backwards)
    if found is None:
        why = limit(values[-1 if axis.frees else 0]) if values else "rule"
        if within.limits_anything:  # what fits, but takes too long or costs too much
            freely = solve(plan.with_changes(dict.fromkeys(WITHIN, 0.0)), path, goal, most=most)
            why = why if freely.value is None else limit(freely.value)
        return Solved(path, goal, None, plan, why)
    beyond = found + (1 if backwards else -1)
    why = limit(values[beyond]) if 0 <= beyond < len(values) else ends[backwards]
    best = axis.at(values[found])
    assert best
    return Solved(path, goal, values[found], best, why or "memory")


def smallest_gpu(plan: Plan, serves: bool = False, names: Iterable[str] = ()) -> Solved:
    """The accelerator preset with the least memory on which the plan fits; of equal ones the one
    with the slowest memory, which is the cheapest."""
    presets = {n: catalog.accelerator(n) for n in (names or catalog.gpu_names())}
    order = sorted(
        (n for n, gpu in presets.items() if not gpu.caveat),
        key=lambda n: (presets[n].memory_bytes, presets[n].memory_bandwidth, n),
    )
    for name in order:
        changed = planned(plan, {"cluster.gpu": name})
        if changed and not limit_of(changed, serves):
            return Solved("cluster.gpu", SMALLEST, name, changed, "memory")
    return Solved("cluster.gpu", SMALLEST, None, plan, "memory")


def _valid(axis: _Axis) -> tuple[Sequence[Any], tuple[str, str]]:
    """Of many candidates those between the ones from which on rules forbid the field, and what
    forbids more below and above. The field's own value is allowed, or one of the ends."""
    values, n = axis.values, len(axis.values)
    if n <= FEW:
        return values, ("range", "range")
    current = min(bisect.bisect_left(values, axis.here), n - 1)
    allowed = [i for i in (current, n - 1, 0) if axis.at(values[i]) is not None]
    if not allowed:
        return (), ("rule", "rule")
    here = allowed[0]

    def reach(step: int, most: int) -> int:
        """How far from here there are plans."""
        if axis.at(values[here + step * most]) is not None:
            return most
        return last(most, lambda k: axis.at(values[here + step * k]) is not None)

    down, up = reach(-1, here), reach(1, n - 1 - here)
    ends = ("range" if down == here else "rule", "range" if up == n - 1 - here else "rule")
    return values[here - down : here + up + 1], ends


# --- which values a field may have ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """A field's candidates.

    values  the least first
    at      the plan with one of them; None where its rules forbid it
    frees   whether more of it needs less memory
    here    the plan's own value
    """

    values: Sequence[Any]
    at: Callable[[Any], Plan | None]
    frees: bool
    here: Any


def numeric_fields() -> tuple[str, ...]:
    """Every field of a plan that is a number."""
    return tuple(p for p in field_paths() if field_of(p).annotation in (int, float))


def named(plan: Plan, field: str) -> str:
    """The path of a field by its path or its last word, if only one has it. Raises PlanError."""
    known = numeric_fields()
    if field in known or (field.partition(".")[0] == "model" and "." in field):
        return f"model.{_layers(plan)}" if field == "model.layers" else field
    if any(field.startswith(f"{part}.") for part in HARDWARE):
        return field
    if field == "layers":
        return f"model.{_layers(plan)}"
    if field == "cluster.gpu":
        return field
    same = [p for p in known if p.rpartition(".")[2] == field]
    if len(same) == 1:
        return same[0]
    if same:
        raise refusal("field", f"'{field}' is the last word of {' and '.join(same)}")
    if field in field_paths():
        numbers = f"it takes no number; choose one of {', '.join(known[:6])}, ..."
        raise refusal("field", f"{field} cannot be solved for: {numbers}")
    raise refusal("field", f"'{field}' is no field of a plan; {meant(field)}")


def _axis(plan: Plan, path: str, most: int | None = None) -> _Axis:
    section = path.partition(".")[0]
    if section == "model" and path.removeprefix(DIMS) not in dims_of(plan.model):
        return _of_model(plan, path.partition(".")[2])
    for part in HARDWARE:
        if path.startswith(f"{part}."):
            return _of_hardware(plan, part, path[len(part) + 1 :])
    described = facts(path)

    def at(value: Any) -> Plan | None:
        return planned(plan, {path: value})

    if path == "cluster.gpus":
        return _Axis(bookable(plan, most), at, True, plan.cluster.gpus)
    return _Axis(_values(plan, path, described), at, described.frees, get(plan, path))


def _values(plan: Plan, path: str, described: Facts) -> Sequence[Any]:
    low, high = limits_of(path)
    left = described.auto and low == 0  # 0 is no number of it
    if field_of(path).annotation is float:
        n = FLOAT_STEPS
        return _Steps(range(math.ceil(low * n) + left, math.floor(high * n) + 1), n)
    every = range(int(low) + left, int(high) + 1)
    if path == "parallel.shard_group":
        ranks = plan.dp * plan.parallel.cp
        return [n for n in range(1, ranks + 1) if ranks % n == 0]
    if len(every) <= MOST_TRIED:
        return [n for n in every if planned(plan, {path: n})]
    return _in_steps(plan, path, every)


MOST_TRIED = 1024  # candidates of which each is tried as a plan before any is judged


def _in_steps(plan: Plan, path: str, every: range) -> range:
    """Of a long range, what rules about divisors leave: every n-th number."""

    def may(n: int) -> bool:
        return planned(plan, {path: n}) is not None

    step = 1
    if not all(may(n) for n in every[7:9]):  # neighbours, one of them odd: nothing divides both
        step = _step_of(plan, path)
    return range(-(-every.start // step) * step, every.stop, step)


def _step_of(plan: Plan, path: str) -> int:
    """What a sequence length or a micro-batch is a multiple of, where products are in 8 bits."""
    sizes = plan.sizes()
    divisor = sizes["CP"] * sizes["TP"] * sizes["NARROW"]
    other = {"train.seq_len": sizes["B"], "train.micro_batch": sizes["S"]}.get(path, divisor)
    return int(divisor // math.gcd(divisor, other))


@dataclass(frozen=True, slots=True)
class _Steps(Sequence[float]):
    """Numbers that are not whole, in steps."""

    of: range
    per_unit: int

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return _Steps(self.of[i], self.per_unit)
        return self.of[i] / self.per_unit


def bookable(plan: Plan, most: int | None = None) -> Sequence[int]:
    """Numbers of GPUs that can be booked for a plan, up to `most` (None: as many as a plan says),
    the fewest first: an even part of a node, and whole nodes; those that its ranks can share, and
    the engines beside them."""
    each = plan.gpus_per_node
    engine = 1 if plan.together.kind == "none" else plan.engine_tp * plan.engine_pp
    ranks = math.lcm(plan.sharing, engine)
    most = most or int(limits_of("cluster.gpus")[1])
    parts = [n for n in range(1, each) if each % n == 0 and n % ranks == 0]
    step = math.lcm(each, ranks)
    return [*parts, *range(step, most + 1, step)]


def _of_model(plan: Plan, key: str) -> _Axis:
    """A whole number of the model's config.json, from 1 on."""
    config = config_of(plan)
    try:
        here = get(config, key)
    except (KeyError, AttributeError, TypeError):
        here = None
    if not isinstance(here, int) or isinstance(here, bool):
        numbers = [k for k, v in config.items() if isinstance(v, int) and not isinstance(v, bool)]
        refused = f"'{key}' is no whole number of this model's config.json"
        raise refusal("field", f"{refused}; {did_you_mean(key, numbers)}")

    def at(value: int) -> Plan | None:
        return planned(plan, {"model": with_number(config, key, value)})

    most = MOST_LAYERS if key.rpartition(".")[2] in LAYERS else 1 << 20
    step = next((n for n in (1, 2, 4, 8, 16, 32, 64, 128) if at(n) or at(3 * n)), 1)
    return _Axis(range(step, most + 1, step), at, False, here)


def with_number(config: Mapping[str, Any], key: str, value: int) -> dict[str, Any]:
    """A config.json with another number; lists that have one entry each of it go on as they are."""
    here = get(config, key)
    changed = {k: _repeated(v, here, value) for k, v in config.items()}
    changed |= {k: dict(v) for k, v in changed.items() if isinstance(v, Mapping)}
    put(changed, key, value)
    return changed


def _repeated(value: Any, here: int, layers: int) -> Any:
    """A list that has one entry a layer, for another number of layers: its pattern goes on."""
    if not isinstance(value, list) or len(value) != here or not value:
        return value
    period = next(
        n for n in range(1, here + 1) if all(v == value[i % n] for i, v in enumerate(value))
    )
    return [value[i % period] for i in range(layers)]


def config_of(plan: Plan) -> dict[str, Any]:
    """The config.json behind a plan's model."""
    model = plan.model
    if isinstance(model, str):
        return dict(catalog.model_entry(model).get("config", {}))
    if "size" in model and "model_type" not in model:
        return dict(standard_config(model["size"]))
    return dict(model)


def _layers(plan: Plan) -> str:
    return layers_key(config_of(plan)) or LAYERS[0]


def layers_key(config: Mapping[str, Any]) -> str:
    """What a model's config.json calls its number of layers; '' where it says none."""
    inner = [(f"{k}.", v) for k, v in config.items() if isinstance(v, Mapping)]
    for prefix, part in [("", config), *inner]:
        for key in LAYERS:
            if isinstance(part.get(key), int):
                return prefix + key
    return ""


def _of_hardware(plan: Plan, part: str, key: str) -> _Axis:
    """A number of the GPU's or the host's description: the least that is enough."""
    described = plan.card(plan.gpu_name) if part == "cluster.gpu" else _host(plan)
    document = described.model_dump(mode="json", exclude_none=True)
    numbers = [k for k, v in document.items() if isinstance(v, int) and not isinstance(v, bool)]
    if key not in numbers:
        refused = f"'{key}' is no whole number of a {part.rpartition('.')[2]}"
        raise refusal("field", f"{refused}; {did_you_mean(key, numbers)}")

    def at(value: int) -> Plan | None:
        changed = document | {key: value}
        if key == "memory_bytes":  # as sold: the same share of it can be allocated
            changed["usable_bytes"] = document["usable_bytes"] * value // document[key]
        return planned(plan, {part: changed})

    return _Axis(range(1, MOST_BYTES + 1), at, True, document[key])


def _host(plan: Plan) -> Node:
    name = plan.cluster.node or plan.accelerator.node
    return catalog.node(name) if isinstance(name, str) else name


# --- the edge between what fits and what does not -------------------------------------------------


def _edge(
    values: Sequence[Any], fits: Callable[[Any], bool], frees: bool, backwards: bool
) -> int | None:
    """The index of the last candidate that fits, or of the first (`backwards` false)."""
    n = len(values)
    if n <= FEW:
        order: Iterable[int] = reversed(range(n)) if backwards else range(n)
        return next((i for i in order if fits(values[i])), None)
    if backwards == frees:  # asked against the grain: the end of the candidates fits, if any does
        at_end = n - 1 if backwards else 0
        return at_end if fits(values[at_end]) else None

    def ok(k: int) -> bool:
        """Of the candidates counted from the end that fits most easily."""
        return fits(values[k if backwards else n - 1 - k])

    low = last(n, lambda count: ok(count - 1)) - 1
    near = [k for k in range(low + 1, min(n, low + 1 + NEAR)) if ok(k)]
    low = max(near, default=low)
    if low < 0:
        return None
    return low if backwards else n - 1 - low


def _run_on(plan: Plan) -> Run | None:
    training = Training.of(plan, rows=False)
    return run_of(plan, training.time()) if training else None


def of_gpus(
    plan: Plan,
    values: Sequence[int],
    run: Callable[[int], Run | None],
    within: Within,
    backwards: bool = False,
) -> int | None:
    """The index of the first of some numbers of GPUs, the fewest first, on which training fits and
    the run keeps to what it may take; or of the last (`backwards`).

    run   the whole run on so many, where training fits and what runs beside it

    Every number is judged with arrays, more and more of them at a time: more GPUs may need more
    memory each, where what they share does not divide evenly. Only of what fits is the run asked.
    """
    best = None
    limited = within.limits_anything or plan.together.kind != "none"
    alone = planned(plan, {"together.kind": "none"}) or plan
    for start, stop in _chunks(len(values)):
        fits = swept(alone, {"cluster.gpus": list(values[start:stop])}, ["memory.fits"])
        which = [start + i for i, f in enumerate(fits["memory.fits"]) if f == 1]
        if limited:
            at = _in_time([values[i] for i in which], run, within, backwards)
            which = [] if at is None else [which[at]]
        if which and not backwards:
            return which[0]
        best = which[-1] if which else best
    return best


def _in_time(
    values: Sequence[int], run: Callable[[int], Run | None], within: Within, backwards: bool
) -> int | None:
    """The index of the first of some numbers of GPUs that keeps a run to what it may take, or of
    the last.

    More GPUs are sooner done and cost more, nearly: the fewest that are soon enough are the
    cheapest of these, and the most that are cheap enough the soonest. So one of both is looked for,
    from where the GPU time of fewer would be soon enough, and the other is asked of what is found
    and of those next to it. As steps are whole, a run may miss the edge by the share that one step
    is of it.
    """
    n, on = len(values), functools.cache(lambda i: run(values[i]))
    if not n:
        return None
    eased = Within(0.0, within.cost) if backwards else Within(within.days, 0.0)

    def ok(i: int, limits: Within = eased) -> bool:
        there = on(i)
        return there is not None and not limits.missed(there.seconds, there.cost)

    def nearly(i: int) -> bool:
        there = on(i)
        if there is None:
            return True
        less = 1 - 1 / there.steps
        return not eased.missed(there.seconds * less, there.cost and there.cost * less)

    def soon(i: int) -> int:
        """The first that is soon enough, if the run takes as much GPU time as on another."""
        there = on(i)
        if there is None or not eased.days:
            return i
        return min(bisect.bisect_left(values, values[i] * there.seconds / eased.days / DAY), n - 1)

    k = first(n, lambda k: ok(n - 1 - k)) if backwards else first(n, ok, soon(soon(0)))
    if k == n:
        return None
    inside = n - 1 - k if backwards else k
    ahead = range(inside + 1, n) if backwards else range(inside - 1, -1, -1)
    behind = range(inside, -1, -1) if backwards else range(inside, n)
    missed = list(itertools.takewhile(nearly, ahead[:NEAR]))
    return next((i for i in (*reversed(missed), *behind[:NEAR]) if ok(i, within)), None)


def _chunks(n: int) -> Iterator[tuple[int, int]]:
    sizes = itertools.chain((64, 512, 4096), itertools.repeat(1 << 16))
    start = 0
    for size in sizes:
        if start >= n:
            return
        yield start, min(n, start + size)
        start += size
