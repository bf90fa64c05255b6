"""The one change with which the largest micro-batch fits, and the longest sequence."""

from __future__ import annotations

import pytest

from memcore.evaluate import evaluate
from memcore.plan.field import SAME
from memcore.plan.plan import Plan, get
from memcore.search.growing import BATCH, LENGTH, larger
from memcore.search.levers import levers
from memcore.search.solver import solve

PLANS = {
    "8b": {"model": "llama-3-8b", "cluster": {"gpus": 8}},
    "70b": {"model": "llama-3-70b", "cluster": {"gpus": 64}},
}


@pytest.mark.parametrize("path", [BATCH, LENGTH])
@pytest.mark.parametrize("name", PLANS)
def test_it_fits_is_larger_and_trains_the_same(name, path):
    plan = Plan.of(PLANS[name])
    here = solve(plan, path).value
    lever, solved = larger(path, here or 0, levers(plan))
    assert lever.kind == SAME
    assert solved.value > here
    assert get(solved.plan.document(), path) == solved.value
    assert evaluate(solved.plan).memory.verdict == "fits"
    assert evaluate(solved.plan.changed(path, solved.value + 1)).memory.verdict != "fits"
    assert solved.plan.cluster == plan.cluster


def test_where_nothing_allows_a_larger_one_there_is_none():
    assert larger(BATCH, 0, ()) is None
