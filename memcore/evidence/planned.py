"""The part of a plan's Report that a row of evidence is about, without the rest of it."""

from __future__ import annotations

from memcore.plan.plan import Plan
from memcore.report import Memory, Time
from memcore.training.training import Training


def training_of(plan: Plan) -> Training:
    """Its training step."""
    found = Training.of(plan)
    assert found, "a row of evidence is about a plan whose training is computed"
    return found


def memory_of(plan: Plan) -> Memory:
    """Memory of its training step."""
    return training_of(plan).memory


def time_of(plan: Plan) -> Time:
    """Time of its training step."""
    return training_of(plan).time()
