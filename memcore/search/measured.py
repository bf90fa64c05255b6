"""Plans, read with a training step or a server that was measured.

Part of what our seconds are off is a bias of the framework, or of the engine and its version, on a
GPU, which a measurement of one plan says for the others; the rest is that plan's own.

Steps of one framework, kernels, attention, adapter and GPU have a share in common
(evidence.calibration). Within one server (engine and its version, GPU, ranks, model and its
words) points have most of it in common, whatever the load; the nearer the loads, the more. With
other ranks, dtypes or another model there is nothing that could be relied on, and with another GPU
a part of the time per token alone. presets/evidence/in_common.toml says how much each
(evidence.servers), and docs/accuracy.md how much nearer it comes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memcore.cache import cached
from memcore.errors import Issue, PlanError, refusal
from memcore.evaluate import evaluate
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, get, value_text
from memcore.report import Report
from memcore.shipped import PRESETS
from memcore.timing import certainty
from memcore.units import bytes_text, seconds_text
from memcore.words.engines import ENGINES, SGLANG, TENSORRT_LLM, VLLM
from memcore.words.serving import CLOSED

if TYPE_CHECKING:
    from memcore.search.result import Point, SearchResult

STEP, TOKEN, FIRST = "step", "token", "first"  # seconds that are measured
# How near two plans are: OWN is the one that was measured, KIND a step that shares its bias.
KIND = "kind"
OWN, NEAR, LOAD, LENGTHS, GPU, RANKS, WORDS, MODEL, OTHER = (
    *("own", "near", "load", "lengths", "gpu", "ranks", "words", "model", "other"),
)
# Of distances that the table has, what two servers have in common, for people.
DISTANCE_TEXTS = {
    NEAR: "one server, at up to twice or half as many requests at once",
    LOAD: "one server, at other numbers of requests at once",
    LENGTHS: "one server, with requests of other lengths",
    GPU: "one engine, model and ranks, on another GPU",
    RANKS: "one engine, model and GPU, on other ranks",
    WORDS: "one engine, model and GPU, with other dtypes or settings",
    MODEL: "one engine and GPU, with another model",
}
WHAT = {FIRST: "The first token", TOKEN: "A token"}
LATENCIES = {FIRST: "to the first token", TOKEN: "a token"}
PHRASES = {STEP: "{} a step", FIRST: "first token after {}", TOKEN: "one every {}"}
COMPARED = (VLLM, SGLANG, TENSORRT_LLM)
KINDS = {"Hopper", "Blackwell"}  # GPUs that were compared with each other, all with HBM
TWICE = 2  # requests at once, up to which loads are near
# What the bias of a step is of.
SHARED = ("train.framework", "train.kernels", "train.attention", "train.adapter", "cluster.gpu")
LENGTH = tuple(
    f"serve.{name}"
    for name in (
        *("prompt_len", "output_len", "shared_prefix", "prefix_hits", "turns", "images"),
        "image_size",
    )
)
# What is no word of how a server computes: its load, room for it, a stream's draw, targets; and
# what `Server` has besides the words.
NO_WORDS = (
    *("engine", "tp", "pp", "weight_dtype", "concurrency", "arrivals", "arrival_rate", "lengths"),
    *("prompt_cv", "output_cv", "requests", "seed", "max_seq_len", "max_num_seqs"),
    *("memory_utilization", "target_ttft", "target_tpot"),
)


# --- how near two plans are ----------------------------------------------------------------------


def kind(plan: Plan) -> tuple[str, ...]:
    """What a plan's step has of what the bias is of."""
    return tuple(
        plan.accelerator.label if field == "cluster.gpu" else str(get(plan, field))
        for field in SHARED
    )


