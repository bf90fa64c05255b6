"""Memory: where every byte of a training step goes, at its fullest instant and at every other."""

from functools import partial

import streamlit as st

from app import charts, levers, parts, rest, shared, start, state, tables

report = state.report()

if report.memory:
    place = st.container()  # of what could be changed, whether the plan fits or not
    if len(report.memory.ranks) > 1:
        st.markdown("##### Each pipeline stage at its own fullest instant")
        parts.chart(
            charts.memory_by_consumer(report.memory),
            key="memory_by_consumer",
            alt="Memory at the peak by consumer on each stage, against the capacity of one GPU",
        )
    st.markdown("##### Memory over one step")
    courses = shared.over_time(state.plan())
    parts.chart(
        charts.over_time(report.memory, courses),
        key="over_time",
        alt="Memory alive over the time of one step, by consumer, with the capacity of one GPU",
    )
    n, drawn = len(courses), len(charts.shown_stages(courses))
    which = f"The {drawn} fullest of {n} stages; the CSV has all. " if n > drawn else ""
    parts.small(
        f"{which}Allocated, with the least overhead. Each layer shows its fullest moment; what the "
        "GPU waits for is spread over the phase that waits."
    )
    with st.container(horizontal=True):
        over_time, instants = (
            partial(tables.over_time, courses),
            partial(tables.timeline, report.memory),
        )
        parts.download("Over time (CSV)", over_time, "memplan-over-time.csv")
        parts.download("Instants (CSV)", instants, "memplan-timeline.csv")
    parts.folded("Instant by instant", parts.instants, report.memory)
    with st.container(key="halves"):
        with st.container():
            st.markdown("##### By consumer")
            consumers = tables.consumers(report.memory)
            parts.table(
                consumers,
                key="consumers",
                alt="Memory at the peak by consumer",
                columns=("consumer", "size", "percent"),
            )
            parts.download(
                "Breakdown (CSV)", partial(tables.breakdown, report.memory), "memplan-breakdown.csv"
            )
        with st.container():
            st.markdown("##### The largest tensors")
            parts.table(
                tables.largest(report.ledger),
                key="largest",
                alt="The largest rows of the ledger",
                height=244,
                columns=("name", "size", "why", "shape", "count", "dtype"),
            )
            parts.small("All of them, with lifetime and source, are at *Tensors*.")
    if state.session().fresh:
        parts.folded("Worked plans", start.cards)
    parts.folded("Overhead outside the allocator", parts.overheads, report.memory)
    with place:
        rest.later(levers.advice, "How far the plan could go and what could be changed comes")
else:
    parts.absent("Memory")
