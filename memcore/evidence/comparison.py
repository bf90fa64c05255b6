"""A figure of somebody else, compared with ours; all comparisons as they were last written down.

Comparing takes ten seconds of processor; reading takes a hundredth of that. A test holds the file
equal to what the package `evidence` finds: `python -m evidence.markdown` writes it anew.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from memcore.shipped import PRESETS

_ROOT = PRESETS.joinpath("evidence")

COUNTED, AUTOGRAD, TRACKER, MEASURED, PUBLISHED = SOURCES = (
    "transformers parameter count",
    "PyTorch autograd",
    "PyTorch memory tracker",
    "measured on GPUs",
    "published",
)
STEP_TIME, TIME_TOLERANCE = "step time", 0.2  # relative, of runs of high confidence
COMPARED = "compared.jsonl"
CHECK = "check"  # only compared with; no constant was read off it
TUNED = "tuned"  # a constant was
OUT_OF_MEMORY = "out of memory"
KINDS = {"saved": "bytes saved for backward", "peak": "peak of a step", "figure": "as published"}
SMALL_DIFFERENCE = 1e-5
SPREAD = ("figures", "half within", "nine in ten within", "worst")
AGREEMENT = ("what", "against", "used for", *SPREAD)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of theirs beside ours. A word that does not apply is '', a number 0.

    what       'parameters', 'saved' (for backward), 'peak' (of forward and backward), 'figure';
               of measured runs 'allocated', 'reserved', 'after start', 'after a step',
               OUT_OF_MEMORY
    model      a model's name, or what a published figure is about
    unit       of theirs and ours
    layers     that the model was cut to; 0: all of them
    tolerance  what a test allows, relative; 0: equal
    run, confidence, remark    of a measured run
    low, high  of the interval that ours is the middle of, where it is one
    """

    source: str
    model: str
    what: str
    theirs: float
    ours: float
    unit: str
    family: str = ""
    regime: str = ""
    attention: str = ""
    checkpointing: str = ""
    batch: int = 0
    seq_len: int = 0
    layers: int = 0
    gpus: int = 0
    tolerance: float = 0.0
    used_for: str = CHECK
    run: str = ""
    confidence: str = ""
    remark: str = ""
    low: float = 0
    high: float = 0

    @property
    def kind(self) -> str:
        """What is compared; autocast apart, since its reference has a limit that is known."""
        return KINDS.get(self.what, self.what) + ", autocast" * (self.regime == "autocast")

    @property
    def error(self) -> float:
        """How much more ours is than theirs, relative. 0 means equal; theirs inside our interval;
        or, where theirs ran out of memory, that ours needs more than there is."""
        if self.what == OUT_OF_MEMORY:
            return min(0.0, relative(self.ours, self.theirs))
        if self.low < self.high:
            return relative(min(max(self.theirs, self.low), self.high), self.theirs)
        return relative(self.ours, self.theirs)


def relative(ours: float, theirs: float) -> float:
    """(ours - theirs) / theirs, exactly 0 where they are equal."""
    if ours == theirs:
        return 0.0
    return (ours - theirs) / theirs if theirs else math.inf


def off_text(error: float) -> str:
    """A relative difference without its sign."""
    error = abs(error)
    if not error:
        return "equal"
    if error < SMALL_DIFFERENCE:
        return "under 0.001 %"
    return f"{error * 100:.2g} %" if error < 0.1 else f"{error:.0%}".replace("%", " %")


def signed_text(error: float) -> str:
    """The same with its sign."""
    sign = "" if abs(error) < SMALL_DIFFERENCE else "+" if error > 0 else "-"
    return sign + off_text(error)


def ends_texts(errors: Iterable[float]) -> tuple[str, str]:
    """How far off the middle one is, and how far nine in ten are at most."""
    off = sorted(map(abs, errors))
    return off_text(median(off)), off_text(off[math.ceil(0.9 * len(off)) - 1])


def spread_texts(rows: Sequence[Comparison]) -> tuple[str, str, str]:
    """How far off the middle row is, how far nine in ten are at most, and the worst."""
    errors = [r.error for r in rows]
    return (*ends_texts(errors), signed_text(max(errors, key=abs)))


def by_kind(rows: Iterable[Comparison]) -> dict[tuple[str, str, str], list[Comparison]]:
    """The rows of each kind and source, those that were tuned on apart from those checked."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for r in rows:
        groups.setdefault((r.kind, r.source, r.used_for), []).append(r)
    return groups


def text(*path: str) -> str:
    """A file of presets/evidence."""
    return _ROOT.joinpath(*path).read_text(encoding="utf-8")


@functools.cache
def last_compared() -> tuple[Comparison, ...]:
    """Every comparison as it was last written down, in the order of `evidence.figures.compare`."""
    return tuple(Comparison(**json.loads(line)) for line in text(COMPARED).splitlines())
