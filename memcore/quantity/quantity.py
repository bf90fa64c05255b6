"""Quantity: how the number at a path is declared, and what an explanation of it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from memcore.quantity.formula import CERTAINTIES, Formula, Term
from memcore.units import value_text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a number is what it is.

    path       where it is in the Report, or a name of its own where a page computes it
    what       its name, for a title
    value      as the report has it; an interval is a pair
    certainty  'exact', 'datasheet', 'measured' or 'assumed': that of its least certain part
    meaning    one sentence: what it measures
    formula    how it comes about, in words and in numbers; None for what is given
    sources    where the knowledge comes from
    """

    what: str
    value: Any
    unit: str
    certainty: str
    meaning: str
    formula: Formula | None
    sources: tuple[str, ...]
    path: str = ""

    @property
    def parts(self) -> tuple[Term, ...]:
        """What it is computed from."""
        return self.formula.terms if self.formula is not None else ()

    @property
    def text(self) -> str:
        """The value as pages show it."""
        return value_text(self.value, self.unit)


def about(
    what: str,
    unit: str,
    formula: Formula | None = None,
    meaning: str = "",
    sources: Sequence[str] = (),
    certainty: str = "exact",
    value: Any = None,
) -> Explanation:
    """What a rule returns. The sources of terms that are not explained further are added."""
    if formula is not None:
        value = formula.value
        certainty = max(certainty, formula.certainty, key=CERTAINTIES.index)
        sources = [*sources, *(t.source for t in formula.terms if t.source and not t.path)]
    return Explanation(
        what, value, unit, certainty, meaning, formula, tuple(dict.fromkeys(filter(None, sources)))
    )


class UnknownNumberError(LookupError):
    """A path that leads to no number; the message says which are near."""


Made = TypeVar("Made")
Rule = Callable[..., Explanation]
# By the first word of a pattern and how many it has.
_RULES: dict[tuple[str, int], list[tuple[tuple[str, ...], Rule]]] = {}


def rule(*patterns: str) -> Callable[[Rule], Rule]:
    """Registers how the numbers at these paths come about. The function gets the words at each
    '*' and at each choice 'a|b'."""

    def register(function: Rule) -> Rule:
        for pattern in patterns:
            words = tuple(pattern.split("."))
            _RULES.setdefault((words[0], len(words)), []).append((words, function))
        return function

    return register


def matching(path: str) -> tuple[Rule, list[str]] | None:
    """The rule for a path, and what stands at its choices; a word wins over a star."""
    words = path.split(".")
    found: tuple[int, Rule, list[str]] | None = None
    for pattern, function in _RULES.get((words[0], len(words)), ()):
        pairs = list(zip(pattern, words, strict=True))
        matches = all(p == "*" or w in p.split("|") for p, w in pairs)
        if matches and (found is None or pattern.count("*") < found[0]):
            chosen = [w for p, w in pairs if p == "*" or "|" in p]
            found = pattern.count("*"), function, chosen
    return found[1:] if found else None
