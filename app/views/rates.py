"""Arrival rates: what requests feel of one replica, from few a second to more than it can take."""

from collections.abc import Sequence

import streamlit as st

from app import parts, plot, rest, state, stream
from memcore.stream import Load


@st.fragment
def chart(found: Sequence[Load]) -> None:
    """One latency against the rate. A choice in here draws this again, and no more of the page."""
    state.whole_page_where_asked()
    plan = state.plan()
    felt = st.segmented_control(
        "Against the arrival rate",
        stream.load_choices(plan),
        format_func=stream.load_title,
        default="ttft",
        required=True,
        key="stream_load",
    )
    plot.chart(
        stream.load(found, felt, plan),
        key="stream_load_chart",
        alt="Latency of the plan's own cache against the arrival rate",
    )


def simulated() -> None:
    loads = state.loads()
    if not loads:
        parts.absent("A stream of requests")
        return
    st.session_state.rates_before = loads
    chart(loads)
    parts.small(stream.load_legend(loads, state.plan()))
    parts.download("Arrival rates (CSV)", stream.load_rows(loads), "memplan-rates.csv")


def meanwhile() -> None:
    """What was simulated last stays, and says so."""
    if before := st.session_state.get("rates_before"):
        chart(before)
        parts.small("**Of the plan before**: this one is simulated when you pause …")
    else:
        parts.small("Simulated when you pause …")


if state.report().serve:
    parts.latency_targets()
    rest.when_over(simulated, meanwhile)
else:
    parts.absent("A stream of requests")
