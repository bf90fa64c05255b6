"""Reading: one function of a quantity, read with numbers, with arrays or with terms.

Read with numbers a quantity is a number of the Report, with NumPy arrays a column of a sweep, and
with terms the explanation, whose formula then cannot differ from what is computed. What plain
arithmetic cannot say (rounding, minima, sums, a factor's name and source) goes through the
functions here and the methods of `Values` and `Terms`, which know all three readings.

What rows and loops compute (transfers, links, rates, parts of a forward) is no quantity, but its
formulas are declared once too: such a function takes a reading `x`, by default PLAIN, and is
called with `Terms` by the rule that explains the row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from memcore.quantity import formula, shapes
from memcore.quantity.formula import Formula
from memcore.quantity.quantity import Explanation, about, matching, rule
from memcore.tape import dims
from memcore.words.word import DTYPE_BYTES

if TYPE_CHECKING:
    from memcore.explain.book import Book
    from memcore.hardware.constants import Constant
    from memcore.report import LedgerRow
    from memcore.tape.dims import Dim, Shape
    from memcore.tape.ledger import Amounts

Made = TypeVar("Made")
Read = Any  # a number, an array or a Formula
Rows = Callable[[], "Iterable[LedgerRow]"]
Kept = dict[str, dict[str, Any]]  # numbers that are known, by their parts and names


def floor(x: Read) -> Read:
    """Rounded down."""
    if isinstance(x, Formula):
        return formula.rounded_down(x)
    return x // 1 if dims.is_array(x) else math.floor(x)


def ceil(x: Read) -> Read:
    """Rounded up."""
    if isinstance(x, Formula):
        return formula.ceiling(x)
    return -(-x // 1) if dims.is_array(x) else math.ceil(x)


def ceil_div(a: Read, b: Read) -> Read:
    """a / b rounded up, exact for whole numbers of any size."""
    if isinstance(a, Formula) or isinstance(b, Formula):
        a, b = formula.number(a), formula.number(b)
        told = formula.ceiling(a / b)
        return formula.revalued(told, dims.ceil_div(a.value, b.value))
    return dims.ceil_div(a, b)


def least(*of: Read) -> Read:
    """The smallest."""
    if any(isinstance(x, Formula) for x in of):
        return formula.smallest(*of)
    return functools.reduce(dims.minimum, of)


def largest(*of: Read) -> Read:
    """The largest."""
    if any(isinstance(x, Formula) for x in of):
        return formula.largest(*of)
    return functools.reduce(dims.maximum, of)


def at_least_zero(x: Read) -> Read:
    return formula.at_least_zero(x) if isinstance(x, Formula) else dims.maximum(0, x)


def log2(x: Read) -> Read:
    return formula.log2(x) if isinstance(x, Formula) else math.log2(x)


def sqrt(x: Read) -> Read:
    if isinstance(x, Formula):
        return formula.sqrt(x)
    if not dims.is_array(x):
        return math.sqrt(x)
    import numpy as np

    return np.sqrt(x)


def over(moved: Read, rate: Read) -> Read:
    """Seconds that bytes take at a rate: for ever where there is none."""
    if dims.is_array(rate):
        return dims.where(rate > 0, moved / dims.where(rate > 0, rate, 1.0), math.inf)
    return moved / rate if rate or isinstance(rate, Formula) else math.inf


def nearest(x: Read) -> Read:
    """Rounded to the nearest whole number."""
    if isinstance(x, Formula):
        return formula.nearest(x)
    return x.round() if dims.is_array(x) else round(x)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`: of formulas and words the one that was taken."""
    return dims.where(condition, yes, no)


def no_more(a: Read, b: Read) -> Read:
    """Whether `a` is no more than `b`."""
    if isinstance(a, Formula) or isinstance(b, Formula):
        a, b = formula.number(a), formula.number(b)
        return Formula(
            a.value <= b.value,
            f"{a.words} is no more than {b.words}",
            f"{a.numbers} against {b.numbers}",
            (*a.terms, *b.terms),
        )
    return a <= b


def named(name: str, x: Read) -> Read:
    """A number of the Report by another name than its own."""
    if isinstance(x, Formula):
        return formula.leaf(replace(x.terms[0], name=name))
    return x


