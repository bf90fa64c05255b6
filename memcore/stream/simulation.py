"""Simulation: the stream of a plan under each strategy, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.report import plain
from memcore.serving.cache import growing_pages, places, room
from memcore.serving.pages import ceil_div
from memcore.serving.room import batches
from memcore.serving.serve import load_of, saturation, serve
from memcore.serving.server import Server
from memcore.serving.time import mixes, sent, transfer_rate
from memcore.stream.clock import Clock
from memcore.stream.engine import KINDS, Continuous, Static, Trace
from memcore.stream.lengths import Lengths, Requests, draw
from memcore.stream.pace import STEADY, Guessed, Pace
from memcore.stream.pools import Batch, Contiguous, Paged, power_of_two
from memcore.words.serving import PREFILLS, STRATEGIES

POINTS = 120  # of a timeline
PILOT = 500  # requests that tell how many steps each takes, where steps are limited
TABLE_ENTRY = 4  # bytes of a block table's entry: int32 (vllm/v1/worker/block_table.py)


@dataclass(frozen=True, slots=True)
class Spread:
    """How long it took, in seconds, over the requests."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        ordered = sorted(values)
        at = [ordered[math.ceil(q * len(ordered)) - 1] for q in (0.5, 0.9, 0.95, 0.99)]
        return cls(fmean(ordered), *at)


@dataclass(frozen=True, slots=True)
class Moment:
    """Averages over one of POINTS equal parts of the time; tokens of one GPU's cache."""

    seconds: float
    used_tokens: float
    held_tokens: float
    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Run:
    """The stream under one strategy.

    capacity_tokens         of the cache: places of one token in a group of layers
    refused                 requests for which even the empty cache has no room
    unfinished              those that were not done when the simulation was cut short
    prompt_tokens, shared_tokens   computed, and found in the cache
    seconds                 from the first request to the last token
    memory                  shares of the cache, averaged over time; they add up to one. See
                            engine.Meter
    useful_share            used over everything but what was free while nobody waited
    reading_share, idle_share   of the time, in iterations that read prompts, and in none
    wait, ttft, latency     from a request's arrival until it is let in, its first token, its last
    tpot                    between one token and the next of the same request
    attained                share of all requests that are served within serve.target_ttft and
                            serve.target_tpot; goodput: such requests per second; None without these
    """

    strategy: str
    label: str
    capacity_tokens: int
    requests: int
    completed: int
    refused: int
    unfinished: int
    prompt_tokens: int
    shared_tokens: int
    output_tokens: int
    recomputed_tokens: int
    preemptions: int
    iterations: int
    events: int
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    concurrency_mean: float
    concurrency_peak: int
    memory: Mapping[str, float]
    useful_share: float
    reading_share: float
    idle_share: float
    wait: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    latency: Spread | None
    attained: float | None
    goodput: float | None
    timeline: tuple[Moment, ...]

    def row(self) -> dict[str, Any]:
        """Everything but the timeline, flat: memory.used, ttft.p90."""
        found: dict[str, Any] = {}
        for name, value in plain(self).items():
            if isinstance(value, dict):
                found |= {f"{name}.{part}": v for part, v in value.items()}
            elif name != "timeline":
                found[name] = value
        return found


