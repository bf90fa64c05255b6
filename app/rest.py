"""Rest: what takes long to find waits until nobody has changed the plan for a moment.

The verdict, the bar and the charts of a change are then on the page before; whoever moves a slider
from step to step waits for none of what stands between. Nor does anybody else: of all sessions one
at a time finds what takes long, so that a change never shares the processor with many of those.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import streamlit as st

from app import front, state
from memcore.pausing import pause, pausing

QUIET_MS = 400  # 0: nothing waits
LOOKS_EACH = 1.0  # seconds until who waits for its turn looks without being called
PATIENCE = 2.0  # seconds, at most, for which answers to others come first
MOMENT = 0.005  # seconds between two looks whether somebody waits for an answer

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
            with contextlib.suppress(AskedAgainError), _turn():
                pause()
                content()
                return
        else:
            meanwhile()
        _component(
            key="rest",
            data={"run": state.run(), "quiet": QUIET_MS, "query": state.address()},
            on_over_change=lambda: st.session_state.update(rested=plan),
        )


_LINE: deque[threading.Event] = deque()  # who finds something now, and who waits for the turn
_LOCK = threading.Lock()


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Waits for this session's turn, or until it is not wanted any more. What is found then lets
    answers to others go first, and is left off where somebody goes on, between any two plans."""
    front.step_back()
    with front.called() as call:
        with _LOCK:
            _LINE.append(call)
        try:
            while _LINE[0] is not call and not front.asked_again():
                call.wait(LOOKS_EACH)
                call.clear()
            with pausing(_others_first()):
                yield
        finally:
            with _LOCK:
                _LINE.remove(call)
                if _LINE:
                    _LINE[0].set()


def _others_first() -> Callable[[], None]:
    """What lets others go first, for PATIENCE in all."""
    waited = 0.0

    def wait() -> None:
        nonlocal waited
        go_on()
        while front.ANSWERING and waited < PATIENCE:
            time.sleep(MOMENT)
            waited += MOMENT
            go_on()

    return wait
