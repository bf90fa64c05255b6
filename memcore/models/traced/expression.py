"""Expressions of a model file: sums of products of named dimensions, with floor, mod and max.

    12*batch*tokens + 4*floor(height + 1, 2)

They come from strangers' files, so that they are read by the parser below, in bounded time: no text
is longer than LONGEST, no nesting deeper than DEEPEST, no sum has more terms than WIDEST.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST = 4_000  # characters of one expression
DEEPEST = 12  # brackets and functions within each other
WIDEST = 200  # terms of one sum
HIGHEST = 8  # factors of one product that are not numbers
LARGEST = 2**62  # of a number that stands in an expression
LONGEST_FUNCTION = 600  # characters of one function, which names a factor
STEPS = 100_000  # that all expressions of a file may take: tokens, and terms that meet

FLOOR, MOD, MAX = "floor", "mod", "max"
FUNCTIONS = (FLOOR, MOD, MAX)

_TOKEN = re.compile(r"\s*(?:(\d{1,20})|([A-Za-z_][A-Za-z0-9_]{0,63})|([-+*(),]))")


class ExpressionError(ValueError):
    """Why a text is no expression."""


@dataclass(frozen=True, slots=True)
class Function:
    """`name` of two sums: floor(a, b) is a over b, rounded down, mod(a, b) what is left. `text` is
    what it says, by which two are the same: sums are compared and put in order often."""

    text: str
    name: str = field(compare=False)
    first: Sum = field(compare=False)
    second: Sum = field(compare=False)

    def __str__(self) -> str:
        return self.text

    def value(self, sizes: Mapping[str, Any]) -> Any:
        """Its value for these sizes. Raises ExpressionError where it divides by less than 1."""
        first, second = self.first.value(sizes), self.second.value(sizes)
        if self.name == MAX:
            return first + (second - first) * (second > first)
        if (second < 1) if isinstance(second, int) else (second < 1).any():
            raise ExpressionError(f"{self} divides by less than 1")
        return first // second if self.name == FLOOR else first % second


Factor = str | Function
Product = tuple[Factor, ...]


def _order_of_term(term: tuple[Product, int]) -> list[str]:
    return [str(factor) for factor in term[0]]


def _order(factor: Factor) -> tuple[bool, str]:
    return isinstance(factor, Function), str(factor)


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products: (factors in order, their whole coefficient), each product once."""

    terms: tuple[tuple[Product, int], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Product, int]) -> Sum:
        found = tuple(sorted(((p, n) for p, n in terms.items() if n), key=_order_of_term))
        if len(found) > WIDEST:
            raise ExpressionError(f"a sum has more than {WIDEST} terms")
        if any(abs(n) > LARGEST for _, n in found):
            raise ExpressionError("a number is too large")
        return cls(found)

    @classmethod
    def number(cls, n: int) -> Sum:
        return cls.of({(): n})

    @classmethod
    def name(cls, name: str) -> Sum:
        return cls.of({(name,): 1})

    @classmethod
    def function(cls, name: str, first: Sum, second: Sum) -> Sum:
        """floor, mod or max of two sums; its value where both are numbers."""
        text = f"{name}({first}, {second})"
        if len(text) > LONGEST_FUNCTION:
            raise ExpressionError(f"a function has more than {LONGEST_FUNCTION} characters")
        found = Function(text, name, first, second)
        if not first.names and not second.names:
            return cls.number(found.value({}))
        return cls.of({(found,): 1})

    def __add__(self, other: Sum) -> Sum:
        terms = dict(self.terms)
        for product, n in other.terms:
            terms[product] = terms.get(product, 0) + n
        return Sum.of(terms)

    def __mul__(self, other: Sum) -> Sum:
        if len(self.terms) * len(other.terms) > WIDEST * 4:
            raise ExpressionError("a product of sums is too long")
        terms: dict[Product, int] = {}
        for a, n in self.terms:
            for b, m in other.terms:
                product = tuple(sorted((*a, *b), key=_order))
                if len(product) > HIGHEST:
                    raise ExpressionError(f"a product has more than {HIGHEST} factors")
                terms[product] = terms.get(product, 0) + n * m
        return Sum.of(terms)

    @property
    def names(self) -> frozenset[str]:
        """The dimensions that it depends on."""
        found: set[str] = set()
        for product, _ in self.terms:
            for factor in product:
                if isinstance(factor, str):
                    found.add(factor)
                else:
                    found |= factor.first.names | factor.second.names
        return frozenset(found)

    def value(self, sizes: Mapping[str, Any]) -> Any:
        """Its value for these sizes: whole numbers, or arrays of them."""
        total: Any = 0
        for product, n in self.terms:
            for factor in product:
                n = n * (sizes[factor] if isinstance(factor, str) else factor.value(sizes))
            total = total + n
        return total

    def __str__(self) -> str:
        found = ""
        for product, n in self.terms:
            factors = [str(f) for f in product]
            if abs(n) != 1 or not product:
                factors.insert(0, str(abs(n)))
            sign = "-" if n < 0 else "+"
            text = "*".join(factors)
            found += f" {sign} {text}" if found else (f"-{text}" if n < 0 else text)
        return found or "0"


