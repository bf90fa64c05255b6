"""Every GPU has all parameters of its stage: PyTorch, DistributedDataParallel, Megatron."""

from __future__ import annotations

from memcore.frameworks.framework import Framework
from memcore.frameworks.instants import forth_and_back, gradients_behind, whole_gradients
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.step.step import Alive, Instant, Step, optimizers, resident
from memcore.tape.ledger import BACKWARD, Amounts, tied_gradient
from memcore.timing.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    ONE_BACKWARD,
    Beside,
    Move,
    collective,
    links,
)
from memcore.timing.pieces import moved
from memcore.words.training import FRAMEWORKS


def whole_model(step: Step) -> list[Instant]:
    """Every GPU has all parameters of its stage: PyTorch, DistributedDataParallel, Megatron."""
    merge = step.keeps_gradients or step.accumulated
    base = resident(step)
    # There may be a buffer for them, which `resident` counts.
    made = [] if step.accumulated else whole_gradients(step)
    before = base + (made if merge else [])

    def so_far(counts: list[int]) -> Alive:
        """Gradients made when these layers have run backward, beside those that were there."""
        layers = zip(step.blocks.layers, counts, strict=False)
        again = [(tied_gradient(tape), n) for tape, n in layers] if merge else []
        return [*gradients_behind(step, counts, merge), *again]

    return [
        *step.between(before),
        *forth_and_back(step, before, before, before, so_far, merge),
        *optimizers(step, base + made),
    ]


def replicated(plan: Plan, step: Step, amounts: Amounts, beside: Beside) -> list[Move]:
    """DistributedDataParallel sums gradients in buckets behind backward, once a step; owners of
    optimizer states send the weights that they have updated (ZeroRedundancyOptimizer)."""
    over = links(plan, "DP")
    grads = moved(beside, amounts, "gradients in buckets")
    found = [
        collective(
            "all-reduce gradients", ALL_REDUCE, "DP", over, grads, 1, ONE_BACKWARD, BACKWARD,
            beside,
        )
    ]  # fmt: skip
    if plan.train.zero:
        weights = moved(beside, amounts, "updated weights")
        found.append(collective("all-gather updated weights", ALL_GATHER, "DP", over, weights, 1))
    return found


DDP = Framework(
    facts=FRAMEWORKS["pytorch"],
    schedule=whole_model,
    sends=replicated,
    slack=constants.ALLOCATOR_SLACK,
    replicas=True,
)
