"""Places: links to the places of the app, and to what the one that is open has inside.

Drawn by a small component, which is one message where each link of Streamlit's would be one. Each
link holds the plan of the address in the moment in which somebody wants to follow it, so that Back
and a new tab keep it, and a change of the plan changes no link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from memcore.formats.texts import MAX_CHARACTERS
from memcore.plan.keys import LOOK
from memcore.plan.plan import Plan
from memcore.units import MiB
from memcore.words.jobs import RL, SERVE, TRAIN, VIEWS

KEY = "places"
MOST_HELD = 32 * MiB  # of a memory snapshot that is dropped
MOST_TEXT = MAX_CHARACTERS  # bytes of another file that is dropped on the page
ROOT = "/"  # what the first view's name is here: it has none in its address

# Not in a shadow: its look is in why.css, from the start.
_component = st.components.v2.component(
    "memplan_places",
    html='<nav class="memplan-places"><div class="st-key-navigation"></div>'
    '<div class="st-key-inside"></div></nav>',
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    isolate_styles=False,
)


def view(name: str, title: str) -> Any:
    """A page of the app; its address is its name."""
    return st.Page(f"views/{name}.py", title=title, url_path=name)


def draw(
    places: Mapping[str, Sequence[Any]], here: Any, take: Callable[[list[list[Any]]], None] | None
) -> None:
    """The links, above all else. `take`: what is done with files that are dropped on the page, each
    a name, a text and what it has of bytes: of a pickle its first in base64, with no text; of any
    other '' and how many, and no text where these are more than MOST_TEXT. None: nothing."""
    rows = [[_link(views[0], place, here in views) for place, views in places.items()]]
    inside = next((views for views in places.values() if here in views), ())
    rows.append([_link(view, view.title, view is here) for view in inside if len(inside) > 1])

    def dropped() -> None:
        files = (st.session_state.get(KEY) or {}).get("dropped")
        if take and files:
            take(files)

    # Of a pickle one byte more is read, which says that there are too many.
    data = {"rows": rows, "without": LOOK, "drops": take is not None}
    data |= {"held": MOST_HELD + 1, "most": MOST_TEXT}
    _component(key=KEY, data=data, on_go_change=lambda: None, on_dropped_change=dropped)


def _link(view: Any, label: str, here: bool) -> dict[str, Any]:
    return {"to": view.url_path or ROOT, "label": label, "here": here}


def lead(view: str) -> None:
    """Let this run lead to the view with this address."""
    st.session_state.leads = view


# The views of what a plan is about, and those that are of every plan.
OF = {SERVE: (VIEWS[SERVE], "stream", "rates"), RL: (VIEWS[RL],)}
OF_ALL = ("explore", "compare")


def lead_to(plan: Plan, page: str) -> None:
    """Let this run lead from the page with this address to a view of what the plan is about, where
    the page is of something else."""
    here = next((about for about, views in OF.items() if page in views), TRAIN)
    if page not in OF_ALL and here != (plan.about if plan.about in OF else TRAIN):
        lead(VIEWS.get(plan.about, ""))


def pressed() -> str:
    """The link that was pressed last, and when; '' where none was."""
    return (st.session_state.get(KEY) or {}).get("go") or ""


def address(press: str) -> str:
    """Of the view that a pressed link leads to."""
    return press.partition(" ")[0].strip(ROOT)
