"""Rest: what takes long to find waits until nobody has changed the plan for a moment.

The verdict, the bar and the charts of a change are then on the page before; whoever moves a slider
from step to step waits for none of what stands between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from app import state

QUIET_MS = 400  # 0: nothing waits

_component = st.components.v2.component(
    "memplan_rest",
    html="",
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


@st.fragment
def when_over(content: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Draws `content` once the plan rests, without the rest of the page, and until then
    `meanwhile`. Call it once on a page."""
    state.whole_page_where_asked()
    with st.container(key="rests"):
        plan = state.plan()
        if not QUIET_MS or st.session_state.get("rested") == plan:
            content()
            return
        meanwhile()
        _component(
            key="rest",
            data={"run": state.run(), "quiet": QUIET_MS, "query": state.address()},
            on_over_change=lambda: st.session_state.update(rested=plan),
        )
