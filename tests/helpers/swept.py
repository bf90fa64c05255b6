"""Sweeps as arrays."""

from memcore.search.sweep import sweep


def peaks(plan, axes):
    """Allocated peaks of a sweep, shaped like its axes."""
    found = sweep(plan, axes)["memory.allocated_bytes"].to_numpy()
    return found.reshape(tuple(map(len, axes.values())))
