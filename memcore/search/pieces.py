"""Pieces: the allocated peak as a sum that people can read, and which instant takes over where.

Every tensor's size is a product of dimensions, so that with all else fixed an instant's bytes are a
constant and so many more for each sequence of the micro-batch, and the peak is the highest of these
lines: straight pieces, each of one instant. They are read off the peaks themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memcore.plan.plan import Plan
from memcore.search.sweep import PEAK, sweep
from memcore.tape.ledger import Amounts
from memcore.training.memory import instant_bytes
from memcore.training.steps import training_sizes
from memcore.training.training import Training
from memcore.units import gib_text

FIELD = "train.micro_batch"
MOST = 64  # micro-batches that are looked at


@dataclass(frozen=True, slots=True)
class Piece:
    """From one micro-batch to another the peak is base_bytes + each_bytes x micro_batch.

    instant   where the peak is then, as the report's timeline calls it
    stage     the pipeline stage
    """

    first: int
    last: int
    base_bytes: float
    each_bytes: float
    instant: str
    stage: int

    @property
    def text(self) -> str:
        return f"{gib_text(self.base_bytes)} + {gib_text(self.each_bytes)} x micro_batch"


def pieces(plan: Plan, most: int = MOST) -> tuple[Piece, ...]:
    """The peak of one GPU against the micro-batch, up to one; empty where training is not planned
    or no micro-batch is allowed."""
    peaks = sweep(plan, {FIELD: list(range(1, most + 1))}, [PEAK]).dropna()
    values, sizes = [int(v) for v in peaks[FIELD]], [float(b) for b in peaks[PEAK]]
    return tuple(_pieces(plan, values, sizes))


def _pieces(plan: Plan, values: Sequence[int], sizes: Sequence[float]) -> Iterator[Piece]:
    start = 0
    while start < len(values):
        step = values[start + 1] - values[start] if start + 1 < len(values) else values[0]
        instant, stage, each = _grows(plan, values[start], step)
        end = start
        while end + 1 < len(values) and _on(values, sizes, start, end + 1, each):
            end += 1
        base = sizes[start] - each * values[start]
        yield Piece(values[start], values[end], base, each, instant, stage)
        start = end + 1


def _grows(plan: Plan, value: int, step: int) -> tuple[str, int, float]:
    """The instant of the peak at one micro-batch, its stage, and how much it grows by for each
    sequence more."""
    training = Training.of(plan.changed(FIELD, value), rows=False)
    assert training
    peak = training.memory.peak
    (instant,) = (i for i in training.steps[peak.rank].instants if i.id == peak.instant)
    more = Amounts(training_sizes(plan.changed(FIELD, value + step)))
    now, then = (instant_bytes(instant, amounts)[0] for amounts in (training.amounts, more))
    return peak.instant, peak.rank, (then - now) / step


def _on(values: Sequence[int], sizes: Sequence[float], start: int, at: int, each: float) -> bool:
    """Whether a peak is on the line from the first of a piece: to a byte for each sequence, as
    shards are rounded up."""
    line = sizes[start] + each * (values[at] - values[start])
    return abs(sizes[at] - line) <= values[at]
