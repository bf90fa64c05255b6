"""Run: what a whole training run takes. Steps, days, GPU-hours, money and energy.

Whole steps that each take as long as the one computed. Hosts, network, evaluation and what is lost
to failures and restarts are neither in the time nor in the energy.
"""

from __future__ import annotations

from typing import Any

from memcore.plan.plan import Plan
from memcore.quantity.reading import Read, Values, ceil_div, filled, quantity
from memcore.report import Run, Time
from memcore.units import HOUR

LLAMA = (
    "Wh = GPU-hours x W x PUE: Touvron et al. 2023, LLaMA, section 6 "
    "(https://arxiv.org/abs/2302.13971)"
)


def run_of(plan: Plan, time: Time) -> Run:
    """What training on the plan's tokens takes."""
    values = Values(plan=plan, hardware=plan.accelerator, time=time)
    return filled(Run, values.run)


@quantity("run.steps", "Optimizer steps", "steps", "Whole steps until every token was seen.")
def steps(x: Any) -> Read:
    return ceil_div(x.plan.run.tokens, x.time.tokens)


@quantity(
    "run.seconds",
    "Time to train",
    "seconds",
    "Without evaluation, checkpoints, failures and restarts.",
)
def seconds(x: Any) -> Read:
    return x.run.steps * x.time.step_seconds


@quantity("run.gpu_hours", "GPU-hours", "GPU-hours", "Of all GPUs together.")
def gpu_hours(x: Any) -> Read:
    return x.run.seconds * x.plan.cluster.gpus / HOUR


@quantity("run.cost", "Cost", "USD", "At the price per GPU-hour that the plan says.")
def cost(x: Any) -> Read | None:
    price = x.plan.run.price_per_gpu_hour
    return x.run.gpu_hours * price if price else None


@quantity("run.watts", "Power", "W", "As if every board drew its power all along.", [LLAMA])
def watts(x: Any) -> Read:
    each = x.plan.run.watts_per_gpu or x.hardware.watts
    return x.plan.cluster.gpus * each * x.plan.run.pue


@quantity(
    "run.energy_joules", "Energy", "J", "Of the boards, and of what the PUE adds to them.", [LLAMA]
)
def energy_joules(x: Any) -> Read:
    return x.run.watts * x.run.seconds


@quantity("run.joules_per_token", "Energy per token", "J")
def joules_per_token(x: Any) -> Read:
    return x.run.energy_joules / x.plan.run.tokens
