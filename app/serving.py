"""Serving: how far a server can go, and what would serve more."""

from __future__ import annotations

from app import elements, given, levers, shared, state, tables


def furthest() -> None:
    """The longest sequence, the most sequences and the fewest GPUs."""
    plan, serve = state.plan(), state.report().serve
    answers = shared.answers(plan, "serve.arrival_rate" in state.changed())
    others = [bool(answer.value) and answer.plan != plan for answer in answers]
    by = given.predicted_server()
    beside = [given.server(a.plan) if a.value else None for a in answers] if by else []
    rows = tables.limits(answers, plan, serve.replicas if serve else 1, beside)
    elements.table("limits", rows, use=lambda row: state.replace(answers[row].plan), usable=others)
    if by:
        elements.caption("limits_predicted")
    elements.caption("targets")
    levers.servers()
