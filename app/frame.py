"""Frame: what every view sits in."""

from __future__ import annotations

import streamlit as st

from app import explore, files, levers, places, rest, sidebar, start, state, strip, turns, warm, why

# Drawn here, since every named icon would be fetched from the network.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="5" y="11" fill="#0072B2"/><rect width="11" height="4" y="6.5" '
    'fill="#009E73"/><rect width="7" height="4" y="2" fill="#E69F00"/></svg>'
)
WIDTH = 310  # of the sidebar, in pixels


def draw() -> None:
    """The page."""
    st.set_page_config(
        page_title="Memplan", page_icon=ICON, layout="wide", initial_sidebar_state=WIDTH
    )
    warm.once()
    views = {address: _view(address, title) for address, (_, title) in places.BAR.items()}
    view = st.navigation(list(views.values()), position="top")
    with turns.answering():
        state.begin(view.url_path)
        there = st.session_state.get("leads", view.url_path)
        if there != view.url_path:
            st.switch_page(views[there], query_params=state.query())
        st.session_state.pop("leads", None)
        _draw(view)
    rest.draw_later()


def _view(address: str, title: str) -> st.Page:
    """A view; its address is the name of its file."""
    if address == places.FIRST:
        return st.Page("views/train.py", title=title, url_path="home", default=True)
    return st.Page(f"views/{address}.py", title=title, url_path=address)


def _draw(view: st.Page) -> None:
    """Everything but what takes long."""
    state.publish()
    why.style()
    place, _ = places.BAR[view.url_path]
    if place == "Proof":
        view.run()
    else:
        places.draw_drop(files.dropped)
        about = explore.about(place)
        if view.url_path == places.FIRST and state.session().fresh:
            start.ask()
        strip.draw(about)
        levers.undo()
        view.run()
        with st.sidebar:  # after what one waits for
            sidebar.draw(about, view.title)
        rest.draw_at_once()
    state.session().controls.drawn()
    why.drawer()
