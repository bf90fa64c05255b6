"""Requests: a simulated stream of requests to one replica, by how its cache is handed out."""

from functools import partial

import streamlit as st

from app import parts, plot, rest, state, stream
from memcore.stream import Stream


@st.fragment
def charts(found: Stream) -> None:
    """What the strategies did. A choice in here draws this again, and no more of the page."""
    state.whole_page_where_asked()
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**What the cache was for**")
        plot.chart(
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
        plot.chart(
            stream.over_time(found, quantity),
            key="stream_over_time",
            alt="The chosen quantity over the time of the simulation, by strategy",
        )


def simulated() -> None:
    found, plan = state.stream(), state.plan()
    if not found:
        parts.absent("A stream of requests")
        return
    parts.small(parts.plain(stream.asked(found, plan, state.lengths_file())))
    for note in found.notes:
        parts.small(parts.plain(note))
    if not stream.served(found):
        return
    parts.stream_metrics(stream.metrics(stream.of_plan(found, plan), plan))
    charts(found)
    compared = stream.rows(found)
    parts.table(
        compared,
        key="stream_table",
        alt="The figures of each strategy",
        columns=stream.shown(found),
    )
    parts.small(stream.legend(found))
    speeds = state.speeds()
    st.markdown("##### Time per token against throughput")
    plot.chart(
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


def nobodys_rate() -> None:
    """Where nobody has said how many requests come: that it is a default, and a way to have the
    users that the plan is asked for."""
    s = state.plan().serve
    if {"serve.arrival_rate", "serve.arrivals"} & state.changed().keys():
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        parts.small(
            f"**{s.arrival_rate:,.4g} requests a second is the default.** Yours is *Arrival rate*, "
            "in the sidebar under *Request stream*.",
            "content",
        )
        st.button(
            f"{s.concurrency:,} users instead",
            key="closed_loop",
            on_click=state.change,
            args=({"serve.arrivals": "closed"},),
            help=f"{s.concurrency:,} at a time, each asks again as soon as it has its answer.",
        )


if state.report().serve:
    st.markdown("##### A stream of requests, by how the cache is handed out")
    parts.latency_targets()
    parts.lengths_upload()
    nobodys_rate()
    rest.when_over(simulated, lambda: parts.small("Simulated when you pause …"))
else:
    parts.absent("A stream of requests")
