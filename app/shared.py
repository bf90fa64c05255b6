"""Shared: figures that take long, found once for all sessions that look at the same plan.

A link that costs a second to look at costs it once, however many people open it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

from memcore.kept import Store, once
from memcore.plan.plan import Plan
from memcore.search import solve
from memcore.search.levers import Lever
from memcore.search.levers import levers as find_levers
from memcore.search.solve import Answer
from memcore.serving.serve import curve
from memcore.serving.time import Point
from memcore.stream import Load, Stream, simulate
from memcore.stream import loads as simulated_loads
from memcore.units import MiB

R = TypeVar("R")

BUDGET = 16 * MiB
# Of a simulation on a page: most take a fifth, and a link may ask for twenty times as many. So many
# take about a second of processor.
STEPS = 40_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """A plan, known by its text."""

    text: str
    plan: Plan = field(compare=False)


STORE = Store(BUDGET)


@once
def _turn(name: str, text: str) -> threading.Semaphore:
    """Whoever asks the same waits for the first: two would take twice as long."""
    return threading.Semaphore()


def _for_all(find: Callable[[Plan], R]) -> Callable[[Plan], R]:
    """Keeps what a plan's figures are, for every session, within the budget of bytes."""

    @STORE.kept
    def found(asked: _Asked) -> R:
        return find(asked.plan)

    @wraps(find)
    def ask(plan: Plan) -> R:
        asked = _Asked(plan.model_dump_json(), plan)
        with _turn(find.__name__, asked.text):
            return found(asked)

    return ask


@_for_all
def stream(plan: Plan) -> Stream | None:
    return simulate(plan, steps=STEPS)


@_for_all
def loads(plan: Plan) -> tuple[Load, ...]:
    return simulated_loads(plan, steps=STEPS)


@_for_all
def speeds(plan: Plan) -> tuple[Point, ...]:
    return curve(plan)


@_for_all
def levers(plan: Plan) -> tuple[Lever, ...]:
    return find_levers(plan)


@_for_all
def answers(plan: Plan) -> tuple[Answer, ...]:
    """Its longest sequence, the most sequences and the fewest GPUs within its targets."""
    within = solve.Targets(plan.serve.target_ttft or None, plan.serve.target_tpot or None)
    return (
        solve.longest_context(plan, within),
        solve.largest_concurrency(plan, within),
        solve.fewest_gpus(plan, plan.serve.arrival_rate, within),
    )
