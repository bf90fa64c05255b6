"""Program: sums of products as array operations, a block of the axes at a time.

A block's arrays stay in the processor's cache, and what does not vary along the axis that is cut
into blocks is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from memcore.tape.algebra import (
    ABOVE,
    AT_LEAST,
    AXIS,
    EQUAL,
    FLOOR,
    LARGEST,
    NEAREST,
    POWER_OF_2,
    WHERE,
    Algebra,
    Atom,
    Number,
    Sum,
)

BLOCK = 1 << 13  # points of one block, about

Along = frozenset[int]  # the axes that something varies along
Operation = tuple[Any, int, tuple[int, ...]]  # a function, where its result goes, and what it reads


class Program:
    """How some numbers are computed from the values of the axes.

    axes     the values of each, in the order in which the algebra was told of them
    numbers  what is computed
    """

    def __init__(self, algebra: Algebra, axes: Sequence[Any], numbers: Sequence[Number]):
        import numpy as np

        self.np, self.algebra, self.axes = np, algebra, axes
        self.slots: list[Any] = []  # constants at first; what is computed later
        self.along: list[Along] = []
        self.operations: list[Operation] = []
        self._constants: dict[float, int] = {}
        self._atoms: dict[int, int] = {}
        self._products: dict[Any, int] = {}
        self._sums: dict[Any, int] = {}
        self.inputs = [self._slot(frozenset((i,))) for i in range(len(axes))]
        self.results = [self._number(n) for n in numbers]

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], list[Any]]]:
        """Each block: where it is, and the numbers there (that broadcast to its shape)."""
        lengths = [len(axis) for axis in self.axes]
        if not all(lengths):
            return
        cut = max(range(len(lengths)), key=lengths.__getitem__, default=0)
        others = math.prod(lengths) // (lengths[cut] if lengths else 1)
        step = max(1, BLOCK // others)
        fixed = [o for o in self.operations if cut not in self.along[o[1]]]
        rest = [o for o in self.operations if cut in self.along[o[1]]]
        slots = list(self.slots)
        for i, slot in enumerate(self.inputs):
            slots[slot] = self._shaped(i, self.axes[i])
        self._run(fixed, slots)
        every = slice(None)
        for start in range(0, lengths[cut] if lengths else 1, step):
            here = slice(start, start + step)
            if lengths:
                slots[self.inputs[cut]] = self._shaped(cut, self.axes[cut][here])
            self._run(rest, slots)
            where = tuple(here if i == cut else every for i in range(len(lengths)))
            yield where, [slots[r] for r in self.results]

    def _shaped(self, i: int, values: Any) -> Any:
        along = [1] * len(self.axes)
        along[i] = len(values)
        return self.np.asarray(values, dtype=self.np.float64).reshape(along)

    @staticmethod
    def _run(operations: Sequence[Operation], slots: list[Any]) -> None:
        for function, to, of in operations:
            slots[to] = function(*[slots[i] for i in of])

    # --- what is written -------------------------------------------------------------------------

    def _slot(self, along: Along, value: Any = None) -> int:
        self.slots.append(value)
        self.along.append(along)
        return len(self.slots) - 1

    def _constant(self, n: float) -> int:
        found = self._constants.get(n)
        if found is None:
            found = self._constants[n] = self._slot(frozenset(), float(n))
        return found

    def _do(self, function: Any, *of: int) -> int:
        to = self._slot(frozenset().union(*(self.along[i] for i in of)))
        self.operations.append((function, to, of))
        return to

    def _number(self, n: Number) -> int:
        if not isinstance(n, Sum):
            return self._constant(n)
        found = self._sums.get(n.key)
        if found is None:
            found = self._sums[n.key] = self._sum(n)
        return found

    def _sum(self, n: Sum) -> int:
        """What varies along the fewest axes first: those arrays are short."""
        groups: dict[Along, int] = {}
        for product, times in n.parts.items():
            of = self._product(self.algebra.products[product]) if product else -1
            part = self._constant(times) if of < 0 else of
            if of >= 0 and times not in (1, -1):
                part = self._do(self.np.multiply, of, self._constant(times))
            along = self.along[part]
            if along in groups:
                function = self.np.subtract if times == -1 and of >= 0 else self.np.add
                groups[along] = self._do(function, groups[along], part)
            elif times == -1 and of >= 0:
                groups[along] = self._do(self.np.negative, part)
            else:
                groups[along] = part
        first, *others = sorted(groups, key=len)
        found = groups[first]
        for along in others:
            found = self._do(self.np.add, found, groups[along])
        return found

    def _product(self, factors: Any) -> int:
        found = self._products.get(factors)
        if found is not None:
            return found
        above = [(a, p) for a, p in factors if p > 0]
        below = [(a, -p) for a, p in factors if p < 0]
        if below and above:
            found = self._do(
                self.np.divide, self._product(tuple(above)), self._product(tuple(below))
            )
        elif below:
            found = self._do(self.np.divide, self._constant(1.0), self._product(tuple(below)))
        else:
            *first, (atom, power) = factors
            if power > 1:
                first.append((atom, power - 1))
            found = self._atom(atom)
            if first:
                found = self._do(self.np.multiply, self._product(tuple(first)), found)
        self._products[factors] = found
        return found

    def _atom(self, i: int) -> int:
        found = self._atoms.get(i)
        if found is None:
            found = self._atoms[i] = self._written(i, self.algebra.atoms[i])
        return found

    def _written(self, i: int, atom: Atom) -> int:
        np = self.np
        if atom.operation == AXIS:
            return self.inputs[i]
        of = [self._number(n) for n in atom.operands]
        if atom.operation == FLOOR:
            return self._do(np.floor, self._do(np.divide, *of))
        if atom.operation == LARGEST:
            found = of[0]
            for other in of[1:]:
                found = self._do(np.maximum, found, other)
            return found
        if atom.operation == WHERE:
            return self._do(_where, *of)
        zero = self._constant(0.0)
        compared = {AT_LEAST: np.greater_equal, ABOVE: np.greater, EQUAL: np.equal}
        if function := compared.get(atom.operation):
            return self._do(_number(function), of[0], zero)
        if atom.operation == POWER_OF_2:
            return self._do(_power_of_2, of[0])
        return self._do(np.round, of[0]) if atom.operation == NEAREST else of[0]


def _number(compared: Any) -> Any:
    """A comparison that says 1.0 or 0.0."""
    return lambda a, b: compared(a, b).astype(float)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    import numpy as np

    return np.where(condition, yes, no)


def _power_of_2(n: Any) -> Any:
    import numpy as np

    return np.exp2(np.ceil(np.log2(n)))