@dataclass(frozen=True, slots=True)
class Stream:
    """What the simulation says. capacity_tokens: as serve.kv_capacity_tokens; block_table_bytes: of
    the table that maps positions to blocks; load: requests that come over those that the server can
    serve in the long run, where they come at a rate: above 1 the stream's times to the first token
    say how long it lasted."""

    requests: int
    prompt_tokens_mean: float
    output_tokens_mean: float
    longest_tokens: int
    longest_allowed: int
    capacity_tokens: int
    block_table_bytes: int
    load: float | None
    runs: tuple[Run, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found


def simulate(plan: Plan, lengths: Lengths | None = None, steps: float = math.inf) -> Stream | None:
    """The plan's stream under every strategy; None when the plan cannot be served at all, or has
    an encoder, which reads prompts whole and apart.

    steps   of the simulation, of all strategies together: where the whole stream would take more,
            about as many of its first requests are simulated as take so many, and a note says so.
            It never takes more than a few times as many.
    """
    report = evaluate(plan)
    if report.serve is None or plan.architecture.encoder_decoder:
        return None
    s, slots = plan.serve, places(plan, report.serve)
    every, clock, most = draw(plan, lengths), Clock.of(plan), plan.longest_sequence
    server, load = Server.of(plan), load_of(plan, report.serve)
    if lengths and load is not None:
        drawn = _as_drawn(plan, every)
        load = load_of(drawn, serve(drawn))
    names = [n for n, strategy in STRATEGIES.items() if not strategy.shares or _shares(server)]

    def streamed(requests: Requests, steps: float) -> list[Run]:
        return [run(plan, n, requests, clock, slots, steps / len(names)) for n in names]

    requests, note = _within(every, steps, lambda r: sum(u.events for u in streamed(r, steps)))
    runs = streamed(requests, 2 * steps)
    each = ceil_div(most, s.block_size) if server.caches.attends else 1  # its state's, then
    table = min(s.concurrency, server.plan.batched_tokens) * each * TABLE_ENTRY
    return Stream(
        requests.count,
        fmean(requests.prompts),
        fmean(requests.outputs),
        max(map(sum, zip(requests.prompts, requests.outputs, strict=True))),
        most,
        report.serve.kv_capacity_tokens,
        table,
        load,
        tuple(runs),
        (*_overload(plan, load, requests), *note, *_notes(plan, slots, runs, lengths)),
    )


def _overload(plan: Plan, load: float | None, requests: Requests) -> list[str]:
    """What times to a first token mean where more requests come than are served."""
    if not (why := saturation(plan, load)):
        return []
    why = f"{why[0].upper()}{why[1:]}"
    return [f"{why}. {requests.count:,} requests wait as long as this; more would wait longer."]


def _as_drawn(plan: Plan, requests: Requests) -> Plan:
    """The plan with the lengths that its requests have on average."""
    means = {
        "prompt_len": max(1, round(fmean(requests.prompts))),
        "output_len": max(1, round(fmean(requests.outputs))),
    }
    return plan.model_copy(update={"serve": plan.serve.model_copy(update=means)})


def _within(
    every: Requests, steps: float, takes: Callable[[Requests], int]
) -> tuple[Requests, list[str]]:
    """The first requests, as many as about so many steps simulate, and a note where these are not
    all. takes: how many steps some requests take."""
    if every.count <= 2 * PILOT or steps == math.inf:
        return every, []
    each = max(1, takes(every.first(PILOT))) / PILOT
    found = every.first(max(PILOT, int(steps / each)))
    if found.count == every.count:
        return every, []
    note = (
        f"Of {every.count:,} requests the first {found.count:,} are simulated here, in about "
        f"{steps:,.0f} steps. All would take about {each * every.count:,.0f}, which is long for a "
        "page; the command memplan simulate takes them all."
    )
    return found, [note]


def _shares(server: Server) -> bool:
    """Whether sequences have blocks in common: whole ones of a prefix, and no state after it, which
    vLLM does not keep unless asked to."""
    cut = room(server)
    return server.plan.serve.shared_prefix >= cut.tokens and not server.caches.recurrent


def run(
    plan: Plan,
    name: str,
    requests: Requests,
    clock: Clock,
    slots: int,
    steps: float = math.inf,
) -> Run:
    """One strategy, with a cache of `slots` places; cut short after so many steps."""
    s, most, strategy = plan.serve, plan.longest_sequence, STRATEGIES[name]
    server = Server.of(plan)
    pages = growing_pages(server, room(server))
    pace: Pace = STEADY
    if s.draft_tokens:
        pace = Guessed.of(s.draft_tokens, s.draft_acceptance, s.seed)
    prefix = requests.shared if strategy.shares and _shares(server) else 0

    found = 1 - server.numbers.serve.computed_tokens / s.prompt_len

    def paged(lag: int) -> Paged:
        ahead = replace(pages, ahead=pages.ahead if lag else 0)
        sure = server.engine.sure
        return Paged(slots, pages.block, prefix, ahead, most, lag, found, sure)

    most_at_once = min(s.concurrency, s.max_num_seqs or s.concurrency)
    words, budget = PREFILLS[s.prefill], server.plan.batched_tokens * batches(server)
    limits = most_at_once, budget
    read = None
    asked = requests
    if words.elsewhere:
        read = Continuous(requests.prompts_alone(), paged(0), clock, *limits).run(steps)
        asked, who = _sent(requests, read, server)
    if strategy.static:
        reserve = partial(RESERVES["max"], most, pages.ahead)
        batch = Batch(slots, reserve, pages)
        trace = Static(asked, batch, clock, *limits, pace, words.elsewhere).run(steps)
    else:
        pool: Contiguous | Paged = paged(s.draft_tokens)
        if strategy.reserve:
            pool = Contiguous(slots, partial(RESERVES[strategy.reserve], most, pages.ahead), pages)
        mixed = mixes(server) or words.elsewhere
        trace = Continuous(asked, pool, clock, *limits, mixed, pace, words.elsewhere).run(steps)
    if read:
        trace = _joined(requests, read, trace, who)
    return _read_off(plan, name, requests, trace, clock.first)


def _sent(requests: Requests, read: Trace, server: Server) -> tuple[Requests, list[int]]:
    """The requests as they come to the GPUs that generate, and which of the stream's they are: one
    cache after the other goes over the link, when its prompt is read."""
    who = sorted(_happened(read.first), key=lambda i: (read.first[i], i))
    none, one = (sent(server, tokens) for tokens in (0, 1))
    rate, free, ready = transfer_rate(server.plan), 0.0, []
    for i in who:
        free = max(free, read.first[i]) + (none + (one - none) * requests.prompts[i]) / rate
        ready.append(free)
    prompts, outputs = (tuple(of[i] for i in who) for of in (requests.prompts, requests.outputs))
    return Requests(tuple(ready), prompts, outputs, requests.shared), who


def _joined(requests: Requests, read: Trace, trace: Trace, who: Sequence[int]) -> Trace:
    """What happened to each request of the stream, from its prompt on."""
    found = Trace.of(requests, trace.meter.capacity)
    for k, i in enumerate(who):
        if not math.isnan(trace.started[k]):
            found.started[i] = read.started[i]
        found.first[i], found.done[i] = trace.first[k], trace.done[k]
    return replace(
        trace, came=read.came, started=found.started, first=found.first, done=found.done,
        computed=read.computed, recomputed=trace.recomputed + read.recomputed,
        cut=trace.cut or read.cut,
        preemptions=trace.preemptions + read.preemptions, events=trace.events + read.events,
    )  # fmt: skip


# What a request asks for at its start, of prompt and output; the longest sequence comes first, and
# places for a draft's guesses second.
RESERVES: dict[str, Callable[[int, int, int, int], int]] = {
    "max": lambda most, ahead, prompt, output: most,
    "pow2": lambda most, ahead, prompt, output: min(most, prompt + power_of_two(output) + ahead),
    "oracle": lambda most, ahead, prompt, output: min(most, prompt + output + ahead),
}


def _happened(seconds: Sequence[float]) -> list[int]:
    """Requests to which something has happened at all."""
    return [i for i, at in enumerate(seconds) if not math.isnan(at)]


def _read_off(plan: Plan, name: str, requests: Requests, trace: Trace, before: float) -> Run:
    """`before`: what the engine takes besides, before a first token."""
    arrivals, outputs = trace.came, requests.outputs
    done, started = map(_happened, (trace.done, trace.started))
    span = trace.seconds
    total = trace.meter.capacity * span

    def a_second(of: float) -> float:
        return of / span if span else 0.0

    shares = {kind: trace.meter.sums[kind] / total if total else 0.0 for kind in KINDS}
    busy = 1 - shares["free"]
    tokens = sum(outputs[i] for i in done)
    ttft = {i: trace.first[i] - arrivals[i] + before for i in done}
    tpot = {i: (trace.done[i] - trace.first[i]) / (outputs[i] - 1) for i in done if outputs[i] > 1}
    first, each = plan.serve.target_ttft or math.inf, plan.serve.target_tpot or math.inf
    within = None
    if min(first, each) < math.inf:
        within = sum(ttft[i] <= first and tpot.get(i, 0.0) <= each for i in done)
    return Run(
        strategy=name,
        label=STRATEGIES[name].label,
        capacity_tokens=trace.meter.capacity,
        requests=requests.count,
        completed=len(done),
        refused=0 if trace.cut else requests.count - len(started),
        unfinished=(requests.count if trace.cut else len(started)) - len(done),
        prompt_tokens=trace.computed,
        shared_tokens=sum(requests.prompts[i] for i in done) - trace.computed if done else 0,
        output_tokens=tokens,
        recomputed_tokens=trace.recomputed,
        preemptions=trace.preemptions,
        iterations=trace.iterations,
        events=trace.events,
        seconds=span,
        requests_per_second=a_second(len(done)),
        tokens_per_second=a_second(tokens),
        concurrency_mean=a_second(trace.meter.running),
        concurrency_peak=max((p[3] for p in trace.meter.points), default=0),
        memory=shares,
        useful_share=shares["used"] / busy if busy > 0 else 0.0,
        reading_share=a_second(trace.reading),
        idle_share=a_second(trace.idle),
        wait=Spread.of([trace.started[i] - arrivals[i] + before for i in done]),
        ttft=Spread.of(list(ttft.values())),
        tpot=Spread.of(list(tpot.values())),
        latency=Spread.of([trace.done[i] - arrivals[i] + before for i in done]),
        attained=None if within is None else within / requests.count,
        goodput=None if within is None or not span else within / span,
        timeline=_timeline(trace),
    )


def _timeline(trace: Trace) -> tuple[Moment, ...]:
    """The points of a trace as averages over equal parts of its time."""
    import numpy as np

    if not trace.meter.points or not trace.seconds:
        return ()
    points = np.asarray([(0.0, 0, 0, 0, 0), *trace.meter.points])
    at, values = points[:, 0], points[:, 1:]
    areas = np.diff(at)[:, None] * (values[1:] + values[:-1]) / 2
    areas = np.vstack([np.zeros(values.shape[1]), np.cumsum(areas, axis=0)])
    edges = np.linspace(0, trace.seconds, POINTS + 1)
    parts = np.stack([np.diff(np.interp(edges, at, column)) for column in areas.T], axis=1)
    means = parts / np.diff(edges)[:, None]
    middles = (edges[1:] + edges[:-1]) / 2
    return tuple(Moment(float(t), *map(float, row)) for t, row in zip(middles, means, strict=True))


def _notes(plan: Plan, slots: int, runs: Sequence[Run], lengths: Lengths | None) -> list[str]:
    s = plan.serve
    notes = []
    if lengths:
        notes.append(
            f"Lengths are drawn from the {len(lengths):,} rows of a file, which is not part of the "
            "plan or its link."
        )
    server = Server.of(plan)
    cut = room(server)
    if server.bounded:
        notes.append(
            "Layers keep different things of a sequence: the cache is counted in places of a token "
            f"in a group of {cut.group:,} layers, of which it has {slots:,}."
        )
    if s.prefix_hits or s.turns > 1:
        notes.append(
            f"Of each prompt {1 - server.numbers.serve.computed_tokens / s.prompt_len:.0%} are in "
            "the prefix cache when it comes (serve.prefix_hits, serve.turns), in the sequence's "
            "own pages; whoever reserves its memory finds none."
        )
    if s.shared_prefix and server.caches.recurrent:
        notes.append("No prefix is shared: layers with a state keep none after it.")
    if plan.batched_tokens < s.concurrency:
        notes.append(
            f"At most {plan.batched_tokens:,} sequences run at once: an iteration has room for as "
            "many tokens."
        )
    if s.draft_tokens and s.draft_model != "none":
        notes.append("What a draft's model takes to read prompts is not in these times.")
        if plan.streams_cache:
            notes.append("Nor is what its own cache takes to come from the host.")
    if PREFILLS[s.prefill].elsewhere:
        notes.append(
            "Prompts are read on one other replica with a cache as large, and sent one after the "
            "other. Whoever is put out is read again where it generates."
        )
        if s.arrivals == "closed":
            notes.append("Of a closed loop the next prompt comes when the one before is read.")
    if plan.serving_pp > batches(server):
        notes.append("One batch passes the pipeline's stages at a time: they do not overlap.")
    if all(r.refused == r.requests for r in runs):
        notes.append(f"Nothing is served: a cache of {slots:,} tokens has no room for any request.")
        return notes
    for r in runs:
        if r.refused:
            notes.append(
                f"{r.label}: the cache of {r.capacity_tokens:,} tokens has no room for "
                f"{r.refused:,} of {r.requests:,} requests, not even alone."
            )
        if r.unfinished:
            notes.append(
                f"{r.label}: cut short after {r.iterations:,} iterations, with {r.unfinished:,} of "
                f"{r.requests:,} requests unfinished and {r.preemptions:,} times that one was put "
                "out. More tokens in an iteration, or fewer sequences at once, would go on."
            )
    return notes
