"""Answers: what a whole training run takes. Steps, days, GPU-hours, money and energy."""

from __future__ import annotations

from memcore.plan.plan import Plan
from memcore.report import Run, Time
from memcore.tape.dims import ceil_div

HOUR = 3600  # seconds


def watts_per_gpu(plan: Plan) -> float:
    """What one GPU draws: as the plan says, or its board's power."""
    return plan.run.watts_per_gpu or plan.accelerator.watts


def answers(plan: Plan, time: Time) -> Run:
    """Training on the plan's tokens, in whole steps that each take as long as the one computed.

    Energy is the boards' power all along, times the plan's power usage effectiveness: Wh =
    GPU-hours x W x PUE, as Touvron et al. 2023 (LLaMA, section 6) count it. Hosts, network and what
    is lost to failures and restarts are not in it, nor in the time.
    """
    steps = ceil_div(plan.run.tokens, plan.tokens_per_step)
    seconds = steps * time.step_seconds
    gpu_hours = seconds * plan.cluster.gpus / HOUR
    watts = plan.cluster.gpus * watts_per_gpu(plan) * plan.run.pue
    price = plan.run.price_per_gpu_hour
    return Run(
        steps=int(steps),
        seconds=seconds,
        gpu_hours=gpu_hours,
        cost=gpu_hours * price if price else None,
        watts=watts,
        energy_joules=watts * seconds,
        joules_per_token=watts * seconds / plan.run.tokens,
    )
