"""Benched: servers, read beside one that was measured.

Within one server (engine and its version, GPU, ranks, model and its words) points have most of what
our seconds are off in common, whatever the load; the nearer the loads, the more. With other ranks,
dtypes or another model there is nothing that could be relied on, and with another GPU a part of the
time per token alone. presets/evidence/in_common.toml says how much each (memcore.evidence.benched
finds it), and docs/accuracy.md how much nearer it comes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from memcore.errors import Issue, PlanError, refusal
from memcore.evaluate import evaluate
from memcore.kept import kept
from memcore.plan.benched import Benched
from memcore.plan.plan import Plan, get, value_text
from memcore.report import Report, Serve
from memcore.search.calibration import shared
from memcore.units import seconds_text
from memcore.words.engines import ENGINES, SGLANG, TENSORRT_LLM, VLLM
from memcore.words.serving import CLOSED

if TYPE_CHECKING:
    from memcore.search.found import Found, Point

TOKEN, FIRST = "token", "first"  # the latencies, as the table calls them
OWN, NEAR, LOAD, LENGTHS, GPU, RANKS, WORDS, MODEL, OTHER = (
    *("own", "near", "load", "lengths", "gpu", "ranks", "words", "model", "other"),
)
# Of distances that the table has, what two servers have in common, for people.
SAID = {
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
COMPARED = (VLLM, SGLANG, TENSORRT_LLM)
KINDS = {"Hopper", "Blackwell"}  # GPUs that were compared with each other, all with HBM
TWICE = 2  # requests at once, up to which loads are near
LENGTH = tuple(
    f"serve.{name}"
    for name in (
        *("prompt_len", "output_len", "shared_prefix", "prefix_hits", "turns", "images"),
        "image_size",
    )
)
# What is no word of how a server computes: its load, room for it, a stream's draw, targets; and
# what stands beside the words.
BESIDE = (
    *("engine", "tp", "pp", "weight_dtype", "concurrency", "arrivals", "arrival_rate", "lengths"),
    *("prompt_cv", "output_cv", "requests", "seed", "max_seq_len", "max_num_seqs"),
    *("memory_utilization", "target_ttft", "target_tpot"),
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
    left = {*LENGTH, *(f"serve.{name}" for name in BESIDE)}
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


@kept
def _table() -> Mapping[str, Any]:
    path = files("presets").joinpath("evidence", "in_common.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def common(latency: str, at: str) -> Common:
    """Of time per token or first token, at a distance of SAID."""
    return Common(**_table()[latency][at])


def in_common(latency: str, at: str) -> Common | None:
    """The same; None at a distance at which nothing was compared."""
    return common(latency, at) if at in SAID else None


def far(latency: str) -> tuple[float, float]:
    """Measured seconds over ours, which 9 of 10 points lie between."""
    found = _table()["far"][latency]
    return found["low"], found["high"]


@dataclass(frozen=True, slots=True)
class Moved:
    """Seconds that a request feels, beside a measured server.

    off       measured over predicted seconds, of the server that was measured
    factor    what this one's are multiplied by
    seconds   as predicted; calibrated_seconds: times the factor
    interval  that 8 of 10 calibrated ones that were measured lie between
    """

    off: float
    factor: float
    seconds: float
    calibrated_seconds: float
    interval: tuple[float, float]

    @property
    def text(self) -> str:
        """The calibrated seconds, with their interval where that is one."""
        said, ends = seconds_text(self.calibrated_seconds), self.ends
        return said if ends == said else f"{said} ({ends})"

    @property
    def ends(self) -> str:
        """Between which seconds it lies, or the seconds of a measured one."""
        return " to ".join(dict.fromkeys(map(seconds_text, self.interval)))


@dataclass(frozen=True, slots=True)
class BesideServer:
    """A server's figures beside a measured one. The Report has them as they are predicted.

    at                 how near the two are, a word of SAID, or OWN
    token, first       per output token, to the first one; None where what was measured says nothing
                       of it, so that it stays as predicted
    tokens_per_second  of one replica, with these seconds
    cost_per_million_out   of output tokens in USD, likewise; None where no price is known
    """

    measured: Benched
    at: str
    token: Moved | None
    first: Moved | None
    tokens_per_second: float
    cost_per_million_out: float | None

    @property
    def text(self) -> str:
        """What it comes to, in a line."""
        said = []
        if self.first:
            said.append(
                f"first token after {self.first.text}, predicted {seconds_text(self.first.seconds)}"
            )
        if self.token:
            said.append(
                f"one every {self.token.text}, predicted {seconds_text(self.token.seconds)}"
            )
        return f"{'; '.join(said)}; {self.tokens_per_second:,.0f} tokens/s in all"

    @property
    def assumed(self) -> str:
        """What was measured, and what is taken to follow from it."""
        by, said = self.measured, []
        for name, what in WHAT.items():
            moved = getattr(self, name)
            if moved is None:
                continue
            if took := getattr(by, name):
                times = f"{moved.off:.2f} times the prediction"
                one = f"{what} of the measured server took {seconds_text(took)}, {times}"
            else:
                made = f"{by.rate:,.0f} tokens/s, {1 / moved.off:.2f} times the prediction"
                one = f"The measured server made {made}, which is read as its time per token"
            if of := in_common(name, self.at):
                one += (
                    f"; here it is taken to be {moved.factor:.2f} times, since measured points of "
                    f"{SAID[self.at]}, have {of.share:.0%} of what they are off (as a "
                    f"logarithm) in common ({of.points:,} points)"
                )
            low, high = far(name)
            if not low <= moved.off <= high:
                one += (
                    ". Nine of ten servers that Memplan was held against were nearer: check that "
                    "this plan, with its load, is the one that ran"
                )
            said.append(f"{one}.")
        if self.at != OWN:
            said.append("Both are taken to run the same version of the engine.")
            if by.plan.engine not in COMPARED:
                said.append(f"None of these points is of {ENGINES[by.plan.engine].label}.")
        if unmoved := self.unmoved:
            said.append(unmoved)
        return " ".join(said)

    @property
    def unmoved(self) -> str:
        """What stays as predicted though it was measured, and why; '' where nothing does."""
        by = self.measured
        names = {FIRST: ("first token", by.first), TOKEN: ("time per token", by.token or by.rate)}
        left = [what for name, (what, known) in names.items() if known and not getattr(self, name)]
        return f"The {left[0]} stays as predicted: {_why_not(self.at)}." if left else ""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the plan that was measured."""
        latencies = {}
        for name in (TOKEN, FIRST):
            if moved := getattr(self, name):
                latencies[name] = {n: getattr(moved, n) for n in moved.__slots__}
                latencies[name]["interval"] = list(moved.interval)
        by = self.measured
        known = {n: value for n in (TOKEN, FIRST, "rate") if (value := getattr(by, n))}
        found = {"at": self.at, **latencies, "tokens_per_second": self.tokens_per_second}
        if self.cost_per_million_out is not None:
            found["cost_per_million_out"] = self.cost_per_million_out
        return found | {"measured": known, "assumed": self.assumed}

    def beside(self, report: Report) -> dict[str, Any]:
        """The plan's Report as plain JSON types, with these figures as `calibrated_server`."""
        return {**report.to_dict(), "calibrated_server": self.to_dict()}


