"""Other calculators of step times, and a rule of one line, beside ours on the same steps.

What three calculators say stands in presets/evidence/peers.toml, which benchmarks/peers.py writes;
it says what each can express. The rule is reckoned here.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from evidence.planned import time_of
from evidence.times import times_table
from memcore.evidence.comparison import CHECK, Comparison, relative, text
from memcore.plan.plan import Plan
from memcore.words.training import FRAMEWORKS

RULE = 0.45  # of the peak
THE_RULE = "the rule"


def ruled(plan: Plan) -> float:
    """Seconds of a step by a rule of one line: 45 % of the peak, and the pipeline's bubble."""
    time, p = time_of(plan), plan.parallel
    peak = time.model_flops / time.mfu / time.step_seconds
    bubble = (p.pp - 1) / (p.virtual_stages * plan.train.grad_accumulation)
    return time.model_flops / (RULE * peak) * (1 + bubble)


@functools.cache
def peers_table() -> Mapping[str, Mapping[str, float]]:
    """Of each calculator the seconds of the runs of times.toml that it can express, by id."""
    return tomllib.loads(text("peers.toml"))


@dataclass(frozen=True, slots=True)
class PeerErrors:
    """Errors of the same steps: ours, and another's."""

    framework: str
    other: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def half(self) -> float:
        return median(map(abs, self.ours))

    @property
    def half_of_theirs(self) -> float:
        return median(map(abs, self.theirs))

    @property
    def closer(self) -> int:
        """Of how many steps the other is nearer."""
        return sum(abs(t) < abs(o) for o, t in zip(self.ours, self.theirs, strict=True))


def framework_of(plan: Plan) -> str:
    """What ran a step, as people call it."""
    label = FRAMEWORKS[plan.train.framework].label
    if plan.megatron_deepspeed:
        label = "Megatron-DeepSpeed"
    vendor: str = plan.accelerator.vendor
    return label if vendor == "nvidia" else f"{label} ({vendor})"


def peer_errors(compared: Iterable[Comparison]) -> list[PeerErrors]:
    """Each other on the steps of each framework that it can express and nothing of ours was tuned
    on. `compared`: our steps, in the order of times.toml."""
    said: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run, c in zip(times_table()["runs"], compared, strict=True):
        if c.used_for != CHECK:
            continue
        plan = Plan.of(run["plan"])
        others = {name: of[run["id"]] for name, of in peers_table().items() if run["id"] in of}
        for name, seconds in (others | {THE_RULE: ruled(plan)}).items():
            pair = c.error, relative(seconds, run["seconds"])
            said.setdefault((framework_of(plan), name), []).append(pair)
    return [
        PeerErrors(framework, other, *map(tuple, zip(*pairs, strict=True)))
        for (framework, other), pairs in sorted(said.items(), key=lambda of: of[0])
    ]
