"""Engine: a stream of requests through one server, iteration by iteration.

Between two events (a sequence ends, a request comes, blocks run out, a window is full) every
iteration is like the one before but for the tokens that each sequence has more, so they are done in
one go: the work grows with the requests, not with the tokens.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from memcore.pausing import pause
from memcore.stream.clock import Clock
from memcore.stream.lengths import Requests
from memcore.stream.pace import STEADY, Pace
from memcore.stream.pools import Batch, Contiguous, Paged

EVENTS_EACH = 100  # steps per request after which a simulation is cut short
KINDS = ("used", "reserved", "internal", "ended", "external", "free")


@dataclass(slots=True)
class Meter:
    """What the memory held, in places of one token: summed over time, and at each event.

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
    points: list[tuple[float, float, int, int, int]] = field(default_factory=list)

    def add(
        self, seconds: float, used: float, asked: float, held: float, future: float, ended: float,
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

    came, started, first, done   seconds: asked, let in, first token, last token; nan where it never
                           ran
    events                 how many steps the simulation took; cut: they were more than `most`
    computed, recomputed   tokens of prompts, and of preempted sequences once more
    reading, idle          of the seconds, those of iterations that read prompts, and of none
    meter.points           (seconds, tokens used, tokens held, running, waiting)
    """

    meter: Meter
    came: list[float]
    started: list[float]
    first: list[float]
    done: list[float]
    most: float
    iterations: int = 0
    events: int = 0
    preemptions: int = 0
    computed: int = 0
    recomputed: int = 0
    generated: int = 0
    seconds: float = 0.0
    reading: float = 0.0
    idle: float = 0.0
    cut: bool = False

    def too_long(self) -> bool:
        """Whether the simulation has taken so many steps that it is cut short."""
        self.cut = self.events > self.most
        return self.cut

    @classmethod
    def of(cls, requests: Requests, capacity: int) -> Trace:
        never = [math.nan] * requests.count
        most = EVENTS_EACH * (requests.count + EVENTS_EACH)
        return cls(Meter(capacity), list(requests.arrivals), never[:], never[:], never[:], most)


class Continuous:
    """Iteration-level scheduling, first come first served: a sequence leaves as soon as it ends,
    and another takes its room.

    An iteration has at most `most` sequences and `budget` tokens. Where it is `mixed`, one step of
    each sequence that generates and then parts of prompts (chunked prefill), as vLLM V1 does it
    (vllm/v1/core/sched/scheduler.py): those inside first, then whoever waits while nobody had to be
    put out. Else prompts come first, and those that generate wait for them. With `loaded` prompts
    come with their cache: only those that were put out are read here.
    """

    gathers = False  # lets in no matter how many tokens an iteration has

    def __init__(
        self, requests: Requests, pool: Contiguous | Paged, clock: Clock, most: int, budget: int,
        mixed: bool = True, pace: Pace = STEADY, loaded: bool = False,
    ):  # fmt: skip
        self.requests, self.pool, self.clock, self.pace = requests, pool, clock, pace
        self.each = 1 + pace.guesses  # tokens of an iteration for a sequence that generates
        self.most, self.budget = min(most, max(1, budget // self.each)), max(budget, self.each)
        self.mixed, self.loaded = mixed, loaded
        self.trace = Trace.of(requests, pool.capacity)
        self.now, self.step, count = 0.0, 0, requests.count
        self.at = 0  # tokens that a sequence would have of all steps
        self.next = 0  # the request that comes next
        # in a closed loop, the one that comes when another ends
        self.asked = next((i for i, at in enumerate(requests.arrivals) if math.isnan(at)), count)
        self.waiting: deque[int] = deque()
        self.order: list[tuple[int, int]] = []  # who was let in, in order: (sequence, which time)
        self.reading: deque[int] = deque()  # whose prompt is being read
        self.fresh: set[int] = set()  # of them, those of which no part is read yet
        self.ends: list[tuple[int, int, int]] = []  # heap: (at, sequence, which time)
        self.marks: list[tuple[int, int, int]] = []  # the same: when a window is full
        self.stays = [0] * count  # how often it was let in, or put out again
        self.length = [0] * count  # tokens to read before it generates
        self.read = [0] * count  # tokens that are read
        self.takes = [0.0] * count  # places of these
        self.tokens = [0] * count  # generated when it last began to, at `since`
        self.since = [-1] * count
        self.stage = [0] * count  # how far its tokens are out of a window's sight: see _view
        self.running = self.generating = 0
        self.context = 0  # tokens of the generating sequences
        self.seen = 0  # of them, those that a layer with a window sees
        self.growing = 0  # sequences of which it sees one more with each token
        self.used = 0.0  # places
        self.slope = 0.0  # and how many more with a token of each
        self.future = 0.0  # places that those inside will use, and that are held already
        self.blocked = False  # somebody waits for room in memory
        self.ended = 0.0  # places of those that have ended, where a batch keeps them

    def run(self, steps: float = math.inf) -> Trace:
        """What happens to all; cut short after so many steps of the simulation."""
        self.trace.most = min(self.trace.most, steps)
        while self._arrive():
            pause()
            self.trace.events += 1
            if self.trace.too_long():
                break
            preempted = self.mixed and self._make_room()
            chunks = self._chunks(preempted)
            if chunks:
                self._iterate(chunks)
            else:
                preempted |= self._make_room()
                self._generate(1 if preempted else 1 << 62)
        self.trace.seconds = self.now
        return self.trace

    def _arrive(self) -> bool:
        """Whoever has come by now waits; an idle server waits for the next. False: all is done."""
        arrivals, count = self.trace.came, self.requests.count
        prompts, outputs = self.requests.prompts, self.requests.outputs
        while self.next < count:
            i = self.next
            if math.isnan(arrivals[i]):  # of a closed loop: nobody has ended for it to come
                break
            if arrivals[i] > self.now:
                if self.running or self.waiting:
                    break
                pool = self.pool
                wait = arrivals[i] - self.now
                self._measure(wait, self.used, pool.asked, pool.held, self.future)
                self.trace.idle += wait
                self.now = arrivals[i]
            self.next += 1
            if self.pool.ever(prompts[i], outputs[i]):
                self.waiting.append(i)
            else:
                self._ask()
        return bool(self.running or self.waiting)

    def _ask(self) -> None:
        """In a closed loop, who has an answer, or none will ever get, makes another come."""
        came = self.trace.came
        if self.asked < len(came):
            if math.isnan(came[self.asked]):
                came[self.asked] = self.now
            self.asked += 1

    def _make_room(self) -> bool:
        """Room for the next step of each; whether somebody had to be put out for it."""
        if self.marks:
            self._pass_marks()
        preempted, last = False, self.at + self.pace.guesses
        while self.generating and self.pool.cover(last) < last:
            self._preempt()
            preempted = self.blocked = True
        return preempted

    def _preempt(self) -> int:
        """Put out the last that was let in; all of its tokens will be computed again."""
        i, stay = self.order.pop()
        while self.stays[i] != stay:
            i, stay = self.order.pop()
        if self.since[i] >= 0:
            self.tokens[i] += self.at - self.since[i]
            self._leave(i)
        else:
            self.reading.remove(i)
            self.pool.drop(i)
            self.running -= 1
            self._use(-self.takes[i])
            self.future -= self._reserved(i)
        self.stays[i] += 1
        self.waiting.appendleft(i)
        self.trace.preemptions += 1
        return i

    def _reserved(self, i: int) -> float:
        """Of the places that it was given when it was let in, those that it will use. Of the last
        token nobody reads the keys."""
        pool = self.pool
        if isinstance(pool, Paged):
            return 0.0
        prompt, output = self.requests.prompts[i], self.requests.outputs[i]
        tokens = prompt + output - 1 + self.pace.guesses
        return min(pool.pages.places(tokens) + pool.pages.fixed, pool.wants(prompt, output))

    def _use(self, places: float) -> None:
        self.used += places
        if self.pool.reserves:
            self.future -= places

    # -- prompts

    def _chunks(self, preempted: bool) -> list[tuple[int, int]]:
        """Parts of prompts for one iteration, (sequence, tokens): of those inside, then of whoever
        is let in."""
        goes_on = self.generating if self.mixed else 0
        left = self.budget - goes_on * self.each
        chunks, preemptions = [], self.trace.preemptions
        for i in tuple(self.reading):
            now = min(left, self.length[i] - self.read[i])
            out = self.stays[i] % 2 == 0  # it was put out for one before
            if not now or out or not self._take(i, now):
                break
            chunks.append((i, now))
            left -= now
        if not preempted and self.trace.preemptions == preemptions:
            self._let_in(chunks, left)
        return chunks

    def _take(self, i: int, now: int) -> bool:
        """Room for the next part of its prompt, if it need not be put out itself."""
        while not self.pool.read(i, self.read[i], now):
            self.blocked = True
            if self._preempt() == i:
                return False
        return True

    def _let_in(self, chunks: list[tuple[int, int]], left: int) -> None:
        self.blocked = False
        while self.waiting and self.running < self.most and (left > 0 or self.gathers):
            i = self.waiting[0]
            prompt, output = self.requests.prompts[i], self.requests.outputs[i]
            again = self.stays[i] > 0
            length = prompt + self.tokens[i]
            there = self._admit(i, prompt, output, length, again)
            if there is None:
                self.blocked = True
                break
            self.waiting.popleft()
            self.stays[i] += 1
            self.order.append((i, self.stays[i]))
            self.length[i], self.read[i], self.takes[i] = length, there, 0.0
            self.running += 1
            self.future += self._reserved(i)
            if again:
                self.trace.recomputed += length - there
            else:
                self.trace.computed += length - there
                self.trace.started[i] = self.now
            if there == length:
                self._begin(i)
                continue
            self.reading.append(i)
            self.fresh.add(i)
            now = min(left, length - there)
            if now and self._take(i, now):
                chunks.append((i, now))
                left -= now
        if self.loaded:
            self._end()

    def _admit(self, i: int, prompt: int, output: int, length: int, again: bool) -> int | None:
        """Room for it: how many of its tokens are there already, or None for no room."""
        pool = self.pool
        first = pool.kept and not pool.cached
        there = pool.admit(i, prompt, output, length)
        if there is None:
            return None
        if first:  # what all share is kept from now on
            self.used += pool.pages.places(pool.kept)
        if again and self.clock.tier:  # all that it had computed is in the second tier
            read = self.read[i] if self.read[i] < self.length[i] else length - 1
            there = max(there, read)
        if again or not self.loaded:
            return there
        if pool.read(i, length, 0):
            return length
        pool.drop(i)
        return None

    def _iterate(self, chunks: list[tuple[int, int]]) -> None:
        """One iteration in which prompts are read."""
        n = self.generating if self.mixed else 0
        parts = [(self.read[i], now) for i, now in chunks]
        begin = [self.read[i] for i, _ in chunks if i in self.fresh]
        back = sum(max(0, there - self.pool.kept) for there in begin)
        for i, now in chunks:
            self.fresh.discard(i)
            places = self._places(i, now)
            self._use(places - self.takes[i])
            self.takes[i] = places
            self.read[i] += now
        context, seen = (self.context + n, self.seen + self.growing) if n else (0, 0)
        seconds = self.clock.mixed(n, context, seen, parts, len(begin), back, self.generating - n)
        self.trace.iterations += not n
        self.trace.reading += seconds
        self._advance(seconds, 1 if n else 0, self.pool.asked, self.pool.held)
        for i, _ in chunks:
            if self.read[i] == self.length[i]:
                self.reading.remove(i)
                self._begin(i)
        self._end()

    def _places(self, i: int, now: int) -> float:
        """Places of what is read of it, and `now` tokens more: a window lets go of what the first
        of these does not see."""
        pool, pages, there = self.pool, self.pool.pages, self.read[i]
        if pool.reserves:
            return pages.places(there + now) + pages.fixed
        found = pages.fixed + pages.whole * max(0, there + now - pool.kept)
        if pages.part:
            found += pages.part * max(0, there + now - max(pool.kept, pages.unseen(there)))
        return found

    def _begin(self, i: int) -> None:
        """The whole prompt is read, and with it comes a token."""
        length = self.length[i]
        if math.isnan(self.trace.first[i]):
            self.trace.first[i] = self.now
        self.tokens[i] += 1
        self.since[i], self.stage[i] = self.at, 0
        self.trace.generated += 1
        self.generating += 1
        self.pool.start(i, length, self.at)
        self._use(-self.takes[i])
        self._count(i, length, 1)
        if self.pool.pages.window:
            self._pass(i, length)
        end = self.at + self.requests.outputs[i] - self.tokens[i]
        heapq.heappush(self.ends, (end, i, self.stays[i]))

    # -- what layers with a window see

    def _view(self, i: int, tokens: int) -> tuple[int, int, float, float]:
        """Of a generating sequence: tokens that a layer with a window sees, and how many more of
        the next; the places that it uses, and how many more.

        stage   0: it sees everything. 1: its window is full. 2: so are the places of a window,
                which has let go of what all share. Of attention in chunks, the last one's start
        """
        pages, kept = self.pool.pages, self.pool.kept
        own, stage, window = tokens - kept, self.stage[i], pages.window
        if not window:
            return 0, 0, pages.fixed + pages.whole * own, pages.whole
        if pages.chunked:
            if stage and self.pool.reserves:
                places, more = min(tokens, window), 0
            else:
                places, more = tokens - max(kept, stage), 1
            seen, grows = tokens - stage, 1
        else:
            seen, grows = (window, 0) if stage else (tokens, 1)
            places, more = (window, 0) if stage == 2 else (own, 1)
        used = pages.fixed + pages.whole * own + pages.part * places
        return seen, grows, used, pages.whole + pages.part * more

    def _count(self, i: int, tokens: int, sign: int) -> None:
        """A sequence of so many tokens comes (1) or goes (-1)."""
        seen, grows, used, more = self._view(i, tokens)
        self.context += sign * tokens
        self.seen += sign * seen
        self.growing += sign * grows
        self._use(sign * used)
        self.slope += sign * more

    def _pass(self, i: int, tokens: int) -> None:
        """Apply what happens when sequence i reaches so many tokens, and mark the next change."""
        pages, window = self.pool.pages, self.pool.pages.window
        last = window + self.pool.kept
        if pages.chunked:
            stage = tokens // window * window
            ahead = stage + window
        else:
            stage = (tokens >= window) + (tokens >= last)
            ahead = (window, last, 0)[stage]
        if stage != self.stage[i]:
            self._count(i, tokens, -1)
            slides = pages.chunked or stage == 2
            self.stage[i] = stage
            self._count(i, tokens, 1)
            if slides:
                self.pool.slide(i, tokens, self.at)
        if ahead:
            heapq.heappush(self.marks, (self.at + ahead - tokens, i, self.stays[i]))

    def _pass_marks(self) -> None:
        while self.marks and self.marks[0][0] <= self.at:
            _, i, stay = heapq.heappop(self.marks)
            if self.stays[i] == stay:
                self._pass(i, self.length[i] + self.at - self.since[i])

    # -- next tokens

    def _leave(self, i: int) -> None:
        """A generating sequence gives its room back."""
        tokens = self.length[i] + self.at - self.since[i]
        self.pool.leave(i, tokens, self.at)
        self._count(i, tokens, -1)
        self.since[i] = -1
        self.generating -= 1
        self.running -= 1
        self.future -= self._reserved(i)

    def _end(self) -> None:
        """Whoever has all of its tokens leaves."""
        if not self.ends or self.ends[0][0] > self.at:
            return
        while self.ends and self.ends[0][0] <= self.at:
            end, i, stay = heapq.heappop(self.ends)
            if self.stays[i] != stay:  # it was put out before
                continue
            self.trace.generated -= self.at - end  # right guesses beyond its last token
            self.tokens[i] = self.requests.outputs[i]
            self._leave(i)
            self.stays[i] += 1
            self.trace.done[i] = self.now
            self._ask()
        self._point()

    def _width(self) -> int:
        """Sequences that a step computes."""
        return self.generating

    def _generate(self, most: int) -> None:
        """As many iterations as are alike: until one ends or comes, or no blocks are left."""
        if not self.generating:
            return
        pace, step, at = self.pace, self.step, self.at
        for heap in (self.ends, self.marks):
            while heap and self.stays[heap[0][1]] != heap[0][2]:
                heapq.heappop(heap)
        steps = min(most, pace.reach(self.ends[0][0]) - step)
        if self.marks:
            steps = min(steps, pace.reach(self.marks[0][0]) - step)
        line = self._line()
        if line.until < math.inf:
            steps = min(steps, max(1, pace.reach(at + math.ceil(line.until)) - step))
        if self.next < self.asked and not self.waiting and self.running < self.most:
            wait = self.trace.came[self.next] - self.now
            steps = self._until(wait, line, steps)
        asked, held = self.pool.asked, self.pool.held
        if steps > 1 and not self.pool.reserves:
            steps = self._cover(steps)
        seconds = self._seconds(line, steps)
        self._advance(seconds, steps, asked, held)
        self._end()

    def _line(self) -> Line:
        """Seconds of the next step, and how many more with each token of all."""
        n, clock = self.generating, self.clock
        found, beside = clock.decode(self._width())
        share = 1 / clock.of_batch(n)
        context, seen = share * (self.context + n), share * (self.seen + self.growing)
        attention, more = clock.load(context, seen)
        slope, rest = clock.load(share * n, share * self.growing)
        first = found + attention
        if clock.host is None:
            return Line(first + beside + more, slope + rest)
        fetched = clock.host.of(context, seen)
        rises = clock.host.of(share * n, share * self.growing)
        apart = (first - fetched) / (rises - slope) if rises != slope else -1.0
        until = apart if apart > 0 else math.inf
        if fetched > first:
            first, slope = fetched, rises
        return Line(first + beside + more, slope + rest, until)

    def _seconds(self, line: Line, steps: int) -> float:
        """Of so many steps from now on."""
        pace, step = self.pace, self.step
        if pace is STEADY:
            grown = pace.area(steps)
        else:
            grown = pace.area(step + steps) - pace.area(step) - steps * self.at
        return steps * line.first + line.slope * grown

    def _until(self, wait: float, line: Line, most: int) -> int:
        """Steps until `wait` seconds are over, at most so many."""
        if wait <= 0:
            return 1
        if not self.pace.guesses:
            return min(most, until(wait, line.first, line.slope, most))
        return 1 + bisect_left(range(1, most), wait, key=lambda n: self._seconds(line, n))

    def _cover(self, steps: int) -> int:
        """As many of these steps as there is room for."""
        pace, pool, step = self.pace, self.pool, self.step
        last = pace.tokens(step + steps - 1) + pace.guesses
        there = pool.cover(last)
        if there < last:
            steps = pace.reach(there - pace.guesses + 1) - step
            pool.uncover(pace.tokens(step + steps - 1) + pace.guesses)
        return steps

    def _advance(self, seconds: float, steps: int, asked: int, held: int) -> None:
        """Iterations pass, with so many steps of each generating sequence. What is written in an
        iteration counts in it; asked, held: in the first of them."""
        pool, pace, n = self.pool, self.pace, self.generating
        if pace is STEADY:
            then, mean = self.at + steps, self.slope * (steps + 1) / 2 if steps else 0.0
        else:
            then, mean = pace.tokens(self.step + steps), 0.0
        grown = then - self.at
        if steps and pace is not STEADY:
            area = pace.area(self.step + steps + 1) - pace.area(self.step + 1)
            mean = self.slope * (area / steps - self.at)
        future = self.future - (mean if pool.reserves else 0)
        used, holds = self.used + mean, pool.held
        asks = pool.asked if pool.reserves else holds
        self._measure(seconds, used, (asked + asks) / 2, (held + holds) / 2, future)
        self._use(self.slope * grown)
        self.context += n * grown
        self.seen += self.growing * grown
        self.trace.generated += n * grown
        self.trace.iterations += steps
        self.step += steps
        self.at = then
        self.now += seconds
        self._point()

    def _measure(
        self, seconds: float, used: float, asked: float, held: float, future: float
    ) -> None:
        inside = self.ended, self.blocked, self.running
        self.trace.meter.add(seconds, used, asked, held, future, *inside)

    def _point(self) -> None:
        at = (self.now, self.used, self.pool.held, self.running, len(self.waiting))
        self.trace.meter.points.append(at)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of the first of some steps, and how many more for each token that all have had;
    until: tokens after which it is another line."""

    first: float
    slope: float
    until: float = math.inf


def until(wait: float, first: float, more: float, most: int) -> int:
    """Iterations until `wait` seconds are over, where the first takes `first` and each `more`
    longer than the one before."""
    linear = first - more / 2
    if more * wait < 1e-12 * linear * linear:
        steps = wait / linear if linear else math.inf
    else:
        steps = (math.sqrt(linear * linear + 2 * more * wait) - linear) / more
    return max(1, math.ceil(min(steps, most)))


class Static(Continuous):
    """Batches of requests, each with room for the longest: who has come by the time a batch starts
    is in it, and the next one starts when the last sequence of it has ended. The batch stays as
    wide as it is; those that have ended are no longer attended to."""

    gathers = True

    def __init__(
        self, requests: Requests, pool: Batch, clock: Clock, most: int, budget: int,
        pace: Pace = STEADY, loaded: bool = False,
    ):  # fmt: skip
        super().__init__(requests, pool, clock, most, budget, False, pace, loaded)
        self.batch: list[int] = []

    def _let_in(self, chunks: list[tuple[int, int]], left: int) -> None:
        if not self.batch:
            super()._let_in(chunks, left)

    def _admit(self, i: int, prompt: int, output: int, length: int, again: bool) -> int | None:
        there = super()._admit(i, prompt, output, length, again)
        if there is not None:
            self.batch.append(i)
        return there

    def _leave(self, i: int) -> None:
        tokens = self.length[i] + self.at - self.since[i]
        self.ended += self._view(i, tokens)[2]
        self._count(i, tokens, -1)
        self.future -= self._reserved(i)
        self.generating -= 1

    def _end(self) -> None:
        super()._end()
        if self.generating or self.reading:
            return
        for i in self.batch:
            self.pool.drop(i)
        self.batch, self.ended, self.running = [], 0.0, 0
        self._point()

    def _width(self) -> int:
        return len(self.batch)