def beside(
    plan: Plan, by: Benched, now: Serve | None = None, then: Serve | None = None
) -> BesideServer:
    """A plan's server, as it is predicted and as a measured one has it. `now` and `then`: the
    reports of the plan and of the measured one, where they are there already. Raises PlanError
    where that says nothing of this one, or nothing is predicted."""
    if issues := refused(plan, by):
        raise PlanError(issues)
    at = distance(server(plan), server(by.plan))
    now = now or evaluate(plan).serve
    offs = off_by(by, then)
    if not (now and now.ttft_seconds and now.tpot_seconds and now.tokens_per_second):
        raise refusal("serve", "of this plan no server's times are computed")
    token = _moved(TOKEN, at, offs.get(TOKEN), now.tpot_seconds)
    first = _moved(FIRST, at, offs.get(FIRST), now.ttft_seconds)
    output, per = plan.serve.output_len, token.factor if token else 1.0
    each, wait = now.tpot_seconds, now.ttft_seconds
    later = (first.calibrated_seconds if first else wait) + output * each * per
    cost = now.cost_per_million_out
    return BesideServer(
        by, at, token, first, now.tokens_per_second * (wait + output * each) / later,
        None if cost is None else cost * per,
    )  # fmt: skip


def off_by(by: Benched, then: Serve | None = None) -> dict[str, float]:
    """Measured seconds over predicted ones, of what was measured. Raises PlanError where nothing is
    predicted of the measured plan."""
    then = then or evaluate(by.plan).serve
    if not (then and then.ttft_seconds and then.tpot_seconds and then.tokens_per_second):
        raise refusal("serve", "of the measured plan no server's times are computed")
    found = {}
    if by.token or by.rate:
        slower = then.tokens_per_second / by.rate if by.rate else 0.0
        found[TOKEN] = by.token / then.tpot_seconds if by.token else slower
    if by.first:
        found[FIRST] = by.first / then.ttft_seconds
    return found


