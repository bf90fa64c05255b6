"""Lens on a page: what is done with each tensor, and what else could be."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app import parts, shared, state, tables
from memcore.search.lens import MEANS, STATES, alike

TITLE = "Stored, recomputed, moved or delayed: what each costs"


def section() -> None:
    """Computed while it is open."""
    parts.folded(TITLE, _content)


def _content() -> None:
    seen = shared.lens(state.plan())
    groups = {group.name: group for group in alike(seen)}
    parts.prose(" ".join(f"**{word.capitalize()}**: {means}." for word, means in MEANS.items()))
    rows = tables.lens_groups(list(groups.values()))
    parts.written(rows, "tensors", "at the peak", *STATES)
    parts.small(
        "*now*: what is done with them. Elsewhere, what that choice would change about the "
        "allocated peak and the step: the difference of two whole plans, so that it holds for all "
        "that the change touches."
    )
    name = st.selectbox("What else could be done with", list(groups), key="lens_of")
    if name:
        chosen = groups[name].first
        parts.table(
            tables.lens_ways(chosen),
            key="lens_ways",
            alt=f"What {name} could be, and by which change",
        )
        with st.container(horizontal=True):
            for word in STATES:
                if way := chosen.best(word):
                    st.button(
                        f"Use {way.label}",
                        key=f"lens_use_{word}",
                        on_click=state.replace,
                        args=(way.plan,),
                    )
    parts.download("Tensor by tensor (CSV)", partial(tables.lens, seen), "memplan-lens.csv")
