"""Serve: what inference needs, how many sequences fit and how far it can go."""

import streamlit as st

from app import parts, rest, state, tables
from memcore.plan.keys import LOOK


def furthest() -> None:
    """The longest sequence, the most sequences and the fewest GPUs."""
    answers, plan, serve = state.answers(), state.plan(), state.report().serve
    rows = tables.limits(answers, plan.serve.arrival_rate, serve.replicas if serve else 1)
    parts.table(
        rows,
        key="limits",
        alt="The longest sequence, the most sequences, the fewest GPUs",
        columns=(
            "question",
            "answer",
            "what forbids more",
            "first token",
            "per token",
            "tensor parallel",
        ),
    )
    parts.use_answers(rows, answers)
    parts.small(
        "Within the targets above. Each changes one field of the plan and leaves the others; GPUs: "
        "tensor parallelism within a node and replicas, in steady state."
    )


report, plan = state.report(), state.plan()

if report.serve:
    st.page_link(
        "views/explore.py",
        label=f"Which GPUs serve {plan.serve.concurrency:,} users at once?",
        icon=":material/memory:",
        query_params=state.query() | {LOOK: "gpus"},
    )
    st.markdown("##### How far it can go")
    parts.latency_targets()
    rest.when_over(furthest, lambda: parts.small("How far it can go comes when you pause …"))
    st.markdown("##### Memory of one serving GPU")
    lines = tables.serving(report.serve, plan.serve.concurrency)
    parts.table(lines, key="serve_table", alt="Memory of one serving GPU, line by line", height=600)
    parts.download("Serving (CSV)", lines, "memplan-serving.csv")
else:
    parts.absent("Serving")
