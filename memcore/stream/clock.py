"""Clock: how long one iteration of a server takes, from the roofline of its operations.

An iteration is one step of every running sequence, together with a share of the prompts that have
just been let in, or such a share alone. Its operations are those of memcore.serving.time; here they
are asked once for a few sizes, and read off between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from memcore.plan.plan import Plan
from memcore.report import OperationTime
from memcore.serving.room import batches
from memcore.serving.server import Server
from memcore.serving.time import (
    EXCHANGE,
    HOST,
    LAUNCH,
    LAYERS,
    LINK,
    Part,
    attention,
    context_of,
    host_rate,
    index,
    of_head,
    of_tower,
    parts,
    scans,
    seconds,
    seen_of_prompt,
)
from memcore.words.serving import RUNTIMES

PER_OCTAVE = 4  # sizes asked between one power of two and the next


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds at a few sizes, straight between them, and beyond them on as at the end."""

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    known: dict[int, float] = field(default_factory=dict, compare=False)

    def at(self, size: int) -> float:
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._between(size)
        return found

    def _between(self, size: int) -> float:
        if len(self.sizes) == 1:
            return self.values[0]
        i = min(max(1, bisect_left(self.sizes, size)), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[i - 1 : i + 1], self.values[i - 1 : i + 1]
        return y0 + (y1 - y0) * (size - x0) / (x1 - x0)

    @classmethod
    def of(cls, most: int, value: Callable[[int], float]) -> Curve:
        sizes = sizes_to(most)
        return cls(sizes, tuple(map(value, sizes)))


NOTHING = Curve((1,), (0.0,))


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds per token: in layers that see everything, and per token that they see in those with
    a window or an indexer."""

    whole: float = 0.0
    part: float = 0.0

    def of(self, whole: float, part: float) -> float:
        return self.whole * whole + self.part * part


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of an iteration.

    layers     everything but attention, head and what is beside them, by tokens
    head       the logits, by rows
    beside     links, weights from the host, and between kernels, by tokens
    context    attention of a step, per token of context; of an indexer's choice its scores
    pair       attention of a prompt's tokens, per pair of a token and one that it sees (compute)
    read       the same, per token of the cache that it reads (bandwidth)
    host       where the cache is the host's: what it takes to fetch, per token; hidden by layers,
               head and attention
    tier       what a token takes that comes back from a second tier
    window     tokens that layers with a window see, or that an indexer chooses; a window begins
               anew at each of its multiples where `chunked`; 0: all see everything
    guesses    tokens that a draft guesses for a step; draft: its own clock, where it is a model
    scan       through states: of a step, by sequences; scanned: of a part of a prompt, by tokens
    once       what runs once for a prompt, before its first part: a tower of images
    step       what the engine takes for a step besides; sequence: more for each
    reading    between kernels, more in an iteration that reads prompts
    first      the engine's own before a first token: its requests feel it, its steps do not
    forwards   of a draft, in a step of the model that it guesses for
    batches    under way at once, one in each stage of a pipeline: an iteration is one of each, and
               takes as long as one of them through all stages
    """

    layers: Curve
    head: Curve
    beside: Curve
    context: Rate
    pair: Rate
    read: Rate
    host: Rate | None = None
    window: int = 0
    chunked: bool = False
    guesses: int = 0
    draft: Clock | None = None
    scan: Curve | None = None
    scanned: Curve | None = None
    once: float = 0.0
    step: float = 0.0
    sequence: float = 0.0
    first: float = 0.0
    reading: float = 0.0
    forwards: int = 1
    tier: float = 0.0
    batches: int = 1

    def of_batch(self, sequences: int) -> int:
        """The share of an iteration that one of its batches has: how many times less."""
        return max(1, min(self.batches, sequences))

    def decode(self, sequences: int) -> tuple[float, float]:
        """A step of each without attention: what hides the cache's way from the host, and what is
        beside it."""
        sequences = -(-sequences // self.batches)
        rows = sequences * (1 + self.guesses)
        beside = self.beside.at(rows) + self.step + self.sequence * sequences
        if self.draft:
            beside += self.draft.forwards * sum(self.draft.decode(sequences))
        found = self.layers.at(rows) + self.head.at(rows)
        return found + (self.scan.at(sequences) if self.scan else 0.0), beside

    def load(self, context: float, seen: float) -> tuple[float, float]:
        """Attention of a step to so many tokens in all, of which layers with a window see `seen`;
        and what a draft's model takes for the same."""
        draft = self.draft
        beside = draft.forwards * sum(draft.load(context, context)) if draft else 0.0
        return self.context.of(context, seen), beside

    def mixed(
        self, sequences: int, context: int, seen: int, chunks: Sequence[tuple[int, int]],
        fresh: int = 0, back: int = 0, others: int = 0,
    ) -> float:  # fmt: skip
        """An iteration in which `sequences` generate, at `context` tokens in all, and parts of
        prompts are read: (tokens that are there already, tokens now), `fresh` of them first parts,
        and `back` tokens come from a second tier before it; `others` generate in other batches."""
        tokens, every = sequences * (1 + self.guesses), sequences + len(chunks)
        attention, later = self.load(context, seen)
        fetched = self.host.of(context, seen) if self.host else 0.0
        if self.draft and sequences:
            later += self.draft.forwards * sum(self.draft.decode(sequences))
        for start, now in chunks:
            tokens += now
            there = start + now
            visible = min(there, self.window) if self.window else 0
            attention += max(self.pair.of(*self.pairs(start, now)), self.read.of(there, visible))
            if self.host:
                fetched += self.host.of(there, visible)
            if self.scanned:
                attention += self.scanned.at(now)
        if self.scan and sequences:
            attention += self.scan.at(sequences)
        later += self.sequence * every + fresh * self.once + back * self.tier
        logits = sequences * (1 + self.guesses) + len(chunks)
        if (under_way := self.of_batch(every + others)) > 1:
            tokens, logits = -(-tokens // under_way), -(-logits // under_way)
            attention, later, fetched = (x / under_way for x in (attention, later, fetched))
        found = self.layers.at(tokens) + self.head.at(logits) + attention
        return max(found, fetched) + self.beside.at(tokens) + later + self.step + self.reading

    def pairs(self, start: int, now: int) -> tuple[float, float]:
        """Pairs of one of `now` tokens and one that it sees, in layers of both kinds."""
        whole = now * (start + now / 2)
        if not self.window:
            return whole, 0.0
        if self.chunked:
            ends = (seen_of_chunks(n, self.window) for n in (start + now, start))
        else:
            ends = (seen_of_prompt(n, self.window) for n in (start + now, start))
        more, less = ends
        return whole, more - less

    @classmethod
    def constant(cls, seconds: float, guesses: int = 0) -> Clock:
        """Every iteration takes as long, whatever is in it."""
        flat, free = Curve((1,), (seconds,)), Rate()
        return cls(flat, NOTHING, NOTHING, free, free, free, guesses=guesses)

    @classmethod
    def of(cls, plan: Plan) -> Clock:
        """The clock of one replica."""
        return _clock(Server.of(plan))


def _clock(server: Server) -> Clock:
    plan = server.plan
    s, model, prompt_len = plan.serve, plan.architecture, plan.serve.prompt_len
    new, (whole, part) = 1 + s.draft_tokens, server.pages
    windows, every = part * server.every.windowed, whole * server.every.full
    chosen = server.choice
    window = chosen or (model.window if windows else 0)

    def rate(times: Times, of: Callable[[OperationTime], float], whole: float, part: float) -> Rate:
        """Of a layer for each token; layers of both kinds take as long for one that they see. Of an
        indexer's choice scores are of every token, attention of the chosen ones."""
        attends, scores = times
        if not attends:
            return Rate()
        if scores:
            all_seen, choosing = _seen(server)
            each = of(attends) / (all_seen * whole + choosing * part)
            return Rate(of(scores) / whole + each * all_seen, each * choosing)
        each = of(attends) / (every * whole + windows * part)
        return Rate(each * every, each * windows)

    seen = max(context_of(server), new + 1)
    step = _of_cache(server, new, seen)
    once = rate(step, lambda t: t.seconds, seen, min(seen, window))
    prompt = _of_cache(server, prompt_len, prompt_len)
    pairs = prompt_len * prompt_len / 2, seen_of_prompt(prompt_len, window)
    read = rate(prompt, lambda t: t.hbm_seconds, prompt_len, min(prompt_len, window))
    if chosen:  # the tokens of a prompt choose all of it together
        read = Rate(read.whole + read.part * min(prompt_len, window) / prompt_len)
    rows = min(s.concurrency, server.plan.batched_tokens) * new + 1
    host = None
    if plan.streams_cache:
        per_second = plan.serving_pp * host_rate(plan)
        host = rate(step, lambda t: t.hbm_bytes / per_second, seen, min(seen, window))
    sizes = sizes_to(max(server.plan.batched_tokens, rows))
    scan = scanned = None
    if server.every.recurrent:
        scan = Curve.of(s.concurrency, lambda n: seconds(scans(server, n, new)))
        scanned = Curve.of(server.plan.batched_tokens, lambda n: seconds(scans(server, 1, n)))
    forwards = [parts(server, n, 1, 1, 1) for n in sizes]
    return Clock(
        Curve(sizes, tuple(_only(found, LAYERS) for found in forwards)),
        Curve.of(rows, lambda n: seconds(of_head(server, n))),
        Curve(sizes, tuple(_only(found, LINK, EXCHANGE, HOST, LAUNCH) for found in forwards)),
        once,
        rate(prompt, lambda t: t.compute_seconds, *pairs),
        read,
        host,
        window,
        server.chunked,
        s.draft_tokens,
        _drafts(server.draft, seen, server.forwards) if server.draft else None,
        scan,
        scanned,
        seconds(of_tower(server)),
        server.engine.of_step(plan.accelerator).middle,
        server.engine.sequence.middle,
        server.engine.before(plan.accelerator).middle,
        0.0 if RUNTIMES[plan.runtime].launches else server.prompts.middle * model.layers,
        tier=server.kv_per_token / host_rate(plan) if plan.second_tier else 0.0,
        batches=batches(server),
    )


Times = tuple[OperationTime | None, OperationTime | None]


def _seen(server: Server) -> tuple[float, float]:
    """Of a model whose indexers choose, layers for each token that attention sees: of all, and of
    those that a choice stands for. Entries stand for several; windows are shorter than a choice,
    and count as a part of it."""
    entries, every = server.plan.architecture.entries, server.every
    if not entries:
        return server.whole, every.full - server.whole
    windows = every.windowed * server.sight(True) / server.choice
    return every.coarse / entries.coarse, every.fine / entries.fine + windows


def _of_cache(server: Server, tokens: int, context: int) -> Times:
    """Of one sequence attention, and an indexer's scores, if any layer has them."""
    attends = attention(server, 1, tokens, context).time if server.every.attends else None
    return attends, index(server, 1, tokens, context).time if server.indexers else None


def _only(found: Sequence[Part], *kinds: str) -> float:
    return seconds([p for p in found if p.kind in kinds])


def _drafts(server: Server, seen: int, forwards: int) -> Clock:
    """The clock of a draft's model, of so many forwards in a step. What its layers with a window
    see is not followed: their share is as with `seen` tokens."""
    clock = _clock(server)
    share = min(1.0, clock.window / seen)
    context = Rate(clock.context.whole + share * clock.context.part)
    return replace(clock, context=context, forwards=forwards)


def seen_of_chunks(tokens: int, window: int) -> float:
    """Pairs of the first tokens of a prompt, where attention begins anew at each chunk."""
    chunks, rest = divmod(tokens, window)
    return chunks * window * window / 2 + rest * rest / 2


def sizes_to(most: int) -> tuple[int, ...]:
    """Sizes from one to `most`, ever further apart."""
    sizes, size = [1], 1.0
    while sizes[-1] < most:
        size *= 2 ** (1 / PER_OCTAVE)
        sizes.append(min(most, max(sizes[-1] + 1, round(size))))
    return tuple(sizes)
