"""Stacks: what the frames behind an allocation say of it, in a memory snapshot of PyTorch.

Frames come with the innermost first. Of those that decide what a tensor is for, the innermost one
counts: a forward that backward runs again is a forward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.formats.programs import Program

# What decides, each by the file and by the function of a frame: the first that matches.
LOADS, DIVIDES, STATE, STEP, BACKWARD, FORWARD = (
    *("loads", "divides", "state", "step", "backward", "forward"),
)
DECIDES = tuple(
    (kind, re.compile(file), re.compile(function))
    for kind, file, function in Program("stacks").table["decides"]
)
# Files of which no user knows what they are for: what calls them is named in their place.
_INNER = re.compile(
    r"(?:^|/)torch/(?!nn/modules/|optim/|distributed/fsdp/)|torch/nn/modules/(?:module|container)\.py"
    r"|(?:^|/)(?:einops|jaxtyping|opt_einsum|triton)/|(?:contextlib|functools|threading)\.py$|^<"
)
_OF_AUTOGRAD = re.compile(r"(\w+Backward\d*|AccumulateGrad)\b")
MAX_FRAMES = 2_000  # of one stack
MAX_NAME = 80  # characters of a function, and of a file
MAX_LINE = 10_000_000


@dataclass(frozen=True, slots=True)
class Stack:
    """kind: one of those above, or ''; where: the innermost file, function and line that a user
    knows, '' where there are no frames; zeroes: gradients are forgotten here."""

    kind: str = ""
    where: str = ""
    zeroes: bool = False


@dataclass(frozen=True, slots=True)
class _Frame:
    """kind, function: of this frame alone; where: of Python, in words; inner: no user knows it;
    of_autograd: a function of the backward pass in C++."""

    kind: str
    function: str
    where: str = ""
    inner: bool = False
    of_autograd: str = ""


class Stacks:
    """The stacks of one file: frames, and lists of them, are shared by many events, and read once.
    They are known by where they lie, and kept, so that nothing else comes to lie there."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[_Frame | None, Any]] = {}
        self._stacks: dict[int, tuple[Stack, Any]] = {}

    def of(self, frames: Sequence[Any]) -> Stack:
        """What the frames of one event say."""
        found = self._stacks.get(id(frames))
        if found is None:
            found = self._stacks[id(frames)] = self._read(frames), frames
        return found[0]

    def _read(self, frames: Sequence[Any]) -> Stack:
        kind = where = inner = of_autograd = ""
        zeroes = False
        for entry in frames[:MAX_FRAMES]:
            found = self._frames.get(id(entry))
            if found is None:
                found = self._frames[id(entry)] = _frame(entry), entry
            frame = found[0]
            if frame is None:
                continue
            kind = kind or frame.kind
            zeroes = zeroes or frame.function.endswith("zero_grad")
            of_autograd = of_autograd or frame.of_autograd
            inner = inner or frame.where
            where = where or ("" if frame.inner else frame.where)
        if kind == BACKWARD and of_autograd:
            where = of_autograd
        return Stack(kind, where or inner or of_autograd, zeroes)


def _frame(entry: Any) -> _Frame | None:
    file, function = (
        (entry.get(key) for key in ("filename", "name")) if isinstance(entry, Mapping) else (0, 0)
    )
    if not isinstance(file, str) or not isinstance(function, str):
        return None
    kind = next((k for k, f, n in DECIDES if n.search(function) and f.search(file)), "")
    if not file.endswith(".py"):
        found = _OF_AUTOGRAD.search(function)
        return _Frame(kind, function, "", True, found[1][:MAX_NAME] if found else "")
    line = entry.get("line")
    short = "/".join(file.split("/")[-2:])[-MAX_NAME:]
    at = f":{line}" if isinstance(line, int) and 0 < line < MAX_LINE else ""
    where = f"{short}{at} {function[:MAX_NAME]}"
    return _Frame(kind, function, where, bool(_INNER.search(file)))
