"""Calibration: how near a measured step comes to those of others that another of its kind scales.

Each measured step is read by every other one of its source, framework, kernels, attention, adapter
and GPU in turn: none takes part in its own prediction. Nor does its source: where constants were
read off it, its steps are predicted with those that were fitted to the other sources alone
(presets/evidence/left_out.toml), as for somebody whose runs nobody has seen. The share of an error
that steps of one kind have in common is found without that source too.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from evidence.fit import PATH as LEFT_OUT
from evidence.fit import source_of
from evidence.times import compared_times, times_table
from memcore.plan.plan import Plan
from memcore.search.measured import kind


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step that has others of its kind.

    ratio    measured seconds over predicted ones; others: the same of each other one of its kind
    share    of an error that steps of one kind have in common, as other sources say
    """

    source: str
    ratio: float
    others: tuple[float, ...]
    share: float = 0.0

    @property
    def scaled(self) -> tuple[float, ...]:
        """Measured seconds over those that each other one of its kind makes of the prediction."""
        return tuple(self.ratio / other**self.share for other in self.others)


@functools.cache
def steps() -> tuple[Step, ...]:
    """Every measured step that has another one of its kind."""
    runs = times_table()["runs"]
    said = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))
    left_out = {source: iter(of["errors"]) for source, of in said.items()}
    kinds: dict[tuple[str, ...], list[float]] = {}
    for run, c in zip(runs, compared_times(), strict=True):
        source = source_of(run)
        off = next(left_out[source]) if source in left_out else c.ours / c.theirs - 1
        kinds.setdefault((source, *kind(Plan.of(run["plan"]))), []).append(1 / (1 + off))
    every = [
        Step(source, own, (*of[:i], *of[i + 1 :]))
        for (source, *_), of in kinds.items()
        if len(of) > 1
        for i, own in enumerate(of)
    ]
    unseen = {s.source: common(o for o in every if o.source != s.source) for s in every}
    return tuple(replace(step, share=unseen[step.source]) for step in every)


def common(of: Iterable[Step]) -> float:
    """The share of what one step is off (as a logarithm) that others of its kind are off too: the
    slope, through nothing, of the one over the other in all pairs. Each step weighs 1."""
    over, under = sums(of)
    return over / under


def sums(of: Iterable[Step]) -> tuple[float, float]:
    """The two sums that this slope is the quotient of."""
    pairs = [(math.log(s.ratio), math.log(r), 1 / len(s.others)) for s in of for r in s.others]
    return sum(w * a * b for a, b, w in pairs), sum(w * b * b for _, b, w in pairs)


def weighted(of: Iterable[Step]) -> list[tuple[float, float]]:
    """Measured over calibrated seconds, the least first, each with its weight: those of a step
    together have 1, so that a source of many steps counts no more than they are."""
    return sorted((ratio, 1 / len(step.scaled)) for step in of for ratio in step.scaled)


def within(values: Iterable[tuple[float, float]], share: float) -> float:
    """The value that so great a share of the weights lies up to."""
    ordered = sorted(values)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 1e-9:
            return value
    raise ValueError("a share of nothing")


def errors(of: Iterable[Step]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """How far predictions are off without their signs, and calibrated ones; each with its
    weight."""
    found = list(of)
    plain = [(abs(1 / step.ratio - 1), 1.0) for step in found]
    return plain, [(abs(1 / ratio - 1), weight) for ratio, weight in weighted(found)]


def interval(share: float) -> tuple[int, float, float]:
    """How many steps, and what all but `share` of them at either end lie between once they are
    calibrated: measured over calibrated seconds."""
    ratios = weighted(steps())
    return len(steps()), within(ratios, share), within(ratios, 1 - share)