def total(of: Iterable[Read]) -> Read:
    """The sum."""
    every = list(of)
    if any(isinstance(x, Formula) for x in every):
        return formula.total([formula.number(x) for x in every])
    return sum(every)


class Plain:
    """Factors as numbers or arrays: what `Terms` says of each is let go."""

    def known(self, name: str, value: Any, unit: str = "", **more: Any) -> Any:
        """A factor that is not taken apart further; `name`, `unit` and `more` are its words."""
        return value

    def constant(self, constant: Constant, end: int | None = None) -> Any:
        """A measured constant: its low end (0), its high end (1) or its middle."""
        return constant.middle if end is None else (constant.low, constant.high)[end]

    def at(self, path: str, value: Any, name: str = "") -> Any:
        """The number at a path, which is this value."""
        return value

    def width(self, dtype: str) -> float:
        """Bytes of one value."""
        each: float = DTYPE_BYTES[dtype]
        return each

    def shape(self, of: Shape, amounts: Amounts) -> Any:
        """Elements of a tensor."""
        return amounts.elements(of)

    def dimension(self, of: Dim, amounts: Amounts) -> Any:
        """One of them."""
        return amounts.real(amounts.sizes[of.name])


PLAIN = Plain()


class Values(Plain):
    """A plan's quantities as numbers or arrays, each computed when it is first read, and kept.

    `given` has the parts that are read as they are: the plan, the hardware, and what rows (the
    ledger, operations) have already been summed to. A quantity wins over what is given. `kept`
    is where what was computed is kept, by part.

    Neither it nor a part of it is referred to by what is kept: in a cycle, the rows of each plan
    that is looked at would stay until cycles are looked for.
    """

    def __init__(self, kept: Kept | None = None, **given: Any):
        self._kept: Kept = {} if kept is None else kept
        self._given = given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        given = self._given.get(name)
        if name in ("plan", "hardware") or name in GIVEN:
            self.__dict__[name] = given
            return given
        return _ValuePart(self, name, given)

    def where_given(self, given: Mapping[str, Any]) -> Values:
        """The same plan's quantities, where those at some paths are these."""
        found = Values(**self._given)
        for path, value in given.items():
            part, name = path.split(".")
            setattr(getattr(found, part), name, value)
        return found

    def sum_of(self, path: str, consumers: Sequence[str], rows: Rows) -> Any:
        """Bytes of those rows of a table at a path that these consumers have: `rows`."""
        return sum(r.bytes for r in rows())

    def each_of(self, path: str, consumer: str, each: Callable[[], list[Any]]) -> list[Any]:
        """Bytes of each of those rows, once: `each`."""
        return each()

    def said(self, value: Any, meaning: str = "", sources: Sequence[str] | None = None) -> Any:
        """A number whose words depend on the plan; a plain one is not taken apart."""
        return value


class Either:
    """What several things say of themselves, as one: a GPU and its host."""

    def __init__(self, *of: Any):
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return next(getattr(part, name) for part in self._of if hasattr(part, name))


@dataclass(frozen=True, slots=True)
class _Said:
    """An explanation's number, with words of its own."""

    value: Any
    meaning: str
    sources: Sequence[str] | None


