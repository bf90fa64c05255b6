"""Serve: what inference needs, how many sequences fit and how far it can go."""

import streamlit as st

from app import charts, elements, measured, parts, rest, serving, shared, state, tables
from memcore.plan.keys import LOOK

report, plan = state.report(), state.plan()

if report.serve:
    n = plan.serve.concurrency
    st.page_link(
        "views/explore.py",
        label=f"Which GPUs serve {n:,} at once?",
        icon=":material/memory:",
        query_params=state.query() | {LOOK: "gpus"},
    )
    measured.section(server=True)
    with st.container(key="halves"):
        with st.container():
            st.markdown("##### How far it can go")
            parts.latency_targets()
            rest.later(serving.furthest, "How far it can go comes")
        with st.container():
            st.markdown("##### Memory of one serving GPU")
            elements.chart("serving_memory", charts.serving_memory(report.serve, n))
            elements.table("serving", elements.figures(shared.book(plan), "serving"))
elif report.inference:
    with st.container(key="halves"):
        with st.container():
            st.markdown("##### One forward on each GPU")
            elements.table("inference", elements.figures(shared.book(plan), "inference"))
        with st.container():
            st.markdown("##### The largest tensors at its peak")
            elements.table("inference_rows", tables.largest(report.inference.rows))
else:
    parts.absent("Serving")
