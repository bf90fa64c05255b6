"""Memory: where every byte of a training step goes, at its fullest instant and at every other."""

import streamlit as st

from app import charts, levers, parts, start, state, tables

report = state.report()

if report.memory:
    place = st.container()  # of the levers: one place, whether the plan fits or not
    if len(report.memory.ranks) > 1:
        st.markdown("##### Each pipeline stage at its own fullest instant")
        parts.chart(
            charts.memory_by_consumer(report.memory),
            key="memory_by_consumer",
            alt="Memory at the peak by consumer on each stage, against the capacity of one GPU",
        )
    left, right = st.columns([2, 3])
    with left:
        st.markdown("##### By consumer")
        consumers = tables.consumers(report.memory)
        parts.table(
            consumers,
            key="consumers",
            alt="Memory at the peak by consumer",
            columns=("consumer", "size", "percent"),
        )
        parts.download("Breakdown (CSV)", tables.breakdown(report.memory), "memplan-breakdown.csv")
    with right:
        st.markdown("##### The largest tensors")
        parts.table(
            tables.largest(report.ledger),
            key="largest",
            alt="The largest rows of the ledger",
            height=244,
            columns=("name", "size", "why", "shape", "count", "dtype"),
        )
        parts.small("All of them, with lifetime and source, are at *Every tensor*.")
    parts.folded("Overhead outside the allocator", parts.overheads, report.memory)
    st.markdown("##### What is alive at each instant of a step")
    parts.chart(
        charts.timeline(report.memory),
        key="timeline",
        alt="Memory alive at each instant of the step, by consumer",
    )
    rows = tables.timeline(report.memory)
    parts.folded("Instant by instant", parts.instants, rows)
    parts.download("Timeline (CSV)", rows, "memplan-timeline.csv")
    # Last, so that all else is on the page before all levers are evaluated.
    with place:
        start.furthest()
        levers.waterfall()
        levers.section(report.memory)
        if state.fresh():
            start.cards()
else:
    parts.absent("Memory")
