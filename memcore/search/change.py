"""Changes of a plan: what is tried, in ladders, and what stands of it in which order.

Levers of training, of a server and of both on the same GPUs are found by one loop: of each ladder
the first step that does what is asked is taken, or else the last that helps. Each figure is the
difference of two evaluations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from memcore.plan.plan import SECTIONS, Plan, change_texts
from memcore.report import fields_but
from memcore.timing.certainty import Told, apart, ranked

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One thing to try: changes in the order in which they cost more. The first that does what is
    asked is taken, or else the last that helps. What is named is the first field of each.
    `looked_at`: of a long ladder, the indices that are tried first; between them it is searched by
    halving, as each of its changes needs less memory than the one before, nearly."""

    kind: str
    ladder: Sequence[Changes]
    looked_at: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """One change of a plan.

    name     stable: 'checkpointing-full'; of two at once both, with '-and-' between
    fields   those that the label names: one, or one of each of two at once
    changes  every field that differs, those that had to follow included
    plan     with the change
    rank     1 is the best; those that cannot be told apart have the same
    """

    name: str
    label: str
    fields: tuple[str, ...]
    changes: Mapping[str, Any]
    plan: Plan
    rank: int = 0

    @property
    def followers(self) -> list[str]:
        """What else is set than what the label says: 'Framework PyTorch FSDP2'."""
        return change_texts({p: v for p, v in self.changes.items() if p not in self.fields})

    def to_dict(self) -> dict[str, Any]:
        """The change as plain JSON types, without its plan."""
        return fields_but(self, "plan") | {"changes": dict(self.changes)}


def named(parts: Iterable[Changes], before: Plan, after: Plan) -> dict[str, Any]:
    """What a PlanChange is called, by the first field of each of its parts, and what it sets."""
    of = [next(iter(part.items())) for part in parts]
    return {
        "name": "-and-".join(f"{p.rpartition('.')[2]}-{str(v).lower()}" for p, v in of),
        "label": " + ".join(change_texts(dict(of), ":")),
        "fields": tuple(path for path, _ in of),
        "changes": differences(before, after),
        "plan": after,
    }


Judged = TypeVar("Judged")
SomeChange = TypeVar("SomeChange", bound=PlanChange)


def climbed(
    steps: Iterable[int],
    judged: Callable[[int], Judged | None],
    helps: Callable[[Judged], bool],
    does: Callable[[Judged], bool],
) -> tuple[int, Judged] | None:
    """Of a ladder's steps the first that does what is asked, or else the last that helps; None
    where none helps. `judged`: what becomes of the plan there, None where rules forbid it."""
    best = None
    for i in steps:
        here = judged(i)
        if here is not None and helps(here):
            best = i, here
            if does(here):
                break
    return best


def in_order(
    changes: Iterable[SomeChange],
    group: Callable[[SomeChange], tuple[Any, ...]],
    then: Callable[[SomeChange], tuple[Any, ...]],
    cost: Callable[[SomeChange], float | None],
    told: Told = apart,
) -> tuple[SomeChange, ...]:
    """Changes with their ranks: by group, and in a group by `then`. Those of a group that cannot be
    told apart by their cost have the same rank; None: they are not sorted by it."""
    ordered: list[SomeChange] = []
    for _, group_of in itertools.groupby(
        sorted(changes, key=lambda c: (group(c), then(c))), key=group
    ):
        of = list(group_of)
        costs = [value for c in of if (value := cost(c)) is not None]
        ranks = ranked([c.plan for c in of], costs, told) if costs else range(1, len(of) + 1)
        before = len(ordered)
        ordered += [replace(c, rank=before + rank) for c, rank in zip(of, ranks, strict=True)]
    return tuple(ordered)


def differences(before: Plan, after: Plan) -> dict[str, Any]:
    """The fields in which two plans differ, with the second's values, in the order of a plan."""
    changed: dict[str, Any] = {}
    for section in Plan.model_fields:
        was, now = getattr(before, section), getattr(after, section)
        if section not in SECTIONS and was != now:
            changed[section] = now
        if section not in SECTIONS or was is now:
            continue
        for name, value in now.__dict__.items():
            if value != was.__dict__[name]:
                described = isinstance(value, BaseModel)  # an object in place of a preset's name
                plain = value.model_dump(mode="json") if described else value
                changed[f"{section}.{name}"] = plain
    return changed
