"""Serving: weights, cache, room and speed of an engine."""

from memcore.serving import cache, cost, room, time  # noqa: F401  (their quantities)
