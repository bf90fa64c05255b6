"""Places: the views of the app, which of them a plan leads to, and files dropped on any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from memcore.formats.texts import MAX_CHARACTERS
from memcore.plan.plan import Plan
from memcore.units import MiB
from memcore.words.jobs import RL, SERVE, TRAIN, VIEWS

MOST_HELD = 32 * MiB  # of a memory snapshot that is dropped
MOST_TEXT = MAX_CHARACTERS  # bytes of another file that is dropped on the page
# The views in the order of the bar, by their addresses: the place of each, and its title.
BAR = {
    "": ("Train", "Train"),
    "time": ("Train", "Time"),
    "tiers": ("Train", "Tiers"),
    "ledger": ("Train", "Tensors"),
    "serve": ("Serve", "Serve"),
    "stream": ("Serve", "Requests"),
    "rates": ("Serve", "Rates"),
    "together": ("RL", "RL"),
    "explore": ("Explore", "Explore"),
    "compare": ("Compare", "Compare"),
    "accuracy": ("Proof", "Proof"),
}
FIRST = ""  # the address of the first view, which is the server's own
ADDRESSES = BAR.keys() - {FIRST}
# The views of what a plan is about, and those that are of every plan.
OF = {SERVE: (VIEWS[SERVE], "stream", "rates"), RL: (VIEWS[RL],)}
OF_ALL = ("explore", "compare")

# The app's only component: Streamlit's own box takes files where it stands, and not on the page.
_drop = st.components.v2.component(
    "memplan_drop", html="", js=Path(__file__).with_name("drop.js").read_text(encoding="utf-8")
)


def draw_drop(take: Callable[[list[list[Any]]], None]) -> None:
    """Let files be dropped anywhere on the page. `take`: what is done with them, each a name, a
    text and what it has of bytes: of a pickle its first in base64, with no text; of any other ''
    and how many, and no text where these are more than MOST_TEXT."""

    def dropped() -> None:
        if files := (st.session_state.get("drop") or {}).get("dropped"):
            take(files)

    # Of a pickle one byte more is read, which says that there are too many.
    data = {"held": MOST_HELD + 1, "most": MOST_TEXT}
    with st.container(key="hidden_drop"):
        _drop(key="drop", data=data, on_dropped_change=dropped)


def lead(view: str) -> None:
    """Let this run lead to the view with this address."""
    st.session_state.leads = view


def lead_to(plan: Plan, page: str) -> None:
    """Let this run lead from the page with this address to a view of what the plan is about, where
    the page is of something else."""
    here = next((about for about, views in OF.items() if page in views), TRAIN)
    if page not in OF_ALL and here != (plan.about if plan.about in OF else TRAIN):
        lead(VIEWS.get(plan.about, ""))
