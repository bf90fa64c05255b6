"""The simulated stream of requests: laws, queues with known answers, and files of lengths."""

import dataclasses
import functools
import math
import random

import pytest
from explored import examples
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search import solve
from memcore.serving.pages import Pages
from memcore.serving.server import Server
from memcore.serving.time import transfer_rate
from memcore.stream import (
    Clock,
    Requests,
    draw,
    loads,
    read_lengths,
    run,
    simulate,
    sustained,
)
from memcore.stream.engine import Continuous
from memcore.stream.lengths import MAX_ROWS
from memcore.stream.pace import PERIOD, STEADY, Guessed
from memcore.stream.pools import Buddy, Paged, power_of_two
from memcore.words.serving import PREFILLS, STRATEGIES

EVERY = tuple(STRATEGIES)
CONTINUOUS = tuple(name for name, s in STRATEGIES.items() if not s.static)
SLOTS = 20_000
MIDPOINT = 1e-3  # share of the memory by which a jump's average misses that of its iterations
SAMPLING = 0.05  # of an average over so many random requests


def plan_of(**serve):
    serve = {"requests": 300, "max_seq_len": 2048, "prompt_len": 200, "output_len": 150, **serve}
    return Plan.of({"model": "llama-3.2-1b", "serve": serve})


def run_of(strategy, slots=SLOTS, **serve):
    plan = plan_of(**serve)
    return run(plan, strategy, draw(plan), Clock.of(plan), slots)


STREAMS = (
    {},
    {"arrivals": "burst", "concurrency": 256},
    {"arrivals": "burst", "shared_prefix": 100, "concurrency": 256, "block_size": 32},
    {"arrivals": "regular", "arrival_rate": 300.0, "lengths": "fixed"},
    {"arrival_rate": 200.0, "prompt_cv": 2.0, "output_cv": 2.0, "max_batched_tokens": 128},
)


@functools.cache  # two laws are asked of each
def streamed(strategy, at):
    return run_of(strategy, **STREAMS[at])


# ---- laws


@pytest.mark.parametrize("at", range(len(STREAMS)))
@pytest.mark.parametrize("strategy", EVERY)
def test_tokens_in_are_tokens_out(strategy, at):
    requests, found = draw(plan_of(**STREAMS[at])), streamed(strategy, at)
    assert (found.completed, found.refused, found.unfinished) == (requests.count, 0, 0)
    assert found.output_tokens == sum(requests.outputs)
    assert found.prompt_tokens + found.shared_tokens == sum(requests.prompts)
    assert found.shared_tokens == 0 or strategy == "shared"
    assert found.recomputed_tokens == 0 or found.preemptions > 0
    assert found.preemptions == 0 or not STRATEGIES[strategy].reserve


@pytest.mark.parametrize("at", range(len(STREAMS)))
@pytest.mark.parametrize("strategy", EVERY)
def test_the_memory_is_never_overfull_and_its_parts_add_up(strategy, at):
    found, most = streamed(strategy, at), plan_of(**STREAMS[at]).serve.concurrency
    assert math.isclose(sum(found.memory.values()), 1, rel_tol=1e-9)
    assert all(share >= -1e-12 for share in found.memory.values())
    for moment in found.timeline:
        assert 0 <= moment.used_tokens <= moment.held_tokens * (1 + 1e-9)
        assert moment.held_tokens <= found.capacity_tokens * (1 + 1e-9)
        assert moment.running <= most * (1 + 1e-9)
    assert found.capacity_tokens <= SLOTS


@pytest.mark.parametrize("strategy", EVERY)
def test_the_same_seed_is_the_same_stream(strategy):
    assert run_of(strategy) == run_of(strategy)
    assert run_of(strategy) != run_of(strategy, seed=1)


def test_a_seed_means_the_same_in_every_version():
    """Links carry the seed: what is drawn from it may never change."""
    requests = draw(plan_of(seed=7))
    assert requests.prompts[:5] == SEVEN_PROMPTS
    assert requests.outputs[:5] == SEVEN_OUTPUTS


