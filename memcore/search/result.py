"""The result of a search, and the words for what became of the plans that it judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from memcore.plan.plan import Plan
from memcore.search.levers import DIGITS
from memcore.search.waterfall import Change
from memcore.timing.certainty import Apart

ZERO = "train.zero"
BY = TIME, COST, ENERGY = ("time", "cost", "energy")
LISTED = 10  # of the best
FITS = "fits"
MEMORY, HOST, RULES, SLOWER, BEATEN, MONEY = (
    "memory",
    "host memory",
    "no such combination",
    "fits with less recomputation and offload",
    "slower than the best, whether it fits or not",
    "money",
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of a search.

    rank         1 is the best; plans that cannot be told apart have the same
    changes      fields that differ from the plan that was asked about
    trains       what becomes of the training, a word of space.KEEPS
    same_batch   whether a step has as many tokens as before
    figures      as the Report has them: see `_figures`
    also         other ZeRO stages with which every figure is the same, as where one rank alone has
                 the states; none of these is a point of its own
    """

    plan: Plan
    rank: int
    changes: Mapping[str, Any]
    trains: str
    same_batch: bool
    figures: Mapping[str, Any]
    also: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "plan": self.plan.document(),
            "changes": dict(self.changes),
            "trains": self.trains,
            "same_batch": self.same_batch,
            "figures": dict(self.figures),
            "also": {ZERO: list(self.also)} if self.also else {},
        }


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    evaluated  combinations that were judged; fits: of them, those that fit and may be the best
    excluded   how many of the others each reason excluded
    best       the best first
    pareto     of GPUs, time and cost, those that nothing beats in all: the fewest GPUs first
    nowhere    GPUs on which nothing fits, and what excluded most of it
    nearest    where nothing keeps to the targets, what is least too slow, and by how much in words
    apart      by how much plans like the best must differ to be told apart; None of rents
    why        what the best plan changed, one by one, with what each moved
    stopped    whether it was stopped before all was judged
    left       combinations that were not judged then; None where it was not yet known how many
               there are
    """

    evaluated: int
    fits: int
    excluded: Mapping[str, int]
    best: tuple[Point, ...]
    pareto: tuple[Point, ...]
    why: tuple[Change, ...]
    stopped: bool
    apart: Apart | None = None
    nowhere: Mapping[str, str] = field(default_factory=dict)
    nearest: tuple[Point, str] | None = None
    left: int | None = None

    @property
    def points(self) -> list[tuple[Point, bool]]:
        """The best and the front, each plan once, and whether it is of the front."""
        front, best = [p.plan for p in self.pareto], [p.plan for p in self.best]
        every = [*self.best, *(p for p in self.pareto if p.plan not in best)]
        return [(p, p.plan in front) for p in every]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain JSON types."""
        return {
            "evaluated": self.evaluated,
            "fits": self.fits,
            "excluded": dict(self.excluded),
            "best": [point.to_dict() for point in self.best],
            "pareto": [point.to_dict() for point in self.pareto],
            "why": [change.to_dict() for change in self.why],
            "stopped": self.stopped,
            **({"left": self.left} if self.stopped else {}),
            "apart": asdict(self.apart) if self.apart else None,
            "nowhere": dict(self.nowhere),
            "nearest": self.nearest and {**self.nearest[0].to_dict(), "misses": self.nearest[1]},
        }


def to_a_percent(one: Plan, other: Plan) -> Apart:
    """Of an hour's rent."""
    return Apart(1 + 10**-DIGITS, "", 0)
