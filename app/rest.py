"""Rest: what takes long to find waits until nobody has changed the plan for a moment.

The verdict, the bar and the charts of a change are then on the page before; whoever moves a slider
from step to step waits for none of what stands between. Nor does anybody else: of all sessions one
at a time finds what takes long, so that a change never shares the processor with many of those.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import streamlit as st

from app import front, state

QUIET_MS = 400  # 0: nothing waits
LOOKS_EACH = 0.05  # seconds between two looks of who waits for its turn
PATIENCE = 2.0  # seconds, at most, for which answers to others come first

_component = st.components.v2.component(
    "memplan_rest",
    html="",
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


class AskedAgainError(Exception):
    """Somebody has changed something while what takes long was found, and waits for that."""


def go_on() -> None:
    """Between two steps of what takes long: raises AskedAgainError."""
    if front.asked_again():
        raise AskedAgainError


@st.fragment
def when_over(content: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    """Draws `content` once the plan rests, without the rest of the page, and until then
    `meanwhile`. Where somebody goes on before it is done, what there is of it stays for the moment
    until that is drawn. Call it once on a page."""
    state.whole_page_where_asked()
    with st.container(key="rests"):
        plan = state.plan()
        if not QUIET_MS or st.session_state.get("rested") == plan:
            with _turn(content), contextlib.suppress(AskedAgainError):
                go_on()
                content()
                return
        else:
            meanwhile()
        _component(
            key="rest",
            data={"run": state.run(), "quiet": QUIET_MS, "query": state.address()},
            on_over_change=lambda: st.session_state.update(rested=plan),
        )


_TURNS: dict[str, threading.Lock] = defaultdict(threading.Lock)


@contextlib.contextmanager
def _turn(content: Callable[[], None]) -> Iterator[None]:
    """Waits until nobody else waits for an answer, and for this session's turn to find `content`;
    or until it is not wanted any more."""
    lock = _TURNS[f"{content.__module__}.{content.__qualname__}"]
    front.step_back()
    mine, begun = False, time.monotonic()
    while not mine and not front.asked_again():
        if front.ANSWERING and time.monotonic() - begun < PATIENCE:
            time.sleep(LOOKS_EACH)
        else:
            mine = lock.acquire(timeout=LOOKS_EACH)
    try:
        yield
    finally:
        if mine:
            lock.release()