SEVEN_PROMPTS = (128, 765, 61, 90, 112)
SEVEN_OUTPUTS = (227, 186, 370, 62, 398)


@pytest.mark.parametrize("strategy", EVERY)
def test_more_memory_never_lowers_the_concurrency_reached(strategy):
    reached = [
        run_of(strategy, slots, arrivals="burst", concurrency=256).concurrency_peak
        for slots in (4096, 8192, 16_384, 65_536)
    ]
    assert reached == sorted(reached)
    assert reached[0] < reached[-1]


@pytest.mark.parametrize("block", [1, 16, 128])
def test_pages_waste_less_than_a_block_of_each_sequence(block):
    found = run_of("paged", arrivals="burst", block_size=block)
    wasted = found.memory["internal"] * found.capacity_tokens
    assert wasted <= found.concurrency_mean * (block - 1) + 1e-9
    assert (wasted > 0) == (block > 1)


@pytest.mark.parametrize("serve", STREAMS)
def test_what_is_known_beforehand_is_never_held_in_vain(serve):
    assert run_of("oracle", **serve).memory["internal"] <= 1 / SLOTS * 256


def test_pages_run_at_least_as_many_at_once():
    """In the order of what each strategy knows, on a cache that is full all the time."""
    runs = [run_of(name, arrivals="burst", concurrency=256) for name in CONTINUOUS]
    means = [r.concurrency_mean for r in runs]
    assert means[:4] == sorted(means[:4])
    assert means[0] < 0.5 * means[3]


