"""Timeline: what is alive at each instant of a step."""

from app import charts, parts, state, tables

report = state.report()

if report.memory:
    parts.chart(
        charts.timeline(report.memory),
        key="timeline",
        alt="Memory alive at each instant of the step, by consumer",
    )
    rows = tables.timeline(report.memory)
    parts.table(
        rows,
        key="instants",
        alt="Bytes alive at each instant, by consumer",
        columns=("instant", "size", "bytes", "at"),
    )
    parts.download("Timeline (CSV)", rows, "memplan-timeline.csv")
else:
    parts.absent("Memory")
