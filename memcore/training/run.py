"""Run: what a whole training run takes. Steps, days, GPU-hours, money and energy, and its disk.

Whole steps that each take as long as the one computed. Evaluation is in none of the numbers; saved
checkpoints, failures and restarts are in the time that passes alone, and not in cost and energy.
"""

from __future__ import annotations

from typing import Any

from memcore.hardware.constants import INTERRUPTIONS
from memcore.plan.plan import Plan
from memcore.quantity.reading import (
    Read,
    Values,
    ceil_div,
    filled,
    largest,
    least,
    nearest,
    quantity,
    sqrt,
)
from memcore.report import Run, Time
from memcore.training.saved import WRITTEN, Saved
from memcore.units import DAY, GB, HOUR, MINUTE

LLAMA = (
    "Wh = GPU-hours x W x PUE: Touvron et al. 2023, LLaMA, section 6 "
    "(https://arxiv.org/abs/2302.13971)"
)

DALY = (
    "the square root of twice the time of a save times the time between failures: Young 1974, "
    "Daly 2006 (https://doi.org/10.1016/j.future.2004.11.016)"
)
MOST_LOST = 0.99  # of the time: beyond it a run comes to no end


def run_of(plan: Plan, time: Time) -> Run:
    """What training on the plan's tokens takes."""
    values = Values(plan=plan, hardware=plan.accelerator, time=time, saved=Saved.of(plan))
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


@quantity("run.weights_bytes", "Saved weights", "bytes", "On disk, of one checkpoint.", [WRITTEN])
def weights_bytes(x: Any) -> Read:
    return x.known("weights", x.saved.weights, "bytes", source="declared by the operations")


@quantity(
    "run.checkpoint_bytes",
    "Saved checkpoint",
    "bytes",
    "On disk, of all GPUs together: weights and what the optimizer keeps.",
    [WRITTEN],
)
def checkpoint_bytes(x: Any) -> Read:
    states = x.known(
        "optimizer states", x.saved.states, "bytes", source="declared in memcore/words"
    )
    return x.run.weights_bytes + states


@quantity("run.save_seconds", "Time of a save", "seconds", "All steps wait until it is written.")
def save_seconds(x: Any) -> Read:
    if x.plan.run.storage_gbytes:
        return x.run.checkpoint_bytes / (x.plan.run.storage_gbytes * GB)
    here = x.known("GPUs of a node", x.plan.gpus_per_node, source="the plan: cluster")
    drives = x.known(x.saved.drives_of, x.saved.drives, "B/s", source="presets/hardware/nodes.toml")
    return x.run.checkpoint_bytes / (ceil_div(x.plan.cluster.gpus, here) * drives)


@quantity(
    "run.save_every",
    "Steps from save to save",
    "steps",
    "The plan's, or so many that saving and doing again cost the least together.",
    [DALY],
)
def save_every(x: Any) -> Read:
    if x.plan.run.save_steps or not x.plan.run.interruptions:
        return least(x.plan.run.save_steps or x.run.steps, x.run.steps)
    seconds = sqrt(2 * x.run.save_seconds * _between_failures(x))
    return least(largest(1, nearest(seconds / x.time.step_seconds)), x.run.steps)


@quantity("run.saves", "Saves", "checkpoints", "The one at the end among them.")
def saves(x: Any) -> Read:
    return ceil_div(x.run.steps, x.run.save_every)


@quantity("run.disk_bytes", "Disk for checkpoints", "bytes", "Of those that are kept at once.")
def disk_bytes(x: Any) -> Read:
    kept = x.plan.run.save_total_limit
    return x.run.checkpoint_bytes * (least(kept, x.run.saves) if kept else x.run.saves)


@quantity(
    "run.elapsed_seconds",
    "Time that passes",
    "seconds",
    "With saves, and with what failures cost: the restart, and half of the steps since the last "
    "save once more.",
    [INTERRUPTIONS.source],
    "measured",
)
def elapsed_seconds(x: Any) -> Read:
    busy = x.run.seconds + x.run.saves * x.run.save_seconds
    if not x.plan.run.interruptions:
        return busy
    again = x.run.save_every * x.time.step_seconds / 2
    lost = (x.plan.run.restart_minutes * MINUTE + again) / _between_failures(x)
    return busy / (1 - least(lost, MOST_LOST))


@quantity(
    "run.interruptions",
    "Interruptions",
    "",
    "Expected in the time that passes.",
    [INTERRUPTIONS.source],
    "measured",
)
def interruptions(x: Any) -> Read:
    if not x.plan.run.interruptions:
        return 0.0
    return x.run.elapsed_seconds / _between_failures(x)


def _between_failures(x: Any) -> Read:
    """Seconds, on average, of all GPUs together."""
    return 1000 * DAY / (x.plan.run.interruptions * x.plan.cluster.gpus)
