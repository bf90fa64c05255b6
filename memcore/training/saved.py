"""Saved: what one checkpoint has on disk, from which a run goes on after a failure."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.hardware.constants import STORAGE
from memcore.plan.plan import Plan
from memcore.plan.sections import Parallel
from memcore.quantity.reading import GIVEN
from memcore.step.step import Alive, optimizer_states
from memcore.tape.ledger import Amounts
from memcore.training.steps import steps_of, training_sizes
from memcore.words.training import AVERAGED, NO_LAYER

WRITTEN = (
    "weights as they rest, or adapters alone, and all that the optimizer keeps, each once: as "
    "transformers' Trainer, DeepSpeed, torch.distributed.checkpoint and Megatron's "
    "dist_checkpointing write them"
)


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint, of all ranks together, in bytes, and what a node writes, in bytes a second.

    weights   of the model, or of its adapters alone; a second model that averages them too
    states    what the optimizer keeps: moments, master copies, step counts
    drives    what the drives of one node write; drives_of: which these are
    """

    weights: int
    states: int
    drives: float
    drives_of: str

    @classmethod
    def of(cls, plan: Plan) -> Saved:
        """As one GPU alone has them, so that what ranks share or copy is there once."""
        one = {"parallel": Parallel(), "cluster": plan.cluster.model_copy(update={"gpus": 1})}
        alone = plan.model_copy(update=one)
        (step,) = steps_of(alone)
        amounts = Amounts(training_sizes(alone))
        whole = plan.train.adapter == "none" and plan.train.frozen != NO_LAYER
        weights: Alive = (
            [(g.by_consumer["parameters"], n) for g, n in step.every("resident") if g.rows]
            if whole
            else step.every("trained")
        )
        if step.average == AVERAGED:
            weights = [*weights, *step.every("second")]
        states = [*optimizer_states(step), *step.every("paged")]
        known = plan.node.nvme_write_bandwidth
        return cls(
            int(amounts.alive(weights)),
            int(amounts.alive(states)),
            known or STORAGE.middle,
            f"the drives of {plan.node.label}" if known else STORAGE.name,
        )


GIVEN["saved"] = lambda book: Saved.of(book.plan)
