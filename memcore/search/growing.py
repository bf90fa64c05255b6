"""Growing: with which one change that trains the same the largest micro-batch fits."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.plan.field import SAME
from memcore.search.fitting import limit_of, planned
from memcore.search.levers import Lever
from memcore.search.solver import Solved, solve

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
        larger = planned(lever.plan, {BATCH: here + 1})
        if not limit_of(larger, serves=False):  # all others are not worth to be solved for
            best = lever, solve(lever.plan, BATCH)
            here = best[1].value or here
    return best
