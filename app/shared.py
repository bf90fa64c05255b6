"""Shared: figures that take long, found once for all sessions that look at the same plan.

A link that costs a second to look at costs it once, however many people open it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

from app import exploring
from memcore.kept import Store, once
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search import solve, solver
from memcore.search.lens import Seen
from memcore.search.lens import lens as find_lens
from memcore.search.levers import Lever
from memcore.search.levers import levers as find_levers
from memcore.search.solve import Answer
from memcore.search.solver import Solved
from memcore.search.waterfall import Change
from memcore.search.waterfall import waterfall as changes_between
from memcore.serving.serve import curve
from memcore.serving.time import Point
from memcore.stream import Load, Stream, simulate
from memcore.stream import loads as simulated_loads
from memcore.training.over_time import Course
from memcore.training.over_time import over_time as find_courses
from memcore.units import MiB

P = ParamSpec("P")
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


def _for_all(find: Callable[Concatenate[Plan, P], R]) -> Callable[Concatenate[Plan, P], R]:
    """Keeps what a plan's figures are, for every session, within the budget of bytes. What is asked
    of the plan besides is hashable."""

    @STORE.kept
    def found(asked: _Asked, *words: P.args, **more: P.kwargs) -> R:
        return find(asked.plan, *words, **more)

    def ask(plan: Plan, /, *words: P.args, **more: P.kwargs) -> R:
        asked = _Asked(plan.model_dump_json(), plan)
        with _turn(find.__name__, f"{asked.text}{words}{more}"):
            return found(asked, *words, **more)

    return update_wrapper(ask, find)


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
def over_time(plan: Plan) -> tuple[Course, ...]:
    """Memory over a step, of each pipeline stage."""
    return find_courses(plan)


@_for_all
def lens(plan: Plan) -> tuple[Seen, ...]:
    """What is done with each tensor, and what else could be."""
    return find_lens(plan)


@_for_all
def largest_batch(plan: Plan) -> Solved:
    """The largest micro-batch with which training fits."""
    return solver.solve(plan, "train.micro_batch")


@_for_all
def longest_sequence(plan: Plan) -> Solved:
    """The longest sequence with which training fits."""
    return solver.solve(plan, "train.seq_len")


@_for_all
def answers(plan: Plan) -> tuple[Answer, ...]:
    """Its longest sequence, the most sequences and the fewest GPUs within its targets."""
    within = solve.Targets.of(plan)
    return (
        solve.longest_context(plan, within),
        solve.largest_concurrency(plan, within),
        solve.fewest_gpus(plan, plan.serve.arrival_rate, within),
    )


@_for_all
def swept(plan: Plan, path: str, figure: str) -> exploring.Sweep:
    """One field against one number."""
    return exploring.sweep(plan, path, figure)


@_for_all
def mapped(plan: Plan, across: str, down: str, figure: str) -> exploring.Map:
    """Two fields against one number."""
    return exploring.grid(plan, across, down, figure)


@_for_all
def bookings(plan: Plan, every: bool) -> tuple[exploring.Booking, ...]:
    """What serves the plan, on each accelerator with a list price, or on every one."""
    names = catalog.gpu_names() if every else catalog.priced_gpus()
    return exploring.bookings(plan, names)


@_for_all
def waterfall(before: Plan, after: str) -> tuple[Change, ...]:
    """What lies between two plans, the second as its text."""
    return changes_between(before, Plan.of(json.loads(after)))
