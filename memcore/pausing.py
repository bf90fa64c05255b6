"""Pausing: whoever lets a long search run can have it pause, or leave off, at many places."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_asked: ContextVar[Callable[[], None] | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def pausing(between: Callable[[], None]) -> Iterator[None]:
    """Until its end this thread calls `between` at each `pause`. What that raises ends the search,
    of which nothing is kept."""
    token = _asked.set(between)
    try:
        yield
    finally:
        _asked.reset(token)


def pause() -> None:
    """Called some milliseconds after each other: before each plan that is evaluated."""
    if between := _asked.get():
        between()
