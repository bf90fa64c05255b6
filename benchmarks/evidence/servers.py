"""Servers: how near a measured point of a server comes to others that it scales.

Each point of presets/evidence/engines.csv is read by every other one of its engine's version at a
distance (search.measured), in turn: none takes part in its own prediction. Nor does its cell: each
is predicted with constants that were fitted without its engine, GPU, ranks and model
(engines_left_out.csv, by benchmarks/left_out_points.py), as for somebody whose server nobody has
seen. The share of an error that points have in common is found without its engine, version and GPU
too; and where that brought them no nearer, both half of them and eight in ten, it is 0.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from evidence.calibration import Step, sums, within
from evidence.engines import Point, points
from memcore.evidence.comparison import text
from memcore.search.measured import (
    FIRST,
    GPU,
    LENGTHS,
    LOAD,
    MODEL,
    NEAR,
    RANKS,
    TOKEN,
    WORDS,
    Server,
    distance,
    server,
    shared,
)

FILE = "in_common.toml"
EIGHT = 0.8  # in ten, as ranges of servers have it
FAR = 0.05  # of the points on either side
DISTANCES = (NEAR, LOAD, LENGTHS, RANKS, WORDS, MODEL, GPU)


@dataclass(frozen=True, slots=True)
class PointRatios:
    """A point, and measured over predicted seconds with its cell left out of the fit."""

    point: Point
    server: Server
    token: float
    first: float


@functools.cache
def point_ratios() -> tuple[PointRatios, ...]:
    """Every point that fits somewhere. Takes a second, once per process."""
    found = []
    rows = csv.DictReader(io.StringIO(text("engines_left_out.csv")))
    for point, row in zip(points(), rows, strict=True):
        if row[TOKEN]:
            ratios = (1 / (1 + float(row[name])) for name in (TOKEN, FIRST))
            found.append(PointRatios(point, server(point.plan), *ratios))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A point that has others at a distance.

    of      its engine, version and GPU
    step    its ratio, those of the others, and the share that is found without `of`
    """

    of: tuple[str, str, str]
    step: Step

    def ratios(self, far: tuple[float, float]) -> list[float]:
        """Measured over calibrated seconds, by each of the others."""
        s = self.step
        return [s.ratio / shared(other, s.share, far) for other in s.others]


def ends(latency: str) -> tuple[float, float]:
    """Measured over ours, which 9 of 10 points lie between."""
    every = [(getattr(off, latency), 1.0) for off in point_ratios()]
    return within(every, FAR), within(every, 1 - FAR)


@functools.cache
def scaled(latency: str, at: str) -> tuple[Scaled, ...]:
    """Each point by all others at this distance."""
    found = []
    for own, others in _others()[at]:
        of = own.point.engine, own.point.version, own.point.gpu
        ratios = tuple(getattr(other, latency) for other in others)
        found.append(Scaled(of, Step("", getattr(own, latency), ratios)))
    groups = _sums(found, ends(latency))
    over, under = (sum(of) for of in zip(*groups.values(), strict=True))
    shares = {of: (over - a) / (under - b) for of, (a, b) in groups.items()}
    return tuple(Scaled(s.of, replace(s.step, share=shares[s.of])) for s in found)


@functools.cache
def _others() -> Mapping[str, list[tuple[PointRatios, list[PointRatios]]]]:
    """By distance, points and those of their engine's version at this distance from each; only
    those that have any."""

    def version(off: PointRatios) -> tuple[str, str]:
        return off.point.engine, off.point.version

    found: dict[str, list[tuple[PointRatios, list[PointRatios]]]] = {}
    for _, of in groupby(sorted(point_ratios(), key=version), key=version):
        every = list(of)
        for own in every:
            by: dict[str, list[PointRatios]] = {}
            for other in every:
                by.setdefault(distance(own.server, other.server), []).append(other)
            for at, others in by.items():
                found.setdefault(at, []).append((own, others))
    return found


def _sums(of: Iterable[Scaled], far: tuple[float, float]) -> dict[Hashable, tuple[float, float]]:
    """For each engine, version and GPU the two sums of a share: of as much of what each point is
    off as is not farther than `far`, since what is beyond is all taken to be in common."""
    low, high = far
    groups: dict[Hashable, list[Step]] = {}
    for s in of:
        ratio, *others = (min(max(r, low), high) for r in (s.step.ratio, *s.step.others))
        groups.setdefault(s.of, []).append(Step("", ratio, tuple(others)))
    return {of: sums(steps) for of, steps in groups.items()}


def share(latency: str, at: str) -> float:
    """What all points at this distance have in common, as steps have it (calibration.common)."""
    over, under = (
        sum(of) for of in zip(*_sums(scaled(latency, at), ends(latency)).values(), strict=True)
    )
    found: float = over / under
    return found


Weighted = list[tuple[float, float]]


def errors(latency: str, at: str) -> tuple[Weighted, Weighted]:
    """How far predictions are off without their signs, and calibrated ones; each with its
    weight: those of a point together have 1."""
    of, far = scaled(latency, at), ends(latency)
    plain = [(abs(1 / s.step.ratio - 1), 1.0) for s in of]
    moved = [(abs(1 / r - 1), 1 / len(s.step.others)) for s in of for r in s.ratios(far)]
    return plain, moved


def nearer(latency: str, at: str) -> bool:
    """Whether calibrated ones are nearer, both half of them and eight in ten."""
    plain, moved = errors(latency, at)
    return all(within(moved, share) < within(plain, share) for share in (0.5, EIGHT))


def interval(latency: str, at: str) -> tuple[float, float]:
    """What eight in ten measured over calibrated seconds lie between, ours always inside."""
    far, cut = ends(latency), (1 - EIGHT) / 2
    of = [(r, 1 / len(s.step.others)) for s in scaled(latency, at) for r in s.ratios(far)]
    return min(within(of, cut), 1.0), max(within(of, 1 - cut), 1.0)


def written() -> str:
    """presets/evidence/in_common.toml."""
    lines = [
        "# How much servers have in common of what our seconds are off, by how near they are, of",
        "# the time per token and of the first token: evidence.servers finds it in the",
        "# rows of engines.csv, each with its cell left out of the fit (engines_left_out.csv).",
        "# `python -m evidence.intervals` writes it.",
        "#",
        "# points      that have another one at this distance",
        "# share       in common, as a logarithm; 0: moving them by it brought none nearer",
        "# low, high   measured over calibrated seconds, which 8 of 10 lie between",
        "# predicted, calibrated   how far off half of them are at most, and 8 of 10, with a share",
        "#             that is found without their engine, version and GPU",
        "# far         measured over predicted seconds, which 9 of 10 lie between",
        "",
    ]
    for latency in (TOKEN, FIRST):
        low, high = ends(latency)
        lines += [f"[far.{latency}]", f"low = {low:.3f}", f"high = {high:.3f}", ""]
    for latency in (TOKEN, FIRST):
        for at in DISTANCES:
            of = scaled(latency, at)
            used = nearer(latency, at)
            low, high = interval(latency, at) if used else (1.0, 1.0)
            lines += [f"[{latency}.{at}]", f"points = {len(of)}"]
            lines += [f"share = {share(latency, at) if used else 0.0:.2f}"]
            lines += [f"low = {low:.3f}", f"high = {high:.3f}"]
            for name, off in zip(("predicted", "calibrated"), errors(latency, at), strict=True):
                half, eight = (within(off, share) for share in (0.5, EIGHT))
                lines.append(f"{name} = [{half:.3f}, {eight:.3f}]")
            lines.append("")
    return "\n".join(lines)
