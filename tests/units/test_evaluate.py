"""Evaluate: what it asks for, it asks for once."""

import pytest

from memcore import Plan, PlanError, evaluate
from memcore.models import catalog
from memcore.serving.serve import servable, served_by
from memcore.serving.server import Server
from memcore.training.over_time import over_time
from memcore.training.training import Training

TRAINS_OTHERWISE = (  # and serves on the same GPUs at the same price
    {"train.micro_batch": 3, "train.seq_len": 777, "run.tokens": 5_000_000},
    {"train.checkpointing": "none", "run.target_days": 9.0},
    {"train.framework": "pytorch", "train.zero": 0},
)


def test_an_evaluation_builds_one_server(monkeypatch):
    built, make = [], Server.of.__func__

    def counted(cls, plan):
        built.append(plan)
        return make(cls, plan)

    monkeypatch.setattr(Server, "of", classmethod(counted))
    report = evaluate(Plan.of({"model": "bamba-9b"}))  # whose notes speak of its states
    assert report.serve
    assert len(built) == 1


@pytest.mark.parametrize("name", catalog.plan_entries())
def test_what_is_there_already_is_asked_for_no_more_and_changes_nothing(name):
    """Also not a server that was asked about a plan that trains otherwise."""
    plan = Plan.of(catalog.plan_entries()[name]["plan"])
    report, training = evaluate(plan), Training.of(plan)
    if training:
        assert evaluate(plan, training) == report
        assert over_time(plan, training) == over_time(plan)
    if not servable(plan.architecture):
        return
    for changes in TRAINS_OTHERWISE:
        try:
            other = plan.with_changes(changes)
        except PlanError:
            continue
        server = Server.of(other)
        evaluate(other, server=server)
        assert evaluate(plan, server=server) == report
        assert evaluate(plan, server=server, served=served_by(server)) == report