def test_a_prefix_is_kept_and_computed_once():
    words = {"arrivals": "burst", "shared_prefix": 100, "block_size": 16, "concurrency": 256}
    alone, shared = (run_of(name, **words) for name in ("paged", "shared"))
    assert shared.shared_tokens == 299 * (100 // 16 * 16)
    assert shared.concurrency_mean > alone.concurrency_mean
    assert shared.seconds < alone.seconds


def test_a_static_batch_waits_for_its_longest():
    words = {"arrivals": "burst", "lengths": "fixed"}
    for strategy in ("static", "max"):
        assert run_of(strategy, **words).memory["ended"] == 0
    assert run_of("static", arrivals="burst").memory["ended"] > 0
    assert run_of("static", arrivals="burst").seconds > run_of("max", arrivals="burst").seconds


def test_what_never_fits_is_refused_and_said():
    plan = Plan.of({"model": "llama-3-8b", "serve": {"max_seq_len": 1_000_000, "requests": 20}})
    stream = simulate(plan)
    by_name = {r.strategy: r for r in stream.runs}
    assert by_name["max"].refused == by_name["static"].refused == 20
    assert by_name["max"].wait is None
    assert by_name["paged"].completed == 20
    assert any("Longest reserved" in note for note in stream.notes)
    (note,) = simulate(Plan.of({"model": "llama-3.1-405b"})).notes
    assert "Nothing is served" in note


def test_few_tokens_an_iteration_read_prompts_in_parts():
    whole, parts = (run_of("paged", arrivals="burst", max_batched_tokens=n) for n in (8192, 64))
    assert parts.iterations > whole.iterations
    assert parts.ttft.p90 > whole.ttft.p90


def test_a_simulation_that_leads_nowhere_is_cut_short():
    """Two sequences that put each other out again and again would go on for very long."""
    requests = Requests((0.0, 0.0), (8, 8), (400_000, 400_000))
    trace = Continuous(requests, Paged(400_008, 8), Clock.constant(1e-3), 2, 64).run()
    assert trace.cut or not any(map(math.isnan, trace.done))


LONG = Plan(
    serve={
        "requests": 20_000, "arrival_rate": 0.001, "prompt_cv": 10.0, "output_cv": 10.0,
        "prompt_len": 100_000, "output_len": 100_000,
    }
)  # fmt: skip


@pytest.mark.parametrize(
    "plan", [LONG, LONG.changed("serve.prefill", "disaggregated"), Plan(serve={"requests": 20_000})]
)
def test_a_limit_of_steps_is_kept_and_said(plan):
    """Of a stream that would take far more: its first requests, as if there were no others."""
    steps = 20_000
    limited = simulate(plan, steps=steps)
    assert sum(r.events for r in limited.runs) < 2 * steps
    assert 500 <= limited.requests < plan.serve.requests
    assert limited.notes[0].startswith(
        f"Of 20,000 requests the first {limited.requests:,} are simulated here"
    )
    assert not any(r.unfinished for r in limited.runs)
    first = draw(plan).first(limited.requests)
    clock, slots = Clock.of(plan), limited.runs[0].capacity_tokens
    assert limited.runs[0] == run(plan, limited.runs[0].strategy, first, clock, slots)


def test_no_limit_changes_a_stream_that_keeps_it():
    plan = Plan(serve={"requests": 800})
    assert simulate(plan, steps=40_000) == simulate(plan)
    assert loads(plan, steps=40_000) == loads(plan)


def test_a_limit_of_steps_ends_what_would_not_end():
    """A cache that is too small for who is inside: they put each other out without end."""
    plan = Plan(
        serve={"requests": 400, "arrivals": "burst", "memory_utilization": 0.22, "max_num_seqs": 64}
    )
    found = simulate(plan, steps=500)
    assert sum(r.events for r in found.runs) <= 2 * 500 + len(found.runs)
    assert any("cut short" in note for note in found.notes)
    assert sum(load.run.events for load in loads(plan, steps=500)) <= 2 * 500 + 10


@pytest.mark.parametrize("strategy", EVERY)
def test_prompts_in_too_many_parts_are_cut_short(strategy):
    """A million iterations for each prompt would go on for hours."""
    plan = plan_of(max_batched_tokens=1, prompt_len=10**6, max_seq_len=2 * 10**6)
    found = run(plan, strategy, draw(plan), Clock.of(plan), 2**21)
    assert found.unfinished > 0
    assert found.events <= 100 * (300 + 100) + 1


@examples(15)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=30),
    st.integers(1, 64),
    st.integers(600, 3000),
    st.integers(1, 12),
    st.integers(12, 400),
)
def test_pages_end_where_they_began(pairs, block, slots, most, budget):
    """Every block comes back, whoever was put out in between."""
    prompts, outputs = zip(*pairs, strict=True)
    requests = Requests(tuple(0.01 * i for i in range(len(pairs))), prompts, outputs)
    pool = Paged(slots, block)
    trace = Continuous(requests, pool, Clock.constant(1e-3), most, budget).run()
    fits = [p + o - 1 <= pool.capacity for p, o in pairs]
    assert pool.free == pool.blocks
    assert not pool.needs
    assert [not math.isnan(at) for at in trace.done] == fits
    assert trace.generated == sum(o for o, fit in zip(outputs, fits, strict=True) if fit)


@examples(20)
@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_buddies_never_overlap_and_join_again(slots, seed):
    draws, buddy, taken = random.Random(seed), Buddy(slots), {}
    for _ in range(60):
        if taken and draws.random() < 0.4:
            address = draws.choice(list(taken))
            del taken[address]
            buddy.give_back(address)
        else:
            size = power_of_two(draws.randint(1, slots))
            address = buddy.take(size)
            if address is not None:
                assert address % size == 0
                assert address + size <= slots
                assert all(address + size <= a or a + s <= address for a, s in taken.items())
                taken[address] = size
    for address in taken:
        buddy.give_back(address)
    assert sum(len(chunks) << order for order, chunks in enumerate(buddy.free)) == slots
    assert sum(map(len, buddy.free)) == slots.bit_count()


# ---- queues with known answers


