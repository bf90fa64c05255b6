"""Waterfall: which change moved how many bytes and seconds on the way from one plan to another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from memcore.cache import cached
from memcore.errors import PlanError
from memcore.plan.plan import Plan, change_texts, put
from memcore.search.change import differences
from memcore.training.training import Training


@dataclass(frozen=True, slots=True)
class Change:
    """One or more fields that were changed at once, and what that moved.

    bytes         of the allocated peak of one GPU
    device_bytes  of the device memory that may be needed at most
    seconds       of a step, and per_token of a token
    """

    label: str
    fields: Mapping[str, Any]
    bytes: int
    device_bytes: int
    seconds: float
    per_token: float

    def to_dict(self) -> dict[str, Any]:
        """The change as plain JSON types."""
        return asdict(self) | {"fields": dict(self.fields)}


def waterfall(before: Plan, after: Plan) -> tuple[Change, ...]:
    """What lies between two plans: fields changed one by one, in the order of a plan's fields.

    A field that the rules do not let change by itself waits for the next that they do; where none
    can, the first goes together with as many of the next as it needs. The parts add up to the whole
    difference. Empty where training is not computed for one of the plans.
    """
    here, goal = _stop(before), _stop(after)
    if here is None or goal is None:
        return ()
    left, changes = differences(before, after), []
    while left:
        fields, there = _next(here.plan, left)
        changes.append(_change(fields, here, there))
        here = there
        left = {path: value for path, value in left.items() if path not in fields}
    return tuple(changes)


@dataclass(frozen=True, slots=True)
class _Stop:
    """A plan on the way: bytes of one GPU as of a Change, and seconds of a step."""

    plan: Plan
    bytes: int
    device_bytes: int
    seconds: float


def _stop(plan: Plan) -> _Stop | None:
    """None where training is not computed. Kept, since of two ways that differ in one field all
    stops are the same but those behind it."""
    return _stop_of_document(json.dumps(plan.document()))


@cached
def _stop_of_document(document: str) -> _Stop | None:
    plan = Plan.of(json.loads(document))
    training = Training.of(plan, rows=False)
    if training is None:
        return None
    memory = training.memory
    seconds = training.time().step_seconds
    return _Stop(plan, memory.allocated_bytes, memory.device_bytes[1], seconds)


def _next(plan: Plan, left: Mapping[str, Any]) -> tuple[dict[str, Any], _Stop]:
    """The next change that is a plan whose training is computed."""
    names = list(left)
    tries = [[name] for name in names] + [names[:n] for n in range(2, len(names) + 1)]
    for chosen in tries:
        fields = {name: left[name] for name in chosen}
        document = plan.document()
        for path, value in fields.items():
            put(document, path, value)
        try:
            there = _stop(Plan.of(document))
        except PlanError:
            continue
        if there:
            return fields, there
    raise AssertionError("all changes together are the plan they lead to")


def _change(fields: Mapping[str, Any], before: _Stop, after: _Stop) -> Change:
    tokens, tokens_now = before.plan.tokens_per_step, after.plan.tokens_per_step
    return Change(
        label=", ".join(change_texts(fields, ":")),
        fields=fields,
        bytes=after.bytes - before.bytes,
        device_bytes=after.device_bytes - before.device_bytes,
        seconds=after.seconds - before.seconds,
        per_token=after.seconds / tokens_now - before.seconds / tokens,
    )