class Budget:
    """Steps that are left for the expressions of one file."""

    def __init__(self, steps: int = STEPS):
        self.left = steps

    def take(self, steps: int) -> None:
        """Raises ExpressionError when no steps are left."""
        self.left -= steps
        if self.left < 0:
            raise ExpressionError(f"the expressions of a file take more than {STEPS:,} steps")


def parse(text: Any, budget: Budget | None = None) -> Sum:
    """The sum that a text, or a whole number, says; the steps that it takes are taken from
    `budget`. Raises ExpressionError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return Sum.number(text)
    if not isinstance(text, str):
        raise ExpressionError("an expression is a text or a whole number")
    if len(text) > LONGEST:
        raise ExpressionError(f"an expression has more than {LONGEST:,} characters")
    parser = _Parser(_tokens(text), budget or Budget())
    found = parser.sum(0)
    if parser.next():
        raise ExpressionError(f"{parser.next()!r} is too much")
    return found


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise ExpressionError(f"{text[at : at + 12]!r} is no part of an expression")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str], budget: Budget):
        self.tokens, self.at, self.budget = tokens, 0, budget
        budget.take(len(tokens))

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.next()
        if not token or (wanted and token != wanted):
            raise ExpressionError(f"{wanted or 'a number or a name'} is missing")
        self.at += 1
        return token

    def sum(self, depth: int) -> Sum:
        if depth > DEEPEST:
            raise ExpressionError(f"brackets are more than {DEEPEST} deep")
        minus = self.next() == "-"
        if minus:
            self.take()
        found = self.product(depth)
        if minus:
            found = found * Sum.number(-1)
        while self.next() in ("+", "-"):
            sign = Sum.number(-1 if self.take() == "-" else 1)
            more = self.product(depth)
            self.budget.take(len(found.terms) + len(more.terms))
            found = found + more * sign
        return found

    def product(self, depth: int) -> Sum:
        found = self.factor(depth)
        while self.next() == "*":
            self.take()
            more = self.factor(depth)
            self.budget.take(len(found.terms) * len(more.terms))
            found = found * more
        return found

    def factor(self, depth: int) -> Sum:
        token = self.take()
        if token.isdigit():
            return Sum.number(int(token))
        if token == "(":
            found = self.sum(depth + 1)
            self.take(")")
            return found
        if token in FUNCTIONS and self.next() == "(":
            self.take("(")
            first = self.sum(depth + 1)
            self.take(",")
            second = self.sum(depth + 1)
            self.take(")")
            self.budget.take(8 * (len(first.terms) + len(second.terms)))
            return Sum.function(token, first, second)
        if token[0].isalpha() or token[0] == "_":
            return Sum.name(token)
        raise ExpressionError(f"{token!r} stands where a number or a name should")
