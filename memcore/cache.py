"""The engine's cache: answers that may be asked for again, within one budget of bytes.

Every function whose questions are without number caches its answers (`@cached`), so that diverse
plans, one after the other for weeks, take no more memory than the budget. What was not asked for
the longest goes first: answers belong to a generation, the young one or the one before. Whoever is
asked for again moves to the young one; when that has half the budget, the one before is let go.

Sizes are measured, not declared: the objects that are reached from an answer, without those that
another answer owns (the tapes of layers, say). Of each function's answers a part is measured, and
stands for the others: measuring all would take a fifth of the time in which they are found. An
answer is measured some time after it was given, since it may find out more about itself when it is
first used.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

BUDGET = 64 * 2**20  # bytes of all answers; what a process takes for them is about half more
ENTRY = 500  # bytes of what finds an answer again: a key and its places in two mappings
LATER = 128  # answers after which one is measured
FIRST, EACH = 8, 96  # of a function's answers the first ones are measured, and then one of so many
YOUNG = 0.45  # of the budget: the most of the young generation. What is over it is one answer
# What answers share, and what is as old as the process: it is no part of any of them.
SHARED: set[type] = {ModuleType, FunctionType, BuiltinFunctionType, MethodType, type(None)}
OWNED: set[type] = set()  # types whose objects count in the answer that they are, and in no other

_MISSING = object()


def counted_nowhere(kind: type[T]) -> type[T]:
    """A class whose objects exist once for all answers: no answer is larger for them."""
    SHARED.add(kind)
    return kind


def counted_apart(kind: type[T]) -> type[T]:
    """A class whose objects are answers themselves, and count there alone."""
    OWNED.add(kind)
    return kind


class _Seldom:
    """Who asks for fewer collections of cycles now, and what was set before the first of them."""

    def __init__(self) -> None:
        self.lock, self.asking, self.before = threading.Lock(), 0, gc.get_threshold()


_SELDOM = _Seldom()
OBJECTS = 50_000  # more than before until cycles are looked for: a quarter of a search's seconds


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """While many plans are asked for: cycles are looked for less often, in all of the process,
    until the last of those who ask is done."""
    with _SELDOM.lock:
        if not _SELDOM.asking:
            _SELDOM.before = gc.get_threshold()
            gc.set_threshold(OBJECTS, *_SELDOM.before[1:])
        _SELDOM.asking += 1
    try:
        yield
    finally:
        with _SELDOM.lock:
            _SELDOM.asking -= 1
            if not _SELDOM.asking:
                gc.set_threshold(*_SELDOM.before)


class Store:
    """The answers of some functions, within one budget."""

    def __init__(self, budget: int):
        self.budget = budget
        self.lock = threading.Lock()
        self.tables: list[_Table] = []
        self.young_bytes = self.old_bytes = 0
        self.recent: deque[tuple[_Table, Any, Any, int]] = deque()  # of the young, and a guess

    def cached(self, call: Callable[P, R]) -> Callable[P, R]:
        """A function that answers the same question from what it kept. Its arguments are hashable,
        and it gives the same for the same; nobody changes what it gave."""
        table = _Table(self, call)
        self.tables.append(table)
        find: Callable[P, R] = functools.wraps(call)(table.quick)  # type: ignore[assignment]
        return find

    @property
    def bytes(self) -> int:
        """Of all answers that are kept, as measured."""
        return self.young_bytes + self.old_bytes

    def keep(self, table: _Table, key: Any, answer: Any) -> None:
        with self.lock:
            table.young[key] = answer
            guess = ENTRY + (table.mean if table.measured else size(answer, key))
            self.young_bytes += guess
            self.recent.append((table, key, answer, guess))
            while len(self.recent) > LATER:
                self._count()
            if self.young_bytes > YOUNG * self.budget:
                self._turn()

    def forget(self) -> None:
        """Let go of everything."""
        with self.lock:
            self._turn()
            self._turn()

    def _count(self) -> None:
        table, key, answer, guess = self.recent.popleft()
        self.young_bytes += ENTRY + table.bytes_of(key, answer) - guess

    def _turn(self) -> None:
        """The young become the old, and the old go."""
        while self.recent:
            self._count()
        self.old_bytes, self.young_bytes = self.young_bytes, 0
        for table in self.tables:
            table.old, table.young = table.young, {}
            table.quick.cache_clear()


class _Table:
    """The answers of one function. `quick` has those of the young generation once more, since
    functools finds them ten times sooner."""

    def __init__(self, store: Store, call: Callable[..., Any]):
        self.store, self.call = store, call
        self.young: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.quick = functools.lru_cache(maxsize=None)(self._find)
        self.counted = self.measured = self.measured_bytes = 0

    def _find(self, *args: Any, **words: Any) -> Any:
        key = (args, tuple(words.items()))
        answer = self.old.get(key, _MISSING)
        if answer is _MISSING:
            answer = self.call(*args, **words)
        self.store.keep(self, key, answer)
        return answer

    @property
    def mean(self) -> int:
        return self.measured_bytes // self.measured

    def bytes_of(self, key: Any, answer: Any) -> int:
        """Of one answer: measured, or as those that were in the mean."""
        self.counted += 1
        if self.counted > FIRST and self.counted % EACH:
            return self.mean
        found = size(answer, key)
        self.measured += 1
        self.measured_bytes += found
        return found


def size(answer: Any, key: Any = None) -> int:
    """Bytes of the objects that an answer, and what it is found by, consist of."""
    total, seen = 0, set()
    level = [answer, key]
    while level:
        fresh = []
        for thing in level:
            kind = type(thing)
            if id(thing) in seen or kind in SHARED or isinstance(thing, type):
                continue
            seen.add(id(thing))
            if kind not in OWNED or thing is answer:
                fresh.append(thing)
        total += sum(map(sys.getsizeof, fresh))
        level = gc.get_referents(*fresh)
    return total


STORE = Store(BUDGET)
cached = STORE.cached


def interned(make: Callable[P, R]) -> Callable[P, R]:
    """A function that makes each thing once for as long as somebody has it, so that things can be
    compared by identity; whoever is in no answer any more is gone. Takes hashable arguments without
    names, and gives what can be referred to weakly."""
    things: WeakValueDictionary[Any, Any] = WeakValueDictionary()
    lock = threading.Lock()

    @functools.wraps(make)
    def find(*args: P.args, **words: P.kwargs) -> R:
        found: R | None = things.get(args)
        if found is None:
            with lock:  # two threads must not make two
                found = things.get(args)
                if found is None:
                    found = things[args] = make(*args, **words)
        return found

    return find
