"""Serve: what inference needs, how many sequences fit and how far it can go."""

import streamlit as st

from app import charts, measured, parts, rest, serving, state, tables
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
            parts.chart(
                charts.serving_memory(report.serve, plan.serve.concurrency),
                key="serving_memory",
                alt="Memory of one serving GPU against how many sequences run at once",
            )
            lines = tables.serving(report.serve, plan.serve.concurrency)
            parts.table(
                lines,
                key="serve_table",
                alt="Memory of one serving GPU, line by line",
                columns=("what", "size", "bytes", "note"),
            )
            parts.download("Serving (CSV)", lines, "memplan-serving.csv")
else:
    parts.absent("Serving")
