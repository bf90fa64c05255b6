"""Formula: arithmetic that remembers how it was written.

A Formula holds its value, the same in words and in this plan's numbers, and the terms it is made
of. All four come from one expression, so that what is said cannot differ from what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memcore.hardware.constants import Constant
from memcore.units import exact_text

CERTAINTIES = ("exact", "datasheet", "measured", "assumed")  # the surest first
NOTHING = "nothing of this kind is there in this plan"
WRITTEN_OUT = 6  # terms of a sum that are all written; of a longer one the largest are
LARGEST = 3
_SUM, _PRODUCT, _ATOM = 1, 2, 3  # how tightly a text binds


@dataclass(frozen=True, slots=True)
class Term:
    """One factor or part of a formula.

    path     where it is explained itself; '' where it is not taken apart further
    source   where the knowledge comes from, of a term without a path
    note     what it is, in a few words
    """

    name: str
    value: Any
    unit: str = ""
    path: str = ""
    certainty: str = "exact"
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """An expression: its value, how it reads in words and in numbers, and its terms.

    It compares as its value does, so that a branch on a number is the one that was taken.
    """

    value: Any
    words: str
    numbers: str
    terms: tuple[Term, ...]
    binds: int = _ATOM

    def __add__(self, other: Operand) -> Formula:
        return _joined(self, "+", other, _SUM)

    def __sub__(self, other: Operand) -> Formula:
        return _joined(self, "-", other, _SUM)

    def __mul__(self, other: Operand) -> Formula:
        return _joined(self, "x", other, _PRODUCT)

    def __rmul__(self, other: Operand) -> Formula:
        return number(other) * self

    def __truediv__(self, other: Operand) -> Formula:
        return _joined(self, "/", other, _PRODUCT)

    def __radd__(self, other: Operand) -> Formula:
        return number(other) + self

    def __rsub__(self, other: Operand) -> Formula:
        return number(other) - self

    def __rtruediv__(self, other: Operand) -> Formula:
        return number(other) / self

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _value(other))

    def __lt__(self, other: Operand) -> bool:
        return bool(self.value < _value(other))

    def __le__(self, other: Operand) -> bool:
        return bool(self.value <= _value(other))

    def __gt__(self, other: Operand) -> bool:
        return bool(self.value > _value(other))

    def __ge__(self, other: Operand) -> bool:
        return bool(self.value >= _value(other))

    def __hash__(self) -> int:
        return hash((self.value, self.words))

    @property
    def certainty(self) -> str:
        """That of the least certain term."""
        return max((t.certainty for t in self.terms), key=CERTAINTIES.index, default="exact")


Operand = Formula | int | float


def _value(operand: Any) -> Any:
    return operand.value if isinstance(operand, Formula) else operand


_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "x": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.inf,
}


def leaf(term: Term) -> Formula:
    """A term as a formula of its own."""
    return Formula(term.value, term.name, exact_text(term.value, term.unit), (term,))


def known(name: str, value: Any, unit: str = "", **more: Any) -> Formula:
    """A factor that is not taken apart further; `more` is what else a Term has."""
    return leaf(Term(name, value, unit, **more))


def number(value: Operand) -> Formula:
    """A plain number as a formula without terms."""
    if isinstance(value, Formula):
        return value
    text = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return Formula(value, text, text, ())


def revalued(f: Formula, value: Any) -> Formula:
    """The same words for a value that was computed in another way, exactly."""
    return replace(f, value=value)


def constant(c: Constant, end: int | None = None) -> Formula:
    """A constant that no shape determines: its low end (0), its high end (1) or its middle."""
    value = c.middle if end is None else (c.low, c.high)[end]
    unit = {"ratio": ""}.get(c.unit, c.unit)
    return known(c.name, value, unit, certainty=c.certainty, source=f"{c.name}: {c.source}")


def _joined(left: Formula, sign: str, right: Operand, binds: int) -> Formula:
    right = number(right)
    strict = sign in "-/"  # a - (b + c), but a + b + c

    def both(a: str, b: str) -> str:
        b = f"({b})" if right.binds < binds or (strict and right.binds == binds) else b
        return f"{f'({a})' if left.binds < binds else a} {sign} {b}"

    return Formula(
        _COMPUTED[sign](left.value, right.value),
        both(left.words, right.words),
        both(left.numbers, right.numbers),
        _distinct((*left.terms, *right.terms)),
        binds,
    )


def _distinct(terms: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(dict.fromkeys(terms))


def _called(name: str, value: Any, *of: Formula, template: str = "{name} ({all})") -> Formula:
    def text(each: Sequence[str]) -> str:
        return template.format(name=name, all=", ".join(each))

    return Formula(
        value,
        text([f.words for f in of]),
        text([f.numbers for f in of]),
        _distinct([t for f in of for t in f.terms]),
    )


def rounded_down(f: Formula) -> Formula:
    """Rounded down."""
    return _called("rounded down", math.floor(f.value), f)


def ceiling(f: Formula) -> Formula:
    """Rounded up."""
    return _called("rounded up", math.ceil(f.value), f)


def nearest(f: Formula) -> Formula:
    return _called("rounded", round(f.value), f)


def log2(f: Formula) -> Formula:
    return _called("log2", math.log2(f.value), f)


def sqrt(f: Formula) -> Formula:
    return _called("sqrt", math.sqrt(f.value), f)


def largest(*operands: Operand) -> Formula:
    of = [number(f) for f in operands]
    if len(of) > WRITTEN_OUT:
        return _abridged("largest", max(f.value for f in of), of)
    return _called("the largest of", max(f.value for f in of), *of)


def smallest(*operands: Operand) -> Formula:
    of = [number(f) for f in operands]
    return _called("the smallest of", min(f.value for f in of), *of)


def at_least_zero(f: Formula) -> Formula:
    return _called("at least 0:", max(0, f.value), f, template="{all}, at least 0")


def total(of: Sequence[Formula]) -> Formula:
    """The sum; a long one names only its largest terms."""
    value = sum(f.value for f in of)
    if not of:
        return known("nothing", 0, source=NOTHING)
    if len(of) > WRITTEN_OUT:
        return _abridged("sum", value, of)
    return Formula(  # no text binds less than a sum
        value,
        " + ".join(f.words for f in of),
        " + ".join(f.numbers for f in of),
        tuple(t for f in of for t in f.terms),
        _SUM if len(of) > 1 else of[0].binds,
    )


def _abridged(name: str, value: Any, of: Sequence[Formula]) -> Formula:
    top = sorted(of, key=lambda f: -f.value)[:LARGEST]
    joint, rest = (" + ", f" + {len(of) - LARGEST:,} more") if name == "sum" else (", ", ", ...")
    return Formula(
        value,
        f"{name} of {len(of):,} parts",
        joint.join(f.numbers for f in top) + rest,
        tuple(t for f in of for t in f.terms),
        _SUM,
    )


def whichever(of: Mapping[str, Formula]) -> Formula:
    """The name of the largest; of equal ones the first."""
    best = max(of, key=lambda name: of[name].value)
    every = list(of.values())
    told = largest(*every)
    return Formula(best, f"where it is {told.words}", told.numbers, told.terms)


def decided(value: Any, words: str, *of: Formula) -> Formula:
    """A word or a yes that follows from a comparison, which `words` states."""
    numbers = "; ".join(f.numbers for f in of)
    return Formula(value, words, numbers, _distinct([t for f in of for t in f.terms]))
