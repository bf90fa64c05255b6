"""Engine: a stream of requests through one server, iteration by iteration.

Between two events (a sequence ends, a request comes, blocks run out) every iteration is like the
one before but for one token more in each sequence, so they are done in one go: the work grows with
the requests, not with the tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from memcore.stream.clock import Clock
from memcore.stream.lengths import Requests
from memcore.stream.pools import Contiguous, Paged

EVENTS_EACH = 100  # steps per request after which a simulation is cut short
KINDS = ("used", "reserved", "internal", "ended", "external", "free")


@dataclass(slots=True)
class Meter:
    """What the memory held, summed over time (token seconds), and at each event.

    used       keys and values of running sequences
    reserved   held for tokens that a sequence will still have
    internal   held, and never filled
    ended      held by sequences that have ended
    external   lost to rounding, or free while a request waits for room
    free       free while none waits
    """

    capacity: int
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    running: float = 0.0
    points: list[tuple[float, int, int, int, int]] = field(default_factory=list)

    def add(
        self, seconds: float, used: float, asked: float, held: float, future: float, ended: int,
        waits: bool, running: int,
    ) -> None:  # fmt: skip
        """`seconds` in which so many tokens were used on average. asked: what sequences asked for;
        held: what they got; future: of that, what they will use."""
        sums = self.sums
        sums["used"] += seconds * used
        sums["reserved"] += seconds * future
        sums["ended"] += seconds * ended
        sums["internal"] += seconds * (asked - used - future - ended)
        sums["external"] += seconds * (held - asked)
        sums["external" if waits else "free"] += seconds * (self.capacity - held)
        self.running += seconds * running


@dataclass(slots=True)
class Trace:
    """What happened to each request, and to the server.

    started, first, done   seconds: let in, first token, last token; nan where it never ran
    events                 how many steps the simulation took; cut: they were too many
    computed, recomputed   tokens of prompts, and of preempted sequences once more
    meter.points           (seconds, tokens used, tokens held, running, waiting)
    """

    meter: Meter
    started: list[float]
    first: list[float]
    done: list[float]
    iterations: int = 0
    events: int = 0
    preemptions: int = 0
    computed: int = 0
    recomputed: int = 0
    generated: int = 0
    seconds: float = 0.0
    cut: bool = False

    def too_long(self) -> bool:
        """Whether the simulation has taken so many steps that it is cut short."""
        self.cut = self.events > EVENTS_EACH * (len(self.done) + EVENTS_EACH)
        return self.cut

    @classmethod
    def of(cls, requests: Requests, capacity: int) -> Trace:
        never = [math.nan] * requests.count
        return cls(Meter(capacity), never[:], never[:], never[:])


class Continuous:
    """Iteration-level scheduling, first come first served: a sequence leaves as soon as it ends,
    and another takes its room.

    An iteration has at most `most` sequences and `budget` tokens: one of each sequence that
    generates, then parts of the prompts that were let in (chunked prefill), as vLLM V1 does it.
    """

    def __init__(
        self, requests: Requests, pool: Contiguous | Paged, clock: Clock, most: int, budget: int
    ):
        self.requests, self.pool, self.clock = requests, pool, clock
        self.most, self.budget = min(most, budget), budget
        self.trace = Trace.of(requests, pool.capacity)
        self.now, self.iteration = 0.0, 0
        self.next = 0  # the request that comes next
        self.waiting: deque[int] = deque()
        self.order: list[tuple[int, int]] = []  # who was let in, in order: (sequence, which time)
        self.reading: deque[int] = deque()  # whose prompt is being read
        self.ends: list[tuple[int, int, int]] = []  # heap: (iteration, sequence, which time)
        count = requests.count
        self.stays = [0] * count  # how often it was let in, or put out again
        self.length = [0] * count  # tokens to read before it generates
        self.read = [0] * count  # tokens that are read
        self.tokens = [0] * count  # generated when it last began to, in iteration `since`
        self.since = [-1] * count
        self.running = self.generating = 0
        self.context = 0  # tokens that the generating sequences attend to
        self.used = 0
        self.future = 0  # tokens that those inside will have, and that have a place already
        self.blocked = False  # somebody waits for room in memory

    def run(self) -> Trace:
        while self._arrive():
            self.trace.events += 1
            if self.trace.too_long():
                break
            preempted = self.blocked = self._make_room()
            if not preempted:
                self._let_in()
            if self.reading:
                self._mixed()
            else:
                self._generate(1 if preempted else 1 << 62)
        self.trace.seconds = self.now
        return self.trace

    def _arrive(self) -> bool:
        """Whoever has come by now waits; an idle server waits for the next. False: all is done."""
        arrivals, count = self.requests.arrivals, self.requests.count
        prompts, outputs = self.requests.prompts, self.requests.outputs
        while self.next < count:
            i = self.next
            if arrivals[i] > self.now:
                if self.running or self.waiting:
                    break
                pool = self.pool
                self._measure(arrivals[i] - self.now, self.used, pool.asked, pool.held, self.future)
                self.now = arrivals[i]
            if self.pool.ever(prompts[i], outputs[i]):
                self.waiting.append(i)
            self.next += 1
        return bool(self.running or self.waiting)

    def _make_room(self) -> bool:
        """Room for one token more of each; whether somebody had to be put out for it."""
        preempted = False
        while self.generating and not self.pool.go_on(self.iteration, 1):
            self._preempt()
            preempted = True
        return preempted

    def _preempt(self) -> None:
        """Put out the last that was let in; all of its tokens will be computed again."""
        i, stay = self.order.pop()
        while self.stays[i] != stay:
            i, stay = self.order.pop()
        if self.since[i] >= 0:
            self.tokens[i] += self.iteration - self.since[i]
            self._leave(i)
        else:
            self.reading.pop()
            self.pool.release(i, self.length[i])
            self.running -= 1
            self.used -= self.read[i] - self.pool.kept
            self.future -= self._places(i) - self.read[i]
        self.stays[i] += 1
        self.waiting.appendleft(i)
        self.trace.preemptions += 1

    def _places(self, i: int) -> int:
        """Tokens for which it got places when it was let in. Of the last nobody reads the keys."""
        if self.pool.reserves:
            return self.requests.prompts[i] + self.requests.outputs[i] - 1
        return self.length[i]

    def _leave(self, i: int) -> None:
        """A generating sequence gives its room back."""
        computed = self.requests.prompts[i] + self.tokens[i] - 1
        self.pool.stop(computed, self.iteration)
        self.pool.release(i, computed)
        self.since[i] = -1
        self.generating -= 1
        self.running -= 1
        self.context -= computed
        self.used -= computed - self.pool.kept
        if self.pool.reserves:
            self.future -= self._places(i) - computed

    def _let_in(self) -> None:
        left = (
            self.budget - self.generating - sum(self.length[i] - self.read[i] for i in self.reading)
        )
        while self.waiting and self.running < self.most and left > 0:
            i = self.waiting[0]
            prompt, output = self.requests.prompts[i], self.requests.outputs[i]
            again = self.stays[i] > 0
            length = prompt + self.tokens[i]
            cached = self.pool.cached
            there = self.pool.admit(i, prompt, output, length)
            if there is None:
                self.blocked = True
                break
            self.waiting.popleft()
            self.stays[i] += 1
            self.order.append((i, self.stays[i]))
            self.length[i], self.read[i] = length, there
            self.reading.append(i)
            self.running += 1
            self.used += there - (self.pool.kept if cached else 0)
            self.future += self._places(i) - there
            left -= length - there
            if again:
                self.trace.recomputed += length - there
            else:
                self.trace.computed += length - there
                self.trace.started[i] = self.now

    def _mixed(self) -> None:
        """One iteration in which prompts are read, as far as the budget goes."""
        left = self.budget - self.generating
        chunks, through = [], []
        for i in self.reading:
            now = min(left, self.length[i] - self.read[i])
            if not now:
                break
            chunks.append((self.read[i], now))
            self.read[i] += now
            left -= now
            if self.read[i] == self.length[i]:
                through.append(i)
        n = self.generating
        read = sum(now for _, now in chunks)
        self._advance(self.clock.mixed(n, self.context + n, chunks), 1, read)
        for i in through:
            self.reading.popleft()
            self._begin(i)
        self._end()

    def _begin(self, i: int) -> None:
        """The whole prompt is read, and with it comes a token."""
        if math.isnan(self.trace.first[i]):
            self.trace.first[i] = self.now
        self.tokens[i] += 1
        self.since[i] = self.iteration
        self.trace.generated += 1
        self.generating += 1
        self.context += self.length[i]
        self.pool.start(self.length[i], self.iteration)
        end = self.iteration + self.requests.outputs[i] - self.tokens[i]
        heapq.heappush(self.ends, (end, i, self.stays[i]))

    def _end(self) -> None:
        """Whoever has all of its tokens leaves."""
        while self.ends and self.ends[0][0] <= self.iteration:
            _, i, stay = heapq.heappop(self.ends)
            if self.stays[i] != stay:  # it was put out before
                continue
            self.tokens[i] = self.requests.outputs[i]
            self._leave(i)
            self.stays[i] += 1
            self.trace.done[i] = self.now
        self._point()

    def _generate(self, most: int) -> None:
        """As many iterations as are alike: until one ends or comes, or no blocks are left."""
        if not self.generating:
            return
        while self.stays[self.ends[0][1]] != self.ends[0][2]:
            heapq.heappop(self.ends)
        steps = min(most, self.ends[0][0] - self.iteration)
        n, each = self.generating, self.clock.decode(self.generating)
        per_token = self.clock.context
        if not self.waiting and self.running < self.most and self.next < self.requests.count:
            wait = self.requests.arrivals[self.next] - self.now
            steps = min(steps, _until(wait, each + per_token * self.context, per_token * n, steps))
        asked, held = self.pool.asked, self.pool.held
        if steps > 1:
            steps = 1 + self.pool.go_on(self.iteration + 1, steps - 1)
        read = steps * self.context + n * steps * (steps + 1) / 2
        self._advance(steps * each + per_token * read, steps, 0, asked, held)
        self._end()

    def _advance(
        self,
        seconds: float,
        steps: int,
        read: int,
        asked: int | None = None,
        held: int | None = None,
    ) -> None:
        """Iterations pass, in which `read` tokens of prompts are computed, and of each generating
        sequence one an iteration. What is written in an iteration counts in it; asked, held: in
        the first of them."""
        pool, n = self.pool, self.generating
        used = self.used + read + n * (steps + 1) / 2
        future = self.future - read - (n * (steps + 1) / 2 if pool.reserves else 0)
        asked = pool.asked if asked is None else asked
        held = pool.held if held is None else held
        self._measure(seconds, used, (asked + pool.asked) / 2, (held + pool.held) / 2, future)
        self.used += read + n * steps
        self.future -= read + (n * steps if pool.reserves else 0)
        self.context += n * steps
        self.trace.generated += n * steps
        self.trace.iterations += steps
        self.iteration += steps
        self.now += seconds
        self._point()

    def _measure(
        self, seconds: float, used: float, asked: float, held: float, future: float
    ) -> None:
        self.trace.meter.add(seconds, used, asked, held, future, 0, self.blocked, self.running)

    def _point(self) -> None:
        at = (self.now, self.used, self.pool.held, self.running, len(self.waiting))
        self.trace.meter.points.append(at)


def _until(wait: float, each: float, more: float, most: int) -> int:
    """Iterations until `wait` seconds are over, where one takes `each` and each `more` longer than
    the one before."""
    if wait <= 0:
        return 1
    linear = each + more / 2
    if more * wait < 1e-12 * linear * linear:
        steps = wait / linear if linear else math.inf
    else:
        steps = (math.sqrt(linear * linear + 2 * more * wait) - linear) / more
    return max(1, math.ceil(min(steps, most)))


class Static:
    """Batches of requests, each with room for `longest` tokens: who has come by the time a batch
    starts is in it, and the next one starts when the last sequence of it has ended."""

    def __init__(
        self, requests: Requests, slots: int, longest: int, clock: Clock, most: int, budget: int
    ):
        self.requests, self.clock, self.longest, self.budget = requests, clock, longest, budget
        self.most = min(most, slots // longest, budget)
        self.bound = self.most < min(most, budget)  # by memory
        self.trace = Trace.of(requests, slots)
        self.now = 0.0
        self.waiting = 0

    def run(self) -> Trace:
        arrivals, first = self.requests.arrivals, 0
        while first < self.requests.count and self.most > 0:
            if arrivals[first] > self.now:
                self._measure(arrivals[first] - self.now, 0, 0, 0, 0)
                self.now = arrivals[first]
            last = first
            while last < len(arrivals) and arrivals[last] <= self.now and last - first < self.most:
                last += 1
            self._batch(first, last)
            if self.trace.cut:
                break
            first = last
        self.trace.seconds = self.now
        return self.trace

    def _batch(self, first: int, last: int) -> None:
        n, outputs = last - first, self.requests.outputs
        here = range(first, last)
        used, future = 0, sum(self.requests.prompts[i] + outputs[i] - 1 for i in here)
        for i in here:
            self.trace.started[i] = self.now
        left, chunks = self.budget, []
        ready = first
        for i in here:
            read, prompt = 0, self.requests.prompts[i]
            while read < prompt:
                now = min(left, prompt - read)
                chunks.append((read, now))
                read, left = read + now, left - now
                if not left or (i == last - 1 and read == prompt):
                    self._forward(chunks, used, future, n)
                    if self.trace.too_long():
                        return
                    tokens = sum(c for _, c in chunks)
                    used, future = used + tokens, future - tokens
                    left, chunks = self.budget, []
                    while ready < i or (ready == i and read == prompt):
                        self.trace.first[ready] = self.now
                        ready += 1
        self._decode(here, n, used, future)

    def _forward(self, chunks: list[tuple[int, int]], used: int, future: int, n: int) -> None:
        seconds = self.clock.mixed(0, 0, chunks)
        tokens = sum(now for _, now in chunks)
        self._measure(seconds, used + tokens, future - tokens, 0, n)
        self.trace.computed += tokens
        self._advance(seconds, 1, used + tokens, n)

    def _decode(self, here: range, n: int, used: int, future: int) -> None:
        """The batch stays as wide as it is; those that have ended are no longer attended to."""
        prompts, outputs = self.requests.prompts, self.requests.outputs
        self.trace.generated += n
        active, done, ended = n, 1, 0
        for i in sorted(here, key=lambda i: outputs[i]):
            steps = outputs[i] - done
            if steps:
                read = steps * used + active * steps * (steps + 1) / 2
                seconds = steps * self.clock.decode(n) + self.clock.context * read
                grown, mean = active * steps, active * (steps + 1) / 2
                self._measure(seconds, used + mean, future - mean, ended, n)
                used, future, done = used + grown, future - grown, outputs[i]
                self.trace.generated += grown
                self._advance(seconds, steps, used, n)
            self.trace.done[i] = self.now
            total = prompts[i] + outputs[i] - 1
            active, used, ended = active - 1, used - total, ended + total

    def _measure(self, seconds: float, used: float, future: float, ended: int, n: int) -> None:
        held = n * self.longest
        waits = self.bound and n >= self.most
        self.trace.meter.add(seconds, used, held, held, future, ended, waits, n)

    def _advance(self, seconds: float, steps: int, used: int, n: int) -> None:
        self.now += seconds
        self.trace.iterations += steps
        self.trace.events += 1
        arrivals = self.requests.arrivals
        while self.waiting < len(arrivals) and arrivals[self.waiting] <= self.now:
            self.waiting += 1
        self.trace.meter.points.append((self.now, used, n * self.longest, n, self.waiting))
