"""Sweeps as arrays, and numbers of reports by their paths."""

from memcore.search.sweep import sweep


def peaks(plan, axes):
    """Allocated peaks of a sweep, shaped like its axes."""
    found = sweep(plan, axes)["memory.allocated_bytes"].to_numpy()
    return found.reshape(tuple(map(len, axes.values())))


def number_at(document, path):
    """The number at a path of a report's document; None where it has none."""
    for word in path.split("."):
        document = document[int(word)] if isinstance(document, list) else (document or {}).get(word)
    return int(document) if isinstance(document, bool) else document
