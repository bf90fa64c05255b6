"""Model files of strangers: what somebody may change in one."""

from __future__ import annotations

import copy
import random
from typing import Any

HOSTILE = [
    None, True, -1, 0, 1, 2**31, 2**70, 1.5, "", "x", "__import__('os')", "batch" * 2000, [], {},
    [[]], {"a": 1}, "floor(1, batch - batch)", "(" * 5000, [[[[[[]]]]]], "9" * 19, float("nan"),
    "batch*height*width*1000000000", "max(-batch, -height)", "mod(height, 7)", "-batch", "\ud800",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a parsed JSON document."""
    found = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, child in items:
        found += places(child, (*path, key))
    return found


def mutated(document: Any, rng: random.Random) -> Any:
    """The document, changed in place at one to three places."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        every = places(document)
        holder, key = _holder(document, rng.choice(every))
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 2:
            other, there = _holder(document, rng.choice(every))
            holder[key] = copy.deepcopy(other[there])
        else:
            holder[key] = copy.deepcopy(rng.choice(HOSTILE))
    return document


def _holder(document: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """What holds the place at a path, and its key there."""
    for key in path[:-1]:
        document = document[key]
    return document, path[-1]
