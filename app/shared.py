"""Shared: figures that take long, found once for all sessions that look at the same plan.

A link that costs a second to look at costs it once, however many people open it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from app import exploring
from memcore.cache import cached
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.report import Report, Serve
from memcore.search import bookings as to_book
from memcore.search import explore, growing, solve, solver
from memcore.search.lens import lens as find_lens
from memcore.search.levers import Lever
from memcore.search.levers import levers as find_levers
from memcore.search.phases import reliefs as find_reliefs
from memcore.search.result import SearchResult
from memcore.search.server_levers import server_levers as changes_of_server
from memcore.search.servers import fewest_for_users, search_servers
from memcore.search.solve import Answer
from memcore.search.solver import Solved
from memcore.search.waterfall import Change
from memcore.search.waterfall import waterfall as changes_between
from memcore.serving.serve import curve, servable, served_by
from memcore.serving.server import Server
from memcore.stream import Load, Stream, simulate
from memcore.stream import loads as simulated_loads
from memcore.stream.lengths import Lengths
from memcore.together.generation import generation
from memcore.training.over_time import Course
from memcore.training.over_time import over_time as find_courses
from memcore.training.training import Training

P = ParamSpec("P")
R = TypeVar("R")

# Of a simulation on a page: most take a fifth, and a link may ask for twenty times as many. So many
# take about a second of processor.
STEPS = 40_000


@dataclass(frozen=True, slots=True)
class _Question:
    """A plan, known by its text."""

    text: str
    plan: Plan = field(compare=False)


Find = Callable[Concatenate[Plan, P], R]


def _for_all(without: Mapping[str, Any] | None = None) -> Callable[[Find[P, R]], Find[P, R]]:
    """Keeps what a plan's figures are, for every session, among the engine's answers. What is asked
    of the plan besides is hashable. `without`: what of a plan they do not depend on, as pydantic
    excludes it; plans that differ in nothing else share them."""

    def keeping(find: Find[P, R]) -> Find[P, R]:
        @cached
        def answer(question: _Question, *words: P.args, **more: P.kwargs) -> R:
            return find(question.plan, *words, **more)

        def ask(plan: Plan, /, *words: P.args, **more: P.kwargs) -> R:
            text = plan.model_dump_json(exclude=dict(without or {}))
            return answer(_Question(text, plan), *words, **more)

        return update_wrapper(ask, find)

    return keeping


TRAINING = {"train": True, "together": True, "run": True}  # what serving alone does not depend on


@cached
def _training(question: _Question) -> Training | None:
    return Training.of(question.plan)


@cached
def _server(question: _Question) -> Server | None:
    return Server.of(question.plan) if servable(question.plan.architecture) else None


def training(plan: Plan) -> Training | None:
    """Its memory and its time; None where it is not planned."""
    return _training(_Question(plan.model_dump_json(), plan))


def server(plan: Plan) -> Server | None:
    """The plan's server, or that of a plan that trains otherwise at the same price of a GPU; None
    where nothing is served."""
    return _server(_question_of_server(plan))


def _question_of_server(plan: Plan) -> _Question:
    text = plan.model_dump_json(exclude=TRAINING)
    return _Question(f"{text}{plan.run.price_per_gpu_hour}", plan)


@cached
def _served(question: _Question) -> Serve | None:
    """What the report says of the server: whoever changes the training alone, asks it again."""
    planned = _server(question)
    return served_by(planned) if planned else None


@_for_all()
def report(plan: Plan) -> Report:
    return evaluate(plan, training(plan), server(plan), _served(_question_of_server(plan)))


@_for_all()
def book(plan: Plan) -> Book:
    """Why the numbers of the report are what they are, each found when somebody asks."""
    return Book(plan, report(plan))


@_for_all(without=TRAINING)
def stream(plan: Plan, lengths: Lengths | None) -> Stream | None:
    return simulate(plan, lengths, STEPS)


@_for_all(without=TRAINING)
def loads(plan: Plan, lengths: Lengths | None) -> tuple[Load, ...]:
    return simulated_loads(plan, lengths, steps=STEPS)


levers = _for_all()(find_levers)
reliefs = _for_all()(find_reliefs)
generated = _for_all()(generation)
lens = _for_all()(find_lens)
server_levers = _for_all()(changes_of_server)
to_train_on = _for_all()(to_book.to_train_on)
speeds = _for_all(TRAINING)(curve)


@_for_all()
def over_time(plan: Plan) -> tuple[Course, ...]:
    """Memory over a step, of each pipeline stage."""
    return find_courses(plan, training(plan))


@_for_all(without={"train": {"micro_batch"}})
def largest_batch(plan: Plan) -> Solved:
    """The largest micro-batch with which training fits."""
    return solver.solve(plan, growing.BATCH)


@_for_all()
def trains(plan: Plan) -> bool:
    """Whether training fits. What `larger_batch` asks is the same whatever the micro-batch, and
    what `longer_sequence` asks whatever the length."""
    return growing.fits(plan)


@_for_all(without={"train": {"seq_len"}})
def longest_sequence(plan: Plan) -> Solved:
    """The longest sequence with which training fits."""
    return solver.solve(plan, growing.LENGTH)


@_for_all()
def fewest_to_train(plan: Plan) -> Solved:
    """The fewest GPUs on which the whole run keeps to its deadline and its budget."""
    return solver.solve(plan, "cluster.gpus")


@_for_all()
def larger_batch(plan: Plan) -> tuple[Lever, Solved] | None:
    """The one change with which the largest micro-batch fits, and that."""
    here = largest_batch(plan).value or 0
    return growing.larger(growing.BATCH, here, levers(plan), trains, largest_batch)


@_for_all()
def longer_sequence(plan: Plan) -> tuple[Lever, Solved] | None:
    """The one change with which the longest sequence fits, and that."""
    here = longest_sequence(plan).value or 0
    return growing.larger(growing.LENGTH, here, levers(plan), trains, longest_sequence)


def answers(plan: Plan, of_rate: bool) -> tuple[Answer, ...]:
    """Its longest sequence, the most sequences and the fewest GPUs within its targets: of its
    arrival rate, or of its users at once."""
    gpus = None if of_rate else _fewest_for_users(plan)
    return _longest(plan), _most(plan), gpus or _fewest(plan)


# With their plans, which somebody may go on with: those of others train otherwise.
@_for_all(without={"serve": {"prompt_len"}})
def _longest(plan: Plan) -> Answer:
    return solve.longest_context(plan, solve.Targets.of(plan))


@_for_all(without={"serve": {"concurrency"}})
def _most(plan: Plan) -> Answer:
    return solve.largest_concurrency(plan, solve.Targets.of(plan))


@_for_all(without={"serve": {"concurrency"}})
def _fewest(plan: Plan) -> Answer:
    return solve.fewest_gpus(plan, plan.serve.arrival_rate, solve.Targets.of(plan))


@_for_all(without={"serve": {"arrival_rate"}})
def _fewest_for_users(plan: Plan) -> Answer | None:
    return fewest_for_users(plan, solve.Targets.of(plan))


@_for_all()
def swept(plan: Plan, path: str, figure: str) -> explore.Sweep:
    """One field against one number."""
    return explore.sweep(plan, path, figure)


@_for_all()
def mapped(plan: Plan, across: str, down: str, figure: str) -> explore.Map:
    """Two fields against one number."""
    return explore.grid(plan, across, down, figure)


@_for_all()
def servers(plan: Plan, every: bool) -> SearchResult:
    """What serves the plan's users within its targets with its engine and dtypes, on each
    accelerator with a list price, or on every one; the least rent first."""
    return search_servers(plan, gpus=exploring.accelerators(every), engines=(plan.engine,))


@_for_all()
def waterfall(before: Plan, after: str) -> tuple[Change, ...]:
    """What lies between two plans, the second as its text."""
    return changes_between(before, Plan.of(json.loads(after)))
