"""Serve: what inference needs, how many sequences fit and how fast they answer."""

from app import charts, parts, state, tables

report, plan = state.report(), state.plan()

if report.serve:
    concurrency = plan.serve.concurrency
    parts.serving_figures(report.serve, concurrency)
    parts.chart(
        charts.serving(report.serve, concurrency),
        key="serving",
        alt="Memory of one serving GPU, against its budget",
    )
    rows = tables.serving(report.serve, concurrency)
    parts.table(rows, key="serve_table", alt="Memory of one serving GPU, line by line")
    parts.download("Serving (CSV)", rows, "memplan-serving.csv")
    parts.small("Concurrency, lengths, dtypes and the cache's form are in the sidebar, at Serving.")
else:
    parts.absent("Serving")
