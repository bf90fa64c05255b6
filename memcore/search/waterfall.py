"""Waterfall: which change moved how many bytes and seconds on the way from one plan to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memcore.errors import PlanError
from memcore.plan.plan import Plan, put, title_of, value_text
from memcore.report import Time
from memcore.search.levers import differences
from memcore.training.training import Pool, Training


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


def waterfall(before: Plan, after: Plan) -> tuple[Change, ...]:
    """What lies between two plans: fields changed one by one, in the order of a plan's fields.

    A field that the rules do not let change by itself waits for the next that they do; where none
    can, the first goes together with as many of the next as it needs. The parts add up to the whole
    difference. Empty where training is not computed for one of the plans.
    """
    pool: Pool = {}
    here, goal = (Training.of(p, rows=False, pool=pool) for p in (before, after))
    if here is None or goal is None:
        return ()
    time = here.time()
    left, found = differences(before, after), []
    while left:
        fields, there, then = _next(here.plan, left, pool)
        found.append(_change(fields, here, there, time, then))
        here, time = there, then
        left = {path: value for path, value in left.items() if path not in fields}
    return tuple(found)


def _next(plan: Plan, left: Mapping[str, Any], pool: Pool) -> tuple[dict[str, Any], Training, Time]:
    """The next change that is a plan whose training is computed."""
    names = list(left)
    tries = [[name] for name in names] + [names[:n] for n in range(2, len(names) + 1)]
    for chosen in tries:
        fields = {name: left[name] for name in chosen}
        document = plan.document()
        for path, value in fields.items():
            put(document, path, value)
        try:
            changed = Training.of(Plan.of(document), rows=False, pool=pool)
        except PlanError:
            continue
        if changed:
            return fields, changed, changed.time()
    raise AssertionError("all changes together are the plan they lead to")


def _change(
    fields: Mapping[str, Any], before: Training, after: Training, was: Time, now: Time
) -> Change:
    texts = [f"{title_of(path)}: {value_text(path, value)}" for path, value in fields.items()]
    tokens, tokens_now = before.plan.tokens_per_step, after.plan.tokens_per_step
    return Change(
        label=", ".join(texts),
        fields=fields,
        bytes=after.memory.allocated_bytes - before.memory.allocated_bytes,
        device_bytes=after.memory.device_bytes[1] - before.memory.device_bytes[1],
        seconds=now.step_seconds - was.step_seconds,
        per_token=now.step_seconds / tokens_now - was.step_seconds / tokens,
    )
