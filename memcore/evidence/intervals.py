"""Intervals of step seconds, from the errors of every measured step by its distance to others.

`python -m memcore.evidence.intervals` writes presets/evidence/intervals.toml anew, in the checkout.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memcore.evidence import calibration
from memcore.evidence.times import compared_times, times_table
from memcore.plan.plan import Plan
from memcore.timing.certainty import ANY, CALIBRATED, GPU, LEAST, LIKE, TWIN, WORK, like, twin

PATH = Path(__file__).resolve().parents[2] / "presets" / "evidence" / "intervals.toml"
LEAVES = 0.05  # of the runs on either side, where there are enough
NARROWEST = 0.05  # runs of the same plan differ by as much


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
        framework, architecture, work = r.like
        keys = {TWIN: r.twin, LIKE: f"{framework}, {architecture}, {work}",
                GPU: f"{architecture}, {work}", WORK: work, ANY: ""}  # fmt: skip
        for distance, key in keys.items():
            found[distance].setdefault(key, []).append(r)
    return found


def ends(distance: str, rows: Sequence[Measured]) -> tuple[float, float]:
    """The interval of some measured steps that a plan has so much in common with."""
    low, high = between([r.ratio for r in rows])
    if distance in (GPU, WORK, ANY):  # it may be as far off as the worst of the frameworks
        of = [between([r.ratio for r in own]) for own in groups(rows)[LIKE].values()]
        low, high = min(low for low, _ in of), max(high for _, high in of)
    # What was not measured may be off by as much more as runs of the same plan differ.
    return low - NARROWEST, high + NARROWEST


def written(runs: Sequence[Measured]) -> str:
    """The table as a file."""
    of = groups(runs)
    lines = [
        "# Measured step seconds over ours, by how near the measured steps are: written by",
        "# `python -m memcore.evidence.intervals` from every row of times.toml.",
        "",
    ]
    for distance, by_key in of.items():
        for key, rows in sorted(by_key.items()):
            if len(rows) < LEAST and distance != TWIN:
                continue
            low, high = ends(distance, rows)
            name = f'{distance}."{key}"' if key else distance
            lines += [f"[{name}]", f"runs = {len(rows)}", f"low = {low:.3f}", f"high = {high:.3f}"]
            lines.append("")
    steps, low, high = calibration.interval(LEAVES)
    lines += [f"[{CALIBRATED}]", f"runs = {steps}", f"low = {low:.3f}", f"high = {high:.3f}", ""]
    return "\n".join(lines)


def main() -> int:
    PATH.write_text(written(measured()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