@dataclass(frozen=True, slots=True)
class Server:
    """What a plan's server has in common with others, part by part.

    words    how it serves, whatever the load; ranks: of tensor, pipeline and experts
    load     lengths of requests; at_once: how many on one replica
    closed   whether as many are there at all times, as in all that was measured
    kind     the GPU's architecture, where its memory is HBM; else ''
    """

    engine: str
    gpu: str
    model: tuple[Any, ...]
    words: tuple[Any, ...]
    ranks: tuple[int, ...]
    load: tuple[Any, ...]
    at_once: int
    closed: bool
    kind: str


def server(plan: Plan) -> Server:
    """A plan's server."""
    m, s, gpu = plan.architecture, plan.serve, plan.accelerator
    left = {*LENGTH, *(f"serve.{name}" for name in NO_WORDS)}
    words = [getattr(s, name) for name in type(s).model_fields if f"serve.{name}" not in left]
    sizes = (m.family, m.hidden_size, m.layers, m.intermediate_size, m.experts, m.vocab_size)
    return Server(
        plan.engine, plan.accelerator.label, sizes, (plan.weight_dtype, *words),
        (plan.serving_tp, plan.serving_pp, plan.parallel.ep),
        tuple(get(plan, path) for path in LENGTH), s.concurrency, s.arrivals == CLOSED,
        gpu.architecture.partition(" ")[0] if gpu.memory_kind.startswith("HBM") else "",
    )  # fmt: skip


def distance(one: Server, other: Server) -> str:
    """How near two servers are, by one of the words above; OTHER where nothing was compared: of
    another engine or kind of GPU, that differ in several ways, or that are no closed loop."""
    if one == other:
        return OWN
    if one.engine != other.engine or not (one.closed and other.closed):
        return OTHER
    apart = {name for name in ("gpu", "model", "words", "ranks")
             if getattr(one, name) != getattr(other, name)}  # fmt: skip
    if not apart:
        if one.load != other.load:
            return LENGTHS
        near = max(one.at_once, other.at_once) <= TWICE * min(one.at_once, other.at_once)
        return NEAR if near else LOAD
    if "gpu" in apart:
        kinds = {one.kind, other.kind} <= KINDS
        return GPU if apart == {"gpu"} and kinds else OTHER
    return MODEL if "model" in apart else WORDS if "words" in apart else RANKS


def _distance_to(measurement: Measured) -> Callable[[Plan], str]:
    """What says how near a plan is to the one that was measured."""
    if measurement.of_server:
        then = server(measurement.plan)
        return lambda plan: distance(server(plan), then)
    of = kind(measurement.plan)
    return lambda plan: OWN if plan == measurement.plan else KIND if kind(plan) == of else OTHER


# --- what they have in common --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Common:
    """What servers at a distance have in common.

    points      measured ones that have another one at this distance
    share       of what one is off (as a logarithm) that the other is off too; 0 where moving it by
                as much as it seems to have in common brought none nearer
    low, high   measured over calibrated seconds, which 8 of 10 of them lie between
    predicted, calibrated   how far off half of them are at most, and 8 of 10 of them
    """

    points: int
    share: float
    low: float
    high: float
    predicted: Sequence[float]
    calibrated: Sequence[float]


