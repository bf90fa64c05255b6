"""Stream: a simulated stream of requests through one replica, for several ways of handing out its
cache side by side.

Deterministic: everything is drawn from the plan's seed. Times are those of the roofline, so a
scheduler that costs time of its own, or a client that goes away, is not in them.
"""

from memcore.stream.clock import Clock
from memcore.stream.lengths import Lengths, Requests, draw, read_lengths
from memcore.stream.load import Load, loads, sustained
from memcore.stream.simulation import Run, Spread, Stream, run, simulate

__all__ = [
    "Clock",
    "Lengths",
    "Load",
    "Requests",
    "Run",
    "Spread",
    "Stream",
    "draw",
    "loads",
    "read_lengths",
    "run",
    "simulate",
    "sustained",
]
