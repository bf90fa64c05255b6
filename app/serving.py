"""Serving: how far a server can go, and what would serve more."""

from __future__ import annotations

import streamlit as st

from app import levers, parts, shared, state, tables
from memcore.plan.plan import Plan
from memcore.search.solve import ANY, Targets, serving_limit


def furthest() -> None:
    """The longest sequence, the most sequences and the fewest GPUs."""
    answers, plan, serve = state.answers(), state.plan(), state.report().serve
    others = [bool(answer.value) and answer.plan != plan for answer in answers]
    by = state.benched_moves()
    beside = [state.beside_server(a.plan) if a.value else None for a in answers] if by else []
    rows = tables.limits(answers, plan, serve.replicas if serve else 1, beside)
    if serving_limit(plan, Targets.of(plan)):
        _ranks(plan)
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
        "on *Arrival rates*."
    )
    levers.servers()


def _ranks(plan: Plan) -> None:
    """What other tensor parallelism would do, where none serves all that the plan asks: one that
    does is among the changes below."""
    found, asked = shared.on_ranks(plan), plan.serve.concurrency
    within = " within the targets" if Targets.of(plan) != ANY else ""
    if found is None:
        st.markdown(f"**No tensor parallelism on these GPUs serves one sequence{within}.**")
        return
    tp, n = found.serving_tp, found.serve.concurrency
    if n == asked:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**Tensor parallel {tp:,} serves {n:,} at once on each replica{within}, of "
            f"{asked:,}: no other serves more.**",
            width="content",
        )
        st.button(
            f"Use tensor parallel {tp:,}", key="use_ranks", on_click=state.replace, args=(found,)
        )


def coming() -> None:
    """Said until that is found."""
    parts.small("How far it can go comes when you pause …")
