"""Intervals of step seconds, from the errors of every measured step by its distance to others; and
what two plans must differ by to be told apart, from pairs of them.

`python -m evidence.intervals` writes presets/evidence/intervals.toml, apart.toml and
in_common.toml anew, in the checkout.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from evidence import calibration, servers
from evidence.engines import PointErrors, point_errors
from evidence.times import compared_times, times_table
from memcore.plan.plan import Plan
from memcore.timing.certainty import ANY, CALIBRATED, GPU, LEAST, LIKE, TWIN, WORK, like, twin

EVIDENCE = Path(__file__).resolve().parents[2] / "presets" / "evidence"
PATH, PAIRS = EVIDENCE / "intervals.toml", EVIDENCE / "apart.toml"
LEAVES = 0.05  # of the runs on either side, where there are enough
NARROWEST = 0.05  # runs of the same plan differ by as much


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured step, with what it has in common with others. ratio: measured over ours."""

    plan: Plan
    ratio: float
    source: str
    twin: str
    like: tuple[str, str, str]


def measured() -> list[Measured]:
    """Every measured step."""
    found = []
    for run, c in zip(times_table()["runs"], compared_times(), strict=True):
        plan = Plan.of(run["plan"])
        found.append(Measured(plan, c.theirs / c.ours, run["source"], twin(plan), like(plan)))
    return found


def between(ratios: Sequence[float]) -> tuple[float, float]:
    """What 9 of 10 lie between; ours is always inside."""
    of = sorted(ratios)
    cut = math.floor(LEAVES * len(of))
    low, high = of[cut], of[len(of) - 1 - cut]
    return min(low, 1 - NARROWEST), max(high, 1 + NARROWEST)


def groups(runs: Iterable[Measured]) -> dict[str, dict[str, list[Measured]]]:
    """The measured steps of each distance, by what they have in common."""
    found: dict[str, dict[str, list[Measured]]] = {TWIN: {}, LIKE: {}, GPU: {}, WORK: {}, ANY: {}}
    for r in runs:
        for distance, key in _keys(r):
            found[distance].setdefault(key, []).append(r)
    return found


def _keys(r: Measured) -> tuple[tuple[str, str], ...]:
    """What a step has in common with others at each distance, the nearest first."""
    framework, architecture, work = r.like
    return ((TWIN, r.twin), (LIKE, f"{framework}, {architecture}, {work}"),
            (GPU, f"{architecture}, {work}"), (WORK, work), (ANY, ""))  # fmt: skip


