"""Algebra: sizes as sums of products, so that what a million plans share is computed once.

Read with these in place of numbers, the same formulas give each number as a sum of products of few
varying factors. Rows that share their factors are one, what never wins a maximum is dropped, and
the rest is a short program of array operations. Nothing is approximate: what is dropped is less
everywhere on the axes, and whole numbers below 2**53 are exact in floating point.

Whatever cannot be said so raises UnsaidError; the same formulas then take arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

EXACT = 2**53  # below it floating point has every whole number
LONGEST = 64  # products of two sums, written out
Number = Any  # int, float or Sum
Factors = tuple[tuple[int, int], ...]  # of a product: which atoms, each to which power


class UnsaidError(Exception):
    """What this algebra has no words for."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor that is not taken apart: an axis, or what is no sum of products.

    operation   AXIS, FLOOR (of the first over the second), LARGEST, WHERE, AT_LEAST and ABOVE
                (whether a number is, of 0), EQUAL (to 0), POWER_OF_2, NEAREST, WHOLE (a sum, as it
                stands)
    low, high   what it is within, on the whole axes
    """

    operation: str
    operands: tuple[Number, ...]
    low: float
    high: float
    whole: bool
    path: str = ""

    @property
    def said(self) -> bool:
        """Whether it is 0 or 1."""
        return self.operation in (AT_LEAST, ABOVE, EQUAL)


AXIS, FLOOR, LARGEST, WHERE, POWER_OF_2, NEAREST, WHOLE = (
    "axis", "floor", "largest", "where", "power of 2", "nearest", "whole",
)  # fmt: skip
AT_LEAST, ABOVE, EQUAL = "at least 0", "above 0", "equal to 0"


class Algebra:
    """The atoms and products of some axes, each once."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.products: list[Factors] = [()]
        self.bounds: list[tuple[float, float]] = [(1, 1)]
        self.whole: list[bool] = [True]
        self.maxima: dict[int, int | None] = {}  # products with a LARGEST: of one alone, its atom
        self._of_factors: dict[Factors, int] = {(): 0}
        self._times: dict[tuple[int, int], int] = {}
        self._made: dict[Any, Sum] = {}

    def axis(self, path: str, low: int, high: int) -> Sum:
        """A number that varies between two, each above zero."""
        return self._atom(AXIS, (), low, high, True, path)

    # --- products --------------------------------------------------------------------------------

    def product(self, factors: Factors) -> int:
        found = self._of_factors.get(factors)
        if found is None:
            found = self._of_factors[factors] = len(self.products)
            self.products.append(factors)
            low = high = 1.0
            for atom, power in factors:
                of = self.atoms[atom]
                if power > 0:
                    ends = [of.low**power, of.high**power]
                    least = 0.0 if of.low < 0 and power % 2 == 0 else min(ends)
                    low, high = _within(low, high, least, max(ends))
                elif of.low > 0:
                    low, high = _within(low, high, of.high**power, of.low**power)
                else:
                    low, high = -math.inf, math.inf
            self.bounds.append((low, high))
            self.whole.append(all(p > 0 and self.atoms[a].whole for a, p in factors))
            if any(self.atoms[a].operation == LARGEST for a, _ in factors):
                alone = len(factors) == 1 and factors[0][1] == 1
                self.maxima[found] = factors[0][0] if alone else None
        return found

    def times(self, a: int, b: int) -> int:
        """The product of two products."""
        if not a or not b:
            return a or b
        key = (a, b) if a < b else (b, a)
        found = self._times.get(key)
        if found is None:
            powers = dict(self.products[a])
            for atom, power in self.products[b]:
                n = powers.get(atom, 0) + power
                powers[atom] = min(n, 1) if self.atoms[atom].said else n
            factors = tuple(sorted((atom, n) for atom, n in powers.items() if n))
            found = self._times[key] = self.product(factors)
        return found

    # --- atoms -----------------------------------------------------------------------------------

    def _atom(
        self, operation: str, operands: tuple[Number, ...], low: float, high: float, whole: bool,
        path: str = "",
    ) -> Sum:  # fmt: skip
        key = operation, path, tuple(o.key if isinstance(o, Sum) else o for o in operands)
        found = self._made.get(key)
        if found is None:
            if math.isnan(low) or math.isnan(high):
                raise UnsaidError(operation)
            self.atoms.append(Atom(operation, operands, low, high, whole, path))
            factors = ((len(self.atoms) - 1, 1),)
            found = self._made[key] = Sum(self, {self.product(factors): 1})
        return found

    def floor(self, a: Number, b: Number) -> Number:
        """a // b."""
        if not isinstance(b, Sum):
            divided, rest = self._divided(a, b)
            if not isinstance(rest, Sum):
                return divided + rest // b
        else:
            divided, rest = 0, a
            quotient = _quotient(a, b)
            if quotient is not None:
                return quotient
        low, high = _ratio(bounds(rest), bounds(b))
        whole = is_whole(rest) and is_whole(b)
        if whole and max(map(abs, bounds(rest))) >= EXACT:
            raise UnsaidError("a quotient of large numbers")
        if math.isfinite(low) and math.floor(low) == math.floor(high) and whole:
            return divided + math.floor(low)
        ends = [math.floor(x) if math.isfinite(x) else x for x in (low, high)]
        return divided + self._atom(FLOOR, (rest, b), ends[0], ends[1], True)

    def _divided(self, a: Sum, b: float) -> tuple[Number, Number]:
        """Of a sum, what a whole number divides, and the rest."""
        if not isinstance(b, int):
            return 0, a
        parts: dict[int, Number] = {}
        rest: dict[int, Number] = {}
        for product, n in a.parts.items():
            if isinstance(n, int) and self.whole[product]:
                parts[product], left = divmod(n, b)
                if left:
                    rest[product] = left
            else:
                rest[product] = n
        return self.sum(parts), self.sum(rest)

    def largest(self, *of: Number) -> Number:
        """The largest, without those that never are."""
        kept: list[Number] = []
        for a in (inner for one in of for inner in self.alternatives(one)):
            if any(never_above(a, b) for b in kept):
                continue
            kept = [b for b in kept if not never_above(b, a)]
            kept.append(a)
        if len(kept) == 1:
            return kept[0]
        kept, common = self._common(kept)
        ends = [bounds(a) for a in kept]
        low, high = max(low for low, _ in ends), max(high for _, high in ends)
        kept.sort(key=lambda a: (-len(a.parts), a.order) if isinstance(a, Sum) else (0, ()))
        found = self._atom(LARGEST, tuple(kept), low, high, all(map(is_whole, kept)))
        return found if common is None else found * common

    def alternatives(self, a: Number) -> Sequence[Number]:
        """What is the largest of several, and more, as several."""
        if not isinstance(a, Sum):
            return (a,)
        found = [p for p in a.parts if p in self.maxima]
        if len(found) != 1 or (atom := self.maxima[found[0]]) is None or a.parts[found[0]] < 0:
            return (a,)
        n, rest = a.parts[found[0]], self.sum({p: c for p, c in a.parts.items() if p != found[0]})
        return [rest + n * inner for inner in self.atoms[atom].operands]

    def _common(self, of: list[Number]) -> tuple[list[Number], Sum | None]:
        """Products with what they have in common taken out, where that is never below 0."""
        if not all(isinstance(a, Sum) and len(a.parts) == 1 for a in of):
            return of, None
        first, *others = [dict(self.products[next(iter(a.parts))]) for a in of]
        shared = {
            atom: power for atom, power in first.items()
            if self.atoms[atom].low > 0 and all(o.get(atom) == power for o in others)
        }  # fmt: skip
        if not shared:
            return of, None
        factors = tuple(sorted(shared.items()))
        inverse = Sum(self, {self.product(tuple((a, -p) for a, p in factors)): 1})
        return [a * inverse for a in of], Sum(self, {self.product(factors): 1})

    def where(self, condition: Sum, yes: Number, no: Number) -> Number:
        """One of two, for each point. Of 0 and something it is a product: what stands in one place
        or another then adds up to what stands in both."""
        if isinstance(yes, str) or isinstance(no, str):
            return Word(condition, yes, no)
        if same(yes, no):
            return yes
        if not isinstance(no, Sum) and no == 0:
            return condition * yes
        if not isinstance(yes, Sum) and yes == 0:
            return no - condition * no
        ends = bounds(yes), bounds(no)
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        return self._atom(WHERE, (condition, yes, no), low, high, is_whole(yes) and is_whole(no))

    def at_least(self, a: Number, b: Number) -> Any:
        """Whether a >= b."""
        if isinstance(b, Sum) and len(b.parts) == 1:  # of several: than each, with the same words
            (product, n), = b.parts.items()  # fmt: skip
            if n == 1 and (atom := self.maxima.get(product)) is not None:
                found: Any = True
                for one in self.atoms[atom].operands:
                    found = self.at_least(a, one) & found
                return found
        low, high = bounds(a - b)
        if low >= 0 or high < 0:
            return low >= 0
        return self._atom(AT_LEAST, (a - b,), 0, 1, True)

    def above(self, a: Number, b: Number) -> Any:
        low, high = bounds(a - b)
        if low > 0 or high <= 0:
            return low > 0
        return self._atom(ABOVE, (a - b,), 0, 1, True)

    def equal(self, a: Number, b: Number) -> Any:
        low, high = bounds(a - b)
        if low > 0 or high < 0 or low == high:
            return low == high == 0
        return self._atom(EQUAL, (a - b,), 0, 1, True)

    def next_power_of_2(self, a: Sum) -> Sum:
        low, high = (1 << (max(1, int(n)) - 1).bit_length() for n in a.bounds)
        return self._atom(POWER_OF_2, (a,), low, high, True)

    def nearest(self, a: Sum) -> Sum:
        low, high = map(round, a.bounds)
        return self._atom(NEAREST, (a,), low, high, True)

    def settled(self, a: Sum) -> Sum:
        """A sum as one factor: what is multiplied with it is rounded as it would be with a number
        in its place."""
        if len(a.parts) == 1 and next(iter(a.parts.values())) == 1:
            return a
        return self._atom(WHOLE, (a,), *a.bounds, a.whole)

    def sum(self, parts: dict[int, Number]) -> Number:
        """A sum of products; a plain number where none varies."""
        parts = {p: n for p, n in parts.items() if n}
        if not parts:
            return 0
        if len(parts) == 1 and 0 in parts:
            return parts[0]
        return Sum(self, parts)


