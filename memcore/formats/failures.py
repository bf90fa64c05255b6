"""Failures: what a program says when memory runs out: a measurement of what it needed at least.

Texts of PyTorch since 1.12 (CUDA and HIP), of JAX, and of llama.cpp; of vLLM and SGLang, whose
cache has no room; of bitsandbytes, which gives no figure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memcore.units import GiB, KiB, MiB, TiB, bytes_text

SIZES = {"bytes": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_MARK = re.compile(
    r"out of\s+memory|OutOfMemory|RESOURCE_EXHAUSTED|Resource exhausted", re.IGNORECASE
)
_COUNT = r"(-?\d+)"
# What servers say where their cache has no room, with the word of serve.engine; and the tokens of
# the longest sequence, and of the cache.
SERVERS = (
    ("vllm", r"No available memory for the cache blocks|max seq len \(\d+\)"),
    (
        "sglang",
        r"is larger than the profiled value -?\d+|Not enough memory[^\n]*mem-fraction-static",
    ),
)
LONGEST = (rf"max seq len \({_COUNT}\)",)
ROOM = (
    rf"can be stored in KV cache \({_COUNT}\)",
    rf"estimated maximum model length is {_COUNT}",
    rf"larger than the profiled value {_COUNT}",
)
_NO_FIGURE = re.compile(r"Error out of memory at line \d+ in file")  # of bitsandbytes
# Of each figure the ways in which it is written.
WRITTEN = {
    "asked": (
        rf"Tried to allocate {_SIZE}",
        rf"trying to allocate {_SIZE}",
        rf"allocating {_SIZE} on",
        rf"{_SIZE} KV cache is needed",
    ),
    "total": (rf"{_SIZE} total capacity", rf"total capac(?:i)?ty of {_SIZE}"),
    "allocated": (rf"{_SIZE} already allocated", rf"{_SIZE} is allocated by PyTorch"),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch",),
    "idle": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "process": (rf"this process has {_SIZE} memory in use",),
    "free": (
        rf"of which {_SIZE} is free",
        rf"{_SIZE} free",
        rf"available KV cache memory \({_SIZE}\)",
    ),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What one message says, in bytes of one GPU; 0 where it does not.

    asked      what was not to be had
    total      the GPU's memory; free: of it when it was asked
    allocated  tensors at that time; reserved: with what the allocator keeps for others
    process    all that the process had, CUDA's own too
    engine     a server whose cache has no room, as serve.engine calls it
    longest    tokens that one sequence of it may have; room: tokens that the cache holds
    """

    asked: int = 0
    total: int = 0
    free: int = 0
    allocated: int = 0
    reserved: int = 0
    process: int = 0
    engine: str = ""
    longest: int = 0
    room: int = 0

    @property
    def needed(self) -> int:
        """Bytes of tensors that it would have had, at the least: more came, or would have come."""
        return self.allocated + self.asked

    def __str__(self) -> str:
        if self.engine:
            holds = f"{self.room:,} tokens" if self.room else "no token"
            needs = f", and one sequence may have {self.longest:,}" if self.longest else ""
            had = f": {bytes_text(self.asked)}, where {bytes_text(self.free)} are left"
            return f"the cache holds {holds}{needs}{had if self.asked else ''}"
        if not self.asked:
            return "the message says no figure"
        had = f"{bytes_text(self.allocated)} were allocated and " if self.allocated else ""
        of = f", on a GPU of {bytes_text(self.total)}" if self.total else ""
        least = f": at least {bytes_text(self.needed)} are needed" if self.allocated else ""
        return f"{had}{bytes_text(self.asked)} more were asked for{of}{least}"

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {name: getattr(self, name) for name in (*self.__slots__, "needed")}


def failure(content: str) -> Failure | None:
    """The last message of that kind in a text; None where there is none."""
    engine = next((name for name, text in SERVERS if re.search(text, content)), "")
    if engine:
        asked, free = (_last(content, WRITTEN[name]) for name in ("asked", "free"))
        longest, room = (max(0, _count(content, ways)) for ways in (LONGEST, ROOM))
        return Failure(asked, free=free, engine=engine, longest=longest, room=room)
    marks = list(_MARK.finditer(content))
    said = {name: _last(content, ways) for name, ways in WRITTEN.items()} if marks else {}
    if not said.get("asked"):
        return Failure() if _NO_FIGURE.search(content) else None
    idle = said.pop("idle")
    if not said["reserved"] and said["allocated"]:
        said["reserved"] = said["allocated"] + idle
    sizes = (said[name] for name in ("asked", "total", "free", "allocated", "reserved", "process"))
    asked, total, free, allocated, reserved, process = sizes
    return Failure(asked, total, free, allocated, reserved, process)


def _count(content: str, ways: tuple[str, ...]) -> int:
    found = [match for way in ways for match in re.finditer(way, content)]
    return int(max(found, key=lambda match: match.start())[1][:12]) if found else 0


def _last(content: str, ways: tuple[str, ...]) -> int:
    found = [match for way in ways for match in re.finditer(way, content)]
    if not found:
        return 0
    last = max(found, key=lambda match: match.start())
    try:
        return round(float(last[1]) * SIZES[last[2]])
    except ValueError:
        return 0
