"""Simulated streams under one strategy, where a test asks of no other: `simulate` runs them all."""

from memcore.evaluate import evaluate
from memcore.serving.cache import places
from memcore.stream import Clock, draw, run


def paged(plan):
    """What `simulate` says of the plan's stream with pages."""
    return run(plan, "paged", draw(plan), Clock.of(plan), places(plan, evaluate(plan).serve))
