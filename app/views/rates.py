"""Arrival rates: what requests feel of one replica, from few a second to more than it can take."""

from collections.abc import Sequence

import streamlit as st

from app import parts, plot, state, stream
from memcore.stream import Load


@st.fragment
def chart(found: Sequence[Load]) -> None:
    """One latency against the rate. A choice in here draws this again, and no more of the page."""
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


report, plan = state.report(), state.plan()
loads = state.loads() if report.serve else ()
if loads:
    parts.latency_targets()
    chart(loads)
    parts.small(stream.load_legend(loads, plan))
    parts.download("Arrival rates (CSV)", stream.load_rows(loads), "memplan-rates.csv")
else:
    parts.absent("A stream of requests")
