"""Progress: a bar on standard error, for what takes more than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType

AFTER = 1.0  # seconds before a bar is drawn
EVERY = 0.1  # seconds between two drawings
WIDTH = 30


class Progress:
    """A bar that is drawn on a terminal once a second has passed, and wiped at the end.

    Call it with what is done and what there is in all.
    """

    def __init__(self, what: str):
        self._what = what
        self._begun = self._drawn = time.monotonic()
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._begun < AFTER or now - self._drawn < EVERY or not sys.stderr.isatty():
            return
        self._drawn, self._shown = now, True
        share = done / max(of, 1)
        full = round(WIDTH * share)
        left = (now - self._begun) * (1 / share - 1) if share else 0.0
        bar = "#" * full + "-" * (WIDTH - full)
        print(
            f"\r{self._what} [{bar}] {share:4.0%}, {left:,.0f} s left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
