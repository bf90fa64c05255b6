"""Edges: where what holds along some whole numbers ends, found by doubling and halving.

What is asked is true up to an edge, or from one on; whoever asks says which.
"""

from __future__ import annotations

from collections.abc import Callable


def first(n: int, ok: Callable[[int], bool], start: int = 0) -> int:
    """The least of 0, 1, ..., n - 1 that is ok, if all above it are; n where none is. Looked for
    from `start` on, further away each time, and then by halving."""
    if not n:
        return 0
    here, step = ok(start), 1
    outside, inside = (-1, start) if here else (start, n)
    while outside < (at := inside - step if here else outside + step) < inside:
        there = ok(at)
        outside, inside = (outside, at) if there else (at, inside)
        if there != here:
            break
        step *= 2
    while inside - outside > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if ok(middle) else (inside, middle)
    return inside


def last(most: int, ok: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` that is ok, if all below it are; 0 where none is."""
    return first(most, lambda n: not ok(n + 1))


def between(good: int, bad: int, ok: Callable[[int], bool]) -> int:
    """The last whole number from one that is ok towards one that is not, if all up to it are."""
    step = 1 if bad > good else -1
    return good + step * last(abs(bad - good) - 1, lambda n: ok(good + step * n))
