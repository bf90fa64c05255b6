"""Certainty: how far our seconds of a step were from measured ones, by how near those are.

presets/evidence/intervals.toml says it by distance, and is written from every measured step
(`python -m memcore.evidence.intervals`): of the same model on the same GPU; of the same framework,
architecture and kind of work; of the same kind of work elsewhere; of anything.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from memcore.plan.plan import Plan
from memcore.words.precision import eight_bit
from memcore.words.training import FRAMEWORKS

TWIN, LIKE, GPU, WORK, ANY = DISTANCES = ("twin", "like", "gpu", "work", "any")
CALIBRATED = "calibrated"  # by a measured step of the same kind
LEAST = 5  # measured steps without which an interval is that of the next distance


@dataclass(frozen=True, slots=True)
class Compared:
    """Measured steps that a plan's is held against.

    distance    TWIN: this model on this GPU; LIKE: this framework, architecture and work; GPU: this
                architecture and work; WORK: this kind of work; ANY: nothing like it was compared
    runs        of them; low, high: measured over ours, which 9 of 10 of them lie between
    """

    distance: str
    runs: int
    low: float
    high: float

    def words(self, plan: Plan) -> str:
        """What was compared, for people."""
        framework, architecture, work = like(plan)
        label = FRAMEWORKS[framework].label
        found = {
            TWIN: f"this model on this GPU under {label}",
            LIKE: f"{work} training under {label} on {architecture}",
            GPU: f"{work} training on {architecture}, but under other frameworks",
            WORK: f"{work} training, but on other GPUs",
            ANY: f"other training, as {work} training was never compared",
        }[self.distance]
        return f"{found}: {self.runs} measured steps"


def like(plan: Plan) -> tuple[str, str, str]:
    """Framework, architecture of the GPU, and kind of work of a plan."""
    t, model = plan.train, plan.architecture
    if t.adapter != "none":
        work = "adapter"
    elif model.experts:
        work = "mixture"
    else:
        work = "8-bit dense" if eight_bit(t.framework, t.precision) else "dense"
    return t.framework, plan.accelerator.architecture, work


def twin(plan: Plan) -> str:
    """What a plan has in common with others of its model on its GPU, however long its sequences
    are and however it is cut."""
    m, (framework, _, work) = plan.architecture, like(plan)
    sizes = (m.hidden_size, m.layers, m.intermediate_size, m.experts)
    return " ".join(map(str, (framework, work, m.family, *sizes, plan.accelerator.label)))


@functools.cache
def _table() -> Mapping[str, Any]:
    path = files("presets").joinpath("evidence", "intervals.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def calibrated_interval() -> tuple[float, float]:
    """Measured over calibrated seconds, which 9 of 10 steps lie between that another measured step
    of their source and kind predicts (search.calibration)."""
    found = _table()[CALIBRATED]
    return found["low"], found["high"]


def farthest() -> tuple[float, float]:
    """Measured seconds over ours, which 9 of 10 steps of the least certain work lie between."""
    found = _table()[ANY]
    return found["low"], found["high"]


def compared(plan: Plan) -> Compared:
    """The nearest measured steps of which there are enough."""
    table, (framework, architecture, work) = _table(), like(plan)
    keys = {
        TWIN: twin(plan),
        LIKE: f"{framework}, {architecture}, {work}",
        GPU: f"{architecture}, {work}",
        WORK: work,
    }
    for distance, key in keys.items():
        if key in table[distance]:
            return Compared(distance, **table[distance][key])
    return Compared(ANY, **table[ANY])
