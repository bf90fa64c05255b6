"""The one change with which the largest micro-batch fits."""

from __future__ import annotations

import pytest

from memcore.evaluate import evaluate
from memcore.plan.field import SAME
from memcore.plan.plan import Plan
from memcore.search.growing import BATCH, larger_batch
from memcore.search.levers import levers
from memcore.search.solver import solve

PLANS = {
    "8b": {"model": "llama-3-8b", "cluster": {"gpus": 8}},
    "70b": {"model": "llama-3-70b", "cluster": {"gpus": 64}},
}


@pytest.mark.parametrize("name", PLANS)
def test_it_fits_is_larger_and_trains_the_same(name):
    plan = Plan.of(PLANS[name])
    here = solve(plan, BATCH).value
    lever, solved = larger_batch(here or 0, levers(plan))
    assert lever.kind == SAME
    assert solved.value > here
    assert solved.plan.train.micro_batch == solved.value
    assert evaluate(solved.plan).memory.verdict == "fits"
    assert evaluate(solved.plan.changed(BATCH, solved.value + 1)).memory.verdict != "fits"
    assert solved.plan.cluster == plan.cluster


def test_where_nothing_allows_a_larger_one_there_is_none():
    assert larger_batch(0, ()) is None
