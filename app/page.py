"""Memplan in the browser: the frame that every view sits in. main.py serves it."""

from __future__ import annotations

import streamlit as st

from app import parts, sidebar, state, warm, why

# Drawn here, since every named icon would be fetched from the network.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="5" y="11" fill="#0072B2"/><rect width="11" height="4" y="6.5" '
    'fill="#009E73"/><rect width="7" height="4" y="2" fill="#E69F00"/></svg>'
)
st.set_page_config(page_title="Memplan", page_icon=ICON, layout="wide")
warm.once()

VIEWS = [
    st.Page("views/train.py", title="Train", url_path="home", default=True),
    st.Page("views/timeline.py", title="Timeline", url_path="timeline"),
    st.Page("views/time.py", title="Time", url_path="time"),
    st.Page("views/tiers.py", title="Tiers", url_path="tiers"),
    st.Page("views/serve.py", title="Serve", url_path="serve"),
    st.Page("views/together.py", title="Together", url_path="together"),
    st.Page("views/ledger.py", title="Ledger", url_path="ledger"),
    st.Page("views/accuracy.py", title="Accuracy", url_path="accuracy"),
    st.Page("views/method.py", title="Method", url_path="method"),
]
# The default view lives at "/"; its name leads there too.
ALIAS = st.Page("views/train.py", title="Train", url_path="train", visibility="hidden")
# Hidden: the links of parts.navigation carry the plan, which Streamlit's own would drop.
view = st.navigation([*VIEWS, ALIAS], position="hidden")

state.begin(view.url_path)
state.publish()
beside = st.sidebar.container()  # stands there from the start, so that nothing moves later
why.style()
parts.navigation(VIEWS)
parts.header(serves=view.url_path == "serve")
view.run()
why.drawer()
with beside:
    sidebar.draw(view.title)
state.drawn()
