"""What bisection finds: it does, and one more does not."""

import pytest

from memcore.plan.plan import Plan
from memcore.search.edges import between, first, last
from memcore.search.solve import (
    Targets,
    fewest_gpus,
    largest_concurrency,
    longest_context,
)
from memcore.serving.serve import serve

LONG = Plan(model="llama-3.1-8b")
BIG = Plan(model="llama-3-70b")
CHAT = Targets(ttft=0.5, tpot=0.05)


@pytest.mark.parametrize("most", [1, 5, 6, 100])
@pytest.mark.parametrize("true", [0, 1, 5, 6, 100])
def test_the_last_that_is_ok(true, most):
    asked = []
    assert last(most, lambda n: asked.append(n) or n <= true) == min(true, most)
    assert all(1 <= n <= most for n in asked)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("start", [0, 3, 99])
@pytest.mark.parametrize("true", [0, 1, 5, 6, 98, 99, 100])
def test_the_first_that_is_ok_from_wherever_it_is_looked_for(true, start):
    asked = []
    assert first(100, lambda n: asked.append(n) or n >= true, start) == true
    assert all(0 <= n < 100 for n in asked)
    assert len(asked) == len(set(asked)) <= 15
    assert first(0, lambda n: 1 / 0, start) == 0


def test_the_edge_between_two_numbers_is_found_either_way():
    assert between(3, 90, lambda n: n <= 41) == 41
    assert between(90, 3, lambda n: n >= 41) == 41
    assert between(5, 6, lambda n: 1 / 0) == 5


def does(plan, targets=None):
    s = serve(plan)
    met = not targets or not targets.missed(s.ttft_seconds, s.tpot_seconds)
    return s.fits and met


@pytest.mark.parametrize("targets", [Targets(), Targets(ttft=0.6), Targets(tpot=0.03)])
@pytest.mark.parametrize("cache", ["paged", "contiguous"])
def test_the_longest_context(targets, cache):
    plan = LONG.changed("serve.kv_cache", cache)
    found = longest_context(plan, targets)
    assert found.value == found.plan.serve.prompt_len + found.plan.serve.output_len
    assert does(found.plan, targets)
    changes = {"serve.prompt_len": found.plan.serve.prompt_len + 1}
    if cache == "contiguous":  # what it reserves is what is asked for
        assert found.plan.serve.max_seq_len == found.value
        changes["serve.max_seq_len"] = found.value + 1
    assert not does(found.plan.with_changes(changes), targets)
    assert found.limit == ("ttft" if targets.ttft else "tpot" if targets.tpot else "memory")


def test_no_longer_than_the_model_was_made_for():
    found = longest_context(LONG.changed("serve.concurrency", 1))
    assert (found.value, found.limit) == (131_072, "positions")


@pytest.mark.parametrize("targets", [Targets(), Targets(tpot=0.02)])
def test_the_most_sequences(targets):
    found = largest_concurrency(LONG, targets)
    assert does(found.plan, targets)
    assert not does(found.plan.changed("serve.concurrency", found.value + 1), targets)


def test_nothing_where_nothing_fits():
    found = largest_concurrency(BIG)
    assert (found.value, found.limit) == (0, "memory")
    assert fewest_gpus(LONG, 1.0, Targets(ttft=1e-6)).limit == "ttft"


def test_more_requests_need_no_fewer_gpus():
    found = [fewest_gpus(BIG, rate, CHAT) for rate in (0.1, 1, 10, 100)]
    gpus = [f.value for f in found]
    assert gpus == sorted(gpus)
    assert gpus[0] == 2  # 140 GB of weights do not fit one
    assert gpus[-1] > 10 * gpus[0]
    for f in found:
        assert f.served.fits
        assert f.plan.cluster.gpus >= f.value
        assert not CHAT.missed(f.served.ttft_seconds, f.served.tpot_seconds)


def test_stricter_targets_need_no_fewer_gpus():
    gpus = [fewest_gpus(BIG, 10, Targets(tpot=t)).value for t in (0.1, 0.05, 0.02)]
    assert gpus == sorted(gpus)
    assert gpus[0] > 0


def test_as_many_tokens_as_are_asked_for_are_generated():
    """Little: what runs at once, over what a token takes, is the rate of tokens."""
    found = fewest_gpus(BIG, 20, CHAT)
    s = found.served
    rate = 20 / (found.value / s.gpus_per_replica)
    assert s.tokens_per_second >= rate * found.plan.serve.output_len * 0.99


def test_an_encoder_s_positions_are_those_of_its_prompt():
    """T5 was made for 512 tokens on either side."""
    document = {"model": "t5-base", "train": {"attention": "eager"}, "cluster": {"gpus": 1}}
    answer = longest_context(Plan.of(document | {"serve": {"concurrency": 8, "output_len": 300}}))
    assert (answer.value, answer.limit) == (512 + 300, "positions")


@pytest.mark.parametrize("images", [0, 1, 3])
def test_a_prompt_has_room_for_its_images(images):
    """No prompt is tried that is too short for them."""
    document = {"model": "llava-1.5-7b", "train": {"seq_len": 1024}, "cluster": {"gpus": 1}}
    plan = Plan.of(document | {"serve": {"images": images, "prompt_len": 2048, "concurrency": 8}})
    answer = longest_context(plan)
    assert (answer.value, answer.limit) == (4096, "positions")
    assert largest_concurrency(plan).value > 8
    assert fewest_gpus(plan, 1.0).value == 1
