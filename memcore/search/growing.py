"""Growing: with which one change that trains the same the largest micro-batch fits."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.plan.field import SAME
from memcore.plan.plan import Plan
from memcore.search.fitting import planned
from memcore.search.levers import Lever
from memcore.search.solver import Solved, solve
from memcore.training.training import Training

BATCH = "train.micro_batch"
MUCH = 0.1  # of a step's time per token: who wants a larger batch wants no slower training


def larger_batch(here: int, found: Sequence[Lever]) -> tuple[Lever, Solved] | None:
    """Of a plan's levers the one with which the largest micro-batch fits, and that; None where
    none allows a larger one than fits `here`, with the plan as it is. Asked are single settings
    that train the same, on the same GPUs, at no more than a tenth of a step's time."""
    asked = [
        lever
        for lever in found
        if lever.kind == SAME and lever.single and lever.saves and not lever.moves
        and lever.steps_compare and lever.price <= MUCH and BATCH not in lever.changes
    ]  # fmt: skip
    best = None
    for lever in sorted(asked, key=lambda lever: -lever.saved_device_bytes):
        if _fits(lever.plan, here + 1):  # all others are not worth to be solved for
            best = lever, solve(lever.plan, BATCH)
            here = best[1].value or here
    return best


def _fits(plan: Plan, batch: int) -> bool:
    there = planned(plan, {BATCH: batch})
    training = Training.of(there, rows=False) if there else None
    return training is not None and training.room[1]
