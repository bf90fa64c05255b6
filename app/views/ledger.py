"""Ledger: every row that the figures are sums of, and why it is there."""

from app import lens, parts, state, tables

report = state.report()

if report.memory:
    parts.ledger_total(report)
    lens.section()
rows = tables.ledger(report.ledger)
parts.table(
    rows,
    key="ledger",
    alt="Every row of the ledger",
    columns=(
        *("name", "size", "consumer", "why", "lifetime", "count", "bytes_each", "bytes", "shape"),
        *("dtype", "tier", "certainty", "source"),
    ),
)
parts.download("Ledger (CSV)", rows, "memplan-ledger.csv")
