"""Certainty: how far our seconds of a step were from measured ones, by how near those are; and by
how much two plans must differ to be told apart.

presets/evidence/intervals.toml says it by distance, and is written from every measured step
(`python -m evidence.intervals`): of the same model on the same GPU; of the same framework,
architecture and kind of work; of the same kind of work elsewhere; of anything.

Two plans of one model share most of their error: a framework or a GPU that is slower than we say
is so for both. So a difference is not judged by their two intervals, but by pairs of measured
steps: by how much the one was farther off than the other (presets/evidence/apart.toml).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.cache import cached
from memcore.plan.plan import Plan
from memcore.shipped import PRESETS
from memcore.words.training import FRAMEWORKS, eight_bit, float8

TWIN, LIKE, GPU, WORK, ANY = ("twin", "like", "gpu", "work", "any")
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


@dataclass(frozen=True, slots=True)
class Apart:
    """What two plans must differ by to be told apart.

    ratio     of their times: with more, nine in ten times the one that we say is faster is
    distance  what the measured pairs have in common, as a plan's two do: TWIN (framework, or
              engine, GPU and model), LIKE (the same, but for the GPU), GPU (the GPU), WORK (the
              kind of work), ANY
    pairs     of measured times that say so
    """

    ratio: float
    distance: str
    pairs: int

    @property
    def words(self) -> str:
        """By how much, and who says so, for people."""
        found = {
            TWIN: "of this framework or engine, GPU and model",
            LIKE: "of one framework or engine",
            GPU: "on one kind of GPU",
            WORK: "of one kind of work",
            ANY: "of any kind",
        }[self.distance]
        return f"{self.ratio - 1:.0%}, as {self.pairs:,} pairs of measured times {found} say"

    def same(self, one: float, other: float) -> bool:
        """Whether two times cannot be told apart."""
        return max(one, other) <= self.ratio * min(one, other)


def apart(one: Plan, other: Plan) -> Apart:
    """By how much the steps of two plans of one model must differ."""
    table = _table("apart")["training"]
    (framework, architecture, work), others = like(one), like(other)
    if twin(one) == twin(other):
        own = table["own"].get(f"{framework}, {architecture}, {work}")
        return Apart(distance=TWIN, **(own or table[TWIN]))
    same = (architecture, work) == others[1:]
    distance = GPU if same else WORK if work == others[2] else ANY
    distance = LIKE if same and framework == others[0] else distance
    return Apart(distance=distance, **table[distance])


def apart_serving(one: Plan, other: Plan) -> Apart:
    """By how much the times per token of two servers of one model must differ."""
    table = _table("apart")["serving"]["mixture" if one.architecture.experts else "dense"]
    engine, gpu = one.engine == other.engine, one.accelerator.label == other.accelerator.label
    distance = (TWIN if gpu else LIKE) if engine else (GPU if gpu else ANY)
    return Apart(distance=distance, **table[distance])


Told = Callable[[Plan, Plan], Apart]


def ranked(plans: Sequence[Plan], times: Sequence[float], told: Told = apart) -> list[int]:
    """The rank of each plan, the least time first, as they are given: of one rank no two can be
    told apart."""
    ranks: list[int] = []
    first: dict[Any, tuple[Plan, float]] = {}  # of a rank, of each kind of plan, the quickest
    for i, (plan, time) in enumerate(zip(plans, times, strict=True)):
        kind = (like(plan), plan.accelerator.label, plan.engine)
        if not all(told(other, plan).same(one, time) for other, one in first.values()):
            first = {}
        ranks.append(ranks[-1] if first else i + 1)
        first.setdefault(kind, (plan, time))
    return ranks


@cached
def _table(name: str) -> Mapping[str, Any]:
    path = PRESETS.joinpath("evidence", f"{name}.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def like(plan: Plan) -> tuple[str, str, str]:
    """Framework, architecture of the GPU, and kind of work of a plan."""
    t, model = plan.train, plan.architecture
    if t.adapter != "none":
        work = "adapter"
    elif model.experts:
        work = "mixture"
    else:
        how = eight_bit(t.framework, t.precision)
        bits = how.bits if how else 8 if float8(t.framework, t.precision) else 0
        work = f"{bits}-bit dense" if bits else "dense"
    return t.framework, plan.accelerator.architecture, work


def twin(plan: Plan) -> str:
    """What a plan has in common with others of its model on its GPU, however long its sequences
    are and however it is cut."""
    m, (framework, _, work) = plan.architecture, like(plan)
    sizes = (m.hidden_size, m.layers, m.intermediate_size, m.experts)
    return " ".join(map(str, (framework, work, m.family, *sizes, plan.accelerator.label)))


def calibrated_interval() -> tuple[float, float]:
    """Measured over calibrated seconds, which 9 of 10 steps lie between that another measured step
    of their source and kind predicts (search.measured)."""
    return _ends(CALIBRATED)


def in_common() -> float:
    """The share of what one step is off (as a logarithm) that others of its kind are off too."""
    found: float = _table("intervals")[CALIBRATED]["share"]
    return found


def farthest() -> tuple[float, float]:
    """Measured seconds over ours, which 9 of 10 steps of the least certain work lie between."""
    return _ends(ANY)


def _ends(kind: str) -> tuple[float, float]:
    found = _table("intervals")[kind]
    return found["low"], found["high"]


def compared(plan: Plan) -> Compared:
    """The nearest measured steps of which there are enough."""
    table, (framework, architecture, work) = _table("intervals"), like(plan)
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
