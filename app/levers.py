"""Levers on a page: what to change, what it saves and costs, one click that does it, and its
undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app import elements, parts, shared, start, state, tables
from app.text import VERDICTS, plain
from memcore.plan.field import SAME
from memcore.plan.plan import Plan, change_texts
from memcore.report import Memory
from memcore.search.bookings import MOST_GPUS
from memcore.search.levers import ORDER, Lever, headline
from memcore.search.phases import Relief
from memcore.search.server_levers import SERVES
from memcore.search.solve import LIMITS, Targets, serving_limit
from memcore.units import bytes_text, signed_seconds

SHOWN = 4  # changes on the page, whether the plan fits or not: nothing below them jumps
# Pixels of the columns of a row; the name takes the rest. On a wide page all grow (why.css).
SAVES, COSTS, THEN, APPLY = 100, 190, 80, 75


def advice() -> None:
    """How far the plan could go, and what to change."""
    start.furthest()
    if memory := state.report().memory:
        section(memory)


def section(memory: Memory) -> None:
    """The best levers with a button each; the others in a table."""
    every = shared.levers(state.plan())
    hopeless = not memory.fits and not any(lever.fits for lever in every)
    if hopeless:
        st.markdown("##### Where it fits as it is")
        _elsewhere()
    st.markdown(f"##### {plain(headline(memory, every))}")
    with st.container(gap="xxsmall"):
        for lever in every[:SHOWN]:
            but = "" if lever.trains == SAME else lever.trains_text
            cells = {tables.saved_text(lever): SAVES, tables.cost_text(lever): COSTS}
            cells |= {VERDICTS[lever.verdict]: THEN}
            label = _named(lever.label, lever.followers, but)
            _row(lever.name, label, cells, lever, lever.changes)
    with st.container(horizontal=True, key="folds"):
        parts.folded("All changes", _table, "levers", tables.levers(every), ORDER)
        if not hopeless:
            parts.folded("On which GPUs", _elsewhere)


def _elsewhere() -> None:
    """On how few GPUs of each kind the plan is trained."""
    plan = state.plan()
    every, within = shared.to_train_on(plan), start.within_text(plan)
    if not every:
        most = f"up to {MOST_GPUS:,} of any accelerator with a list price"
        parts.small(
            f"**Nowhere {plain(within)}**, with {most}." if within else f"**Nowhere**, with {most}."
        )
        return
    elements.table(
        "trainers", tables.trainers(every), use=lambda row: state.replace(every[row].plan)
    )
    elements.caption("trainers", within=f" {plain(within)}" if within else "")


def phases() -> None:
    """What frees memory in the fullest phase of a step that trains and serves, with a button
    each."""
    every = shared.reliefs(state.plan())
    if not every:
        return
    fits = sum(r.verdict == "fits" for r in every)
    together = state.report().together
    if together and together.fits:
        text = f"Every phase fits; {len(every)} changes free memory in the fullest"
    elif fits:
        text = f"{fits} change{'s' * (fits > 1)} make{'s' * (fits == 1)} every phase fit"
    else:
        text = "No change by itself makes every phase fit; these help, the most first"
    st.markdown(f"##### {text}")
    with st.container(gap="xxsmall"):
        for i, r in enumerate(every[:SHOWN]):
            cells = {f"saves {bytes_text(r.saved_bytes)}": SAVES, _costs(r): COSTS}
            label = _named(r.label, r.followers)
            _row(f"phase_{i}", label, cells | {VERDICTS[r.verdict]: THEN}, r.plan, r.changes)
    elements.caption("reliefs")


def servers() -> None:
    """What to change of how the plan serves, with a button each; the others in a table."""
    plan = state.plan()
    every = shared.server_levers(plan)
    if not every:
        return
    if missed := serving_limit(plan, Targets.of(plan)):
        n = sum(not lever.limit for lever in every)
        text = f"{n} change{'s' * (n > 1)} serve{'s' * (n == 1)} them" if n else (
            f"No change by itself serves them, by {LIMITS[missed]}; these come nearer"
        )  # fmt: skip
    else:
        text = "What would be cheaper, or leave more room"
    st.markdown(f"##### {text}")
    for lever in every[:SHOWN]:
        but = "" if lever.serves == SAME else SERVES[lever.serves]
        label = _named(lever.label, lever.followers, but)
        label += f"  \n:small[{plain(tables.server_text(lever))}]"
        _row(f"serve_{lever.name}", label, {}, lever.plan, lever.changes)
    parts.folded("All changes", _table, "server_levers", tables.server_levers(every))


def _row(
    name: str, label: str, cells: Mapping[str, int], to: Plan | Lever, sets: Mapping[str, Any]
) -> None:
    """One change: what it is, what it gives and costs, and its button."""
    with st.container(key=f"lever_{name}", horizontal=True, vertical_alignment="center"):
        st.markdown(label, width="stretch")
        for text, width in cells.items():
            parts.small(text, width)
        st.button(
            "Apply",
            key=f"apply_{name}",
            on_click=state.replace,
            args=(to.plan, to.label) if isinstance(to, Lever) else (to,),
            help=f"Sets {plain(', '.join(change_texts(sets, ':')))}.",
            width=APPLY,
        )


def _table(name: str, rows: tables.Rows, order: str = "") -> None:
    """All changes."""
    elements.table(name, rows)
    lines = f"{len(rows)} changes; each line is the plan with that change."
    parts.small(f"{lines} {order} {elements.text(name)}")


def _costs(r: Relief) -> str:
    """What a change costs: of a training step, and of an engine's cache."""
    changes = []
    if round(r.added_seconds, 6):
        changes.append(f"{signed_seconds(r.added_seconds)} a step")
    if r.added_tokens:
        changes.append(f"cache {r.added_tokens:+,} tokens")
    return ", ".join(changes) or "as long a step"


def _named(label: str, followers: Sequence[str], but: str = "") -> str:
    """A change, what else is set with it, and what is no longer the same."""
    text = f"**{plain(label)}**"
    if followers:
        text += f" :small[with {plain(', '.join(followers))}]"
    return f"{text} :small[({plain(but)})]" if but else text


def undo() -> None:
    """What was applied last, while nothing else was changed since, and the way back."""
    label = state.applied()
    if label and not state.session().adjusted:  # that says so on top
        with st.container(horizontal=True, vertical_alignment="center", key="applied"):
            st.markdown(f"Applied: **{plain(label)}**", width="content")
            st.button("Undo", key="undo_lever", on_click=state.undo, icon=":material/undo:")
