"""How the answers about a whole run come about: steps, hours, money and energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcore.quantity.formula import ceiling
from memcore.quantity.quantity import Explanation, about, rule
from memcore.training.run import HOUR

if TYPE_CHECKING:
    from memcore.explain.book import Book

LLAMA = (
    "Wh = GPU-hours x W x PUE: Touvron et al. 2023, LLaMA, section 6 "
    "(https://arxiv.org/abs/2302.13971)"
)


@rule("run.steps")
def _steps(book: Book) -> Explanation:
    _ = book.run
    formula = ceiling(book.at("plan.run.tokens") / book.at("time.tokens"))
    return about("Optimizer steps", "steps", formula, "Whole steps until every token was seen.")


@rule("run.seconds")
def _seconds(book: Book) -> Explanation:
    formula = book.at("run.steps") * book.at("time.step_seconds")
    meaning = "Without evaluation, checkpoints, failures and restarts."
    return about("Time to train", "seconds", formula, meaning)


@rule("run.gpu_hours")
def _gpu_hours(book: Book) -> Explanation:
    formula = book.at("run.seconds") * book.at("plan.cluster.gpus") / HOUR
    return about("GPU-hours", "GPU-hours", formula, "Of all GPUs together.")


@rule("run.cost")
def _cost(book: Book) -> Explanation:
    if book.run.cost is None:
        raise LookupError
    formula = book.at("run.gpu_hours") * book.at("plan.run.price_per_gpu_hour")
    return about("Cost", "USD", formula, "At the price per GPU-hour that the plan says.")


@rule("run.watts")
def _watts(book: Book) -> Explanation:
    own = book.plan.run.watts_per_gpu
    each = book.at("plan.run.watts_per_gpu" if own else "hardware.watts")
    formula = book.at("plan.cluster.gpus") * each * book.at("plan.run.pue")
    return about("Power", "W", formula, "As if every board drew its power all along.", [LLAMA])


@rule("run.energy_joules")
def _energy(book: Book) -> Explanation:
    formula = book.at("run.watts") * book.at("run.seconds")
    return about(
        "Energy", "J", formula, "Of the boards, and of what the PUE adds to them.", [LLAMA]
    )


@rule("run.joules_per_token")
def _per_token(book: Book) -> Explanation:
    formula = book.at("run.energy_joules") / book.at("plan.run.tokens")
    return about("Energy per token", "J", formula)
