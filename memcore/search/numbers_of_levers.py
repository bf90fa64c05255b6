"""How the numbers of levers come about: two evaluations, and the difference between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcore.quantity.formula import Formula, known
from memcore.quantity.quantity import Explanation, about, rule
from memcore.search.levers import Lever, levers
from memcore.timing.certainty import apart

if TYPE_CHECKING:
    from memcore.explain.book import Book


def _lever(book: Book, name: str) -> Lever:
    found = book.once("levers", lambda: {lever.name: lever for lever in levers(book.plan)})
    lever: Lever = found[name]
    return lever


def _then(lever: Lever, what: str, value: float, unit: str, certainty: str) -> Formula:
    """A number of the changed plan."""
    changes = ", ".join(f"{path} = {value}" for path, value in lever.changes.items())
    source = f"the plan with {changes}, evaluated by itself"
    return known(f"{what} with the change", value, unit, certainty=certainty, source=source)


@rule("levers.*.saved_bytes")
def _saved(book: Book, name: str) -> Explanation:
    lever = _lever(book, name)
    now = book.at("memory.allocated_bytes")
    then = _then(lever, "allocated", now.value - lever.saved_bytes, "bytes", now.certainty)
    meaning = "What the change saves of the allocated peak; below 0: it needs more."
    return about(f"Saved by {lever.label}", "bytes", now - then, meaning)


@rule("levers.*.saved_device_bytes")
def _saved_device(book: Book, name: str) -> Explanation:
    lever = _lever(book, name)
    now = book.at("memory.device_bytes.1")
    value = now.value - lever.saved_device_bytes
    then = _then(lever, "device memory, at most", value, "bytes", now.certainty)
    meaning = "What the change saves of the device memory that may be needed at most."
    return about(f"Saved by {lever.label}, of the device", "bytes", now - then, meaning)


@rule("levers.*.added_seconds")
def _added(book: Book, name: str) -> Explanation:
    lever = _lever(book, name)
    now = book.at("time.step_seconds")
    then = _then(lever, "step time", now.value + lever.added_seconds, "seconds", now.certainty)
    meaning = "What the change adds to a step; below 0: the step is faster."
    if not lever.same_batch:
        meaning += " A step has another number of tokens then: the price says more."
    return about(f"Time added by {lever.label}", "seconds", then - now, meaning)


@rule("levers.*.price")
def _price(book: Book, name: str) -> Explanation:
    lever = _lever(book, name)
    step, tokens = book.at("time.step_seconds"), book.at("time.tokens")
    after, gpus = lever.plan, book.at("plan.cluster.gpus")
    seconds = step.value + lever.added_seconds
    then = _then(lever, "step time", seconds, "seconds", step.certainty)
    then_tokens = _then(lever, "tokens of a step", after.tokens_per_step, "tokens", "exact")
    then_gpus = _then(lever, "GPUs", after.cluster.gpus, "", "exact")
    formula = then * then_gpus / then_tokens / (step * gpus / tokens) - 1
    meaning = "GPU time per token, against the plan as it is."
    return about(f"Price of {lever.label}", "change", formula, meaning)


@rule("levers.*.price_range.0|1")
def _price_range(book: Book, name: str, end: str) -> Explanation:
    lever = _lever(book, name)
    found = apart(book.plan, lever.plan)
    told = known(
        "times that two plans must differ by to be told apart", found.ratio,
        source=f"presets/evidence/apart.toml: {found.pairs:,} pairs of measured steps",
        note="what both are off by is no part of it", certainty="measured",
    )  # fmt: skip
    price = book.at(f"levers.{name}.price") + 1
    formula = (price * told if end == "1" else price / told) - 1
    meaning = "What the price would be in eight of ten measured pairs of plans like these two."
    return about(f"Price of {lever.label}, from and to", "change", formula, meaning)
