"""Servers: of all ways to serve a plan's users at once, those that do, the best first.

A way is a kind of GPU, an engine, dtypes of weights and cache, ranks of tensor parallelism and
replicas, over which the users are shared out evenly. Each is a plan, judged as `evaluate` judges
it; only where the weights alone are too large is nothing computed. Of each kind and number of ranks
the fewest replicas that do are found by halving, and more are tried, twice as many each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError, did_you_mean, refusal, shown
from memcore.hardware.accelerator import Accelerator
from memcore.models import cards, catalog
from memcore.plan.plan import Plan, limits_of
from memcore.search.change import differences
from memcore.search.edges import first
from memcore.search.fronts import Figured, front
from memcore.search.prices import price_of
from memcore.search.result import (
    BY,
    COST,
    ENERGY,
    LISTED,
    MEMORY,
    MONEY,
    RULES,
    TIME,
    Point,
    Progress,
    SearchResult,
    to_a_percent,
)
from memcore.search.solve import (
    ANY,
    Answer,
    Miss,
    Targets,
    gpus_each,
    in_a_loop,
    planned_on,
    serving_limit,
)
from memcore.search.space import KEEPS, ROUNDING, TRAINING
from memcore.serving.serve import servable, serve
from memcore.serving.server import Server
from memcore.timing.certainty import Told, apart_serving, ranked
from memcore.units import HOUR, MILLION
from memcore.words.engines import AUTO, ENGINES
from memcore.words.stored import KV_DTYPES, WEIGHT_DTYPES, bits

STEP, FIRST, EACH, MORE = "sequences of a step", "first token", "time per token", "more GPUs"
MISSED = {"ttft": FIRST, "tpot": EACH}
RANKS = (1, 2, 4, 8, 16, 32, 64)

Words = dict[str, str]
Kind = tuple[str, Words]  # a kind of GPU; an engine and dtypes


def search_servers(
    plan: Plan,
    *,
    users: int = 0,
    targets: Targets | None = None,
    gpus: Sequence[str] = (),
    gpus_at_most: int | None = None,
    engines: Sequence[str] = (),
    keep: str = TRAINING,
    by: str = COST,
    cost_at_most: float = 0.0,
    listed: int = LISTED,
    progress: Progress | None = None,
) -> SearchResult:
    """Of all ways to serve so many users at once, those that do: the best on each kind of GPU, or,
    of one kind alone, the best `listed`.

    users         0: the plan's concurrency
    targets       None: the plan's
    gpus          presets; none are those that a list price is known of, and the plan's own
    gpus_at_most  of all replicas together; None: any number
    engines       none are the plan's where it names one, and else those that run on each GPU
    keep          'training': dtypes as the plan has them; else those of fewer bits are tried too
    by            'cost' of all GPUs for an hour, or 'time' (after the first) or 'energy' of a token
    cost_at_most  of all GPUs for an hour, in USD; 0: any
    progress      as of `search`

    Raises PlanError for a word that there is not, and for a model that is not served.
    """
    run = _Run(plan, users or plan.serve.concurrency, targets or Targets.of(plan), gpus_at_most,
               by, cost_at_most)  # fmt: skip
    names = asked_gpus(plan, gpus)
    _refuse(plan, users, names, engines, keep, by)
    stopped = False
    try:
        kinds = list(_kinds(plan, names, engines, keep))
        for done, kind in enumerate(kinds):
            if progress:
                progress(done, len(kinds))
            run.judge(*kind)
    except KeyboardInterrupt:
        stopped = True
    return run.result(names, listed, stopped)


def fewest_for_users(plan: Plan, targets: Targets = ANY) -> Answer:
    """The fewest of the plan's own GPUs that serve as many at once as it says, shared out over
    replicas. `limit` is what forbids a replica fewer, or where one
    is enough half of its ranks; '' of one GPU."""
    gpu, users = plan.gpu_name, plan.serve.concurrency
    run = _Run(plan, users, targets, None, TIME, 0.0)
    run.judge(gpu, {})
    best = min(run.ways, key=lambda w: (w.figures["gpus"], w.score), default=None)
    if best is None:
        return Answer("users", 0, plan, serve(plan), serving_limit(plan, targets) or "memory")
    gpus, tp, fewer = best.figures["gpus"], best.figures["tp"], best.figures["replicas"] - 1
    if gpus == 1:
        return Answer("users", 1, best.plan, serve(best.plan), "")
    each = math.ceil(users / fewer) if fewer else users
    ranks = tp if fewer else max(1, tp // 2)
    other = planned_on(in_a_loop(plan), gpu, ranks, gpus_each(plan, ranks), each)
    limit = serving_limit(other, targets) if other else "rule"
    return Answer("users", gpus, best.plan, serve(best.plan), limit or "range")


def refuse(plan: Plan, users: int = 0) -> None:
    """Raises PlanError for a model that is not served, and for more users than a plan says."""
    if not servable(plan.architecture):
        raise refusal("model", "it generates no text, token by token: nothing serves it")
    most = int(limits_of("serve.concurrency")[1])
    if not 0 <= users <= most:
        raise refusal("users", f"{shown(users)} is not from 1 to {most:,}")


def asked_gpus(plan: Plan, names: Iterable[str]) -> tuple[str, ...]:
    """These, each once; without any the plan's own, and presets that a price is known of."""
    return tuple(dict.fromkeys(names or (plan.gpu_name, *catalog.priced_gpus())))


