"""Interval: a number that is known by its low and its high end, and what fits by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memcore.quantity.formula import Formula
from memcore.quantity.glossary import term
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.reading import QUANTITIES, Read, Terms
from memcore.tape.dims import where

if TYPE_CHECKING:
    from memcore.explain.book import Book

INTERVAL = ("at least", "at most")
Function = Callable[[Any, int], Read]


def interval(
    path: str, what: str, unit: str, meaning: str = "", word: str = ""
) -> Callable[[Function], Function]:
    """Declares the interval at a path and each of its ends ('.0', '.1'), as `quantity` does a
    number. The function gets a reading `x` and the end. `word`: the one of method.toml's terms
    that says the meaning."""

    def register(function: Function) -> Function:
        QUANTITIES[path] = lambda x: _ends(function(x, 0), function(x, 1))
        for end in (0, 1):
            QUANTITIES[f"{path}.{end}"] = partial(_one, function, end)

        @rule(path)
        def both(book: Book) -> Explanation:
            return ends(book, path, what, meaning or term(word), unit)

        @rule(f"{path}.0|1")
        def one(book: Book, end: str) -> Explanation:
            made = function(Terms(book), int(end))
            if made is None:
                raise LookupError(path)
            return about(f"{what}, {INTERVAL[int(end)]}", unit, made, meaning or term(word))

        return function

    return register


def _ends(low: Read, high: Read) -> Read:
    """Both, or None where a plan has no such number."""
    return None if low is None else (low, high)


def _one(function: Function, end: int, x: Any) -> Read:
    return function(x, end)


def ends(book: Book, path: str, what: str, meaning: str, unit: str = "bytes") -> Explanation:
    """Two numbers as one."""
    low, high = (book.at(f"{path}.{i}", f"{what}, {INTERVAL[i]}") for i in (0, 1))
    both = Formula(
        (low.value, high.value),
        f"{low.words}; {high.words}",
        f"{low.numbers} to {high.numbers}",
        (*low.terms, *high.terms),
    )
    return about(what, unit, both, meaning)


def fitting(
    needed: Sequence[Read], room: Read, others: Sequence[tuple[Read, Read]] = ()
) -> tuple[Read, Read]:
    """Whether an interval of device memory is no more than the room for it, as yes or no and as
    'fits', 'tight' (the low end alone is) or 'over'. `others`: what else has to be no more than its
    room; what is nothing is not said."""
    low, high = needed
    roomy: Any = True
    for held, most in others:
        roomy = roomy & (held <= most)
    fits, possible = (high <= room) & roomy, (low <= room) & roomy
    verdict: Any = where(fits, "fits", where(possible, "tight", "over"))
    if not isinstance(room, Formula):
        return fits, verdict
    said = [(h, most) for h, most in others if h.value]
    pairs = [(high, room), *said]
    words = "fits where " + " and ".join(f"{h.words} is no more than {m.words}" for h, m in pairs)
    numbers = "; ".join(f"{h.numbers} against {m.numbers}" for h, m in pairs)
    every = (low, high, room, *(f for pair in said for f in pair))
    terms = tuple(dict.fromkeys(t for f in every for t in f.terms))
    tight = f"{words}; tight where only the low end of device memory is"
    return Formula(fits, words, numbers, terms), Formula(verdict, tight, numbers, terms)
