"""Memory: where every byte of a training step goes, at its fullest instant and at every other."""

from functools import partial

import streamlit as st

from app import charts, elements, levers, parts, rest, shared, state, tables

report = state.report()

if report.memory:
    place = st.container()  # of what could be changed, whether the plan fits or not
    if len(report.memory.ranks) > 1:
        st.markdown("##### Each pipeline stage at its own fullest instant")
        elements.chart("memory_by_consumer", charts.memory_by_consumer(report.memory))
    st.markdown("##### Memory over one step")
    courses = shared.over_time(state.plan())
    elements.chart("over_time", charts.over_time(report.memory, courses))
    n, drawn = len(courses), len(charts.shown_stages(courses))
    which = f"The {drawn} fullest of {n} stages; the CSV has all. " if n > drawn else ""
    parts.small(f"{which}{elements.text('over_time')}")
    with st.container(horizontal=True):
        elements.file("over_time", partial(tables.over_time, courses))
        elements.file("timeline", partial(tables.timeline, report.memory))
    parts.folded("Instant by instant", parts.instants, report.memory)
    with st.container(key="halves"):
        with st.container():
            st.markdown("##### By consumer")
            elements.table("consumers", tables.consumers(report.memory))
            elements.file("breakdown", partial(tables.breakdown, report.memory))
        with st.container():
            st.markdown("##### The largest tensors")
            elements.table("largest", tables.largest(report.ledger))
            elements.caption("largest")
    parts.folded("Overhead outside the allocator", parts.overheads, report.memory)
    with place:
        rest.later(levers.advice, "How far the plan could go and what could be changed comes")
else:
    parts.absent("Memory")
