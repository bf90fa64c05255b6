"""Profiles: what a run held, by a trace of torch.profiler with profile_memory=True, or by any other
file that says it.

A trace has what is allocated and reserved after each allocation, and what ran at that time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.formats.snapshot import (
    MAX_BYTES,
    MAX_EVENTS,
    MOST,
    Event,
    Replay,
    Snapshot,
    snapshot_of,
)
from memcore.formats.stacks import MAX_FRAMES, OPERATION, Stacks
from memcore.formats.totals import Counted, counted_in
from memcore.units import MiB, bytes_text

MAX_TEXT = 2 * MiB  # of a text with totals
MEMORY = "[memory]"  # what the profiler calls an allocation, or the end of one
TOTALS = ("Total Allocated", "Total Reserved")
CPU, GPU = 0, 1  # the kinds of devices that are told of
_OF_PYTHON = re.compile(r"(.*\.py)\(([0-9]{1,8})\): (.*)")


def held_of(data: bytes) -> Snapshot | Counted:
    """What a run held, by a snapshot, a profile or a text with totals. Raises PlanError, with what
    is wrong with the file."""
    if len(data) <= MAX_TEXT and (counted := counted_in(data.decode(errors="replace"))):
        return counted
    if data.lstrip()[:1] != b"{":
        return snapshot_of(data)
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {bytes_text(MAX_BYTES)}")
        return _read(json.loads(data))
    except (ValueError, RecursionError) as e:
        said = "no profile of PyTorch's with profile_memory=True"
        raise PlanError([Issue("", f"{said}: {e}")]) from None


@dataclass(slots=True)
class _Span:
    """What ran, until when, in microseconds, and within what."""

    called: str
    end: float
    within: _Span | None = None
    frames: list[Mapping[str, Any]] = field(default_factory=list)

    def stack(self) -> list[Mapping[str, Any]]:
        """Its frames, the innermost first; of operations within each other the outermost."""
        span: _Span | None = self
        for _ in range(0 if self.frames else MAX_FRAMES):
            if span is None:
                break
            here: dict[str, Any] = {"filename": OPERATION, "name": span.called}
            if found := _OF_PYTHON.fullmatch(span.called):
                here = {"filename": found[1], "line": int(found[2]), "name": found[3]}
            if self.frames and self.frames[-1]["filename"] == here["filename"] == OPERATION:
                self.frames.pop()
            self.frames.append(here)
            span = span.within
        return self.frames


class _Told(Replay):
    """A profile's events of one device: their totals are told, and no addresses are mapped."""

    def __init__(self, told: Sequence[tuple[Event, int, int]]):
        super().__init__([event for event, _, _ in told], (), {}, Stacks())
        for life in self.lives:
            life.size = life.requested
        first, allocated, reserved = told[0]
        before = allocated - first.size if first.action == "alloc" else allocated + first.size
        self.allocated = [max(0, before), *(total for _, total, _ in told)]
        self.reserved = [reserved, *(total for _, _, total in told)]
        self.requested = []


_Timed = tuple[float, float, Mapping[str, Any]]  # when it began, less how long it lasted
_Line = tuple[float, Event, int, int]  # when, and what is allocated and reserved after it


def _read(found: Any) -> Snapshot:
    entries = found.get("traceEvents") if isinstance(found, Mapping) else None
    if not isinstance(entries, list) or len(entries) > 5 * MAX_EVENTS:
        raise ValueError("it has no traceEvents, or too many")
    threads: dict[Any, list[_Timed]] = {}
    notes: list[dict[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            continue
        thread, start, lasts = (entry.get(key, 0) for key in ("tid", "ts", "dur"))
        if not (isinstance(thread, int | str) and _is_number(start) and _is_number(lasts)):
            continue
        kind, said = entry.get("cat"), entry["name"]
        if kind == "user_annotation":
            for stage, time in (("START", start), ("END", start + lasts)):
                notes.append({"name": said, "stage": stage, "time_us": int(time)})
        of_step = kind == "user_annotation" and said.startswith("Optimizer.")
        if said == MEMORY or of_step or kind in ("cpu_op", "python_function"):
            threads.setdefault(thread, []).append((start, -lasts, entry))
    stacks, devices = Stacks(), dict[tuple[int, int], list[_Line]]()
    for timed in threads.values():
        for of, line in _lines(timed, stacks):
            devices.setdefault(of, []).append(line)
    if not devices:
        raise ValueError("it tells of no allocation")
    notes.sort(key=lambda note: note["time_us"])
    kind = max(kind for kind, _ in devices)  # of a run on GPUs not the CPU's
    return Snapshot(
        tuple(
            _Told([line[1:] for line in sorted(lines, key=lambda line: line[0])]).device(
                max(0, index), notes, "GPU" if kind == GPU else "CPU"
            )
            for (of, index), lines in sorted(devices.items())
            if of == kind
        ),
        {},
    )


def _lines(timed: list[_Timed], stacks: Stacks) -> Iterator[tuple[tuple[int, int], _Line]]:
    """The allocations of one thread, each of which device and with what ran around it."""
    open_: _Span | None = None
    for start, minus, entry in sorted(timed, key=lambda event: event[:2]):
        while open_ is not None and open_.end < start:
            open_ = open_.within
        if entry["name"] != MEMORY:
            open_ = _Span(entry["name"], start - minus, open_)
            continue
        args = entry.get("args")
        said = args if isinstance(args, Mapping) else {}
        kind, index, size, address, allocated, reserved = (
            int(said[key]) if _is_number(said.get(key)) else 0
            for key in ("Device Type", "Device Id", "Bytes", "Addr", *TOTALS)
        )
        if kind in (CPU, GPU) and size:
            stack = stacks.of(open_.stack() if open_ else ())
            event = Event("alloc" if size > 0 else "free", address, abs(size), int(start), stack)
            yield (kind, index), (start, event, allocated, reserved)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < MOST
