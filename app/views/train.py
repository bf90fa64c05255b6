"""Train: where every byte of a training step goes at its fullest instant."""

import streamlit as st

from app import charts, levers, parts, state, tables

report = state.report()

if report.memory:
    parts.chart(
        charts.memory_by_consumer(report.memory),
        key="memory_by_consumer",
        alt="Memory at the peak by consumer, against the capacity of one GPU",
    )
    urgent = st.container()
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
        parts.small("Every tensor, with its lifetime and source, is on the Ledger page.")
    later = st.container()
    parts.folded("Overhead outside the allocator", parts.overheads, report.memory)
    # Last, so that what is above is on the page before all levers are evaluated.
    with later if report.memory.fits else urgent:
        levers.waterfall()
        levers.section(report.memory)
else:
    parts.absent("Memory")
