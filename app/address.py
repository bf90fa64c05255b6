"""Address: what the query of a link or of the address bar decodes to, and back."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.errors import Issue
from memcore.plan.keys import BENCHED, LOOK, MEASURED, NAME, PINS, VERSION
from memcore.plan.link import (
    decode,
    decode_measured,
    decode_pin,
    encode,
    encode_measured,
    encode_pin,
    form_of,
    name_of,
    pin_name,
)
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan

Query = dict[str, list[str]]
MOST_LOOK = 200  # characters of what a page shows


@dataclass(frozen=True, slots=True)
class Pin:
    """A plan that is kept to compare with, and what somebody calls it, or ''."""

    plan: Plan
    name: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """What an address decodes to: its plan, in the form of which link, with its name, the pinned
    ones, what its page shows of them, and what somebody measured: a step, a server."""

    plan: Plan
    form: int
    pins: tuple[Pin, ...]
    name: str
    look: str
    measured: tuple[Measured, ...]

    def query(self) -> dict[str, str]:
        """The query of an address that says all of it."""
        query = encode(self.plan, short=True, form=self.form)
        for each in self.measured:
            query |= encode_measured(each)
        query |= {key: text for key, text in ((NAME, self.name), (LOOK, self.look)) if text}
        pins = zip(PINS, self.pins, strict=False)
        return query | {key: encode_pin(pin.plan, pin.name) for key, pin in pins}


def read(query: Query) -> tuple[Content, list[Issue]]:
    """What a query says, and what of it could not be used."""
    plan, issues = decode(query) if query else (Plan(), [])
    first = {key: values[0] for key, values in query.items() if values and values[0]}
    pins, measured, wrong = [], [], list(issues)
    for key in filter(first.__contains__, PINS):
        pinned, issues = decode_pin(first[key])
        pins.append(Pin(pinned, pin_name(first[key])))
        wrong += [Issue(key, f"in the plan pinned there, {issue}") for issue in issues]
    for key in filter(first.__contains__, (MEASURED, BENCHED)):
        each, issues = decode_measured(key, first[key])
        measured += [each] if each else []
        wrong += issues
    form, name = form_of(query) if query else VERSION, name_of(first.get(NAME, ""))
    look = first.get(LOOK, "")[:MOST_LOOK]
    return Content(plan, form, tuple(pins), name, look, tuple(measured)), wrong
