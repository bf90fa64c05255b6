"""Folding: a model whose blocks repeat is traced with each kind of block once.

The whole model runs with numbers for sizes, which is quick; what it does stands in its own record.
The short model runs with symbols; each number of the record is then what the short model's same
operation, of the same module's kind and of the same sizes, says that it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from memcore.tracing.recorder import Operation, Recorder, Storage
from memcore.tracing.symbols import Symbols

LEAST = 2  # how many times fewer modules a short model has, at least
LIST = 4  # blocks of a list that is made shorter, at least
_PLACE = re.compile(r"(^|\.)\d+(?=\.|$)")


class MissingError(Exception):
    """The short model has no row for one of the whole model's."""


def _settings(block: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """The numbers, words and switches of a block's modules."""
    return {
        (path, name): bool(v) if isinstance(v, float) else v
        for path, m in block.named_modules()
        for name, v in vars(m).items()
        if isinstance(v, (bool, int, float, str))
    }


def _places(blocks: list[torch.nn.Module]) -> set[tuple[str, str]]:
    """Settings that count the blocks of a list."""
    each = [_settings(block) for block in blocks]
    return {
        key
        for key, first in each[0].items()
        if type(first) is int and all(of.get(key) == first + i for i, of in enumerate(each))
    }


def _kind(block: torch.nn.Module, places: set[tuple[str, str]]) -> Hashable:
    """What two blocks have in common that run alike: classes, shapes, and settings but their
    `places`; of a fraction whether it is none, as of a rate of dropout."""
    settings = {key: v for key, v in _settings(block).items() if key not in places}
    rows: list[Hashable] = [repr(settings)]
    for path, m in block.named_modules():
        sizes = {
            name: tuple(v)
            for name, v in vars(m).items()
            if isinstance(v, (tuple, list)) and all(isinstance(n, (int, str)) for n in v)
        }
        tensors = [
            (name, tuple(t.shape), str(t.dtype))
            for name, t in (*m._parameters.items(), *m._buffers.items())
            if t is not None
        ]
        rows.append((path, type(m), repr(sizes), tuple(tensors)))
    return tuple(rows)


def shorten(model: torch.nn.Module) -> bool:
    """Leave of the blocks of each list of modules one of each kind, and say whether that makes the
    model much shorter."""
    before = sum(1 for _ in model.modules())
    for m in list(model.modules()):
        if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m) >= LIST:
            places = _places(list(m))
            kinds = {_kind(child, places): child for child in reversed(list(m))}
            left = [child for child in m if any(child is k for k in kinds.values())]
            if LEAST * len(left) <= len(m):
                m._modules.clear()
                m._modules.update({str(i): child for i, child in enumerate(left)})
    return before >= LEAST * sum(1 for _ in model.modules())


def _starred(path: str) -> str:
    return _PLACE.sub(r"\1*", path)


class _Numbers:
    """What symbols are at the sizes of a run."""

    def __init__(self, symbols: Symbols, sizes: Mapping[str, int]):
        self._symbols, self._sizes = symbols, sizes
        self._known: dict[Any, int] = {}

    def of(self, size: Any) -> int:
        if type(size) is int:
            return size
        if size not in self._known:
            self._known[size] = self._symbols.sum(size).value(self._sizes)
        return self._known[size]

    def all(self, shape: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(self.of(n) for n in shape)

    def operation(self, op: Operation) -> Hashable:
        product = op.product and (op.product[0], self.all(op.product[1]))
        traffic = tuple((self.all(shape), dtype) for shape, dtype in op.traffic)
        return op.name, op.phase, _starred(op.module), product, traffic

    def storage(self, s: Storage) -> Hashable:
        return s.name, _starred(s.module), self.all(s.shape), s.dtype, self.of(s.bytes)


class _Shapes:
    """Of each shape with numbers the shape with symbols, where the short record has only one."""

    def __init__(self, short: Recorder, numbers: _Numbers):
        self._numbers = numbers
        self._known: dict[tuple[int, ...], set[tuple[Any, ...]]] = {}
        for op in short.operations:
            for shape, _ in op.traffic:
                self._known.setdefault(numbers.all(shape), set()).add(tuple(shape))
        for s in short.storages:
            self._known.setdefault(numbers.all(s.shape), set()).add(tuple(s.shape))

    def of(self, shape: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        known = self._known.get(tuple(shape), set())
        if len(known) != 1:
            raise MissingError(f"{what} is in no block that was traced")
        return next(iter(known))

    def operation(self, op: Operation) -> None:
        """Give an operation symbols, of which the short record has none of its name."""
        what = f"{op.name} of {op.module}"
        if op.product:
            raise MissingError(f"{what} is in no block that was traced")
        op.traffic = [(self.of(shape, what), dtype) for shape, dtype in op.traffic]

    def storage(self, s: Storage) -> None:
        """Give a storage symbols, of which the short record has none of its operation's."""
        if s.bytes != math.prod(s.shape) * s.dtype.itemsize:
            raise MissingError(f"what {s.name} of {s.module} makes is in no block that was traced")
        s.shape = self.of(s.shape, f"what {s.name} of {s.module} makes")
        s.bytes = math.prod(s.shape) * s.dtype.itemsize


def unfold(whole: Recorder, short: Recorder, symbols: Symbols, sizes: Mapping[str, int]) -> None:
    """Put the short record's symbols in place of the whole one's numbers. Raises MissingError."""
    numbers = _Numbers(symbols, sizes)
    shapes = _Shapes(short, numbers)
    operations = {numbers.operation(op): op for op in short.operations}
    for op in whole.operations:
        like = operations.get(numbers.operation(op))
        if like is None:
            shapes.operation(op)
        else:
            op.product, op.traffic = like.product, like.traffic
    storages = {numbers.storage(s): s for s in short.storages}
    for s in whole.storages:
        same = storages.get(numbers.storage(s))
        if same is None:
            shapes.storage(s)
        else:
            s.shape, s.bytes = same.shape, same.bytes
    for name, row in list(whole.lookups.items()):
        alike = [r for n, r in short.lookups.items() if _starred(n) == _starred(name)]
        likes = [short.lookups[name]] if name in short.lookups else alike
        if not likes:
            raise MissingError(f"the lookups of {name} are in no block that was traced")
        whole.lookups[name] = likes[0] if len(row) else row
