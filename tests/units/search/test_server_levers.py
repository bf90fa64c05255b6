"""Levers of a server: what changes of how a plan serves give and cost."""

import json

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.server_levers import SERVES, server_levers
from memcore.search.solve import Targets, largest_concurrency, serving_limit

PLANS = {
    "too large": {"model": "llama-3.3-70b", "cluster": {"gpus": 4}},
    "fits": {"model": "llama-3.1-8b", "cluster": {"gpus": 1}, "train": {"zero": 0}},
    "mixture": {"model": "qwen3-30b-a3b", "cluster": {"gpu": "l40s-48gb", "gpus": 2}},
    "too slow": {
        "model": "llama-3.1-8b",
        "cluster": {"gpus": 1},
        "train": {"zero": 0},
        "serve": {"target_tpot": 0.008},
    },
    "llama.cpp": {
        "model": "llama-3.1-8b",
        "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1},
        "train": {"zero": 0},
        "serve": {"engine": "llama.cpp", "concurrency": 4},
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_a_lever_is_the_plan_with_the_change(name):
    plan = Plan(**PLANS[name])
    found = server_levers(plan)
    assert found
    for lever in found:
        there = plan.with_changes(lever.changes)
        serve = evaluate(there).serve
        assert lever.plan == there
        assert lever.sequences == serve.max_concurrency
        assert (lever.first, lever.each) == (serve.ttft_seconds, serve.tpot_seconds)
        assert lever.limit == serving_limit(there, Targets.of(there))
    json.dumps([lever.to_dict() for lever in found])


@pytest.mark.parametrize("name", PLANS)
def test_what_serves_comes_first_and_ranks_grow(name):
    found = server_levers(Plan(**PLANS[name]))
    assert [bool(v.limit) for v in found] == sorted(bool(v.limit) for v in found)
    ranks = [v.rank for v in found]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1


def test_70b_on_one_gpu_of_four_is_told_to_share_its_layers():
    first, *_ = server_levers(Plan(**PLANS["too large"]))
    assert (first.name, first.limit, first.followers) == ("tp-4", "", [])
    assert SERVES[first.serves] == "answers the same"


def test_more_ranks_than_gpus_are_booked_with_them():
    found = {v.name: v for v in server_levers(Plan(**PLANS["fits"]))}
    assert found["tp-2"].changes == {"cluster.gpus": 2, "serve.tp": 2}
    assert found["tp-2"].followers == ["GPUs 2"]


def test_what_one_node_does_not_hold_is_spread_over_two():
    """DeepSeek-V3 on 80 GB GPUs, as published: its weights of 627 GiB are more than eight hold."""
    serve = {"concurrency": 20, "prompt_len": 16_384}
    plan = Plan(model="deepseek-v3", cluster={"gpus": 8}, serve=serve)
    first, *_ = server_levers(plan)
    assert (first.name, first.limit) == ("pp-2", "")
    assert first.changes == {"cluster.gpus": 16, "serve.tp": 8, "serve.pp": 2}
    one_node = Plan(model="llama-3.3-70b", cluster={"gpus": 8}, serve={"concurrency": 64})
    assert not any(v.name.startswith("pp-") for v in server_levers(one_node))


def test_where_a_target_is_missed_levers_come_nearer_to_it():
    plan = Plan(**PLANS["too slow"])
    now = evaluate(plan).serve.tpot_seconds
    found = server_levers(plan)
    assert all(v.each < now for v in found)
    fewer = next(v for v in found if v.serves == "fewer")
    assert fewer.plan.serve.concurrency == largest_concurrency(plan, Targets.of(plan)).value
    assert not fewer.limit


def test_what_is_not_served_has_none():
    assert server_levers(Plan(model="bert-base", train={"seq_len": 512})) == ()
