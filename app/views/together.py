"""Together: training and serving on the same GPUs, phase by phase."""

import streamlit as st

from app import charts, elements, levers, parts, rest, shared, state, tables
from memcore.words.jobs import SHARES
from memcore.words.together import TOGETHER

found = state.report().together

if found:
    parts.rollouts(shared.generated(state.plan()), state.report().time)
    place = st.container()
    elements.chart("together", charts.together(found))
    elements.table("together", tables.together(found))
    elements.caption("together")
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
