"""Growing: with which one change that trains the same the largest micro-batch fits, or the longest
sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from memcore.plan.field import SAME
from memcore.plan.plan import Plan
from memcore.plan.repair import planned
from memcore.search.fitting import limit_of
from memcore.search.levers import Lever
from memcore.search.solver import Solved, solve

BATCH, LENGTH = "train.micro_batch", "train.seq_len"
MUCH = 0.1  # of a step's time per token: who wants a larger batch wants no slower training


def fits(plan: Plan) -> bool:
    """Whether training fits."""
    return not limit_of(plan, serves=False)


def larger(
    path: str,
    here: int,
    levers: Sequence[Lever],
    fits: Callable[[Plan], bool] = fits,
    largest: Callable[[Plan], Solved] | None = None,
) -> tuple[Lever, Solved] | None:
    """Of a plan's levers the one with which the largest number fits in the field at `path`, BATCH
    or LENGTH, and that; None where none allows a larger one than fits `here`, with the plan as it
    is. Asked are single settings that train the same, on the same GPUs, at no more than a tenth of
    a step's time. `fits` is the one above, `largest` what solves for the field, or what keeps their
    answers."""
    largest = largest or partial(solve, field=path)
    candidates = [
        lever
        for lever in levers
        if lever.kind == SAME and lever.single and lever.saves and not lever.moves
        and lever.steps_compare and lever.price <= MUCH and path not in lever.changes
    ]  # fmt: skip
    best = None
    for lever in sorted(candidates, key=lambda lever: -lever.saved_device_bytes):
        more = planned(lever.plan, {path: here + 1})
        if more and fits(more):  # all others are not worth to be solved for
            best = lever, largest(lever.plan)
            here = best[1].value or here
    return best
