"""Serving: how far a server can go, and what would serve more."""

from __future__ import annotations

from app import given, levers, parts, shared, state, tables


def furthest() -> None:
    """The longest sequence, the most sequences and the fewest GPUs."""
    plan, serve = state.plan(), state.report().serve
    answers = shared.answers(plan, "serve.arrival_rate" in state.changed())
    others = [bool(answer.value) and answer.plan != plan for answer in answers]
    by = given.predicted_server()
    beside = [given.server(a.plan) if a.value else None for a in answers] if by else []
    rows = tables.limits(answers, plan, serve.replicas if serve else 1, beside)
    parts.table(
        rows,
        key="limits",
        alt="The longest sequence, the most sequences, the fewest GPUs",
        columns=(
            "question",
            "answer",
            "first token",
            "per token",
            *(tables.CALIBRATED.values() if by else ()),
            "tensor parallel",
        ),
        use=lambda row: state.replace(answers[row].plan),
        usable=others,
    )
    if by:
        parts.small(
            "**The answers are as predicted, and so are their limits.** Calibrated seconds stand "
            "beside those that your benchmark says something of."
        )
    parts.small(
        "Each answer keeps to the targets above and to all other settings. The fewest GPUs share "
        "layers within a node (TP) and stand as replicas. With an *Arrival rate* of your own, in "
        "the sidebar under *Request stream*, they are those for so many requests a second. How "
        "many of a stream of requests keep to the targets is on *Requests*, and up to which rate "
        "on *Rates*."
    )
    levers.servers()
