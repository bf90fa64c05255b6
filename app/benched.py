"""Benched: a server that somebody benchmarked, which the plan on the page is read beside."""

from __future__ import annotations

from collections.abc import Iterator

import streamlit as st

from app import parts, places, state, tables
from app.line import Item
from app.text import plain
from memcore.plan.benched import Benched
from memcore.plan.plan import title_of
from memcore.search.benched import LATENCIES
from memcore.units import seconds_text
from memcore.words.serving import CLOSED

TITLE = "Read it beside a benchmark of yours"


def section() -> None:
    """What was measured and what it comes to, or a place to say it."""
    parts.folded(TITLE, _content, unfolded=bool(state.benched() or state.bench_issues()))


def as_predicted(what: str) -> None:
    """That something is as predicted, where a measured server might be taken to move it."""
    if state.benched_moves():
        parts.small(f"**{what} as predicted**, and not as your benchmark has them.")


def held(text: str) -> None:
    """What is done with what a benchmark printed, as somebody drops or pastes it: the page leads to
    what it says."""
    state.use_bench(text)
    st.session_state[f"folded_{TITLE}"] = True
    places.lead("serve")


def _content() -> None:
    if issues := state.bench_issues():
        st.error(
            "**This benchmark is not read.**\n" + parts.listed(issues), icon=":material/block:"
        )
    by = state.benched()
    if by is None:
        _ask()
        return
    here = by.plan == state.plan()
    st.markdown(_said(by, here))
    serve = state.report().serve
    if (found := state.beside_server()) and serve:
        parts.table(
            tables.benched(found, serve),
            key="benched",
            alt="Figures as predicted, and calibrated by the measured server",
        )
        parts.small(plain(found.assumed))
    ways = ("Open the server that ran", "Forget the benchmark")
    parts.ran(
        state.refused_server(), None if here else by.plan, "benched", ways, state.forget_bench
    )


def _said(by: Benched, here: bool) -> str:
    """What was measured of which server."""
    of, s = by.plan, by.plan.serve
    took = [f"{seconds_text(by.first)} to the first token"] if by.first else []
    took += [f"{seconds_text(by.token)} a token"] if by.token else []
    took += [f"{by.rate:,.0f} tokens/s"] if by.rate else []
    gpus = f"{of.serving_ranks:,} × {plain(of.accelerator.label)}"
    whose = "This server ran" if here else f"{plain(of.architecture.label)} ran on {gpus}"
    load = f"{s.concurrency:,} at once, {s.prompt_len:,} tokens in and {s.output_len:,} out"
    return f"**{whose}: {', '.join(took)}**, with {load}."


def _ask() -> None:
    parts.prose(
        "Did you benchmark this server? Say what it took, or drop or paste what "
        "`vllm bench serve`, SGLang's `bench_serving`, `trtllm-bench`, `llama-bench`, genai-perf "
        "or AIPerf printed. Other loads of this server are then shown twice: as predicted, and as "
        "your benchmark has them. The link carries it. A benchmark has as many requests at all "
        "times, so *Arrivals* becomes a closed loop."
    )
    with st.form("bench_form", border=False):
        left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
        left.number_input(
            "Milliseconds per token, after the first", min_value=0.0, max_value=1e7, value=None,
            format="%g", key="bench_token", placeholder="e.g. 14",
        )  # fmt: skip
        middle.number_input(
            "Seconds to the first token (if known)", min_value=0.0, max_value=1e5, value=None,
            format="%g", key="bench_first", placeholder="e.g. 0.9",
        )  # fmt: skip
        right.form_submit_button("Use this benchmark", on_click=_given)
    if st.session_state.get("bench_missing"):
        st.error("A token, or the first one, takes more than 0 seconds.", icon=":material/block:")


def _given() -> None:
    s = st.session_state
    token, first = (s.bench_token or 0.0) / 1e3, s.bench_first or 0.0
    s.bench_missing = not (token or first)
    if token or first:
        state.change({"serve.arrivals": CLOSED})
        state.bench(token, first)


def in_strip() -> Iterator[Item]:
    """The calibrated seconds beside the predicted ones, or why there are none."""
    if found := state.beside_server():
        for name, what in LATENCIES.items():
            if moved := getattr(found, name):
                yield Item(
                    f" {what}, calibrated",
                    bold=seconds_text(moved.calibrated_seconds),
                    help=f"{moved.ends}. {found.assumed}",
                )
    elif issues := state.refused_server():
        differ = ", ".join(title_of(issue.field) for issue in issues)
        yield Item(f"not calibrated: your benchmark differs in {differ}")