def joined(plan: Plan) -> int:
    """GPUs that a replica's ranks are tried on at most: a fast domain, or a node."""
    return max(plan.gpus_per_domain, plan.gpus_per_node)


def _refuse(
    plan: Plan, users: int, gpus: Sequence[str], engines: Sequence[str], keep: str, by: str
) -> None:
    refuse(plan, users)
    words = [("gpus", name, (plan.gpu_name, *catalog.gpu_names())) for name in gpus]
    words += [("engines", name, tuple(ENGINES)) for name in engines]
    words += [("keep", keep, tuple(KEEPS)), ("by", by, BY)]
    issues = [
        Issue(
            name,
            cards.no_preset(word)
            if name == "gpus"
            else f"{shown(word)} is not known; {did_you_mean(word, known)}",
        )
        for name, word, known in words
        if word not in known
    ]
    if issues:
        raise PlanError(issues)


def _kinds(plan: Plan, gpus: Sequence[str], engines: Sequence[str], keep: str) -> Iterator[Kind]:
    """Each kind of GPU with each engine and the dtypes that go with it."""
    for name in gpus:
        for engine in _engines(plan, name, engines):
            changed: Words = {} if engine == plan.engine else {"engine": engine}
            if keep == TRAINING:
                yield name, changed
                continue
            for weights in ("", *narrower(plan, engine)):
                for cache in ("", *narrower_caches(plan, engine)):
                    words = {"weight_dtype": weights, "kv_dtype": cache}
                    yield name, changed | {k: v for k, v in words.items() if v}


def _engines(plan: Plan, gpu: str, engines: Sequence[str]) -> Sequence[str]:
    if engines:
        return engines
    if plan.serve.engine != AUTO:
        return [plan.engine]
    return engines_of(plan.accelerator_called(gpu)) or [plan.engine]


def engines_of(gpu: Accelerator) -> list[str]:
    """The engines that people serve many users with on an accelerator."""
    return [name for name, engine in ENGINES.items() if gpu.vendor in engine.vendors]


def narrower(plan: Plan, engine: str) -> list[str]:
    """Dtypes of fewer bits than the plan's weights have, in which models are published for it."""
    now = bits(plan.weights.matrices)
    return [w for w in ENGINES[engine].narrower if bits(WEIGHT_DTYPES[w].matrices) < now]


def narrower_caches(plan: Plan, engine: str) -> list[str]:
    """Dtypes of its cache of fewer bits than the plan's has."""
    now = KV_DTYPES[plan.serve.kv_dtype].bits
    return [w for w in ENGINES[engine].caches if KV_DTYPES[w].bits < now]


@dataclass(frozen=True, slots=True)
class _Way:
    """One way that serves them."""

    plan: Plan
    gpu: str
    words: Words
    score: float
    figures: Mapping[str, Any]

    @property
    def thrift(self) -> tuple[float, ...]:
        """Of ways that cannot be told apart, the least is taken: GPUs, then what is changed."""
        return self.figures["gpus"], len(self.words), self.score, self.figures["tpot_seconds"]


