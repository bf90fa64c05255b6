"""Together: training and serving on the same GPUs, phase by phase."""

import streamlit as st

from app import charts, levers, parts, rest, shared, state, tables
from memcore.words.jobs import SHARES
from memcore.words.together import TOGETHER

found = state.report().together

if found:
    parts.rollouts(shared.generated(state.plan()), state.report().time)
    place = st.container()
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
    with place:
        rest.later(levers.phases, "What frees memory comes")
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
                args=({"together.kind": name} | SHARES,),
            )
else:
    parts.absent("Training")
