"""Pins: the plans that are kept to compare with."""

from __future__ import annotations

from app import shared
from app.address import Pin
from app.state import replace, session
from memcore.plan.keys import PINS
from memcore.plan.link import MAX_NAME, name_of


def can_pin() -> bool:
    """Whether there is room for the plan on the page, and it is not pinned already."""
    s = session()
    return len(s.pins) < len(PINS) and all(pin.plan != s.plan for pin in s.pins)


def pin() -> None:
    """Keep the plan as it is, if there is room for it."""
    s = session()
    if can_pin():
        s.pins = (*s.pins, Pin(s.plan, s.name))


def pin_levers(most: int) -> None:
    """Keep the plan, and so many of its best changes that fit, named after them."""
    s = session()
    fit = [lever for lever in shared.levers(s.plan) if lever.fits]
    others = [Pin(lever.plan, _short(lever.label)) for lever in fit[:most]]
    s.pins = (Pin(s.plan, s.name), *others)[: len(PINS)]


def _short(label: str) -> str:
    """A lever's label as a plan's name: what is set alone, where both are too long."""
    return (label if len(label) <= MAX_NAME else label.rpartition(": ")[2])[:MAX_NAME]


def unpin(i: int | None = None) -> None:
    """Let go the plan that was pinned as number `i`, or all of them."""
    s = session()
    s.pins = tuple(pin for n, pin in enumerate(s.pins) if i is not None and n != i)


def take(i: int) -> None:
    """Go on with the plan that was pinned as number `i`; the one on the page has its place, where
    it is not pinned itself."""
    s = session()
    chosen, here = s.pins[i], Pin(s.plan, s.name)
    if all(pin.plan != here.plan for pin in s.pins):
        s.pins = (*s.pins[:i], here, *s.pins[i + 1 :])
    replace(chosen.plan)
    s.name = chosen.name


def rename(i: int | None, name: str) -> None:
    """Call a pinned plan so, or the one on the page."""
    s = session()
    if i is None:
        s.name = name_of(name)
    else:
        s.pins = tuple(Pin(p.plan, name_of(name)) if n == i else p for n, p in enumerate(s.pins))