def ends(distance: str, rows: Sequence[Measured]) -> tuple[float, float]:
    """The interval of some measured steps that a plan has so much in common with."""
    low, high = between([r.ratio for r in rows])
    if distance in (GPU, WORK, ANY):  # it may be as far off as the worst of the frameworks
        of = [between([r.ratio for r in own]) for own in groups(rows)[LIKE].values()]
        low, high = min(low for low, _ in of), max(high for _, high in of)
    # What was not measured may be off by as much more as runs of the same plan differ.
    return low - NARROWEST, high + NARROWEST


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step beside the interval that the other sources alone have for it.

    beyond    how many times as far as its nearer end it lies; 1: inside
    """

    source: str
    distance: str
    beyond: float


def left_out(runs: Sequence[Measured]) -> list[LeftOut]:
    """Every step, its source left out."""
    found = []
    for source in dict.fromkeys(r.source for r in runs):
        others = {
            (distance, key): ends(distance, rows)
            for distance, by_key in groups(r for r in runs if r.source != source).items()
            for key, rows in by_key.items()
            if distance != TWIN and len(rows) >= LEAST
        }
        for r in (r for r in runs if r.source == source):
            key = next(key for key in _keys(r) if key in others)
            low, high = others[key]
            found.append(LeftOut(source, key[0], max(1.0, r.ratio / high, low / r.ratio)))
    return found


def widening(missed: Iterable[LeftOut], distance: str) -> float:
    """What an interval of this distance is widened by so that 9 of 10 steps of sources that were
    left out lie inside, whichever source there had not been."""
    every = list(missed)
    sources = dict.fromkeys(m.source for m in every)
    return max(_widening([m for m in every if m.source != s], distance) for s in sources)


def _widening(every: Sequence[LeftOut], distance: str) -> float:
    """The same of all of these: as many as there are, and one that was not seen."""
    own = sorted(m.beyond for m in every if m.distance == distance)
    of = own if len(own) >= LEAST else sorted(m.beyond for m in every)
    return of[min(len(of), math.ceil((1 - 2 * LEAVES) * (len(of) + 1))) - 1]


def written(runs: Sequence[Measured]) -> str:
    """The table as a file."""
    of, missed = groups(runs), left_out(runs)
    lines = [
        "# Measured step seconds over ours, by how near the measured steps are: written by",
        "# `python -m evidence.intervals` from every row of times.toml, and but for twins",
        "# widened until 9 of 10 steps of a source that is left out are inside.",
        "",
    ]
    for distance, by_key in of.items():
        for key, rows in sorted(by_key.items()):
            if len(rows) < LEAST and distance != TWIN:
                continue
            low, high = ends(distance, rows)
            if distance != TWIN:
                wider = widening(missed, distance)
                low, high = low / wider, high * wider
            name = f'{distance}."{key}"' if key else distance
            lines += [f"[{name}]", f"runs = {len(rows)}", f"low = {low:.3f}", f"high = {high:.3f}"]
            lines.append("")
    steps, low, high = calibration.interval(LEAVES)
    share = f"share = {calibration.common(calibration.steps()):.2f}"
    lines += [f"[{CALIBRATED}]", f"runs = {steps}", share, f"low = {low:.3f}", f"high = {high:.3f}"]
    lines.append("")
    return "\n".join(lines)


# Of pairs of measured times the share whose errors differ by less than is said. As many differ by
# more to the one side as to the other, so that an order is right in nine of ten.
TOLD = 0.8
PAIRED = 10  # pairs without which a distance's are not told by framework, architecture and work


def written_pairs(runs: Sequence[Measured], points: Sequence[PointErrors]) -> str:
    """The table of what two plans must differ by, as a file."""
    lines = [
        "# How many times as long as another a plan must take to be told apart from it, by what",
        "# they have in common: in eight of ten pairs of measured times our errors differ by less.",
        "# Written by `python -m evidence.intervals`.",
        "",
    ]

    def add(name: str, off: Sequence[float], least: float = 1.0) -> float:
        """`least`: of plans that have more in common."""
        ratio = max(least, math.exp(sorted(off)[math.ceil(TOLD * len(off)) - 1]))
        lines.extend((f"[{name}]", f"pairs = {len(off)}", f"ratio = {ratio:.3f}", ""))
        return ratio

    own: dict[str, list[float]] = {}
    for a, b in _pairs_of(runs, lambda r: r.twin):
        own.setdefault(", ".join(a.like), []).append(_farther(a.ratio, b.ratio))
    for key, off in sorted(own.items()):
        if len(off) >= PAIRED:
            add(f'training.own."{key}"', off)
    keys: dict[str, Callable[[Measured], Hashable]] = {
        TWIN: lambda r: r.twin, LIKE: lambda r: r.like, GPU: lambda r: r.like[1:],
        WORK: lambda r: r.like[2], ANY: lambda r: "",
    }  # fmt: skip
    nearer = 1.0
    for distance, has in keys.items():
        pairs = _pairs_of(runs, has)
        off = [_farther(a.ratio, b.ratio) for a, b in pairs]
        nearer = add(f"training.{distance}", off, nearer)
    served: dict[str, Callable[[PointErrors], Hashable]] = {
        TWIN: lambda f: (f.point.model, f.point.engine, f.point.gpu),
        LIKE: lambda f: (f.point.model, f.point.engine),
        GPU: lambda f: (f.point.model, f.point.gpu),
        ANY: lambda f: f.point.model,
    }
    for word in ("dense", "mixture"):
        of = [f for f in points if f.experts == (word == "mixture")]
        for distance, same in served.items():
            ratios = [
                _farther(1 + a.token, 1 + b.token)
                for a, b in _pairs_of(of, same)
                if a.token is not None and b.token is not None
            ]
            add(f"serving.{word}.{distance}", ratios)
    return "\n".join(lines)


def _pairs_of(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> Iterator[tuple[Row, Row]]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    for of in groups.values():
        yield from itertools.combinations(of, 2)


def _farther(one: float, other: float) -> float:
    """By how much one was farther off than another, as a logarithm."""
    return abs(math.log(one / other))


def main() -> int:
    runs = measured()
    PATH.write_text(written(runs), encoding="utf-8")
    PAIRS.write_text(written_pairs(runs, point_errors()), encoding="utf-8")
    (EVIDENCE / servers.FILE).write_text(servers.written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
