"""Rest: what takes long is drawn last, when nobody has changed the plan for a moment.

The verdict, the bar and the charts of a change are then on the page before; whoever moves a slider
from step to step waits for none of what stands between, since a run ends where the next one is
asked for. Of all sessions one at a time works on what takes long, and lets answers to others go
first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from app import state, turns
from memcore.pausing import pausing

QUIET = 0.4  # seconds; 0: nothing waits


def later(content: Callable[[], None], what: str) -> None:
    """Draw `content` here at the end of the run, once the plan rests. Until then what was drawn for
    the plan before stays here, so that nothing moves; before there was any, a line says `what`
    comes. Call it once on a page."""
    s = state.session()
    place = st.container(key="rests")
    line = place.empty()
    s.later = place, line, content
    if s.rested is None:
        line.markdown(f":small[{what} when you pause …]")


def _rests() -> bool:
    s = state.session()
    return not QUIET or s.rested == s.plan


def draw_at_once() -> None:
    """What takes long, where the plan rested already. Call it after the view and not in it: as in
    `draw_later`, or Streamlit takes the widgets for others."""
    if _rests():
        _draw()


def draw_later() -> None:
    """What takes long, where the page has any. Call it last, outside of `turns.answering`."""
    s = state.session()
    if s.later is None:
        return
    _sleep(QUIET)
    with turns.turn(_stop_if_requested) as others_first, pausing(others_first):
        _draw()
    s.rested = s.plan


def _draw() -> None:
    s = state.session()
    if s.later is not None:
        (place, line, content), s.later = s.later, None
        with place:
            content()
        line.empty()


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(turns.MOMENT)
        _stop_if_requested()


def _stop_if_requested() -> None:
    """End this run where the next one of its session is asked for: Streamlit does so at every look
    at what the session holds."""
    st.session_state.get("memplan")
