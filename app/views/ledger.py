"""Ledger: every row that the figures are sums of, and why it is there."""

from app import elements, lens, parts, state, tables

report = state.report()

if report.memory:
    parts.ledger_total(report)
    lens.section()
elements.table("ledger", tables.ledger(report.ledger))
