"""Memplan in the browser: the frame that every view sits in. main.py serves it."""

from __future__ import annotations

import streamlit as st

from app import body, explore, places, sidebar, start, state, warm, why

# Drawn here, since every named icon would be fetched from the network.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="5" y="11" fill="#0072B2"/><rect width="11" height="4" y="6.5" '
    'fill="#009E73"/><rect width="7" height="4" y="2" fill="#E69F00"/></svg>'
)
WIDTH = 310  # of the sidebar, in pixels
st.set_page_config(page_title="Memplan", page_icon=ICON, layout="wide", initial_sidebar_state=WIDTH)
warm.once()


# No function is made here or in the view of a plan: it and all that the run has made would keep
# each other until Python looks for cycles.
# What people come for, and the views of each; the address of a view is its name.
TRAIN = st.Page("views/train.py", title="Memory", url_path="home", default=True)
PLACES = {
    "Train": (
        TRAIN,
        places.view("time", "Time"),
        places.view("tiers", "Tiers"),
        places.view("ledger", "Every tensor"),
    ),
    "Serve": (
        places.view("serve", "Memory"),
        places.view("stream", "Requests"),
        places.view("rates", "Arrival rates"),
    ),
    "RL": (places.view("together", "RL"),),
    "Explore": (places.view("explore", "Explore"),),
    "Compare": (places.view("compare", "Compare"),),
    "Proof": (places.view("accuracy", "Accuracy"),),
}
# Other names of the first view: its own, and that of what stands on it now.
ALIASES = [
    st.Page("views/train.py", title="Memory", url_path=name, visibility="hidden")
    for name in ("train", "timeline")
]
# Hidden: the links of places.py carry the plan, which Streamlit's own would drop.
every = [view for views in PLACES.values() for view in views]
view = st.navigation([*every, *ALIASES], position="hidden")
here = TRAIN if view.url_path in ("train", "timeline") else view
place = next(name for name, views in PLACES.items() if here in views)

state.begin(view.url_path)
state.publish()
if (there := state.led(here.url_path)) is not None:
    led = next(v for v in every if v.url_path == there)
    st.switch_page(led, query_params=state.query())
why.style()
places.draw(PLACES, here, None if place == "Proof" else sidebar.dropped)
if place == "Proof":
    view.run()
    state.drawn()
else:
    asked = st.container()  # also where it stays empty, so that the body has one place on all pages
    if here is TRAIN and state.fresh():
        with asked:
            start.ask()
    with st.sidebar:
        beside = sidebar.draw(explore.about(place), view.title)
    body.draw(place, view, beside)
why.drawer()
