"""Tiers: every place a byte can live, and what crosses the links between them."""

import streamlit as st

from app import charts, elements, offload, parts, state, tables

report, plan = state.report(), state.plan()

rows = tables.tiers(plan, report)
offload.draw()
if not report.memory:
    parts.absent("What training keeps in each tier")
elements.chart("tiers", charts.tiers(rows, tables.in_tiers(report), report.memory))
elements.table("tiers", rows)

if report.time and report.time.transfers:
    st.page_link(
        "views/time.py",
        label="Transfer by transfer, and what hides each",
        icon=":material/swap_horiz:",
        query_params=state.query(),
    )
