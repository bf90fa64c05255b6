"""Body: what is drawn again when a number of the plan moves, and no more of the page: the verdict,
the view, and the number's own widgets. Whatever else somebody changes draws the whole page."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import explore, state, strip
from app.sidebar import Sidebar


@st.fragment
def draw(place: str, view: Any, beside: Sidebar) -> None:
    """The body of the page `view`, with the numbers of the sidebar."""
    alone = state.alone()
    if alone:
        state.begin(view.url_path)
    about = explore.about(place)
    if alone:
        if st.session_state.get("why_opens") or state.leads() or not beside.holds(about):
            st.rerun()
        state.publish()
        view._can_be_called = True  # Streamlit lets it run once for each run of the whole page
    strip.draw(about)
    view.run()
    beside.numbers()
    state.drawn()
