"""Time: which resource a step waits for, and how far each operation is from the roof."""

import streamlit as st

from app import charts, measured, parts, sidebar, start, state, tables
from memcore.units import count_text

report, plan = state.report(), state.plan()

if report.time and report.run:
    st.markdown(f"##### The whole run: {count_text(plan.run.tokens)} tokens")
    sidebar.run_goal()
    parts.run_figures(report.run)
    start.booked()
    measured.section()
    left, right = st.columns(2)
    with left:
        st.markdown("##### Seconds of a step, by resource")
        parts.chart(
            charts.step_time(report.time),
            key="step_time",
            alt="Seconds of a step by resource, exposed and hidden",
        )
        parts.small(
            "Solid: what makes a step longer. Pale: hidden behind other work. Hatched: the "
            "pipeline bubble. Host: the CPU, which starts the kernels and runs ahead."
        )
    with right:
        st.markdown("##### Roofline")
        parts.chart(
            charts.roofline(report.time.operations, plan.accelerator, parts.compute_dtype(plan)),
            key="roofline",
            alt="Operations by arithmetic intensity and achieved FLOP per second",
        )
    st.markdown("##### Seconds of a step, by phase")
    left, right = st.columns(2)
    with left:
        parts.chart(
            charts.step_phases(report.time), key="step_phases", alt="Seconds of a step by phase"
        )
    with right:
        phases = [row for row in tables.phases(report.time) if row["percent"]]
        parts.table(
            phases,
            key="phases",
            alt="Seconds of a step by phase",
            columns=("phase", "time", "percent"),
        )
    if len(report.time.stages) > 1:
        st.markdown("##### One micro-batch on each pipeline stage")
        parts.chart(
            charts.stages(report.time),
            key="stages",
            alt="Seconds of one micro-batch on each pipeline stage",
        )
        parts.small(
            f"All other figures are of stage {report.time.stage}, whose whole step takes longest."
        )
    st.markdown("##### What ranks send each other, and what is offloaded")
    transfers = tables.transfers(report.time)
    parts.table(
        transfers,
        key="transfers",
        alt="Transfers of a step: size, time, and what hides them",
        height=260,
        columns=tables.TRANSFER_COLUMNS,
    )
    parts.download("Transfers (CSV)", transfers, "memplan-transfers.csv")
    st.markdown("##### Operations, slowest first")
    operations = tables.operations(report.time)
    parts.table(
        operations,
        key="operations",
        alt="Time by operation",
        height=320,
        columns=("operation", "phase", "time", "bound_by", "flops", "hbm_bytes"),
    )
    parts.download("Time by operation (CSV)", operations, "memplan-operations.csv")
    with st.expander("The whole run, in numbers"):
        answers = tables.answers(report.run, plan)
        parts.table(
            answers, key="answers", alt="The whole run", columns=("of the run", "is", "unit")
        )
        parts.small(
            "Without evaluation, checkpoints, failures and restarts; hosts draw no power here."
        )
        parts.download("The whole run (CSV)", answers, "memplan-run.csv")
else:
    parts.absent("Time")