def _within(low: float, high: float, least: float, most: float) -> tuple[float, float]:
    if low >= 0 and least >= 0:
        return low * least, high * most
    ends = [_finite(a * b) for a in (low, high) for b in (least, most)]
    return min(ends), max(ends)


def _finite(n: float) -> float:
    return 0.0 if math.isnan(n) else n  # 0 x infinity


def _ratio(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    if b[0] <= 0:
        return -math.inf, math.inf
    ends = [x / y if math.isfinite(x) else x for x in a for y in b]
    return min(ends), max(ends)


class Sum:
    """Products of atoms, each so many times."""

    __slots__ = ("_bounds", "_key", "algebra", "parts")
    __array_ufunc__ = None  # no array takes part

    def __init__(self, algebra: Algebra, parts: dict[int, Number]):
        self.algebra, self.parts = algebra, parts
        self._key: Any = None
        self._bounds: tuple[float, float] | None = None

    @property
    def key(self) -> Any:
        """What it is found again by."""
        if self._key is None:
            self._key = frozenset(self.parts.items())
        return self._key

    @property
    def order(self) -> Any:
        return sorted(self.parts)

    @property
    def bounds(self) -> tuple[float, float]:
        """What it is within, everywhere on the axes."""
        if self._bounds is None:
            low = high = 0.0
            every = self.algebra.bounds
            for product, n in self.parts.items():
                least, most = every[product]
                low += n * (least if n > 0 else most)
                high += n * (most if n > 0 else least)
            if math.isnan(low) or math.isnan(high):
                raise UnsaidError("infinite numbers")
            self._bounds = low, high
        return self._bounds

    @property
    def whole(self) -> bool:
        """Whether it is a whole number everywhere."""
        of = self.algebra.whole
        return all(isinstance(n, int) and of[p] for p, n in self.parts.items())

    def __add__(self, other: Number) -> Number:
        parts = dict(self.parts)
        for product, n in _parts(other):
            parts[product] = parts.get(product, 0) + n
        return self.algebra.sum(parts)

    __radd__ = __add__

    def __neg__(self) -> Number:
        return Sum(self.algebra, {p: -n for p, n in self.parts.items()})

    def __sub__(self, other: Number) -> Number:
        return self + -other

    def __rsub__(self, other: Number) -> Number:
        return -self + other

    def __mul__(self, other: Number) -> Number:
        algebra = self.algebra
        if not isinstance(other, Sum):
            if not isinstance(other, int | float) or not math.isfinite(other):
                raise UnsaidError(type(other).__name__)
            return algebra.sum({p: n * other for p, n in self.parts.items()})
        a: Sum = self
        if len(a.parts) * len(other.parts) > LONGEST:
            a, other = algebra.settled(a), algebra.settled(other)
        parts: dict[int, Number] = {}
        for (p, n), (q, m) in itertools.product(a.parts.items(), other.parts.items()):
            product = algebra.times(p, q)
            parts[product] = parts.get(product, 0) + n * m
        return algebra.sum(parts)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Number:
        if isinstance(other, Sum):
            return self * _inverse(other)
        return self.algebra.sum({p: n / other for p, n in self.parts.items()})

    def __rtruediv__(self, other: Number) -> Number:
        return _inverse(self) * other

    def __floordiv__(self, other: Number) -> Number:
        return self.algebra.floor(self, other)

    def __rfloordiv__(self, other: Number) -> Number:
        return self.algebra.floor(_sum(self.algebra, other), self)

    def __mod__(self, other: Number) -> Number:
        return self - self // other * other

    def __pow__(self, n: int) -> Number:
        return math.prod([self] * n)

    def round(self) -> Number:
        return self.algebra.nearest(self)

    def where(self, yes: Number, no: Number) -> Number:
        return self.algebra.where(self, yes, no)

    def __ge__(self, other: Number) -> Any:
        return self.algebra.at_least(self, other)

    def __le__(self, other: Number) -> Any:
        return self.algebra.at_least(_sum(self.algebra, other), self)

    def __gt__(self, other: Number) -> Any:
        return self.algebra.above(self, other)

    def __lt__(self, other: Number) -> Any:
        return self.algebra.above(_sum(self.algebra, other), self)

    def __eq__(self, other: object) -> Any:
        return self.algebra.equal(self, other)

    def __ne__(self, other: object) -> Any:
        return _not(self.algebra.equal(self, other))

    __hash__ = object.__hash__

    # Of conditions, which are 0 or 1.
    def __and__(self, other: Any) -> Any:
        return (self if other else False) if isinstance(other, bool) else self * other

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, bool):
            return True if other else self
        return self + other - self * other

    __ror__ = __or__

    def __invert__(self) -> Any:
        return 1 - self

    def _refuse(self, *_: Any) -> Any:
        raise UnsaidError("a number that varies where a plain one is wanted")

    __bool__ = __int__ = __float__ = __index__ = __iter__ = __len__ = __array__ = _refuse


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """One of two words, by a condition."""

    condition: Sum
    yes: Any
    no: Any

    def __eq__(self, other: object) -> Any:
        yes, no = self.yes == other, self.no == other
        if yes == no:
            return yes
        return self.condition if yes is True else _not(self.condition)

    __hash__ = object.__hash__