def test_littles_law():
    """Requests in the server = rate x time in it (Little 1961)."""
    found = run_of("paged", requests=4000, arrival_rate=40.0)
    inside = found.latency.mean - found.wait.mean
    assert found.concurrency_mean == pytest.approx(found.requests_per_second * inside, rel=1e-2)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_of_constant_speed_is_m_d_1(load):
    """Mean wait = load / (2 (1 - load)) services (Pollaczek and Khinchine)."""
    service = 10  # iterations of one second: the first reads the prompt, and all give a token
    draws, now, arrivals = random.Random(3), 0.0, []
    for _ in range(40_000):
        now += draws.expovariate(load / service)
        arrivals.append(now)
    count = len(arrivals)
    requests = Requests(tuple(arrivals), (5,) * count, (service,) * count)
    trace = Continuous(requests, Paged(1000, 10), Clock.constant(1.0), 1, 100).run()
    waits = [start - came for start, came in zip(trace.started, arrivals, strict=True)]
    expected = service * load / (2 * (1 - load))
    assert sum(waits) / count == pytest.approx(expected, rel=SAMPLING)


def test_a_server_with_room_for_all_never_lets_one_wait():
    """M/D/infinity: as many at once as rate x service, and each takes its service alone."""
    requests = draw(plan_of(requests=5000, arrival_rate=2.0, lengths="fixed", output_len=50))
    trace = Continuous(requests, Paged(10**6, 16), Clock.constant(0.1), 1000, 10**6).run()
    waits = [s - a for s, a in zip(trace.started, requests.arrivals, strict=True)]
    assert max(waits) <= 0.1 + 1e-9  # until the iteration that is under way ends
    running = trace.meter.running / trace.seconds
    assert running == pytest.approx(2.0 * 50 * 0.1, rel=SAMPLING)


def test_jumps_are_the_iterations_one_by_one():
    """The same stream with a clock that makes every jump one iteration long."""

    class OneByOne(Continuous):
        def _generate(self, most):
            super()._generate(min(most, 1))

    plan = plan_of(arrivals="burst", concurrency=64, requests=60)
    requests, clock = draw(plan), Clock.of(plan)
    for slots in (3000, 20_000):
        jumps, steps = (
            kind(requests, Paged(slots, 16), clock, 64, 512).run()
            for kind in (Continuous, OneByOne)
        )
        assert jumps.done == pytest.approx(steps.done, rel=1e-9)
        assert (jumps.iterations, jumps.preemptions) == (steps.iterations, steps.preemptions)
        assert jumps.events < steps.events
        for kind, area in steps.meter.sums.items():
            assert jumps.meter.sums[kind] == pytest.approx(
                area, abs=MIDPOINT * slots * steps.seconds
            )


def test_an_iteration_is_as_long_as_serving_says():
    plan = plan_of()
    clock, report = Clock.of(plan), evaluate(plan)
    s = plan.serve
    assert clock.first + clock.mixed(0, 0, 0, [(0, s.prompt_len)]) == pytest.approx(
        report.serve.ttft_seconds, rel=0.01
    )
    running, context = s.concurrency, s.prompt_len + s.output_len // 2
    one = sum((*clock.decode(running), *clock.load(running * context, 0)))
    assert one == pytest.approx(report.serve.tpot_seconds, rel=0.01)


@pytest.mark.parametrize("strategy", EVERY)
def test_the_work_grows_with_requests_and_not_with_tokens(strategy):
    short, long = (
        run_of(strategy, 10**6, lengths="fixed", output_len=n, max_seq_len=20_000, arrivals="burst")
        for n in (100, 10_000)
    )
    assert long.iterations > 20 * short.iterations
    assert long.events <= 1.5 * short.events
    assert run_of(strategy, requests=3000, arrivals="burst").events <= 20 * 3000


# ---- drafts, prompts read elsewhere, the host's memory

STEADY_STATE = 0.025  # a closed form is at half of an output, the stream goes through all of it


