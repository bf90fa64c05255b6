"""Simulated: what a stream of requests does, drawn when the plan rests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app import given, parts, shared, state, stream
from memcore.stream import Load, Stream


def nobodys_rate() -> None:
    """Where nobody has said how many requests come: that it is a default, and a way to have the
    users that the plan is asked for."""
    s = state.plan().serve
    if {"serve.arrival_rate", "serve.arrivals"} & state.changed().keys():
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        parts.small(
            f"**{s.arrival_rate:,.4g} requests a second are only an example**: nobody has said how "
            "many come. Yours is *Arrival rate*, in the sidebar under *Request stream*.",
            "content",
        )
        st.button(
            f"{s.concurrency:,} users instead",
            key="closed_loop",
            on_click=state.change,
            args=({"serve.arrivals": "closed"},),
            help=f"{s.concurrency:,} at a time, each asks again as soon as it has its answer.",
        )


def _charts(found: Stream) -> None:
    """What the strategies did."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**What the cache was for**")
        parts.chart(
            stream.shares(found),
            key="stream_shares",
            alt="Shares of the KV cache by use under each strategy, averaged over time",
        )
    with right:
        quantity = st.segmented_control(
            "Over time",
            stream.QUANTITIES,
            format_func=stream.title,
            default="held_tokens",
            required=True,
            key="stream_quantity",
        )
        parts.chart(
            stream.over_time(found, quantity),
            key="stream_over_time",
            alt="The chosen quantity over the time of the simulation, by strategy",
        )


def requests() -> None:
    """The plan's stream of requests, by how the cache is handed out."""
    plan, (lengths, file) = state.plan(), given.lengths()
    found = shared.stream(plan, lengths)
    if not found:
        parts.absent("A stream of requests")
        return
    parts.small(parts.plain(stream.asked(found, plan, file)))
    for note in found.notes:
        parts.small(parts.plain(note))
    if not stream.served(found):
        return
    parts.stream_metrics(stream.metrics(stream.of_plan(found, plan), plan))
    _charts(found)
    compared = stream.rows(found)
    parts.table(
        compared,
        key="stream_table",
        alt="The figures of each strategy",
        columns=stream.shown(found),
    )
    parts.small(stream.legend(found))
    speeds = shared.speeds(plan)
    st.markdown("##### Time per token against throughput")
    parts.chart(
        stream.speed(speeds, found),
        key="stream_speed",
        alt="Time per output token against output tokens per second",
    )
    parts.small(stream.SPEED_LEGEND)
    with st.container(horizontal=True):
        parts.download("Strategies (CSV)", compared, "memplan-stream.csv")
        parts.download(
            "Over time (CSV)", partial(stream.moments, found), "memplan-stream-timeline.csv"
        )
        parts.download("Throughput (CSV)", partial(stream.speeds, speeds), "memplan-throughput.csv")


def _chart(found: Sequence[Load]) -> None:
    """One latency against the rate."""
    plan = state.plan()
    latency = st.segmented_control(
        "Against the arrival rate",
        stream.load_choices(plan),
        format_func=stream.load_title,
        default="ttft",
        required=True,
        key="stream_load",
    )
    parts.chart(
        stream.load(found, latency, plan),
        key="stream_load_chart",
        alt="Latency of the plan's own cache against the arrival rate",
    )


def rates() -> None:
    """What requests feel at one rate after another."""
    loads = shared.loads(state.plan(), given.lengths()[0])
    if not loads:
        parts.absent("A stream of requests")
        return
    _chart(loads)
    parts.small(stream.load_legend(loads, state.plan()))
    parts.download("Arrival rates (CSV)", stream.load_rows(loads), "memplan-rates.csv")