def _moved(latency: str, at: str, off: float | None, seconds: float) -> Moved | None:
    """Seconds moved by what a measured server is off; None where they are not."""
    if off is None:
        return None
    if at == OWN:
        took = seconds * off
        return Moved(off, off, seconds, took, (took, took))
    of = in_common(latency, at)
    if of is None or not of.share:
        return None
    factor = shared(off, of.share, far(latency))
    took = seconds * factor
    return Moved(off, factor, seconds, took, (took * of.low, took * of.high))


def refused(plan: Plan, by: Benched) -> list[Issue]:
    """Why a measured server says nothing of a plan's; [] where it says something."""
    now, then = server(plan), server(by.plan)
    at = distance(now, then)
    known = [name for name, of in ((TOKEN, by.token or by.rate), (FIRST, by.first)) if of]
    if at == OWN or any((c := in_common(name, at)) and c.share for name in known):
        return []
    why = _why_not(at)
    issues = [
        Issue(field, f"the measured server had {_text(by.plan, field)}, this plan has "
                     f"{_text(plan, field)}: {why}")
        for field, name in FIELDS.items()
        if getattr(now, name) != getattr(then, name)
        and _text(by.plan, field) != _text(plan, field)
    ]  # fmt: skip
    if not issues and not then.closed:
        said = "of a measured server they must be closed: as many requests are there at all times"
        issues = [Issue("serve.arrivals", said)]
    return issues or [Issue("serve", f"the measured server was set otherwise: {why}")]


# A field of each part of a server that differs, of those by which plans are told apart.
FIELDS = {
    "serve.engine": "engine", "cluster.gpu": "gpu", "model": "model", "serve.tp": "ranks",
    "serve.pp": "ranks", "parallel.ep": "ranks", "serve.weight_dtype": "words",
    "serve.kv_dtype": "words", "serve.prefill": "words", "serve.runtime": "words",
    "serve.draft_model": "words", "serve.draft_tokens": "words", "serve.offload_weights": "words",
    "serve.arrivals": "closed",
}  # fmt: skip


def _why_not(at: str) -> str:
    """Why one server says nothing of another at this distance."""
    found = in_common(TOKEN, at)
    if found is None:
        return "servers that differ so were never compared"
    return (
        f"{found.points:,} measured points of {SAID[at]}, have nothing in common that brought "
        "others nearer"
    )


def _text(plan: Plan, field: str) -> str:
    own = {
        "serve.engine": plan.engine, "cluster.gpu": plan.accelerator.label,
        "model": plan.architecture.label, "serve.tp": f"{plan.serving_tp:,}",
        "serve.pp": f"{plan.serving_pp:,}", "serve.weight_dtype": plan.weights.label,
    }  # fmt: skip
    return own[field] if field in own else value_text(field, get(plan, field))


def mover(by: Benched) -> Callable[[Plan, Mapping[str, float]], dict[str, Moved]]:
    """What moves seconds that were predicted of plans, by TOKEN and FIRST, as a measured server has
    them: those that it says something of. Raises PlanError where nothing is predicted of the
    measured plan."""
    offs, of = off_by(by), server(by.plan)

    def moved(plan: Plan, seconds: Mapping[str, float]) -> dict[str, Moved]:
        at = distance(server(plan), of)
        found = {
            latency: _moved(latency, at, offs.get(latency), took)
            for latency, took in seconds.items()
        }
        return {latency: one for latency, one in found.items() if one}

    return moved


NAMES = {TOKEN: "tpot", FIRST: "ttft"}  # as figures of a search are called


def found_beside(found: Found, by: Benched) -> Found:
    """What a search of servers found, with calibrated seconds among the figures of those that a
    measured server says something of. Ranks are as predicted. Raises PlanError where nothing is
    predicted of the measured plan."""
    move = mover(by)

    def moved(point: Point) -> Point:
        took = {latency: point.figures[f"{name}_seconds"] for latency, name in NAMES.items()}
        more: dict[str, Any] = {}
        for latency, one in move(point.plan, took).items():
            more[f"calibrated_{NAMES[latency]}_seconds"] = one.calibrated_seconds
            more[f"calibrated_{NAMES[latency]}_interval"] = list(one.interval)
        return replace(point, figures={**point.figures, **more})

    best, pareto = (tuple(map(moved, points)) for points in (found.best, found.pareto))
    return replace(found, best=best, pareto=pareto)
