"""Symbols: what torch's symbolic sizes are in a model file's expressions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from memcore.models.traced.expression import FLOOR, MAX, MOD, ExpressionError, Sum

# How torch writes functions of two sizes (torch/utils/_sympy/functions.py).
_OF_TWO = {
    "FloorDiv": FLOOR, "CleanDiv": FLOOR, "IntTrueDiv": FLOOR, "Mod": MOD, "PythonMod": MOD,
}  # fmt: skip
_SAME = ("ToFloat", "Identity", "RoundToInt")
_ROUNDED = ("TruncToInt", "FloorToInt", "CeilToInt")  # fractions as whole numbers


class Symbols:
    """Turns sympy's expressions into sums; `names`: of each symbol what it is."""

    def __init__(self, names: dict[Any, Sum], replace: Any):
        self._names, self._replace = names, replace
        self._found: dict[Any, Sum] = {}
        self._shapes: dict[tuple[Any, ...], Sum] = {}

    def sum(self, size: Any) -> Sum:
        """A size as a sum. Raises ExpressionError where it has none."""
        if type(size) is int:
            return Sum.number(size)
        found = self._found.get(size)
        if found is None:
            replaced = size if isinstance(size, (int, float)) else self._replace(size)
            found = self._found[size] = self._of(replaced)
        return found

    def product(self, shape: tuple[Any, ...]) -> Sum:
        """How many elements a shape has."""
        found = self._shapes.get(shape)
        if found is None:
            found = Sum.number(1)
            for size in shape:
                found = found * self.sum(size)
            self._shapes[shape] = found
        return found

    def _of(self, e: Any) -> Sum:
        known = self._found.get(e)
        if known is not None:
            return known
        found = self._found[e] = self._made(e)
        return found

    def _fraction(self, e: Any) -> tuple[Sum, int]:
        """A sum and a whole number that it is divided by."""
        kind = type(e).__name__
        if kind == "ToFloat":
            return self._fraction(e.args[0])
        if getattr(e, "is_Float", False) or getattr(e, "is_Rational", False):
            n = Fraction(float(e)) if e.is_Float else Fraction(int(e.p), int(e.q))
            return Sum.number(n.numerator), n.denominator
        if kind in ("IntTrueDiv", "FloatTrueDiv") and getattr(e.args[1], "is_number", False):
            above, below = self._fraction(e.args[0])
            number = Fraction(float(e.args[1]))
            return above * Sum.number(number.denominator), below * number.numerator
        if kind in ("Add", "Mul", "FloatMul"):
            found, over = self._fraction(e.args[0])
            for a in e.args[1:]:
                above, below = self._fraction(a)
                if kind == "Add":
                    found = found * Sum.number(below) + above * Sum.number(over)
                else:
                    found = found * above
                over *= below
            return found, over
        return self._of(e), 1

    def _made(self, e: Any) -> Sum:
        if e in self._names:
            return self._names[e]
        if isinstance(e, int) or getattr(e, "is_Integer", False):
            return Sum.number(int(e))
        if isinstance(e, float) or getattr(e, "is_Float", False):
            if float(e).is_integer():
                return Sum.number(int(e))
            raise ExpressionError(f"a size depends on the fraction {float(e):g}")
        kind = type(e).__name__
        if kind in _ROUNDED:
            above, below = self._fraction(e.args[0])
            up = below - 1 if kind == "CeilToInt" else 0
            return Sum.function(FLOOR, above + Sum.number(up), Sum.number(below))
        args = [self._of(a) for a in e.args] if kind != "Pow" else []
        if kind == "Add":
            found = Sum()
            for a in args:
                found = found + a
            return found
        if kind in ("Mul", "IntMul", "FloatMul"):
            found = Sum.number(1)
            for a in args:
                found = found * a
            return found
        if kind in ("Pow", "PowByNatural"):
            base, power = e.args
            found = Sum.number(1)
            for _ in range(_power(power)):
                found = found * self._of(base)
            return found
        if kind in _SAME:
            return args[0]
        if kind in _OF_TWO:
            return Sum.function(_OF_TWO[kind], *args)
        if kind == "CeilDiv":
            return Sum.function(FLOOR, args[0] + args[1] + Sum.number(-1), args[1])
        if kind == "ModularIndexing":
            return Sum.function(MOD, Sum.function(FLOOR, args[0], args[1]), args[2])
        if kind in ("Max", "Min"):
            minus = Sum.number(1 if kind == "Max" else -1)
            found = args[0] * minus
            for a in args[1:]:
                found = Sum.function(MAX, found, a * minus)
            return found * minus
        raise ExpressionError(f"a size is {e}, which is no sum of products of the dimensions")


def _power(e: Any) -> int:
    if getattr(e, "is_Integer", False) and 0 <= int(e) <= 8:
        return int(e)
    raise ExpressionError(f"a size has the power {e}")
