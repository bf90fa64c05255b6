"""Growing: with which one change that trains the same the largest micro-batch fits."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.plan.field import SAME
from memcore.plan.plan import Plan
from memcore.search.levers import Lever
from memcore.search.solver import Solved, solve

BATCH = "train.micro_batch"
TRIED = 4  # levers that are solved for: those that save most
MUCH = 0.1  # of a step's time per token: who wants a larger batch wants no slower training


def larger_batch(plan: Plan, found: Sequence[Lever]) -> tuple[Lever, Solved] | None:
    """Of a plan's levers the one with which the largest micro-batch fits, and that; None where
    none allows a larger one than the plan as it is. Asked are single settings that train the same,
    on the same GPUs, at no more than a tenth of a step's time."""
    asked = [
        lever
        for lever in found
        if lever.kind == SAME and lever.single and lever.saves and not lever.moves
        and lever.steps_compare and lever.price <= MUCH and BATCH not in lever.changes
    ]  # fmt: skip
    asked = sorted(asked, key=lambda lever: -lever.saved_device_bytes)[:TRIED]
    solved = [(lever, solve(lever.plan, BATCH)) for lever in asked]
    best = max(solved, key=lambda pair: pair[1].value or 0, default=None)
    here = solve(plan, BATCH).value or 0
    return best if best and (best[1].value or 0) > here else None
