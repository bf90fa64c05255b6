"""Start: the first screen. What somebody wants to run, and how far the plan can go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app import parts, places, shared, state
from app.fields import field
from app.text import plain
from memcore.plan.plan import Plan, facts, get
from memcore.search.fitting import Within
from memcore.search.growing import BATCH, LENGTH
from memcore.search.levers import Lever
from memcore.search.solver import Solved
from memcore.units import money_text
from memcore.words import jobs
from memcore.words.training import ADAPTERS, QUANTIZED

# What people want to run, as the page calls the jobs of a plan; serving is a page of its own. Each
# page answers one of them, so that no more than serving has to be said in the plan.
CALLED = {"Pretrain": "pretrain", "Fine-tune": "fine-tune", "LoRA": "lora", "QLoRA": "qlora"}
CALLED |= {"Serve": jobs.SERVE, "RL": jobs.RL}
JOBS: dict[str, Mapping[str, Any]] = {
    name: {**jobs.JOBS[word], "job": jobs.SERVE if word == jobs.SERVE else jobs.ANY}
    for name, word in CALLED.items()
}
LEADS = {"Serve": "serve", "RL": "together"}  # to views of their own
LONG_RUN = 10_000_000_000  # tokens, from which on a run is called pretraining


def job(plan: Plan) -> str:
    """Which of JOBS the plan is, as far as it trains."""
    if plan.train.adapter != "none":
        return "QLoRA" if ADAPTERS[plan.train.adapter].quantized in QUANTIZED else "LoRA"
    return "Pretrain" if plan.run.tokens >= LONG_RUN else "Fine-tune"


def ask() -> None:
    """What do you want to run?"""
    st.segmented_control(
        "What do you want to run?",
        list(JOBS),
        key=state.control("job", job(state.plan()), _chosen),
        required=True,
        help="LoRA and QLoRA begin as Hugging Face's Trainer runs them with bf16=True: the "
        "weights in 16 or 4 bits, whole on every GPU; only adapters are trained.",
    )


def _chosen(name: str | None) -> None:
    if name is None:
        return
    if name in LEADS:
        places.lead(LEADS[name])
    changes = dict(JOBS[name])
    # What an adapter brought with it is as everybody starts again without one.
    if changes.get("train.adapter") == "none" and state.drafted("train.adapter") != "none":
        changes |= {path: get(state.DEFAULT, path) for path in jobs.TRAINER}
    if changes:
        state.change(changes)


FURTHEST = (
    (BATCH, "Largest micro-batch that fits", "{:,}", shared.largest_batch, shared.larger_batch),
    (
        LENGTH,
        "Longest sequence that fits",
        "{:,} tokens",
        shared.longest_sequence,
        shared.longer_sequence,
    ),
)


def within_text(plan: Plan) -> str:
    """What the whole run may take, for people; '' where nothing is asked."""
    within = Within.of(plan)
    days = [f"{within.days:,g} days"] if within.days else []
    both = [*days, *([money_text(within.cost)] if within.cost else [])]
    return f"within {' and '.join(both)}" if both else ""


def furthest() -> None:
    """How far this plan could go, each at a press; as it is, and with the one change that trains
    the same and lets it go furthest."""
    with st.container(horizontal=True, key="furthest"):
        for path, label, text, find, further in FURTHEST:
            when = facts(path).when
            if when and not when(state.drafted, state.plan().architecture):
                continue
            with st.container(horizontal=True, vertical_alignment="center"):
                _answer(path, label, text, find(state.plan()))
                if with_change := further(state.plan()):
                    _with_a_change(path, *with_change)
        _to_train()


def _with_a_change(path: str, lever: Lever, solved: Solved) -> None:
    change = plain(lever.label)
    parts.small(f"**{solved.value:,}** with {change}", "content")
    _use(f"with_{path}", solved, f"{change} and {field(path).title} {solved.value:,}")


def _use(key: str, solved: Solved, sets: str) -> None:
    """A button that goes on with what was found."""
    st.button(
        "Use", key=f"use_{key}", on_click=state.replace, args=(solved.plan,), help=f"Sets {sets}."
    )


def booked() -> None:
    """How many GPUs the run needs to keep to its deadline and its budget, where it has any."""
    with st.container(horizontal=True, vertical_alignment="center", key="furthest"):
        _to_train()


def _to_train() -> None:
    if text := within_text(state.plan()):
        fewest = shared.fewest_to_train(state.plan())
        with st.container(horizontal=True, vertical_alignment="center"):
            _answer("cluster.gpus", f"Fewest GPUs {text}", "{:,}", fewest)


def _answer(path: str, label: str, text: str, solved: Solved) -> None:
    if solved.value is None:
        parts.small(f"{label}: **none**", "content")
        return
    parts.small(f"{label}: **{text.format(solved.value)}**", "content")
    if state.drafted(path) != solved.value:
        _use(path, solved, f"{field(path).title} {text.format(solved.value)}")
