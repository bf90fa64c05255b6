"""Blocks of the simulated stream: the same as vLLM's scheduler and its managers of the KV cache
hand out, step by step and block by block, for layers with and without a window."""

import dataclasses
import math
from collections import deque

import pytest
from explored import examples
from hypothesis import given
from hypothesis import strategies as st

from evidence.served import planned, served_table
from memcore.plan.plan import Plan
from memcore.serving.cache import growing_pages, room
from memcore.serving.pages import Pages
from memcore.serving.server import Server
from memcore.stream import Clock, Requests, draw, run, simulate
from memcore.stream.engine import Continuous
from memcore.stream.pace import STEADY, Guessed
from memcore.stream.pools import Contiguous, Paged
from memcore.words.serving import PREFILLS, STRATEGIES

NULL = None


class Vllm:
    """vllm/v1/core/sched/scheduler.py, kv_cache_manager.py and single_type_kv_cache_manager.py, of
    the main branch in 2026, as far as blocks go: each sequence has a list of blocks per group, and
    those that a window no longer sees are null. One iteration takes a second."""

    def __init__(self, pages, blocks, longest, most, budget, guesses=0, lookahead=0, pace=STEADY):
        self.pages, self.free, self.blocks, self.longest = pages, blocks, blocks, longest
        self.most, self.budget, self.guesses, self.lookahead = most, budget, guesses, lookahead
        self.pace = pace
        self.groups = [False] * pages.full + [True] * pages.windowed
        self.waiting, self.running, self.held = deque(), [], {}
        self.preemptions = 0

    def skipped(self, computed):
        if self.pages.chunked:
            return computed // self.pages.window * self.pages.window
        return max(0, computed - self.pages.window + 1)

    def allocate(self, r, new, lookahead, whole=False):
        """allocate_slots: False where there is not enough."""
        held = self.held.get(r["id"])
        if whole:
            total = -(-r["tokens"] // self.pages.block)
            cap = self.pages.window - (not self.pages.chunked) + self.budget
            cap = -(-min(cap, self.longest) // self.pages.block) + (not self.pages.chunked)
            needed = sum(min(total, cap) if window else total for window in self.groups)
            if needed > self.free:
                return False
            held = self.held[r["id"]] = [[] for _ in self.groups]
        for window, blocks in zip(self.groups, held, strict=True):
            if window:
                for k in range(min(len(blocks), self.skipped(r["computed"]) // self.pages.block)):
                    if blocks[k] is not NULL:
                        blocks[k] = NULL
                        self.free += 1
        total = -(-(r["computed"] + new + lookahead) // self.pages.block)
        needed = sum(max(0, total - len(blocks)) for blocks in held)
        if needed > self.free:
            if whole:
                del self.held[r["id"]]
            return False
        for blocks in held:
            while len(blocks) < total:
                blocks.append(1)
                self.free -= 1
        return True

    def give_back(self, r):
        self.free += sum(b is not NULL for blocks in self.held.pop(r["id"]) for b in blocks)

    def preempt(self):
        r = self.running.pop()
        self.give_back(r)
        r["computed"] = 0
        self.waiting.appendleft(r)
        self.preemptions += 1
        return r

    def run(self, requests):
        """(held blocks after each iteration's allocation, when each request ended)"""
        todo = deque(
            {"id": i, "at": at, "prompt": p, "tokens": p, "end": p + o, "computed": 0}
            for i, (at, p, o) in enumerate(
                zip(requests.arrivals, requests.prompts, requests.outputs, strict=True)
            )
            if self.pages.asked(p + o - 1 + self.guesses + self.lookahead, self.longest)
            <= self.blocks
        )
        now, steps, seen, done = 0, 0, [], {}
        while todo or self.waiting or self.running:
            while todo and todo[0]["at"] <= now:
                self.waiting.append(todo.popleft())
            if not self.waiting and not self.running:
                now = todo[0]["at"]
                continue
            left, preempted, scheduled = self.budget, False, []
            k = 0
            while k < len(self.running) and left > 0:
                r = self.running[k]
                generates = r["computed"] >= r["tokens"] - 1 and r["computed"] >= r["prompt"]
                new = 1 + self.guesses if generates else r["tokens"] - r["computed"]
                new = min(new, left)
                out = None
                while not self.allocate(r, new, self.lookahead):
                    preempted, out = True, self.preempt()
                    if out is r:
                        break
                if out is r:
                    break
                scheduled.append((r, new))
                left -= new
                k += 1
            while not preempted and self.waiting and left > 0 and len(self.running) < self.most:
                r = self.waiting[0]
                if not self.allocate(r, min(left, r["tokens"]), 0, whole=True):
                    break
                self.waiting.popleft()
                self.running.append(r)
                scheduled.append((r, min(left, r["tokens"])))
                left -= min(left, r["tokens"])
            seen.append(self.blocks - self.free)
            now += 1
            stepped = any(r["computed"] >= r["prompt"] and r["computed"] >= r["tokens"] - 1
                          for r, _ in scheduled)  # fmt: skip
            given = self.pace.tokens(steps + 1) - self.pace.tokens(steps)
            steps += stepped
            for r, new in scheduled:
                if r["computed"] >= r["prompt"] and r["computed"] >= r["tokens"] - 1:
                    r["computed"] += given
                    r["tokens"] += given
                else:
                    r["computed"] += new
                    r["tokens"] += r["computed"] == r["tokens"]
                if r["tokens"] >= r["end"]:
                    self.running.remove(r)
                    self.give_back(r)
                    done[r["id"]] = now
        return seen, done


class Watched(Continuous):
    """One iteration at a time, which notes the blocks that are held in each."""

    def _generate(self, most):
        super()._generate(min(most, 1))

    def _advance(self, *args):
        self.held.append(self.pool.blocks - self.pool.free)
        super()._advance(*args)


SHAPES = st.builds(
    lambda block, full, windowed, window, chunked: (
        block, max(full, 1 - windowed), windowed, window * (block if chunked else 1), chunked,
    ),
    st.integers(1, 9), st.integers(0, 2), st.integers(0, 3), st.integers(1, 12), st.booleans(),
)  # fmt: skip
PAIRS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12)


def both(pairs, shape, blocks, most, budget, guesses=0, lookahead=0, gap=3):
    block, full, windowed, window, chunked = shape
    prompts, outputs = zip(*pairs, strict=True)
    requests = Requests(tuple(float(gap * i) for i in range(len(pairs))), prompts, outputs)
    pages = Pages(
        block, full, windowed, window if windowed else 0, chunked and windowed > 0, budget,
        float(full), float(windowed), ahead=guesses + lookahead,
    )  # fmt: skip
    pace = Guessed.of(guesses, 0.6, 5) if guesses else STEADY
    longest = 200
    pool = Paged(blocks * block, block, 0, pages, longest, guesses)
    ours = Watched(requests, pool, Clock.constant(1.0, guesses), most, budget, True, pace)
    ours.held = []
    trace = ours.run()
    theirs = Vllm(pages, blocks, longest, ours.most, ours.budget, guesses, lookahead, pace)
    held, done = theirs.run(requests)
    assert pool.free == pool.blocks
    assert not pool.needs
    assert not pool.frees
    assert not pool.reading
    assert not pool.gone
    assert ours.used == pytest.approx(0)
    assert (ours.seen, ours.growing, ours.context) == (0, 0, 0)
    assert ours.slope == pytest.approx(0)
    return ours, trace, theirs, held, done


@examples(40)
@given(PAIRS, SHAPES, st.integers(1, 12), st.integers(1, 80))
def test_blocks_of_every_iteration_are_vllms(pairs, shape, most, budget):
    """Where there is room for all, whatever the window, the chunk, the budget."""
    ours, trace, theirs, held, done = both(pairs, shape, 10_000, most, budget)
    assert ours.held == held
    assert trace.done == [done[i] for i in range(len(pairs))]
    assert trace.preemptions == theirs.preemptions == 0


@examples(40)
@given(PAIRS, SHAPES, st.integers(1, 12), st.integers(1, 80), st.integers(20, 60))
def test_who_is_put_out_is_vllms_choice_too(pairs, shape, most, budget, places):
    """Without windows to the block; with them a step's own blocks come back before it takes."""
    block, full, windowed = shape[:3]
    blocks = -(-places // block) * (full + windowed) + 2 * windowed
    ours, trace, theirs, held, done = both(pairs, shape, blocks, most, budget, gap=1)
    assert [not math.isnan(at) for at in trace.done] == [i in done for i in range(len(pairs))]
    if not windowed:
        assert ours.held == held
        assert trace.preemptions == theirs.preemptions
    else:
        assert trace.preemptions <= theirs.preemptions + len(pairs)


@examples(40)
@given(PAIRS, SHAPES, st.integers(1, 12), st.integers(8, 80), st.integers(1, 4), st.booleans())
def test_blocks_with_a_draft_are_vllms(pairs, shape, most, budget, guesses, model):
    """A draft's model has places for its guesses beside those that a step checks."""
    lookahead = guesses if model else 0
    ours, trace, _, held, done = both(pairs, shape, 10_000, most, budget, guesses, lookahead)
    assert trace.done == [done[i] for i in range(len(pairs))]
    assert trace.generated == sum(o for _, o in pairs)
    assert ours.held == held


# ---- published


def test_gemmas_blocks_and_concurrency_come_out_of_the_streams_own_pool():
    """vLLM's start-up log of Gemma 3 27B: 1,798 blocks for 4,096 tokens, 50.05 at once. That
    counts each with all that a prompt needs while it is read; once it generates its windows let
    go, so that many more run than vLLM prints."""
    logged = {r["id"]: r for r in served_table()["runs"]}
    plan = planned(logged["gemma-sequence"])
    server = Server.of(plan)
    cut = room(server)
    blocks = logged["gemma-sequence"]["cache"] // cut.block_bytes
    pool = Paged(
        blocks * 16, 16, pages=growing_pages(server, cut), longest=plan.serve.prompt_len + 1
    )
    assert pool.blocks == pytest.approx(logged["gemma-blocks"]["value"], rel=5e-4)
    assert pool.pages.most(4096) == logged["gemma-sequence"]["value"] == 1798
    assert pool.blocks / pool.pages.most(4096) == pytest.approx(50.05, rel=5e-4)
    words = {"arrivals": "burst", "lengths": "fixed", "requests": 300, "concurrency": 300,
             "prompt_len": 3900, "output_len": 196, "max_seq_len": 4096,
             "prefill": "chunked"}  # fmt: skip
    stream = plan.model_copy(update={"serve": plan.serve.model_copy(update=words)})
    found = run(stream, "paged", draw(stream), Clock.of(stream), pool.capacity)
    assert found.completed == 300
    generating = pool.pages.blocks(4096, 4095)
    assert generating == 256 + 6 * 64
    assert 50.05 < found.concurrency_peak <= pool.blocks / generating


# ---- laws of windows


@pytest.mark.parametrize("chunked", [False, True])
@given(PAIRS, st.integers(1, 9), st.integers(20, 60))
@examples(20)
def test_a_window_that_nothing_fills_is_none(chunked, pairs, block, places):
    window = -(-200 // block) * block  # no sequence is as long
    blocks = -(-places // block) * 3
    with_one, without = (
        both(pairs, (block, *groups, window, chunked), blocks, 8, 40) for groups in ((1, 2), (3, 0))
    )
    assert with_one[0].held == without[0].held
    assert with_one[1].done == without[1].done


@pytest.mark.parametrize("model", ["gemma-3-1b", "gpt-oss-20b"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("prefill", PREFILLS)
def test_the_memory_of_a_hybrid_model_adds_up(model, strategy, prefill):
    plan = Plan.of({"model": model, "serve": {
        "requests": 200, "prompt_len": 700, "output_len": 300, "arrivals": "burst",
        "max_seq_len": 4096, "concurrency": 128, "shared_prefix": 600, "prefill": prefill,
        "draft_tokens": 2}})  # fmt: skip
    requests = draw(plan)
    found = run(plan, strategy, requests, Clock.of(plan), 60_000)
    assert (found.completed, found.output_tokens) == (200, sum(requests.outputs))
    assert math.isclose(sum(found.memory.values()), 1, rel_tol=1e-9)
    assert all(share >= -1e-12 for share in found.memory.values())
    for moment in found.timeline:
        assert -1e-6 <= moment.used_tokens <= moment.held_tokens * (1 + 1e-9) + 1e-6
        assert moment.held_tokens <= found.capacity_tokens * (1 + 1e-9)


def test_windows_let_more_run_at_once():
    """The same cache for a model with windows, and for the same without."""
    words = {"requests": 200, "arrivals": "burst", "lengths": "fixed", "prompt_len": 2000,
             "output_len": 500, "concurrency": 200, "prefill": "chunked"}  # fmt: skip
    plan = Plan.of({"model": "gemma-3-1b", "serve": words})
    requests, clock = draw(plan), Clock.constant(0.01)
    server = Server.of(plan)
    pages = growing_pages(server, room(server))
    reached = []
    for shape in (pages, dataclasses.replace(pages, window=10**6)):
        trace = Continuous(requests, Paged(200_000, 16, pages=shape), clock, 200, 8192).run()
        reached.append(trace.meter.running / trace.seconds)
    assert reached[0] > 2 * reached[1]


def test_states_take_blocks_of_every_sequence_whatever_its_length():
    """A constant number of blocks per sequence, in pages and in one piece."""
    pairs = [(5, 5), (50, 3), (1, 60)]
    prompts, outputs = zip(*pairs, strict=True)
    requests = Requests((0.0,) * 3, prompts, outputs)
    shape = Pages(16, constant=7, fixed=100.0)
    for pool, state in (
        (Paged(1600, 16, pages=shape), 7 * 16),
        (Contiguous(1024, lambda prompt, output: prompt + output, shape), 100),
    ):
        server = Continuous(requests, pool, Clock.constant(1.0), 3, 100)
        trace = server.run()
        assert not any(map(math.isnan, trace.done))
        assert max(p[2] for p in trace.meter.points) >= 3 * state
        assert max(p[1] for p in trace.meter.points) >= 3 * 100
        assert all(share >= 0 for share in trace.meter.sums.values())
        assert pool.held == 0
        assert server.used == pytest.approx(0)
    tight = Paged(16 * 13, 16, pages=shape)
    trace = Continuous(requests, tight, Clock.constant(1.0), 3, 100).run()
    assert max(p[3] for p in trace.meter.points) == 1


def test_a_simulated_hybrid_says_nothing_of_averages():
    stream = simulate(Plan.of({"model": "gemma-3-1b", "serve": {"requests": 20}}))
    assert not any("average" in note for note in stream.notes)
