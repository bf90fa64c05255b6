"""Fronts: of several ways, those that no other beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Way = TypeVar("Way")
Figured = tuple[tuple[float, ...], Way]  # a way behind its figures, of which less is better
Beats = Callable[[Figured[Way], Figured[Way]], bool]


def front(ways: Iterable[Figured[Way]], beats: Beats[Way]) -> list[Way]:
    """Those that no other beats, in the order of their figures. beats: whether one beats another
    that comes behind it."""
    unbeaten: list[Figured[Way]] = []
    for figured in sorted(ways, key=lambda pair: pair[0]):
        if not any(beats(one, figured) for one in unbeaten):
            unbeaten.append(figured)
    return [way for _, way in unbeaten]
