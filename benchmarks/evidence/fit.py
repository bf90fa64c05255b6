"""Fit: the constants of a training step's seconds, read off the steps that are marked 'tuned'.

`python -m evidence.fit` fits all again, and once more without each source in turn, and
writes presets/evidence/left_out.toml: how far the steps of a source are off where no constant was
read off any of them. It takes minutes, and moves no constant: what it finds is written into
memcore/hardware/constants.py by hand, rounded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidence.planned import time_of
from evidence.times import times_table
from memcore.evidence.comparison import TUNED
from memcore.hardware import constants
from memcore.hardware.constants import Constant
from memcore.plan.plan import Plan

PATH = Path(__file__).resolve().parents[2] / "presets" / "evidence" / "left_out.toml"
LARGE = 0.1  # errors beyond it count in proportion, below it as their squares
FIRST_STEP, SWEEPS = 0.06, 2

Run = Mapping[str, Any]


def fitted() -> dict[str, Constant]:
    """The constants that are read off step times together."""
    of = {
        "multiprocessors": constants.COLLECTIVE_SMS,
        "DeepSpeed's collectives": constants.COLLECTIVE_EFFICIENCY_DEEPSPEED,
        "Megatron's host": constants.HOST_MEGATRON,
    }
    for name, e in constants.EFFICIENCIES.items():
        for constant in dict.fromkeys(e.shares):
            if constant.certainty == "measured":  # others were read off something else, or nothing
                of[f"{name}: {constant.name}"] = constant
    return of


def source_of(run: Run) -> str:
    """Who published a run: the repository or the paper, not the page."""
    place = run["source"].split(" ")[0].split("/")[2:5]
    return "/".join(place) or str(run["source"])


def matters(constant: Constant, plan: Plan) -> bool:
    """Whether the seconds of a plan can depend on a constant."""
    if constant is constants.COLLECTIVE_EFFICIENCY_DEEPSPEED:
        return plan.megatron_deepspeed
    if constant is constants.HOST_MEGATRON:
        return plan.train.kernels == "megatron"
    shares = [c for e in constants.EFFICIENCIES.values() for c in e.shares]
    own = constants.efficiency(plan.accelerator.architecture).shares
    if constant in shares:
        return constant in own
    return plan.accelerator.memory_kind.startswith("HBM")  # other memory moves its own shares alone


class Fit:
    """Constants that are moved until the errors of some runs are least."""

    def __init__(self, runs: Iterable[Run]):
        self.runs = [run for run in runs if run["used_for"] == TUNED]
        self.plans = {run["id"]: Plan.of(run["plan"]) for run in self.runs}
        groups = [self.group(run) for run in self.runs]
        self.weights = {run["id"]: groups.count(self.group(run)) ** -0.5 for run in self.runs}

    def group(self, run: Run) -> tuple[str, str]:
        return source_of(run), self.plans[run["id"]].accelerator.architecture

    def loss(self, runs: Sequence[Run]) -> float:
        """Of runs of a source on an architecture together as much as their number's root."""
        summed = 0.0
        for run in runs:
            time = time_of(self.plans[run["id"]])
            off = abs(math.log(time.step_seconds / run["seconds"]))
            summed += self.weights[run["id"]] * (
                off**2 if off < LARGE else LARGE * (2 * off - LARGE)
            )
        return summed

    def sweep(self, step: float) -> None:
        """Each constant in turn to its best, in steps of a share."""
        for constant in fitted().values():
            runs = [run for run in self.runs if matters(constant, self.plans[run["id"]])]
            best = self.loss(runs)
            for factor in (1 + step, 1 / (1 + step)):
                while runs:
                    here = constant.middle
                    move(constant, here * factor)
                    loss = self.loss(runs)
                    if loss >= best:
                        move(constant, here)
                        break
                    best = loss


def move(constant: Constant, value: float) -> None:
    """A constant's value, in this process: what reads it must see it."""
    object.__setattr__(constant, "low", value)
    object.__setattr__(constant, "high", value)


def unknown(constant: Constant) -> float:
    """What a constant would be had no step of its kind been measured."""
    if constant is constants.COLLECTIVE_EFFICIENCY_DEEPSPEED:
        return constants.COLLECTIVE_EFFICIENCY.middle
    if constant is constants.HOST_MEGATRON:
        return constants.HOST_LAUNCH.middle
    of = next(e for e in constants.EFFICIENCIES.values() if constant in e.shares)
    return constants.OTHER.shares[of.shares.index(constant)].middle


def errors(runs: Iterable[Run]) -> list[float]:
    found = []
    for run in runs:
        time = time_of(Plan.of(run["plan"]))
        found.append(time.step_seconds / run["seconds"] - 1)
    return found


def left_out() -> dict[str, list[float]]:
    """The errors of each tuned source with constants that were fitted to the others alone."""
    runs = times_table()["runs"]
    was = {name: constant.middle for name, constant in fitted().items()}
    found = {}
    for source in dict.fromkeys(source_of(run) for run in runs if run["used_for"] == TUNED):
        fit = Fit(run for run in runs if source_of(run) != source)
        for constant in fitted().values():
            seen = any(matters(constant, plan) for plan in fit.plans.values())
            if constant.certainty == "measured" and not seen:
                move(constant, unknown(constant))
        for k in range(SWEEPS):
            fit.sweep(FIRST_STEP / 2**k)
        found[source] = errors(run for run in runs if source_of(run) == source)
        for name, constant in fitted().items():
            move(constant, was[name])
    return found


def written(found: Mapping[str, Sequence[float]]) -> str:
    lines = [
        "# Errors of the steps of each source with constants fitted to the other sources alone:",
        "# written by `python -m evidence.fit`.",
        "",
    ]
    for source, of in found.items():
        lines += [f'["{source}"]', f"errors = [{', '.join(f'{e:.4f}' for e in of)}]", ""]
    return "\n".join(lines)


def main() -> int:
    PATH.write_text(written(left_out()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