def _not(condition: Any) -> Any:
    return not condition if isinstance(condition, bool) else 1 - condition


def _parts(a: Number) -> Iterable[tuple[int, Number]]:
    if isinstance(a, Sum):
        return a.parts.items()
    if not isinstance(a, int | float) or not math.isfinite(a):
        raise UnsaidError(type(a).__name__)
    return ((0, a),)


def _sum(algebra: Algebra, a: Number) -> Sum:
    return a if isinstance(a, Sum) else Sum(algebra, {0: a})


def _inverse(a: Sum) -> Sum:
    """1 / a; of a sum of several products that sum as it stands is the factor."""
    algebra = a.algebra
    if len(a.parts) > 1:
        a = algebra.settled(a)
    ((product, n),) = a.parts.items()
    factors = tuple((atom, -power) for atom, power in algebra.products[product])
    return Sum(algebra, {algebra.product(factors): 1 / n if n != 1 else 1})


def _quotient(a: Sum, b: Sum) -> Number:
    """a / b where b is one product that divides each of a's; else None."""
    if len(b.parts) != 1:
        return None
    ((_, n),) = b.parts.items()
    found = a * _inverse(Sum(b.algebra, dict.fromkeys(b.parts, 1)))
    return found // n if is_whole(found) and all(m % n == 0 for m in a.parts.values()) else None


def bounds(a: Number) -> tuple[float, float]:
    """What a number is within."""
    return a.bounds if isinstance(a, Sum) else (a, a)


def is_whole(a: Number) -> bool:
    return a.whole if isinstance(a, Sum) else isinstance(a, int)


def same(a: Number, b: Number) -> bool:
    if isinstance(a, Sum) and isinstance(b, Sum):
        return a.parts == b.parts
    return not isinstance(a, Sum) and not isinstance(b, Sum) and bool(a == b)


def never_above(a: Number, b: Number) -> bool:
    """Whether a is nowhere more than b."""
    return bool(bounds(a - b)[1] <= 0)
