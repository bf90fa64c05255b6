"""Together: training and serving on the same GPUs, phase by phase."""

import streamlit as st

from app import charts, parts, state, tables

found = state.report().together

if found:
    parts.chart(
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
elif state.report().memory:
    st.markdown(
        """
Reinforcement learning and evaluation during training run an inference engine on the GPUs that
train. Choose **what runs together with training** in the sidebar, at *Train and serve together*:
this page then shows what each phase of a step holds on a GPU, policy, critic, reference, reward
model, rollouts, engine and KV cache, and whether all of it fits.
"""
    )
else:
    parts.absent("Training")
