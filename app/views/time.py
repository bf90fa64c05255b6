"""Time: which resource a step waits for, and how far each operation is from the roof."""

import streamlit as st

from app import charts, elements, measured, parts, shared, sidebar, start, state, tables
from memcore.units import count_text

report, plan = state.report(), state.plan()

if report.time and report.run:
    st.markdown(f"##### The whole run: {count_text(plan.run.tokens)} {plan.architecture.unit}")
    sidebar.run_goal()
    parts.run_figures(report.run)
    start.booked()
    measured.section()
    left, right = st.columns(2)
    with left:
        st.markdown("##### Seconds of a step, by resource")
        elements.chart("step_time", charts.step_time(report.time))
        elements.caption("resources")
    with right:
        st.markdown("##### Roofline")
        dtype = parts.compute_dtype(plan)
        roofline = charts.roofline(report.time.operations, plan.accelerator, dtype)
        elements.chart("roofline", roofline)
    st.markdown("##### Seconds of a step, by phase")
    left, right = st.columns(2)
    with left:
        elements.chart("step_phases", charts.step_phases(report.time))
    with right:
        elements.table("phases", tables.phases(report.time))
    if len(report.time.stages) > 1:
        st.markdown("##### One micro-batch on each pipeline stage")
        elements.chart("stages", charts.stages(report.time))
        elements.caption("stage", stage=report.time.stage)
    st.markdown("##### What ranks send each other, and what is offloaded")
    elements.table("transfers", tables.transfers(report.time))
    st.markdown("##### Operations, slowest first")
    elements.table("operations", tables.operations(report.time))
    with st.expander("The whole run, in numbers"):
        elements.table("run", elements.figures(shared.book(plan), "run"))
        elements.caption("run")
else:
    parts.absent("Time")
