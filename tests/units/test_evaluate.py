"""Evaluate: what it asks for, it asks for once."""

from memcore import Plan, evaluate
from memcore.serving.server import Server


def test_an_evaluation_builds_one_server(monkeypatch):
    built, make = [], Server.of.__func__

    def counted(cls, plan):
        built.append(plan)
        return make(cls, plan)

    monkeypatch.setattr(Server, "of", classmethod(counted))
    report = evaluate(Plan.of({"model": "bamba-9b"}))  # whose notes speak of its states
    assert report.serve
    assert len(built) == 1
