"""Requests: a simulated stream of requests to one replica, by how its cache is handed out."""

import streamlit as st

from app import measured, parts, rest, simulated, state

if state.report().serve:
    st.markdown("##### A stream of requests, by how the cache is handed out")
    parts.latency_targets()
    parts.lengths_upload()
    simulated.nobodys_rate()
    measured.as_predicted("The engine's speeds are")
    rest.later(simulated.requests, "The stream is simulated")
else:
    parts.absent("A stream of requests")
