"""Turns: of all sessions one at a time works on what takes long, and answers to others go first."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

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
def turn(between: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Waits until no other session works on what takes long. Gives what lets answers go first,
    for PATIENCE in all, to be called often; `between` is called as long as anything is waited for,
    and ends the wait with what it raises."""
    while not _TURN.acquire(timeout=MOMENT):
        between()
    try:
        yield _others_first(between)
    finally:
        _TURN.release()


def _others_first(between: Callable[[], None]) -> Callable[[], None]:
    waited = 0.0

    def wait() -> None:
        nonlocal waited
        between()
        while _answers > 0 and waited < PATIENCE:
            time.sleep(MOMENT)
            waited += MOMENT
            between()

    return wait
