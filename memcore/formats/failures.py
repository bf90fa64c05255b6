"""Failures: what a program says when memory ran out: a measurement of what it needed at the least.

The texts of PyTorch, JAX, llama.cpp, servers and others are in presets/programs/failures.toml.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from memcore.formats.programs import Program
from memcore.units import GiB, KiB, MiB, TiB, bytes_text

SIZES = {
    "bytes": 1,
    **{unit: size for name, size in (("K", KiB), ("M", MiB), ("G", GiB), ("T", TiB))
       for unit in (name, f"{name}iB")},
}  # fmt: skip
_NUMBER = r"(?<![\d.])\d[\d.]{0,30}"
# What stands in the texts of the table for a number.
NUMBERS = {
    "NUMBER": _NUMBER,
    "SIZE": rf"({_NUMBER}) ?(bytes|[KMGT]iB|[KMGT](?![A-Za-z]))",
    "GIB": rf"(?P<GiB>{_NUMBER})",
    "BYTES": r"(?P<bytes>\d{1,20})",
    "COUNT": r"(-?\d{1,18})",
}
MESSAGES = Program("failures").table


def _pattern(text: str) -> str:
    """A text of the table as a pattern."""
    for name, pattern in {"STARTS": MESSAGES["starts"], **NUMBERS}.items():
        text = text.replace(f"{{{name}}}", pattern)
    return text


STARTS = _pattern("{STARTS}")  # of a server that asks for a share of what others have
WRITTEN, COUNTED = (
    {figure: tuple(map(_pattern, ways)) for figure, ways in MESSAGES[kind].items()}
    for kind in ("written", "counted")
)
SERVERS = {name: _pattern(text) for name, text in MESSAGES["servers"].items()}
_MARK = re.compile(MESSAGES["mark"], re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What one message says, in bytes of one GPU; 0 where it does not.

    asked      what was not to be had
    total      the GPU's memory; free: of it when it was asked
    allowed    what of it the process may have (torch.cuda.set_per_process_memory_fraction)
    allocated  tensors at that time; reserved: with what the allocator keeps for others
    process    all that the process had, CUDA's own too
    engine     a server whose cache has no room, as serve.engine calls it
    longest    tokens that one sequence of it may have; room: tokens that the cache holds
    empty      the cache has no block at all
    share      of the GPU's memory that a server asks for as it starts
    part       what of a server could not be made
    host       it is the host's memory
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
    allowed: int = 0
    empty: bool = False
    share: float = 0
    part: str = ""
    host: bool = False

    @property
    def needed(self) -> int:
        """Bytes of tensors that it would have had, at the least: more came, or would have come."""
        return self.allocated + self.asked

    def __str__(self) -> str:
        if self.engine:
            return self._of_server()
        if not self.asked:
            return "the message says no figure"
        if self.host:
            free = f", and {bytes_text(self.free)} are free" if self.free else ""
            return f"{bytes_text(self.asked)} of the host's memory are needed{free}"
        had = f"{bytes_text(self.allocated)} were allocated and " if self.allocated else ""
        more = " more" if self.allocated else ""
        of = f", on a GPU of {bytes_text(self.total)}" if self.total else ""
        if self.allowed:
            of += f", of which the process may have {bytes_text(self.allowed)}"
        least = f": at least {bytes_text(self.needed)} are needed" if self.allocated else ""
        return f"{had}{bytes_text(self.asked)}{more} were asked for{of}{least}"

    def _of_server(self) -> str:
        """What a server says that does not start, or whose cache has no room."""
        free, total, asked = map(bytes_text, (self.free, self.total, self.asked))
        if self.share:
            most = math.floor(100 * self.free / self.total) / 100 if self.total else 0
            return (
                f"it does not start: {free} of the GPU's {total} are free, since other programs "
                f"have the rest, and a share of {self.share:g} is {asked}; at most {most:.2f} "
                "starts, or end the others"
            )
        if self.part:
            return f"it could not make its {self.part}: {free} of the GPU's {total} were free"
        needs = f", and one sequence may have {self.longest:,}" if self.longest else ""
        if self.room or self.empty:
            holds = f"{self.room:,} tokens" if self.room else "no token"
            had = f": {asked}, where {free} are left" if self.asked else ""
            return f"the cache holds {holds}{needs}{had}"
        if self.asked:
            one = f"of {self.longest:,} tokens " if self.longest else ""
            return f"the cache has {free}, and one sequence {one}needs {asked}"
        return f"the cache has too little room{needs}; the message says no more"

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {name: getattr(self, name) for name in (*self.__slots__, "needed")}


def failure(content: str) -> Failure | None:
    """The last message of that kind in a text, however long that is; None where there is none."""
    content = _near(content)
    engine = next((name for name, text in SERVERS.items() if re.search(text, content)), "")
    said = {name: _last(content, ways) for name, ways in WRITTEN.items()}
    if engine:
        longest, room = (max(0, _count(content, COUNTED[name])) for name in ("longest", "room"))
        starts, part = re.search(STARTS, content), re.search(MESSAGES["part"], content)
        return Failure(
            said["asked"],
            said["total"],
            said["free"],
            engine=engine,
            longest=longest,
            room=room,
            empty=bool(re.search(MESSAGES["empty"], content)),
            share=min(1.0, float(starts[1][:8].rstrip("."))) if starts else 0,
            part=part[1].strip() if part else "",
        )
    if not (_MARK.search(content) and said["asked"]):
        return Failure() if re.search(MESSAGES["no_figure"], content) else None
    if not said["reserved"] and said["allocated"]:
        said["reserved"] = said["allocated"] + said["idle"]
    names = ("asked", "total", "free", "allocated", "reserved", "process")
    asked, total, free, allocated, reserved, process = (said[name] for name in names)
    found = Failure(asked, total, free, allocated, reserved, process, allowed=said["allowed"])
    return replace(found, host="more system memory" in content)


NEAR, MOST_NEAR = 4_000, 300_000  # characters around a message, and of the last of them together
# What each of them has, in small letters: a pattern that begins with letters is looked for quickly.
_BEGINS = tuple(
    re.compile(way.lower())
    for ways in (MESSAGES["mark"], *SERVERS.values(), MESSAGES["no_figure"])
    for way in re.split(r"\|(?![^(]*\))", ways)
)


def _near(content: str) -> str:
    """What stands around the last messages of a long text."""
    if len(content) <= MOST_NEAR:
        return content
    small = content.replace("İ", "I").lower()  # the one letter of which two would become
    parts: list[tuple[int, int]] = []
    for at in sorted(mark.start() for way in _BEGINS for mark in way.finditer(small)):
        start, end = max(0, at - NEAR), at + NEAR
        if parts and start <= parts[-1][1]:
            start = parts.pop()[0]
        parts.append((start, end))
    return "\n".join(content[start:end] for start, end in parts)[-MOST_NEAR:]


def _match(content: str, ways: tuple[str, ...]) -> re.Match[str] | None:
    """Where one of several patterns holds last."""
    found = (match for way in ways for match in re.finditer(way, content))
    return max(found, key=re.Match.start, default=None)


def _count(content: str, ways: tuple[str, ...]) -> int:
    last = _match(content, ways)
    return int(last[1][:12]) if last else 0


def _last(content: str, ways: tuple[str, ...]) -> int:
    last = _match(content, ways)
    if last is None:
        return 0
    named = {unit: text for unit, text in last.groupdict().items() if text}
    number, unit = (last[1], last[2]) if not named else next((t, u) for u, t in named.items())
    try:
        return round(float(number) * SIZES[unit])
    except ValueError:
        return 0
