"""Chart: what a step holds at its instants as a matrix, for who asks the peaks of many sizes.

How often a step holds which rows is the same for all sizes, so that the bytes at all instants of
many plans are one product: how often, times the bytes of each group of rows and of each window.
Bytes are whole numbers, which floating-point numbers have exactly up to 2^53.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.tape.ledger import Amounts, Group, Holding, Window

Moment = tuple[Holding, Window | None]


@dataclass(frozen=True, eq=False)
class Chart:
    """Moments of one step, or of several that a Blend lies between.

    groups, windows   what any moment holds, in the order of the columns
    counts            how many of each at each moment: of the first step, and what each of the
                      others has more
    stepping          behind the first moment so many are the optimizer's
    """

    groups: tuple[Group, ...]
    windows: tuple[Window, ...]
    counts: tuple[Any, ...]
    stepping: int = 0

    @classmethod
    def of(cls, points: Sequence[Sequence[Moment]], stepping: int = 0) -> Chart:
        """Of the same moments of each step; windows are as the first has them."""
        import numpy as np

        groups = _numbered(g for moments in points for held, _ in moments for g in held.groups)
        windows = _numbered(window for _, window in points[0] if window)
        counts: list[Any] = []
        for moments in points:
            found = np.zeros((len(moments), len(groups) + len(windows)))
            for row, (held, _) in enumerate(moments):
                found[row, [groups[g] for g in held.groups]] = held.times
            counts.append(found - counts[0] if counts else found)
        for row, (_, window) in enumerate(points[0]):
            if window:
                counts[0][row, len(groups) + windows[window]] = 1
        return cls(tuple(groups), tuple(windows), tuple(counts), stepping)

    def bytes(self, amounts: Amounts, extra: Sequence[Any] = ()) -> Any:
        """Bytes at each moment, of each plan. extra: of each plan, how many times what each of the
        other steps has more is there."""
        each = amounts.stacked(
            [*map(amounts.group, self.groups), *map(amounts.highest, self.windows)]
        )
        found = self.counts[0] @ each
        for counts, times in zip(self.counts[1:], extra, strict=True):
            if counts.any() and times.any():
                found = found + counts @ each * times
        return found

    def apart(self, amounts: Amounts, extra: Sequence[Any] = ()) -> tuple[Any, Any, Any]:
        """The same: while a micro-batch is under way, at the optimizer's, and at the first."""
        found = self.bytes(amounts, extra)
        start = 1 + self.stepping
        return found[start:], found[1:start], found[0]


def _numbered(things: Iterable[Any]) -> dict[Any, int]:
    return {thing: n for n, thing in enumerate(dict.fromkeys(things))}