@dataclass(slots=True)
class _Run:
    start: Plan
    users: int
    targets: Targets
    gpus_at_most: int | None
    by: str
    cost_at_most: float
    judged: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    of_gpu: dict[str, Counter[str]] = field(default_factory=dict)
    ways: list[_Way] = field(default_factory=list)
    nearest: tuple[_Way, Miss] | None = None  # to the targets, while there are no ways
    _weights: dict[tuple[str, ...], float] = field(default_factory=dict)

    def judge(self, name: str, words: Words) -> None:
        """Every number of ranks of a kind, each with the fewest replicas and with more."""
        room = self.start.accelerator_called(name).usable_bytes
        for tp in RANKS:
            one = planned_on(
                in_a_loop(self.start), name, tp, gpus_each(self.start, tp), self.users, words
            )
            if one is not None and tp > joined(one):
                return
            if one is None or self._least(one, words) > room * tp:
                self._exclude(name, RULES if one is None else MEMORY)
                continue
            reasons: dict[int, str] = {}  # by the number of replicas

            def serves(n: int, tp: int = tp, reasons: dict[int, str] = reasons) -> bool:
                """Whether n + 1 replicas do."""
                if n not in reasons:
                    reasons[n] = self._why_not(name, words, tp, n + 1)
                return reasons[n] in ("", MORE, MONEY)

            n = 1 + first(self.users, serves)
            while n < self.users:
                n = min(2 * n, self.users)
                serves(n - 1)
            for why in reasons.values():
                self._exclude(name, why)

    def _exclude(self, name: str, why: str) -> None:
        """Counts a way; '': one that serves."""
        self.judged += 1
        if why:
            self.excluded[why] += 1
            self.of_gpu.setdefault(name, Counter())[why] += 1

    def _least(self, one: Plan, words: Words) -> float:
        """Bytes that all ranks of a replica have at least, together."""
        key = tuple(words.values())
        if key not in self._weights:
            each = Server.of(one).numbers.serve
            rank = each.weights_bytes - each.offloaded_bytes
            self._weights[key] = float(rank) * one.serving_tp
        return self._weights[key]

    def _why_not(self, name: str, words: Words, tp: int, replicas: int) -> str:
        """What keeps a way from serving them; '' of one that does, which is noted."""
        gpus, each = replicas * gpus_each(self.start, tp), -(-self.users // replicas)
        if self.gpus_at_most and gpus > self.gpus_at_most:
            return MORE
        plan = planned_on(in_a_loop(self.start), name, tp, gpus, each, words)
        if plan is None:
            return RULES
        x = Server.of(plan).numbers.serve
        if x.max_concurrency < each or not x.fits:
            return MEMORY
        if x.running < each:
            return STEP
        missed = self.targets.missed(x.ttft_seconds, x.tpot_seconds)
        miss = self.targets.miss(x) if missed and not self.ways else None
        if missed and not (miss and self._nearer(miss)):
            return MISSED[missed]
        figures = self._figures(plan, x, name, replicas)
        way = _Way(plan, name, words, self._score(figures), figures)
        dear = self.cost_at_most and figures.get("cost_per_hour", 0.0) > self.cost_at_most
        if miss:
            self.nearest = self.nearest if dear else (way, miss)
            return MISSED[missed]
        if dear:
            return MONEY
        self.ways.append(way)
        return ""

    def _nearer(self, miss: Miss) -> bool:
        return self.nearest is None or miss.factor < self.nearest[1].factor

    def _figures(self, plan: Plan, x: Any, name: str, replicas: int) -> dict[str, Any]:
        """What a Report says of it, of all replicas together, and what it costs."""
        s, gpus = plan.serve, plan.cluster.gpus
        tokens = x.tokens_per_second * replicas
        watts = plan.run.watts_per_gpu or plan.accelerator.watts
        figures = {
            "gpu": name,
            "gpus": gpus,
            "tp": plan.serving_tp,
            "replicas": replicas,
            "concurrency": s.concurrency,
            "max_concurrency": int(x.max_concurrency),
            "ttft_seconds": x.ttft_seconds,
            "ttft_range": list(x.ttft_range),
            "tpot_seconds": x.tpot_seconds,
            "tpot_range": list(x.tpot_range),
            "tokens_per_second": tokens,
            "tokens_per_second_per_gpu": tokens / gpus,
            "joules_per_token": watts * gpus / tokens,
        }
        price, source = price_of(self.start, name)
        if not price:
            return figures
        each = price * gpus / replicas / HOUR  # of a replica's second
        read, write = each * x.prompt_token_seconds, each * x.output_token_seconds
        return figures | {
            "price_per_gpu_hour": price,
            "price_source": source,
            "cost_per_hour": price * gpus,
            "cost_per_million_in": read * MILLION,
            "cost_per_million_out": write * MILLION,
            "cost_per_request": s.prompt_len * read + s.output_len * write,
        }

    def _score(self, figures: Mapping[str, Any]) -> float:
        """What ways are ranked by, the least first."""
        if self.by == TIME:
            return float(figures["tpot_seconds"])
        if self.by == ENERGY:
            return float(figures["joules_per_token"])
        return float(figures.get("cost_per_hour", float("inf")))

    # --- the answer ------------------------------------------------------------------------------

    @property
    def tells_apart(self) -> Told:
        """By how much two plans must differ in what ways are ranked by."""
        return to_a_percent if self.by == COST else apart_serving

    def result(self, names: Sequence[str], listed: int, stopped: bool) -> SearchResult:
        ways = sorted(self.ways, key=lambda w: (w.score, *w.thrift))
        if len(names) > 1:
            ways = sorted(self._of_each(ways), key=lambda w: w.score)
            listed = len(ways)
        pareto = _front(self.ways)
        ranks = self._ranks([*ways[:listed], *pareto])
        best = [self._point(w, ranks[id(w)]) for w in ways[:listed]]
        served = {w.gpu for w in self.ways}
        return SearchResult(
            evaluated=self.judged,
            fits=len(self.ways),
            excluded={k: n for k, n in sorted(self.excluded.items()) if n},
            best=tuple(best),
            pareto=tuple(self._point(w, ranks[id(w)]) for w in pareto),
            why=(),
            stopped=stopped,
            apart=apart_serving(best[0].plan, best[0].plan)
            if best and self.tells_apart is apart_serving
            else None,
            nowhere={
                name: of.most_common(1)[0][0]
                for name, of in self.of_gpu.items()
                if name not in served
            },
            nearest=None
            if self.ways or self.nearest is None
            else (self._point(self.nearest[0], 1), self.nearest[1].text),
        )

    def _of_each(self, ways: Sequence[_Way]) -> Iterator[_Way]:
        """Of each kind of GPU the best, or one with less of what cannot be told apart from it."""
        groups: dict[str, list[_Way]] = {}
        for way in ways:
            groups.setdefault(way.gpu, []).append(way)
        for of in groups.values():
            near = [
                w for w in of if self.tells_apart(of[0].plan, w.plan).same(of[0].score, w.score)
            ]
            yield min(near, key=lambda w: w.thrift)

    def _ranks(self, ways: Iterable[_Way]) -> dict[int, int]:
        """The rank of each way that is listed among all of these, by its identity."""
        by_score = sorted({id(w): w for w in ways}.values(), key=lambda w: w.score)
        ranks = ranked([w.plan for w in by_score], [w.score for w in by_score], self.tells_apart)
        return {id(w): rank for w, rank in zip(by_score, ranks, strict=True)}

    def _point(self, way: _Way, rank: int) -> Point:
        rounded = any(k in way.words for k in ("weight_dtype", "kv_dtype"))
        return Point(
            plan=way.plan,
            rank=rank,
            changes=differences(self.start, way.plan),
            trains=ROUNDING if rounded else TRAINING,
            same_batch=True,
            figures=way.figures,
        )


def _front(ways: Sequence[_Way]) -> list[_Way]:
    """Of GPUs, time per token and cost of a request, what nothing beats in all three: the fewest
    GPUs first, and more only for what can be told apart from as many or fewer."""

    def figures(way: _Way) -> tuple[float, ...]:
        f = way.figures
        return f["gpus"], f["tpot_seconds"], f.get("cost_per_request", 1e300)

    def as_good(one: Figured[_Way], other: Figured[_Way]) -> bool:
        """Whether one with as many GPUs or fewer is in nothing worse than another, or in nothing
        that can be told apart."""
        apart_by = apart_serving(one[1].plan, other[1].plan)
        pairs = zip(one[0][1:], other[0][1:], strict=True)
        return all(a <= b or apart_by.same(a, b) for a, b in pairs)

    return front(((figures(way), way) for way in ways), as_good)
