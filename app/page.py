"""Memplan in the browser: the frame that every view sits in. main.py serves it."""

from __future__ import annotations

import streamlit as st

from app import explore, levers, places, rest, sidebar, start, state, strip, warm, why

# Drawn here, since every named icon would be fetched from the network.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="5" y="11" fill="#0072B2"/><rect width="11" height="4" y="6.5" '
    'fill="#009E73"/><rect width="7" height="4" y="2" fill="#E69F00"/></svg>'
)
WIDTH = 310  # of the sidebar, in pixels
st.set_page_config(page_title="Memplan", page_icon=ICON, layout="wide", initial_sidebar_state=WIDTH)
warm.once()


def _view(name: str, title: str) -> st.Page:
    """A view; its address is its name."""
    return st.Page(f"views/{name}.py", title=title, url_path=name)


TRAIN = st.Page("views/train.py", title="Train", url_path="home", default=True)
# What people come for, in the bar; and below it what each has further inside.
FRONT = {
    "Train": TRAIN,
    "Serve": _view("serve", "Serve"),
    "RL": _view("together", "RL"),
    "Explore": _view("explore", "Explore"),
    "Compare": _view("compare", "Compare"),
    "Proof": _view("accuracy", "Proof"),
}
INSIDE = {
    "Train": [_view("time", "Time"), _view("tiers", "Tiers"), _view("ledger", "Every tensor")],
    "Serve": [_view("stream", "Requests"), _view("rates", "Arrival rates")],
}
IN_DETAIL = {"Train": "Training in detail", "Serve": "Serving in detail"}
PLACES = {view: place for place, view in FRONT.items()}
PLACES |= {view: place for place, views in INSIDE.items() for view in views}


def _draw(view: st.Page, place: str) -> None:
    """Everything but what takes long."""
    state.publish()
    why.style()
    if place == "Proof":
        view.run()
    else:
        places.draw_drop(sidebar.dropped)
        about = explore.about(place)
        if view is TRAIN and state.fresh():
            start.ask()
        with st.sidebar:
            sidebar.draw(about, view.title)
        strip.draw(about)
        levers.undo()
        view.run()
    state.drawn()
    why.drawer()


view = st.navigation(
    {"": list(FRONT.values())} | {IN_DETAIL[n]: views for n, views in INSIDE.items()},
    position="top",
)
with rest.answering():
    state.begin(view.url_path)
    there = st.session_state.get("leads", view.url_path)
    if there != view.url_path:
        led = next(view for view in PLACES if view.url_path == there)
        st.switch_page(led, query_params=state.query())
    st.session_state.pop("leads", None)
    _draw(view, PLACES[view])
rest.draw_later()
