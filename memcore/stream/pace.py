"""Pace: how many tokens each step gives a sequence: one, or as many of a draft's guesses as are
right, and one more.

All sequences of a step have the same luck, so that they go on together. Of each alone it is as it
would be: every guess is right as often as the plan says, independently of the one before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from memcore.cache import cached

PERIOD = 1 << 14  # steps that are drawn; then they come again


class Steady:
    """One token a step."""

    guesses = 0

    def tokens(self, steps: int) -> int:
        """Tokens of each sequence after so many steps."""
        return steps

    def area(self, steps: int) -> int:
        """The sum of tokens(0) to tokens(steps - 1)."""
        return steps * (steps - 1) // 2

    def reach(self, tokens: int) -> int:
        """Steps after which there are at least so many tokens."""
        return max(0, tokens)


@dataclass(frozen=True, slots=True)
class Guessed:
    """Steps that check `guesses` tokens: sums of what they gave, and the sums of these."""

    guesses: int
    sums: tuple[int, ...]
    areas: tuple[int, ...]

    def tokens(self, steps: int) -> int:
        rounds, rest = divmod(steps, PERIOD)
        return rounds * self.sums[-1] + self.sums[rest]

    def area(self, steps: int) -> int:
        rounds, rest = divmod(steps, PERIOD)
        whole = rounds * self.areas[-1] + PERIOD * self.sums[-1] * (rounds * (rounds - 1) // 2)
        return whole + rounds * self.sums[-1] * rest + self.areas[rest]

    def reach(self, tokens: int) -> int:
        rounds, rest = divmod(max(0, tokens), self.sums[-1])
        return rounds * PERIOD + bisect_left(self.sums, rest)

    @classmethod
    @cached
    def of(cls, guesses: int, right: float, seed: int) -> Guessed:
        """Each guess is right with this probability, and one that follows a wrong one is not
        looked at."""
        random, given = Random(seed), []
        for _ in range(PERIOD):
            u = 1 - random.random()  # the first `n` are right where u < right ** n
            n = guesses
            if right < 1:
                n = min(guesses, int(math.log(u) / math.log(right))) if right > 0 else 0
            given.append(1 + n)
        sums = tuple(accumulate(given, initial=0))
        return cls(guesses, sums, tuple(accumulate(sums[:-1], initial=0)))


Pace = Steady | Guessed
STEADY = Steady()
