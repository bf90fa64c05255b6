"""Rest: what takes long is drawn last, when nobody has changed the plan for a moment.

The verdict, the bar and the charts of a change are then on the page before; whoever moves a slider
from step to step waits for none of what stands between, since a run ends where the next one is
asked for. Of all sessions one at a time works on what takes long, and lets answers to others go
first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import streamlit as st

from app import state
from memcore.pausing import pausing

QUIET = 0.4  # seconds; 0: nothing waits
PATIENCE = 2.0  # seconds, at most, for which answers to others come first
MOMENT = 0.02  # seconds between two looks whether somebody waits for an answer

_TURN = threading.Lock()
_COUNTING = threading.Lock()
_answers = 0  # runs of all sessions that draw now what somebody has asked for


def _count(by: int) -> None:
    global _answers
    with _COUNTING:
        _answers += by


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """This run draws what somebody waits for."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


@contextlib.contextmanager
def waiting_for_another() -> Iterator[None]:
    """This run waits for what another one computes, which must not let this one go first."""
    _count(-1)
    try:
        yield
    finally:
        _count(1)


def later(content: Callable[[], None], what: str) -> None:
    """Draw `content` here at the end of the run, once the plan rests; until then a line says `what`
    comes. Call it once on a page."""
    s = state.session()
    place = st.empty()
    if not QUIET or s.rested == s.plan:
        with place.container():
            content()
        return
    place.markdown(f":small[{what} when you pause …]")
    s.later = place, content


def draw_later() -> None:
    """What takes long, where the page has any. Call it last, outside of `answering`."""
    s = state.session()
    if s.later is None:
        return
    (place, content), s.later = s.later, None
    _sleep(QUIET)
    while not _TURN.acquire(timeout=MOMENT):
        _stop_where_asked()
    try:
        with pausing(_others_first()), place.container():
            content()
        s.rested = s.plan
    finally:
        _TURN.release()


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(MOMENT)
        _stop_where_asked()


def _stop_where_asked() -> None:
    """End this run where the next one of its session is asked for: Streamlit does so at every look
    at what the session holds."""
    st.session_state.get("memplan")


def _others_first() -> Callable[[], None]:
    """What lets others go first, for PATIENCE in all."""
    waited = 0.0

    def wait() -> None:
        nonlocal waited
        _stop_where_asked()
        while _answers > 0 and waited < PATIENCE:
            time.sleep(MOMENT)
            waited += MOMENT
            _stop_where_asked()

    return wait
