"""Together: training and serving on the same GPUs, phase by phase."""

import math

import streamlit as st

from app import charts, levers, parts, plot, rest, shared, state, tables
from memcore.units import seconds_text
from memcore.words.together import TOGETHER

found = state.report().together


def of_a_step() -> None:
    """How long the rollouts of a step take to generate, and to train on."""
    plan, time = state.plan(), state.report().time
    made = shared.generated(plan)
    if not made or not time:
        return
    s, engines = (
        plan.serve,
        "the engine" if made.engines == 1 else f"each of {made.engines:,} engines",
    )
    tokens = made.rollouts * made.engines * plan.train.seq_len
    steps = math.ceil(tokens / plan.tokens_per_step)
    once = "" if made.running >= made.rollouts else f", {made.running:,} at a time"
    parts.prose(
        f"**A step generates {made.rollouts:,} rollouts on {engines} in about "
        f"{seconds_text(made.seconds)}**, of {s.prompt_len:,} + {s.output_len:,} tokens{once}. "
        f"To train on all of them once takes {steps:,} × {seconds_text(time.step_seconds)} = "
        f"{seconds_text(steps * time.step_seconds)}. Where outputs differ in length, generation "
        "lasts until the longest is done."
    )


if found:
    of_a_step()
    place = st.container()
    plot.chart(
        charts.together(found),
        key="together",
        alt="Memory of one GPU in each phase of a step that trains and serves",
    )
    rows = tables.together(found)
    parts.table(
        rows,
        key="together_table",
        alt="Bytes of each part in each phase",
        height=320,
        columns=("phase", "part", "size", "bytes"),
    )
    parts.download("Phases (CSV)", rows, "memplan-together.csv")
    parts.small(
        "The policy's update is the training step of the other pages. The engine serves as on the "
        "Serve page, over its own tensor-parallel ranks, with as much of the GPU as its memory "
        "utilization says. The critic and the reward model are the policy's layers under a head "
        "of one number for each token."
    )
    with place:
        rest.when_over(
            levers.phases, lambda: parts.small("What frees memory comes when you pause …")
        )
elif state.report().memory:
    st.markdown("##### What runs on the GPUs that train?")
    kinds = [(name, word) for name, word in TOGETHER.items() if name != "none"]
    for column, (name, word) in zip(st.columns(len(kinds)), kinds, strict=True):
        with column, st.container(border=True, key=f"card_{name}"):
            st.markdown(f"**{word.label}**  \n:small[{word.help}]")
            st.button(
                f"Plan {word.label}",
                key=f"together_{name}",
                on_click=state.change,
                args=({"together.kind": name},),
            )
else:
    parts.absent("Training")