@cached
def _table() -> Mapping[str, Any]:
    path = PRESETS.joinpath("evidence", "in_common.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def common(latency: str, at: str) -> Common:
    """Of time per token or first token, at a distance of DISTANCE_TEXTS."""
    return Common(**_table()[latency][at])


def in_common(latency: str, at: str) -> Common | None:
    """The same; None at a distance at which nothing was compared."""
    return common(latency, at) if at in DISTANCE_TEXTS else None


def far(name: str) -> tuple[float, float]:
    """Measured seconds over ours, which 9 of 10 steps or points lie between."""
    if name == STEP:
        return certainty.farthest()
    ends = _table()["far"][name]
    return ends["low"], ends["high"]


def shared(off: float, share: float, far: tuple[float, float]) -> float:
    """How many times the prediction something takes that has `share` in common (of logarithms) with
    what was measured to be `off`. Nothing that we were held against is farther off than `far`: what
    is beyond that is taken to be the machine's, and so all in common."""
    low, high = far
    near = min(max(off, low), high)
    factor: float = near**share * off / near
    return factor


# --- a plan with what was measured ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """Seconds of a plan, with what was measured.

    off       measured over predicted seconds, of the plan that was measured
    factor    what this one's are multiplied by: as much of that as is in common, and all of it for
              the plan that was measured
    seconds   as predicted; calibrated_seconds: times the factor
    interval  that calibrated ones that were measured lie between: 9 of 10 steps, 8 of 10 servers
    """

    off: float
    factor: float
    seconds: float
    calibrated_seconds: float
    interval: tuple[float, float]

    @property
    def text(self) -> str:
        """The calibrated seconds, with their interval where that is one."""
        text, ends = seconds_text(self.calibrated_seconds), self.ends
        return text if ends == text else f"{text} ({ends})"

    @property
    def ends(self) -> str:
        """Between which seconds it lies, or the seconds of a measured one."""
        return " to ".join(dict.fromkeys(map(seconds_text, self.interval)))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A plan's figures with what was measured. The Report has them as they are predicted.

    at       how near the plan is to the measured one: OWN, KIND, or a word of DISTANCE_TEXTS
    moved    STEP, or TOKEN and FIRST; without those of which the measurement says nothing
    numbers  what follows from them, by name, as predicted and calibrated: `tokens_per_second`,
             `run_seconds`, `gpu_hours`, `cost`, `allocated_bytes` (with as many more as were
             measured beyond the prediction); or of one replica `tokens_per_second`,
             `cost_per_million_out`
    """

    measured: Measured
    at: str
    moved: Mapping[str, Moved]
    numbers: Mapping[str, tuple[float, float]]

    @property
    def step(self) -> Moved | None:
        return self.moved.get(STEP)

    @property
    def token(self) -> Moved | None:
        return self.moved.get(TOKEN)

    @property
    def first(self) -> Moved | None:
        return self.moved.get(FIRST)

    @property
    def text(self) -> str:
        """What it comes to, in a line."""
        texts = [
            f"{PHRASES[name].format(one.text)}, predicted {seconds_text(one.seconds)}"
            for name in PHRASES
            if (one := self.moved.get(name))
        ]
        if self.measured.of_server:
            _, rate = self.numbers["tokens_per_second"]
            texts.append(f"{rate:,.0f} tokens/s in all")
        if "allocated_bytes" in self.numbers:
            planned, calibrated = map(bytes_text, self.numbers["allocated_bytes"])
            texts.append(f"{calibrated} allocated at the peak, predicted {planned}")
        return "; ".join(texts)

    @property
    def assumed(self) -> str:
        """What was measured, and what is taken to follow from it."""
        return _of_server(self) if self.measured.of_server else _of_step(self)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the plan that was measured."""
        seconds = {
            name: {n: getattr(one, n) for n in one.__slots__} | {"interval": list(one.interval)}
            for name, one in self.moved.items()
        }
        known = {
            n: v for n in Measured.__slots__ if n != "plan" and (v := getattr(self.measured, n))
        }
        numbers = {name: calibrated for name, (_, calibrated) in self.numbers.items()}
        return {"at": self.at, **seconds, **numbers, "measured": known, "assumed": self.assumed}

    def with_report(self, report: Report) -> dict[str, Any]:
        """The plan's Report as plain JSON types, with these figures as `calibrated`."""
        return {**report.to_dict(), "calibrated": self.to_dict()}


def _of_step(of: Calibrated) -> str:
    moved, (low, high) = of.moved[STEP], far(STEP)
    took = seconds_text(of.measured.seconds)
    text = f"The measured step took {took}, {moved.off:.2f} times the prediction"
    if of.at != OWN:
        text += (
            ". Assumed: other plans with its framework, kernels, attention, adapter and GPU "
            f"take {moved.factor:.2f} times as long, since measured steps of one kind have "
            f"{certainty.in_common():.0%} of what they are off (as a logarithm) in common"
        )
    text += "; in bytes all of it." if of.measured.bytes else "."
    if low <= moved.off <= high:
        return text
    return (
        f"{text} No step that Memplan was held against was so far off: check that this plan is "
        "the one that ran, and that the seconds are those of one optimizer step."
    )


def _of_server(of: Calibrated) -> str:
    measurement, sentences = of.measured, []
    for name, what in WHAT.items():
        moved = of.moved.get(name)
        if moved is None:
            continue
        if took := getattr(measurement, name):
            times = f"{moved.off:.2f} times the prediction"
            one = f"{what} of the measured server took {seconds_text(took)}, {times}"
        else:
            made = f"{measurement.rate:,.0f} tokens/s, {1 / moved.off:.2f} times the prediction"
            one = f"The measured server made {made}, which is read as its time per token"
        if common := in_common(name, of.at):
            one += (
                f"; here it is taken to be {moved.factor:.2f} times, since measured points of "
                f"{DISTANCE_TEXTS[of.at]}, have {common.share:.0%} of what they are off (as a "
                f"logarithm) in common ({common.points:,} points)"
            )
        low, high = far(name)
        if not low <= moved.off <= high:
            one += (
                ". Nine of ten servers that Memplan was held against were nearer: check that "
                "this plan, with its load, is the one that ran"
            )
        sentences.append(f"{one}.")
    if of.at != OWN:
        sentences.append("Both are taken to run the same version of the engine.")
        if measurement.plan.engine not in COMPARED:
            sentences.append(
                f"None of these points is of {ENGINES[measurement.plan.engine].label}."
            )
    measured = {
        FIRST: ("first token", measurement.first),
        TOKEN: ("time per token", measurement.token or measurement.rate),
    }
    left = [what for name, (what, known) in measured.items() if known and name not in of.moved]
    sentences += [f"The {what} stays as predicted: {_why_not(of.at)}." for what in left[:1]]
    return " ".join(sentences)


def calibrated(
    plan: Plan, measurement: Measured, now: Report | None = None, then: Report | None = None
) -> Calibrated:
    """A plan's step or server, as it is predicted and as a measured one has it. `now` and `then`:
    the reports of the plan and of the measured one, where they are there already. Raises PlanError
    where that says nothing of this one, or nothing is predicted."""
    if issues := refused(plan, measurement):
        raise PlanError(issues)
    now, then = now or evaluate(plan), then or evaluate(measurement.plan)
    offs, at = off_by(measurement, then), _distance_to(measurement)(plan)
    predicted = _seconds_of(now, measurement.of_server, "this")
    moved = {name: one for name, seconds in predicted.items()
             if (one := _moved(name, at, offs.get(name), seconds))}  # fmt: skip
    follows = _of_one_replica if measurement.of_server else _of_the_run
    return Calibrated(measurement, at, moved, follows(plan, measurement, now, then, moved))


def _of_the_run(
    plan: Plan, measurement: Measured, now: Report, then: Report, moved: Mapping[str, Moved]
) -> dict[str, tuple[float, float]]:
    """What follows of a run from its step."""
    assert now.memory
    assert now.time
    assert now.run
    factor, run, allocated = moved[STEP].factor, now.run, now.memory.allocated_bytes
    numbers = {"tokens_per_second": (now.time.tokens_per_second,
                                     now.time.tokens_per_second / factor)}  # fmt: skip
    for name, value in (
        ("run_seconds", run.seconds), ("gpu_hours", run.gpu_hours), ("cost", run.cost),
    ):  # fmt: skip
        if value is not None:
            numbers[name] = value, value * factor
    if measurement.bytes:
        more = measurement.bytes - then.memory.allocated_bytes if then.memory else 0
        numbers["allocated_bytes"] = allocated, max(0, allocated + more)
    return numbers


def _of_one_replica(
    plan: Plan, measurement: Measured, now: Report, then: Report, moved: Mapping[str, Moved]
) -> dict[str, tuple[float, float]]:
    """What follows of a server from its latencies."""
    s, output = now.serve, plan.serve.output_len
    assert s
    assert s.ttft_seconds
    assert s.tpot_seconds
    assert s.tokens_per_second
    per = moved[TOKEN].factor if TOKEN in moved else 1.0
    first = moved[FIRST].calibrated_seconds if FIRST in moved else s.ttft_seconds
    takes, calibrated = (
        s.ttft_seconds + output * s.tpot_seconds,
        first + output * s.tpot_seconds * per,
    )
    rate, cost = s.tokens_per_second, s.cost_per_million_out
    numbers = {"tokens_per_second": (rate, rate * takes / calibrated)}
    return numbers if cost is None else numbers | {"cost_per_million_out": (cost, cost * per)}


def off_by(measurement: Measured, then: Report | None = None) -> dict[str, float]:
    """Measured seconds over predicted ones, of what was measured. `then`: the measured plan's
    report, where it is there already. Raises PlanError where nothing is predicted of it."""
    then = then or evaluate(measurement.plan)
    predicted = _seconds_of(then, measurement.of_server, "the measured")
    if not measurement.of_server:
        return {STEP: measurement.seconds / predicted[STEP]}
    offs = {
        name: took / predicted[name]
        for name in (TOKEN, FIRST)
        if (took := getattr(measurement, name))
    }
    if measurement.rate and not measurement.token:
        assert then.serve
        assert then.serve.tokens_per_second
        offs[TOKEN] = then.serve.tokens_per_second / measurement.rate
    return offs


def _seconds_of(report: Report, of_server: bool, whose: str) -> dict[str, float]:
    """What is predicted of a plan's step or server. Raises PlanError where nothing is."""
    if not of_server:
        if not (report.memory and report.time and report.run):
            raise refusal("train", f"the training of {whose} plan is not computed")
        return {STEP: report.time.step_seconds}
    s = report.serve
    if not (s and s.ttft_seconds and s.tpot_seconds and s.tokens_per_second):
        raise refusal("serve", f"of {whose} plan no server's times are computed")
    return {TOKEN: s.tpot_seconds, FIRST: s.ttft_seconds}


def _moved(name: str, at: str, off: float | None, seconds: float) -> Moved | None:
    """Seconds moved by what a measured plan is off; None where they are not."""
    if off is None:
        return None
    factor, (low, high) = off, (1.0, 1.0)
    if at == KIND:
        factor = shared(off, certainty.in_common(), far(name))
        low, high = certainty.calibrated_interval()
    elif at != OWN:
        common = in_common(name, at)
        if common is None or not common.share:
            return None
        factor, low, high = shared(off, common.share, far(name)), common.low, common.high
    took = seconds * factor
    return Moved(off, factor, seconds, took, (took * low, took * high))


# --- what it says nothing of ---------------------------------------------------------------------

# A field of each part of a server that differs, of those by which plans are told apart.
FIELDS = {
    "serve.engine": "engine", "cluster.gpu": "gpu", "model": "model", "serve.tp": "ranks",
    "serve.pp": "ranks", "parallel.ep": "ranks", "serve.weight_dtype": "words",
    "serve.kv_dtype": "words", "serve.prefill": "words", "serve.runtime": "words",
    "serve.draft_model": "words", "serve.draft_tokens": "words", "serve.offload_weights": "words",
    "serve.arrivals": "closed",
}  # fmt: skip


def refused(plan: Plan, measurement: Measured) -> list[Issue]:
    """Why what was measured says nothing of a plan; [] where it says something."""
    if measurement.of_server:
        return _refused_server(plan, measurement)
    return [
        Issue(field, f"the measured step had {_text(measurement.plan, field)}, this plan has "
                     f"{_text(plan, field)}: so how far one is off says nothing of the other")
        for field, then, now in zip(SHARED, kind(measurement.plan), kind(plan), strict=True)
        if then != now
    ]  # fmt: skip


def _refused_server(plan: Plan, measurement: Measured) -> list[Issue]:
    now, then = server(plan), server(measurement.plan)
    at = distance(now, then)
    known = [
        name
        for name, of in ((TOKEN, measurement.token or measurement.rate), (FIRST, measurement.first))
        if of
    ]
    if at == OWN or any((c := in_common(name, at)) and c.share for name in known):
        return []
    why = _why_not(at)
    issues = [
        Issue(field, f"the measured server had {_text(measurement.plan, field)}, this plan has "
                     f"{_text(plan, field)}: {why}")
        for field, name in FIELDS.items()
        if getattr(now, name) != getattr(then, name)
        and _text(measurement.plan, field) != _text(plan, field)
    ]  # fmt: skip
    if not issues and not then.closed:
        why_closed = (
            "of a measured server they must be closed: as many requests are there at all times"
        )
        issues = [Issue("serve.arrivals", why_closed)]
    return issues or [Issue("serve", f"the measured server was set otherwise: {why}")]


def _why_not(at: str) -> str:
    """Why one server says nothing of another at this distance."""
    common = in_common(TOKEN, at)
    if common is None:
        return "servers that differ so were never compared"
    return (
        f"{common.points:,} measured points of {DISTANCE_TEXTS[at]}, have nothing in common that "
        "brought others nearer"
    )


def _text(plan: Plan, field: str) -> str:
    resolved = {
        "serve.engine": plan.engine, "cluster.gpu": plan.accelerator.label,
        "model": plan.architecture.label, "serve.tp": f"{plan.serving_tp:,}",
        "serve.pp": f"{plan.serving_pp:,}", "serve.weight_dtype": plan.weights.label,
    }  # fmt: skip
    return resolved[field] if field in resolved else value_text(field, get(plan, field))


# --- many plans ----------------------------------------------------------------------------------


def mover(measurement: Measured) -> Callable[[Plan, Mapping[str, float]], dict[str, Moved]]:
    """What moves seconds that were predicted of plans, by STEP, TOKEN and FIRST, as what was
    measured has them: those that it says something of. Raises PlanError where nothing is predicted
    of the measured plan."""
    offs, distance_of = off_by(measurement), _distance_to(measurement)

    def moved(plan: Plan, seconds: Mapping[str, float]) -> dict[str, Moved]:
        at = distance_of(plan)
        every = {n: None if at == OTHER else _moved(n, at, offs.get(n), took)
                 for n, took in seconds.items()}  # fmt: skip
        return {name: one for name, one in every.items() if one}

    return moved


# As figures of a search are called, predicted and calibrated.
FIGURES = {STEP: ("step", ""), TOKEN: ("tpot", "tpot_"), FIRST: ("ttft", "ttft_")}


def with_calibrated(result: SearchResult, measurement: Measured) -> SearchResult:
    """What a search found, with calibrated seconds among the figures of those plans that what was
    measured says something of. Ranks are as predicted, since it says nothing of the others. Raises
    PlanError where nothing is predicted of the measured plan."""
    move, names = mover(measurement), (TOKEN, FIRST) if measurement.of_server else (STEP,)

    def moved(point: Point) -> Point:
        took = {name: point.figures[f"{FIGURES[name][0]}_seconds"] for name in names}
        more: dict[str, Any] = {}
        for name, one in move(point.plan, took).items():
            more[f"calibrated_{FIGURES[name][1]}seconds"] = one.calibrated_seconds
            more[f"calibrated_{FIGURES[name][1]}interval"] = list(one.interval)
        return replace(point, figures={**point.figures, **more})

    best, pareto = (tuple(map(moved, points)) for points in (result.best, result.pareto))
    return replace(result, best=best, pareto=pareto)
