"""Serving: weights, cache, room and speed of an engine."""
