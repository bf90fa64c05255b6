"""Solve: the largest context, the most sequences or the fewest GPUs that still do.

Bisection over the same numbers that `evaluate` reports; there is no formula of its own here. What
is asked only gets harder as a number grows, so the last one that does is found in few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from memcore.plan.plan import Plan
from memcore.plan.repair import planned
from memcore.plan.sections import Cluster
from memcore.report import Serve
from memcore.search.edges import first, last
from memcore.serving.serve import serve
from memcore.serving.server import Server
from memcore.serving.time import at_once, of_running
from memcore.units import seconds_text
from memcore.words.serving import CLOSED, KV_CACHES, PREFILLS

MOST_TOKENS = 1 << 24  # of a prompt, as a plan allows
MOST_SEQUENCES = 1_000_000
MOST_REPLICAS = 1 << 14

LIMITS = {  # what forbids more, in words
    "memory": "memory",
    "ttft": "the time to the first token",
    "tpot": "the time per token",
    "positions": "the model's number of positions",
    "step": "the tokens of one step (serve.max_batched_tokens)",
    "load": "the number of requests",
    "days": "the run's deadline (run.target_days)",
    "cost": "the run's budget (run.target_cost)",
    "rule": "another field of the plan",
    "range": "nothing that was tried",
    "kind": "that it cannot be planned",
}


LATE = {"ttft": "the first token comes after", "tpot": "a token comes every"}


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a figure is from its target.

    what     comes so late, in words
    seconds  as planned; between: where eight in ten measured ones lie
    target   seconds at most
    """

    what: str
    seconds: float
    between: tuple[float, float]
    target: float

    @property
    def factor(self) -> float:
        return self.seconds / self.target

    @property
    def may_hold(self) -> bool:
        """Whether a measurement may keep to the target all the same."""
        return self.between[0] <= self.target

    @property
    def text(self) -> str:
        low, high, most = map(seconds_text, (*self.between, self.target))
        verdict = "it may hold" if self.may_hold else "too slow"
        return (
            f"{self.what} {seconds_text(self.seconds)} (eight in ten that were measured: {low} to "
            f"{high}), and at most {most} is asked: {verdict}"
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """The longest that a request may wait for its first token, and on average for each of the next,
    in seconds; None: any time."""

    ttft: float | None = None
    tpot: float | None = None

    @classmethod
    def of(cls, plan: Plan, ttft: float | None = None, tpot: float | None = None) -> Targets:
        """The plan's own, where none is said."""
        s = plan.serve
        return cls(ttft or s.target_ttft or None, tpot or s.target_tpot or None)

    def missed(self, ttft: float, tpot: float) -> str:
        if self.ttft is not None and ttft > self.ttft:
            return "ttft"
        return "tpot" if self.tpot is not None and tpot > self.tpot else ""

    def miss(self, s: Any) -> Miss | None:
        """The target that a server's figures are farthest from; None where they keep to all."""
        misses = [
            Miss(LATE[word], seconds, between, target)
            for word, target, seconds, between in (
                ("ttft", self.ttft, s.ttft_seconds, s.ttft_range),
                ("tpot", self.tpot, s.tpot_seconds, s.tpot_range),
            )
            if target is not None and seconds is not None and seconds > target
        ]
        return max(misses, key=lambda miss: miss.factor, default=None)


ANY = Targets()


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found.

    value      0: not even one
    plan       that has it, or the one asked about where there is none
    served     of that plan
    question   'context', 'concurrency', 'gpus' (of a rate) or 'users' (GPUs for users at once)
    limit      what forbids one more (for GPUs: one fewer): 'memory', 'ttft', 'tpot', 'positions'
               (the model was made for no more), 'step' (of max_batched_tokens), 'load', 'rule'
               (another field of the plan), or 'range' (nothing up to the largest that a plan says)
    """

    question: str
    value: int
    plan: Plan
    served: Serve
    limit: str

    def to_dict(self) -> dict[str, Any]:
        served = asdict(self.served)
        del served["rows"]
        return {
            "question": self.question,
            "value": self.value,
            "limit": self.limit,
            "plan": self.plan.document(),
            "serve": served,
        }


def serving_limit(plan: Plan, targets: Targets = ANY) -> str:
    """What keeps a plan from serving as it is asked to: 'memory', 'ttft', 'tpot', or ''."""
    s = Server.of(plan).numbers.serve  # speeds are not computed where nobody asks for them
    if not s.fits or not s.running:
        return "memory"
    return "" if targets == ANY else targets.missed(s.ttft_seconds, s.tpot_seconds)


def in_a_loop(plan: Plan) -> Plan:
    """The plan with its sequences as users who are there at all times: what each feels has the
    prompts of the others in it."""
    if plan.serve.arrivals == CLOSED:
        return plan
    return plan.model_copy(update={"serve": plan.serve.model_copy(update={"arrivals": CLOSED})})


def _why_not(plan: Plan | None, targets: Targets) -> str:
    return serving_limit(plan, targets) if plan else "rule"


def _largest(
    question: str,
    plan: Plan,
    path: str,
    most: int,
    most_is: str,
    targets: Targets,
    beyond: int = 0,
    follow: Callable[[int], Mapping[str, Any]] = lambda _: {},
) -> Answer:
    """The largest value of a field, of those beyond one, that does; other fields may follow it."""

    def at(n: int) -> Plan | None:
        return planned(plan, {path: beyond + n, **follow(beyond + n)})

    most_beyond = last(most - beyond, lambda n: not _why_not(at(n), targets))
    limit = most_is if most_beyond == most - beyond else _why_not(at(most_beyond + 1), targets)
    best = at(most_beyond) or plan
    return Answer(question, beyond + most_beyond if most_beyond else 0, best, serve(best), limit)


def longest_context(plan: Plan, targets: Targets = ANY) -> Answer:
    """The longest sequences, prompt and output together, of which as many run as the plan says.
    The output keeps its length; no more than the positions that the model was made for, of an
    encoder-decoder those of its prompt. What a contiguous cache reserves follows."""
    plan = plan if targets == ANY else in_a_loop(plan)
    model, output = plan.as_served.architecture, plan.serve.output_len
    positions = model.max_positions - (0 if model.encoder_decoder else output)
    most = max(1, min(MOST_TOKENS, positions))
    capped = most == positions
    image = model.tower.image if model.tower else None

    def reserved(prompt: int) -> Mapping[str, Any]:
        follows = KV_CACHES[plan.cache_manager].reserves
        return {"serve.max_seq_len": prompt + output} if follows else {}

    least = max(plan.serve.shared_prefix, plan.serve.images * image.prompted - 1 if image else 0)
    answer = _largest(
        "context", plan, "serve.prompt_len", most, "positions" if capped else "range", targets,
        beyond=max(0, min(least, most - 1)), follow=reserved,
    )  # fmt: skip
    return replace(answer, value=answer.value + output if answer.value else 0)


def largest_concurrency(plan: Plan, targets: Targets = ANY) -> Answer:
    """The most sequences of the plan's length that run at once on one replica.

    max_batched_tokens and what a sampler holds follow the number of sequences, as in a plan."""
    plan = plan if targets == ANY else in_a_loop(plan)
    most = min(MOST_SEQUENCES, at_once(Server.of(plan)))
    limit = "range" if most == MOST_SEQUENCES else "step"
    return _largest("concurrency", plan, "serve.concurrency", most, limit, targets)


def fewest_gpus(plan: Plan, rate: float, targets: Targets = ANY) -> Answer:
    """The fewest GPUs that serve `rate` requests per second of the plan's lengths.

    Tensor parallelism within a fast domain is tried from one rank up; requests are shared out
    evenly, and their steady state counts: of a second, what prompts take is left to nobody else.
    """
    best: Answer | None = None
    missed = "memory"
    most = plan.gpus_per_domain
    for tp in [n for n in _divisors(plan.architecture.heads) if n <= most]:
        gpu = plan.gpu_name
        one = planned_on(plan, gpu, tp, gpus_each(plan, tp), plan.serve.concurrency)
        if one is None:
            continue
        server = Server.of(one)
        room = min(serve(one).max_concurrency, at_once(server))
        if not room:
            continue
        fits = _Load(server, room, rate, targets)
        replicas = 1 + first(MOST_REPLICAS, fits.enough)
        if replicas > MOST_REPLICAS:
            missed = fits.missed(MOST_REPLICAS)
            continue
        gpus = fits.gpus(replicas)
        answer = planned_on(one, gpu, tp, gpus, fits.running(replicas))
        if answer and (best is None or gpus < best.value):
            limit = fits.missed(replicas - 1) if replicas > 1 else "memory"
            best = Answer("gpus", gpus, answer, serve(answer), limit)
    return best or Answer("gpus", 0, plan, serve(plan), missed)


@dataclass(frozen=True, slots=True)
class _Load:
    """One kind of replica under a load, for any number of replicas."""

    server: Server
    room: int
    rate: float
    targets: Targets

    @property
    def apart(self) -> bool:
        return PREFILLS[self.server.plan.serve.prefill].elsewhere

    def first(self, running: int) -> float:
        return float(of_running(self.server, running).serve.ttft_seconds)

    def gpus(self, replicas: int) -> int:
        """Those that read prompts besides, where they are others."""
        reading = math.ceil(self.rate * self.first(1)) if self.apart else 0
        return (replicas + reading) * self.server.plan.serving_ranks

    def each(self, running: int, share: float) -> float:
        """Seconds per token, where prompts take a share of the time."""
        return float(of_running(self.server, running).serve.tpot_seconds) / (1 - share)

    def running(self, replicas: int) -> int:
        """The fewest sequences at once that keep up with one replica's share of the load, or 0."""
        of_one = self.rate / replicas
        share = 0.0 if self.apart else of_one * self.first(1)
        if share >= 1:
            return 0
        needed = of_one * self.server.plan.serve.output_len

        def keeps_up(n: int) -> bool:
            return n / self.each(n, share) >= needed

        if not keeps_up(self.room):
            return 0
        return 1 + last(self.room, lambda n: not keeps_up(n))

    def missed(self, replicas: int) -> str:
        """What forbids so few, or ''."""
        running = self.running(replicas)
        if not running:
            return "load"
        share = 0.0 if self.apart else self.rate / replicas * self.first(1)
        return self.targets.missed(self.first(running), self.each(running, share))

    def enough(self, more: int) -> bool:
        """Whether one replica and so many more are."""
        return not self.missed(1 + more)


def _divisors(n: int) -> list[int]:
    """Powers of two that divide it."""
    return [1 << k for k in range(n.bit_length()) if n % (1 << k) == 0]


def gpus_each(plan: Plan, tp: int) -> int:
    """GPUs of a replica on so many tensor-parallel ranks, with those that read its prompts
    elsewhere."""
    return tp * plan.serving_pp * (2 if PREFILLS[plan.serve.prefill].elsewhere else 1)


# What a plan says of its nodes, as it is where it says nothing.
NODES = {
    f"cluster.{name}": info.default
    for name, info in Cluster.model_fields.items()
    if name not in ("gpu", "gpus")
}


def planned_on(
    plan: Plan,
    name: str,
    tp: int,
    gpus: int,
    users: int,
    words: Mapping[str, str] | None = None,
) -> Plan | None:
    """The plan there, with other words of serving, training as it can be on so many; None where a
    rule forbids it."""
    changes: dict[str, object] = {"cluster.gpus": gpus, "serve.tp": tp}
    changes |= {"serve.pp": plan.serving_pp, "serve.concurrency": users}
    changes |= {f"serve.{field}": word for field, word in (words or {}).items()}
    if name != plan.gpu_name:  # what is said of its own nodes is of no others
        changes |= NODES | {"cluster.gpu": name}
    if gpus % plan.sharing or plan.parallel.ep > 1:
        changes |= {f"parallel.{axis}": 1 for axis in ("tp", "pp", "cp", "ep")}
    return planned(plan, changes)
