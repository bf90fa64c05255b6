"""Growing: with which one change that trains the same the largest micro-batch fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcore.plan.field import SAME
from memcore.plan.plan import Plan
from memcore.search.fitting import limit_of, planned
from memcore.search.levers import Lever
from memcore.search.solver import Solved, solve

BATCH = "train.micro_batch"
MUCH = 0.1  # of a step's time per token: who wants a larger batch wants no slower training


def fits(plan: Plan) -> bool:
    """Whether training fits."""
    return not limit_of(plan, serves=False)


def largest_batch(plan: Plan) -> Solved:
    """The largest micro-batch with which training fits."""
    return solve(plan, BATCH)


def larger_batch(
    here: int,
    found: Sequence[Lever],
    fits: Callable[[Plan], bool] = fits,
    largest: Callable[[Plan], Solved] = largest_batch,
) -> tuple[Lever, Solved] | None:
    """Of a plan's levers the one with which the largest micro-batch fits, and that; None where
    none allows a larger one than fits `here`, with the plan as it is. Asked are single settings
    that train the same, on the same GPUs, at no more than a tenth of a step's time. `fits` and
    `largest` are the two above, or what keeps their answers."""
    asked = [
        lever
        for lever in found
        if lever.kind == SAME and lever.single and lever.saves and not lever.moves
        and lever.steps_compare and lever.price <= MUCH and BATCH not in lever.changes
    ]  # fmt: skip
    best = None
    for lever in sorted(asked, key=lambda lever: -lever.saved_device_bytes):
        larger = planned(lever.plan, {BATCH: here + 1})
        if larger and fits(larger):  # all others are not worth to be solved for
            best = lever, largest(lever.plan)
            here = best[1].value or here
    return best
