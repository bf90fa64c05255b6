"""Requests: a simulated stream of requests to one replica, by how its cache is handed out."""

import streamlit as st

from app import parts, rest, simulated, state

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
    simulated.nobodys_rate()
    rest.when_over(simulated.requests, simulated.coming)
else:
    parts.absent("A stream of requests")