class _ValuePart:
    """`run` in `x.run.seconds`."""

    __slots__ = ("__dict__", "_given", "_name", "_values")

    def __init__(self, values: Values, name: str, given: Any):
        self._values, self._name, self._given = values, name, given
        self.__dict__ = values._kept.setdefault(name, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if made := QUANTITIES.get(f"{self._name}.{name}"):
            value = made(self._values)
        else:
            value = getattr(self._given, name)
        self.__dict__[name] = value
        return value


class Terms:
    """The same quantities as terms of formulas: every number is a Formula that names its path.

    Words and yes or no are read as they are, so that a branch on them is the one that was taken.
    """

    def __init__(self, book: Book):
        self._book = book

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in GIVEN:
            return self._book.once(name, lambda: GIVEN[name](self._book))
        return _TermPart(self._book, name, self._book.plan if name == "plan" else None)

    def known(self, name: str, value: Any, unit: str = "", **more: Any) -> Formula:
        """A factor that is not taken apart further."""
        return formula.known(name, value, unit, **more)

    def constant(self, constant: Constant, end: int | None = None) -> Formula:
        """A measured constant: its low end (0), its high end (1) or its middle."""
        return formula.constant(constant, end)

    def at(self, path: str, value: object, name: str = "") -> Formula:
        """The number at a path."""
        return self._book.at(path, name)

    def width(self, dtype: str) -> Formula:
        """Bytes of one value."""
        return shapes.width(dtype)

    def shape(self, of: Shape, amounts: Amounts) -> Formula:
        """Elements of a tensor, as the product of its dimensions."""
        return shapes.shape(self._book, of, amounts)

    def dimension(self, of: Dim, amounts: Amounts) -> Formula:
        """One of them."""
        return shapes.dimension(self._book, dims.Extent(int(amounts.sizes[of.name]), of))

    def _rows(self, path: str, consumers: Sequence[str]) -> list[tuple[str, LedgerRow]]:
        """Rows of the report of these consumers, each behind its path."""
        part, _, name = path.rpartition(".")
        every = enumerate(getattr(getattr(self._book, part), name))
        return [(f"{path}.{i}", r) for i, r in every if r.consumer in consumers]

    def sum_of(self, path: str, consumers: Sequence[str], rows: Rows) -> Formula:
        """Rows of the report added up, the largest first."""
        return shapes.sum_of(self._book, self._rows(path, consumers))

    def each_of(self, path: str, consumer: str, each: object) -> list[Formula]:
        """Each of those rows, once, by its name."""
        at = self._book.at
        return [at(f"{p}.bytes_each", r.name) for p, r in self._rows(path, [consumer])]

    def said(
        self, value: Formula | float, meaning: str = "", sources: Sequence[str] | None = None
    ) -> _Said:
        """A number whose words depend on the plan; a plain one is not taken apart."""
        return _Said(value, meaning, sources)


class _TermPart:
    """`run` in `x.run.seconds`, or `plan.train` in `x.plan.train.seq_len`."""

    def __init__(self, book: Book, path: str, given: Any = None):
        self._book, self._path, self._given = book, path, given

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        if self._given is not None:
            value = getattr(self._given, name)
            if isinstance(value, BaseModel):
                return _TermPart(self._book, path, value)
            if isinstance(self._given, BaseModel) and name not in type(self._given).model_fields:
                return value  # a property; `known` says its words
        elif matching(path) is None:  # several numbers, each explained by itself
            of = getattr(getattr(self._book, self._path), name)
            if isinstance(of, Mapping):
                return {k: self._book.at(f"{path}.{k}") for k in of}
            return tuple(_TermPart(self._book, f"{path}.{i}", row) for i, row in enumerate(of))
        else:
            value = self._book.explain(path).value
        if isinstance(value, tuple):
            return tuple(self._book.at(f"{path}.{i}") for i in range(len(value)))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._book.at(path)
        return value


Function = Callable[[Any], Read]
QUANTITIES: dict[str, Function] = {}  # by path: what `Values` reads
GIVEN: dict[str, Callable[[Any], Any]] = {}  # what is read as it is, besides the plan: of a Book


def computed(path: str) -> Callable[[Function], Function]:
    """Declares what loops compute, rows and their sums, for `Values`: rules of rows explain it."""

    def register(function: Function) -> Function:
        QUANTITIES[path] = function
        return function

    return register


def quantity(
    path: str,
    what: str,
    unit: str,
    meaning: str = "",
    sources: Sequence[str] = (),
    certainty: str = "exact",
) -> Callable[[Function], Function]:
    """Declares the number at a path: its title, unit, meaning and sources, and by the function that
    follows its formula, of a reading `x`. None is said where a plan has no such number."""

    def register(function: Function) -> Function:
        QUANTITIES[path] = function

        @rule(path)
        def explained(book: Book) -> Explanation:
            made = function(Terms(book))
            if made is None:
                raise LookupError(path)
            if not isinstance(made, _Said):
                return about(what, unit, formula.number(made), meaning, sources, certainty)
            words = made.meaning or meaning, sources if made.sources is None else made.sources
            if isinstance(made.value, Formula):
                return about(what, unit, made.value, *words, certainty)
            return about(what, unit, None, *words, certainty, made.value)

        return function

    return register


def filled(kind: type[Made], part: Any) -> Made:
    """A part of the Report, each field read from the quantity of its name."""
    return kind(**{f.name: getattr(part, f.name) for f in fields(kind)})  # type: ignore[arg-type]
