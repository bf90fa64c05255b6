"""Simulated: what a stream of requests does, drawn when the plan rests."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app import elements, given, parts, shared, state, stream
from memcore.stream import Stream


def nobodys_rate() -> None:
    """Where nobody has said how many requests come: that it is a default, and a way to have the
    users that the plan is asked for."""
    s = state.plan().serve
    if {"serve.arrival_rate", "serve.arrivals"} & state.changed().keys():
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        parts.small(elements.text("example_rate", rate=f"{s.arrival_rate:,.4g}"), "content")
        st.button(
            f"{s.concurrency:,} users instead",
            key="closed_loop",
            on_click=state.change,
            args=({"serve.arrivals": "closed"},),
            help=elements.text("closed_loop", users=f"{s.concurrency:,}"),
        )


def _charts(found: Stream) -> None:
    """What the strategies did."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**What the cache was for**")
        elements.chart("stream_shares", stream.shares(found))
    with right:
        quantity = st.segmented_control(
            "Over time",
            stream.QUANTITIES,
            format_func=stream.title,
            default="held_tokens",
            required=True,
            key="stream_quantity",
        )
        elements.chart("stream_over_time", stream.over_time(found, quantity))


def requests() -> None:
    """The plan's stream of requests, by how the cache is handed out."""
    plan, (lengths, file) = state.plan(), given.lengths()
    simulated = shared.stream(plan, lengths)
    if not simulated:
        parts.absent("A stream of requests")
        return
    parts.small(parts.plain(stream.load_text(simulated, plan, file)))
    for note in simulated.notes:
        parts.small(parts.plain(note))
    if not stream.served(simulated):
        return
    parts.stream_metrics(stream.metrics(stream.of_plan(simulated, plan), plan))
    _charts(simulated)
    elements.table("strategies", stream.rows(simulated), columns=stream.shown(simulated))
    parts.small(stream.legend(simulated))
    speeds = shared.speeds(plan)
    st.markdown("##### Time per token against throughput")
    elements.chart("stream_speed", stream.speed(speeds, simulated))
    elements.caption("speeds")
    with st.container(horizontal=True):
        elements.file("moments", partial(stream.moments, simulated))
        elements.file("speeds", partial(stream.speeds, speeds))


def rates() -> None:
    """What requests feel at one rate after another."""
    plan = state.plan()
    loads = shared.loads(plan, given.lengths()[0])
    if not loads:
        parts.absent("A stream of requests")
        return
    latency = st.segmented_control(
        "Against the arrival rate",
        stream.load_choices(plan),
        format_func=stream.load_title,
        default="ttft",
        required=True,
        key="stream_load",
    )
    elements.chart("stream_load_chart", stream.load(loads, latency, plan))
    parts.small(stream.load_legend(loads, plan))
    elements.file("rates", stream.load_rows(loads))