@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize(
    "serve",
    [
        {},
        {"draft_tokens": 3, "draft_acceptance": 0.6},
        {"draft_tokens": 4, "draft_acceptance": 1.0},
        {"draft_tokens": 3, "draft_model": "llama-3.2-1b"},
        {"offload_kv": "cpu", "kv_cache": "contiguous"},
        {"offload_kv": "cpu", "prefix_hits": 0.5},
        {"offload_weights": 1.0},
        {"offload_kv": "cpu", "draft_tokens": 2, "prefix_hits": 0.3},
    ],
    ids=str,
)
def test_a_steady_stream_takes_as_long_as_serving_says(serve, prefill):
    """Requests that are all alike and there from the start, their prompts read in one go; one
    alone where its prompt comes from elsewhere, since caches come one after the other."""
    n = 1 if PREFILLS[prefill].elsewhere else 64
    plan = plan_of(
        lengths="fixed", arrivals="burst", requests=n, concurrency=n, prompt_len=1000,
        output_len=400, max_seq_len=2048, max_batched_tokens=64_000, prefill=prefill, **serve,
    )  # fmt: skip
    found, report = (run(plan, "paged", draw(plan), Clock.of(plan), 10**7), evaluate(plan).serve)
    step, more = report.tpot_seconds * report.tokens_per_step, plan.serve.output_len - 1
    pace = Guessed.of(plan.serve.draft_tokens, plan.serve.draft_acceptance, plan.serve.seed)
    steps = pace.reach(more) if plan.serve.draft_tokens else more  # with this seed's luck
    assert found.tpot.mean * more / steps == pytest.approx(step, rel=STEADY_STATE)
    assert found.tpot.p50 == pytest.approx(found.tpot.p99, rel=1e-9)


@each("serve", STREAMS)
@each("strategy", EVERY)
@each("words", [{"draft_tokens": 3}, {"prefill": "disaggregated"}, {"prefill": "chunked"}], ids=str)
def test_tokens_are_kept_however_they_are_made(strategy, serve, words):
    plan = plan_of(**serve, **words)
    requests = draw(plan)
    found = run(plan, strategy, requests, Clock.of(plan), SLOTS)
    assert (found.completed, found.refused, found.unfinished) == (requests.count, 0, 0)
    assert found.output_tokens == sum(requests.outputs)
    assert found.prompt_tokens + found.shared_tokens == sum(requests.prompts)
    assert math.isclose(sum(found.memory.values()), 1, rel_tol=1e-9)
    assert all(share >= -1e-12 for share in found.memory.values())
    if not serve:  # and the same again
        assert found == run(plan, strategy, requests, Clock.of(plan), SLOTS)


@pytest.mark.parametrize("mixed", [True, False])
def test_guesses_that_are_never_right_and_cost_nothing_change_nothing(mixed):
    requests = draw(plan_of(requests=200, arrival_rate=30.0))
    traces = [
        Continuous(
            requests, Paged(10**6, 16, pages=Pages(16, ahead=n), lag=n), Clock.constant(0.01, n),
            10**4, 10**6, mixed, Guessed.of(n, 0.0, 0) if n else STEADY,
        ).run()
        for n in (0, 4)
    ]  # fmt: skip
    assert traces[0].done == pytest.approx(traces[1].done, rel=1e-9)
    assert traces[0].first == pytest.approx(traces[1].first, rel=1e-9)


def test_guesses_that_are_always_right_come_all_at_once():
    requests = Requests((0.0,), (10,), (101,))
    pace, clock = Guessed.of(4, 1.0, 0), Clock.constant(1.0, 4)
    pool = Paged(10**4, 16, pages=Pages(16, ahead=4), lag=4)
    trace = Continuous(requests, pool, clock, 1, 100, True, pace).run()
    assert trace.done == [1 + 100 / 5]


