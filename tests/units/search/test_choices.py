"""On which GPUs a model is served for so many users, and what a million tokens cost there."""

import math
import time

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.choices import choices, fewest_for_users, front, nearest, table_of
from memcore.search.solve import Targets, serving_limit

SERVE = {"prompt_len": 2048, "output_len": 512, "concurrency": 48}
PLAN = Plan.of({"model": "llama-3.1-70b", "serve": SERVE, "run": {"price_per_gpu_hour": 2.5}})
NAMES = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "a100-sxm-80gb", "l40s-48gb")


def evaluated(choice):
    document = PLAN.document()
    for path, value in choice.changes.items():
        section, _, name = path.partition(".")
        document[section][name] = value
    return evaluate(Plan.of(document)).serve


@pytest.mark.parametrize("choice", table_of(PLAN, names=NAMES), ids=lambda c: c.gpu)
def test_a_row_is_what_evaluate_says_of_it(choice):
    s = evaluated(choice)
    assert s.fits
    assert s.replicas == choice.replicas
    assert choice.users * choice.replicas >= 48 > choice.users * (choice.replicas - 1)
    assert s.running == choice.users
    assert choice.each == pytest.approx(s.tpot_seconds, rel=1e-6)
    assert choice.each_range == pytest.approx(s.tpot_range, rel=1e-6)
    assert choice.first == pytest.approx(s.ttft_seconds, rel=1e-6)
    assert choice.first_range == pytest.approx(s.ttft_range, rel=1e-6)
    assert choice.per_gpu == pytest.approx(s.tokens_per_second / s.gpus_per_replica, rel=1e-6)


def test_of_the_plan_s_own_gpu_the_price_is_the_plan_s():
    (own,) = table_of(PLAN, names=["h100-sxm-80gb"])
    s = evaluated(own)
    assert (own.price, own.source) == (2.5, "the plan")
    assert own.cost_out == pytest.approx(s.cost_per_million_out)
    assert own.cost_in == pytest.approx(s.cost_per_million_in)


def test_a_million_tokens_cost_what_the_replica_costs_meanwhile():
    s = evaluate(PLAN.changed("serve.tp", 4)).serve
    hour = 2.5 * s.gpus_per_replica
    assert s.cost_per_million_out == pytest.approx(hour / 3600 / s.decode_tokens_per_second * 1e6)
    read = s.prompt_token_seconds * 2048
    assert read <= s.ttft_seconds
    assert s.cost_per_million_in == pytest.approx(hour / 3600 * s.prompt_token_seconds * 1e6)
    for arrivals in ("poisson", "closed"):  # a request in and out is the rent of its share
        s = evaluate(PLAN.changed("serve.tp", 4).changed("serve.arrivals", arrivals)).serve
        each = 2048 * s.prompt_token_seconds + PLAN.serve.output_len * s.output_token_seconds
        assert each * s.tokens_per_second / PLAN.serve.output_len == pytest.approx(1)
    s = evaluate(PLAN.changed("serve.tp", 4)).serve
    free = evaluate(PLAN.changed("serve.tp", 4).changed("run.price_per_gpu_hour", 0.0)).serve
    assert free.cost_per_million_in is free.cost_per_million_out is None
    assert free.output_token_seconds == s.output_token_seconds


def test_no_fewer_gpus_would_do():
    """On each accelerator, against all choices on it."""
    least = {c.gpu: c.gpus for c in table_of(PLAN, names=NAMES)}
    every = choices(PLAN, names=NAMES)
    assert set(least) == {c.gpu for c in every}
    for name, gpus in least.items():
        assert gpus == min(c.gpus for c in every if c.gpu == name)


def test_targets_are_kept():
    within = Targets(tpot=0.02)
    found = table_of(PLAN, 48, within, NAMES)
    assert found
    assert all(c.each <= 0.02 for c in found)
    free = {c.gpu: c.gpus for c in table_of(PLAN, 48, names=NAMES)}
    assert any(c.gpus > free[c.gpu] for c in found)


def test_the_front_is_what_no_other_choice_beats():
    every = choices(PLAN, 256, names=NAMES)
    best = front(every)
    assert len(best) >= 5
    assert [c.per_user for c in best] == sorted((c.per_user for c in best), reverse=True)
    assert [c.per_gpu for c in best] == sorted(c.per_gpu for c in best)
    for c in every:
        assert any(b.per_user >= c.per_user and b.per_gpu >= c.per_gpu for b in best)


def test_all_accelerators_in_one_table():
    """Half a second is asked for; the bound leaves a busy machine its time."""
    table_of(PLAN)
    begun = time.process_time()
    found = table_of(PLAN)
    assert time.process_time() - begun < 2
    assert len(found) > 50
    assert {c.gpu for c in found} <= set(catalog.gpu_names())
    assert all(math.isfinite(c.each) for c in found)


def test_what_generates_nothing_is_refused():
    with pytest.raises(PlanError, match="model"):
        table_of(Plan.of({"model": "bert-base", "train": {"attention": "sdpa", "seq_len": 512}}))


@pytest.mark.parametrize("targets", [Targets(tpot=0.0075), Targets(ttft=0.02), Targets(0.02, 1e-4)])
def test_where_nothing_is_quick_enough_the_nearest_is_told(targets):
    assert not table_of(PLAN, 48, targets, NAMES)
    choice, miss = nearest(PLAN, targets, NAMES)
    alone = [c for c in choices(PLAN, 1, names=NAMES) if c.users == 1]

    def factor(c):
        return max(c.first / (targets.ttft or 1e9), c.each / (targets.tpot or 1e9))

    assert factor(choice) == pytest.approx(min(map(factor, alone)), rel=1e-9)
    assert miss.factor == pytest.approx(factor(choice), rel=1e-9)
    assert miss.may_hold == (miss.between[0] <= miss.target)
    assert ("it may hold" in miss.text) == miss.may_hold


def test_what_is_nearest_may_hold():
    """Its own interval reaches a target that is a little below what is planned."""
    (own,) = (c for c in choices(PLAN, 1, names=["h100-sxm-80gb"]) if c.tp == 8)
    _, miss = nearest(PLAN, Targets(tpot=own.each * 0.99), ["h100-sxm-80gb"])
    assert miss.may_hold
    assert nearest(PLAN, Targets(tpot=own.each * 1.01), ["h100-sxm-80gb"]) is None


@pytest.mark.parametrize("tpot", [None, 0.02])
@pytest.mark.parametrize("users", [4, 300])
def test_fewest_gpus_for_users_are_those_of_the_table(users, tpot):
    targets = Targets(tpot=tpot)
    plan = Plan.of({"model": "llama-3-70b", "serve": {"concurrency": users}})
    found = fewest_for_users(plan, targets)
    (row,) = table_of(plan, targets=targets, names=("h100-sxm-80gb",))
    assert (found.value, found.plan) == (row.gpus, row.booked)
    assert found.plan.cluster.gpus == found.value
    assert not serving_limit(found.plan, targets)
    assert found.limit == ("tpot" if tpot else "memory")


def test_fewest_gpus_for_users_where_none_do_say_why():
    found = fewest_for_users(Plan.of({"model": "llama-3-8b"}), Targets(tpot=1e-6))
    assert (found.value, found.limit) == (0, "tpot")
