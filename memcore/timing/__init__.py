"""Timing: how long an operation, a collective and the host take."""