@pytest.mark.parametrize("right", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("guesses", [1, 4, 16])
def test_a_step_gives_as_many_tokens_as_leviathan_et_al_say(guesses, right):
    plan = plan_of(draft_tokens=guesses, draft_acceptance=right)
    pace = Guessed.of(guesses, right, 3)
    assert pace.tokens(PERIOD) / PERIOD == pytest.approx(
        Server.of(plan).numbers.serve.tokens_per_step, rel=0.03
    )
    assert Guessed.of(guesses, right, 3) == pace
    sums = [pace.tokens(k) for k in range(200)]
    for k in (0, 1, 7, 150):
        assert pace.area(k) == sum(sums[:k])
        assert sums[pace.reach(sums[k])] >= sums[k]
    far = 3 * PERIOD + 17
    assert pace.reach(pace.tokens(far)) == far
    assert pace.area(far + 1) - pace.area(far) == pace.tokens(far)


def test_more_that_is_right_is_never_slower():
    found = [
        run_of("paged", slots=10**6, arrivals="burst", draft_tokens=4, draft_acceptance=right)
        for right in (0.0, 0.5, 0.8, 1.0)
    ]
    times = [r.seconds for r in found]
    assert times == sorted(times, reverse=True)


def test_a_lone_request_read_elsewhere_comes_when_serving_says():
    words = {"prefill": "disaggregated", "requests": 1, "lengths": "fixed", "arrivals": "burst"}
    plan = plan_of(**words)
    found = run(plan, "paged", draw(plan), Clock.of(plan), SLOTS)
    assert found.ttft.mean == pytest.approx(evaluate(plan).serve.ttft_seconds, rel=0.01)


def test_nobody_waits_for_a_prompt_that_is_read_elsewhere():
    """Each of the next tokens comes at least as soon as where prompts are read in between, and with
    a link that takes no time, each first token: prompts here fill a forward each, so that nobody
    gains from waiting for another's."""
    words = {"requests": 400, "arrival_rate": 40.0, "lengths": "lognormal", "prompt_cv": 0.0,
             "max_batched_tokens": 200, "concurrency": 200}  # fmt: skip
    here, there = (plan_of(prefill=word, **words) for word in ("whole", "disaggregated"))
    requests, clock = draw(here), Clock.of(here)
    whole, apart = (run(plan, "paged", requests, clock, 10**6) for plan in (here, there))
    assert apart.tpot.p99 <= whole.tpot.p99
    assert apart.tpot.mean < whole.tpot.mean
    read = Continuous(requests.prompts_alone(), Paged(10**6, 16), clock, 200, 200).run()
    both = Continuous(requests, Paged(10**6, 16), clock, 200, 200, False).run()
    assert all(a <= b * (1 + 1e-9) for a, b in zip(read.first, both.first, strict=True))


def test_caches_go_over_the_link_one_after_the_other():
    words = {"prefill": "disaggregated", "requests": 100, "arrivals": "burst", "lengths": "fixed"}
    plan = plan_of(**words)
    found = run(plan, "paged", draw(plan), Clock.of(plan), 10**6)
    server = Server.of(plan)
    each = plan.serve.prompt_len * server.kv_per_token / transfer_rate(plan)
    assert found.ttft.p99 >= 99 * each
    assert found.seconds > 100 * each


@pytest.mark.parametrize("serve", STREAMS)
def test_a_cache_on_the_host_is_never_faster(serve):
    words = {"kv_cache": "contiguous", **serve}
    here, host = (run_of("max", **words, offload_kv=word) for word in ("none", "cpu"))
    assert host.tpot.mean >= here.tpot.mean
    assert host.seconds >= here.seconds


def test_who_is_put_out_comes_back_from_a_second_tier():
    """Of each that is put out nothing but its last token is computed again."""
    words = {"prompt_len": 900, "output_len": 400, "concurrency": 64, "arrivals": "burst"}
    here, tier = (run_of("paged", **words, offload_kv=word) for word in ("none", "cpu"))
    assert here.preemptions > 10 < tier.preemptions
    assert here.recomputed_tokens > 100 * here.preemptions
    assert tier.recomputed_tokens <= tier.preemptions
    assert tier.seconds < here.seconds


def test_prompts_that_are_read_whole_stop_the_others():
    """Nobody's token comes while a prompt is read, but prompts come first."""
    whole, parts = (
        run_of("paged", arrival_rate=60.0, prefill=word, max_batched_tokens=256)
        for word in ("whole", "chunked")
    )
    assert whole.tpot.p99 > parts.tpot.p99
    assert whole.ttft.p50 <= parts.ttft.p50 * (1 + SAMPLING)


# ---- targets, and loads


def test_goodput_counts_who_is_within_both_targets():
    words = {"arrival_rate": 60.0, "max_batched_tokens": 512, "prefill": "chunked"}
    free = run_of("paged", **words)
    assert (free.attained, free.goodput) == (None, None)
    assert "attained" not in simulate(plan_of(requests=5)).to_dict()["runs"][0]
    first, each = free.ttft.p90, free.tpot.p90
    one, other, both = (
        run_of("paged", **words, **targets)
        for targets in (
            {"target_ttft": first},
            {"target_tpot": each},
            {"target_ttft": first, "target_tpot": each},
        )
    )
    assert one.attained == pytest.approx(0.9, abs=0.01)
    assert other.attained == pytest.approx(0.9, abs=0.01)
    assert 0.8 <= both.attained <= min(one.attained, other.attained)
    assert both.goodput == pytest.approx(both.attained * 300 / both.seconds)
    assert run_of("paged", **words, target_ttft=1e-9).attained == 0
    assert run_of("paged", **words, target_ttft=1e6, target_tpot=1e6).attained == 1


def test_percentiles_are_in_order_and_are_requests_own():
    found = run_of("paged", arrival_rate=60.0)
    for spread in (found.wait, found.ttft, found.tpot, found.latency):
        assert spread.p50 <= spread.p90 <= spread.p95 <= spread.p99


def test_all_time_is_read_generated_or_idle():
    lone = {"requests": 1, "lengths": "fixed", "arrivals": "burst"}
    found = run_of("paged", **lone)
    assert found.idle_share == 0
    first = evaluate(plan_of(**lone)).serve.first_seconds  # the engine's own: nothing is read yet
    assert found.reading_share == pytest.approx((found.ttft.mean - first) / found.seconds)
    rare = run_of("paged", requests=50, arrival_rate=0.01)
    assert rare.idle_share > 0.9
    assert run_of("paged", prefill="disaggregated").reading_share == 0


@pytest.mark.parametrize("prefill", PREFILLS)
def test_a_higher_rate_is_felt(prefill):
    """Waiting grows with the load, and what a server takes in steady state is where it explodes."""
    plan = plan_of(prefill=prefill, requests=600, concurrency=32, target_ttft=0.2)
    found = loads(plan, shares=(0.3, 0.7, 1.0, 2.0))
    means = [load.run.ttft.mean for load in found]
    assert means == sorted(means)
    assert found[1].run.attained > 0.9
    assert found[-1].run.attained < 0.5
    assert found[-1].run.ttft.p99 > 5 * found[1].run.ttft.p99
    assert sustained(found) in (found[1].rate, found[2].rate)
    assert loads(plan, shares=(0.3, 0.7, 1.0, 2.0)) == found
    assert sustained(loads(plan_of(requests=20))) is None


def test_loads_of_what_cannot_be_served():
    assert loads(Plan.of({"model": "bert-base", "train": {"seq_len": 512}})) == ()
    nothing = loads(Plan.of({"model": "llama-3.1-405b", "serve": {"requests": 20}}))
    assert all(load.run.completed == 0 for load in nothing)


# ---- files of lengths

GOOD = (
    (b"prompt,output\n10,20\n30,40\n", ((10, 20), (30, 40))),
    (b"10,20\n30,40", ((10, 20), (30, 40))),
    (b"\xef\xbb\xbfprompt;output\r\n10;20\r\n\r\n30;40\r\n", ((10, 20), (30, 40))),
    (b"id\toutput_toks\tinput_toks\na\t20\t10\n", ((10, 20),)),
    (b'"prompt","output"\n"10","2e1"\n', ((10, 20),)),
)
BAD = {
    b"": "empty",
    b"\n\n": "empty",
    b"prompt,output\n": "no row below",
    b"prompt,output\n10,twenty\n": "line 2: 'twenty'",
    b"prompt,output\n10,-3\n": "line 2: '-3'",
    b"prompt,output\n10,0\n": "from 1 to",
    b"prompt,output\n10,2.5\n": "whole number",
    b"prompt,output\n10,nan\n": "'nan'",
    b"prompt,output\n10,inf\n": "'inf'",
    b"prompt,output\n10,1e99\n": "from 1 to",
    b"prompt,output\n10\n": "no output tokens",
    b"prompt,output\n,10\n": "no prompt tokens",
    b"prompt,output\n10,=1+2\n": "'=1+2'",
    b"prompt,output\n10,\"=cmd|' /C calc'!A0\"\n": "line 2",
    b"prompt,output\n10,<script>\n": "'<script>'",
    b"length,count\n10,20\n": "no column called prompt",
    b"1,2,3\n4,5,6\n": "3 columns",
    b"7\n": "1 columns",
    b"\x80\x81\x82": "not text",
    b"1,2\n\x00,3\n": "null bytes",
    b'"1,2\n': "not a CSV",
    b"prompt,output\n" + b"1,2\n" * (MAX_ROWS + 1): "rows; at most",
    b"1,2\n" * 1_000_001: "bytes; at most",
    b"prompt,output\n10," + b"9" * 100_000 + b"\n": "line 2",
    "prompt,output\n10,\u0663\n".encode(): "line 2",
}


@pytest.mark.parametrize(("data", "pairs"), GOOD)
def test_a_file_of_lengths(data, pairs):
    assert read_lengths(data) == pairs


@pytest.mark.parametrize(("data", "said"), BAD.items(), ids=lambda v: repr(v)[:30])
def test_a_file_that_is_none_is_refused_with_what_to_change(data, said):
    with pytest.raises(PlanError) as e:
        read_lengths(data)
    (issue,) = e.value.issues
    assert said in issue.message
    assert len(issue.message) < 400
    assert issue.field == "lengths"


@examples(50)
@given(
    st.binary(max_size=200) | st.text("0123456789,;\t\n\"'promtu.-e", max_size=80).map(str.encode)
)
def test_no_file_breaks_it(data):
    try:
        pairs = read_lengths(data)
    except PlanError:
        return
    assert all(p >= 1 and o >= 1 for p, o in pairs)


def test_lengths_of_a_file_take_the_place_of_the_plans():
    plan = plan_of(requests=500, arrivals="burst")
    requests = draw(plan, ((7, 3), (11, 5)))
    assert set(zip(requests.prompts, requests.outputs, strict=True)) == {(7, 3), (11, 5)}
    stream = simulate(plan, ((7, 3), (11, 5)))
    assert any("file" in note for note in stream.notes)
    assert requests.arrivals == draw(plan).arrivals


def test_a_run_is_plain_json():
    stream = simulate(plan_of(requests=20))
    document = stream.to_dict()
    assert document["runs"][0]["strategy"] == "static"
    assert {f.name for f in dataclasses.fields(stream)} == set(document)


@pytest.mark.parametrize(
    ("serve", "field"),
    [
        ({"shared_prefix": 1024}, "serve.shared_prefix"),
        ({"max_seq_len": 100}, "serve.max_seq_len"),
        ({"arrival_rate": 0.0}, "serve.arrival_rate"),
        ({"requests": 10**6}, "serve.requests"),
        ({"lengths": "normal"}, "serve.lengths"),
    ],
)
def test_what_a_stream_cannot_be(serve, field):
    with pytest.raises(PlanError) as e:
        Plan.of({"serve": serve})
    assert [i.field for i in e.value.issues] == [field]


def test_a_shared_prefix_does_not_stand_in_the_way_of_the_longest_context():
    plain, shared = (
        solve.longest_context(Plan(serve={"prompt_len": 4000, "shared_prefix": n}))
        for n in (0, 256)
    )
    assert plain.value == shared.value > 256
