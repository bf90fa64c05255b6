"""Tiers: every place a byte can live, and what crosses the links between them."""

import streamlit as st

from app import charts, offload, parts, state, tables

report, plan = state.report(), state.plan()

rows = tables.tiers(plan, report)
offload.draw()
if not report.memory:
    parts.absent("What training keeps in each tier")
held = tables.in_tiers(report)
parts.chart(
    charts.tiers(rows, held, report.memory),
    key="tiers",
    alt="What this plan keeps in each tier, and what crosses the links between them in a step",
)
parts.table(
    rows,
    key="tier_table",
    alt="Capacity, bandwidth and contents of each tier",
    columns=(
        "tier",
        "per",
        "capacity",
        "bandwidth",
        "holds",
        "traffic per step",
        "what lives there",
    ),
)
parts.download("Tiers (CSV)", rows, "memplan-tiers.csv")

if report.time and report.time.transfers:
    st.page_link(
        "views/time.py",
        label="Transfer by transfer, and what hides each",
        icon=":material/swap_horiz:",
        query_params=state.query(),
    )
