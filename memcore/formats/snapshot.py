"""Snapshots: what a run had on a GPU, by `torch.cuda.memory._dump_snapshot`.

A snapshot has the allocator's segments and blocks at its end and a trace of the events before it,
of which the oldest may be lost. Blocks that are freed in the trace, or are there at its end,
without being allocated in it were there at its start.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.formats.failures import Failure
from memcore.formats.memory import (
    ALLOCATED,
    BEFORE,
    CATEGORIES,
    OTHER,
    REQUESTED,
    RESERVED,
    Allocation,
    GpuMemory,
    RunMemory,
)
from memcore.formats.pickled import plain_values
from memcore.formats.stacks import BACKWARD, DIVIDES, FORWARD, LOADS, STATE, STEP, Stack, Stacks
from memcore.formats.totals import MOST, totals_in
from memcore.hardware import constants
from memcore.units import GiB, MiB, bytes_text

MAX_BYTES = 128 * MiB  # of a file
MAX_EVENTS = 1_000_000  # of a file, and as many blocks
MAX_ALIVE = 300_000  # tensors at once
WORKSPACES = tuple(
    int(c.middle) for c in (constants.CUBLAS_WORKSPACE, constants.CUBLAS_WORKSPACE_HOPPER)
)
STEPS = "Optimizer.step"  # what begins the name of each step's annotation
GROUPS = 200  # told of at most
MAX_TEXT = 2 * MiB  # of a text with totals

# c10/cuda/CUDACachingAllocator: what a block is rounded up to, and what is split from a larger one.
SMALLEST = 512
SMALL = 1 * MiB


def is_pickle(data: bytes) -> bool:
    """Whether a file begins as a pickle does that has no text in it."""
    return data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read_memory(data: bytes) -> RunMemory:
    """What a run had in memory, by a snapshot or a text with totals. Raises PlanError, with what
    is wrong with the file."""
    if len(data) <= MAX_TEXT and (totals := totals_in(data.decode(errors="replace"))):
        return totals
    return snapshot_of(data)


def snapshot_of(data: bytes) -> RunMemory:
    """What a snapshot's file says. Raises PlanError, with what is wrong with it."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {bytes_text(MAX_BYTES)}")
        if not is_pickle(data):
            raise ValueError(
                "it is no pickle, as torch.cuda.memory._dump_snapshot writes, and no text that is "
                "read says what was allocated, or that memory ran out"
            )
        return _read(plain_values(data))
    except ValueError as e:
        raise PlanError([Issue("", f"no memory snapshot of PyTorch: {e}")]) from None


# ---- the file


@dataclass(slots=True)
class Event:
    """Of a trace: at its address and time, in microseconds; of one that failed, what was free in
    place of the address."""

    action: str
    address: int
    size: int
    time: int
    stack: Stack


@dataclass(slots=True)
class _Life:
    """A block with a tensor, and after which event it was allocated, freed, and free for others: 0
    is the start of the trace, None is after its end. size: what it takes, 0 where not known."""

    address: int
    requested: int
    stack: Stack
    born: int = 0
    freed: int | None = None
    gone: int | None = None
    size: int = 0
    freed_by: Stack | None = None

    def alive(self, at: int) -> bool:
        return self.born <= at and (self.freed is None or self.freed > at)

    def taken(self, at: int) -> bool:
        return self.born <= at and (self.gone is None or self.gone > at)


def _list(value: Any, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"its {what} are no list")
    return value


def _number(of: Any, key: str, otherwise: int | None = None) -> int:
    value = of.get(key, otherwise) if isinstance(of, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or not -MOST < value < MOST:
        raise ValueError(f"it has no number for {key!r} where one belongs")
    return value


def _text(of: Mapping[str, Any], key: str) -> str:
    value = of.get(key)
    return value if isinstance(value, str) else ""


def _frames(entry: Mapping[str, Any]) -> Sequence[Any]:
    """Of an event or a block; of blocks before PyTorch 2.1, their history has them."""
    if "frames" not in entry and (history := _list(entry.get("history"), "history")):
        entry = history[0] if isinstance(history[0], Mapping) else {}
    return _list(entry.get("frames"), "frames")


def _event(entry: Any, stacks: Stacks) -> Event:
    action = entry.get("action") if isinstance(entry, Mapping) else None
    if not isinstance(action, str):
        raise ValueError("an event of its trace has no action")
    key = "device_free" if action == "oom" else "addr"
    address, size, time = (_number(entry, k, 0) for k in (key, "size", "time_us"))
    if size < 0:
        raise ValueError("an event of its trace has a size below 0")
    return Event(action, address, size, time, stacks.of(_frames(entry)))


def _read(found: Any) -> RunMemory:
    if isinstance(found, list):  # before PyTorch 2.0
        found = {"segments": found}
    if not isinstance(found, Mapping) or "segments" not in found:
        raise ValueError("it has no segments")
    segments = _list(found["segments"], "segments")
    traces = _list(found.get("device_traces"), "traces")
    blocks = sum(len(_list(s.get("blocks"), "blocks")) for s in segments if isinstance(s, Mapping))
    events = sum(len(_list(trace, "traces")) for trace in traces)
    if max(events, blocks, len(segments)) > MAX_EVENTS:
        raise ValueError(f"it has more than {MAX_EVENTS:,} events or blocks")
    settings = found.get("allocator_settings")
    settings = dict(settings) if isinstance(settings, Mapping) else {}
    notes = [n for n in _list(found.get("external_annotations"), "annotations")
             if isinstance(n, Mapping)]  # fmt: skip
    by_device: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        by_device.setdefault(_number(segment, "device", 0), []).append(segment)
    used = {i for i, trace in enumerate(traces) if trace} | by_device.keys()
    if not used:
        raise ValueError("it has no event and no segment: nothing was recorded")
    stacks = Stacks()
    devices = tuple(
        Replay(
            [_event(entry, stacks) for entry in (traces[i] if 0 <= i < len(traces) else ())],
            by_device.get(i, ()),
            settings,
            stacks,
        ).device(i, [n for n in notes if n.get("device", i) in (i, -1)])
        for i in sorted(used)
    )
    return RunMemory(devices, _told(settings))


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The allocator's settings that are values; divisions where one is set."""
    said: dict[str, Any] = {
        str(name): value
        for name, value in settings.items()
        if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < MOST)
        if value != ""
    }
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping):
        set_ = [f"{k}:{v}" for k, v in divisions.items() if isinstance(v, int) and v]
        said |= {"roundup_power2_divisions": ", ".join(set_)} if set_ else {}
    return said


# ---- the replay


class _Ranges:
    """Addresses that are mapped: pieces [start, end), in order."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}

    def add(self, start: int, size: int, joined: bool) -> None:
        """A segment, joined to those that it touches if it is expandable."""
        end = start + size
        if size <= 0:
            return
        self.cut(start, size)
        if joined and end in self.ends:
            end = self._pop(end)
        before = bisect_left(self.starts, start) - 1
        if joined and before >= 0 and self.ends[self.starts[before]] == start:
            self.ends[self.starts[before]] = end
            return
        insort(self.starts, start)
        self.ends[start] = end

    def cut(self, start: int, size: int) -> None:
        at = max(0, bisect_right(self.starts, start) - 1)
        while at < len(self.starts) and self.starts[at] < start + size:
            first = self.starts[at]
            if self.ends[first] <= start:
                at += 1
                continue
            end = self._pop(first)
            for low, high in ((first, start), (start + size, end)):
                if low < high:
                    insort(self.starts, low)
                    self.ends[low] = high
                    at += 1

    def _pop(self, start: int) -> int:
        del self.starts[bisect_left(self.starts, start)]
        return self.ends.pop(start)

    def end(self, address: int) -> int:
        """Of the piece with this address; the address where none has it."""
        at = bisect_right(self.starts, address) - 1
        return max(address, self.ends[self.starts[at]]) if at >= 0 else address

    def apply(self, event: Event, back: bool = False) -> None:
        action = event.action
        if action in ("segment_alloc", "segment_map", "segment_free", "segment_unmap"):
            if action.endswith(("_alloc", "_map")) != back:
                self.add(event.address, event.size, action.endswith("map"))
            else:
                self.cut(event.address, event.size)


_Span = tuple[str, tuple[int, int]]  # an annotation: from when to when
RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Replay:
    """One GPU's trace, forward from what must have been there at its start."""

    def __init__(
        self,
        events: Sequence[Event],
        segments: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        stacks: Stacks,
    ):
        self.events, self.settings, self.stacks = events, settings, stacks
        self.stacked = any(event.stack.where for event in self.events)
        self.lives = self._lives(segments)
        self.ranges, self.joined = self._at_start(segments)
        self.allocated, self.requested, self.reserved = self._totals(segments)

    def _lives(self, segments: Sequence[Mapping[str, Any]]) -> list[_Life]:
        lives: list[_Life] = []
        now: dict[int, _Life] = {}

        def new(address: int, requested: int, stack: Stack, born: int = 0) -> _Life:
            lives.append(_Life(address, requested, stack, born))
            now[address] = lives[-1]
            if len(now) > MAX_ALIVE:
                raise ValueError(f"it has more than {MAX_ALIVE:,} tensors at once")
            return lives[-1]

        for at, event in enumerate(self.events, start=1):
            if event.action == "alloc":
                if old := now.get(event.address):  # its end is not in the trace
                    old.freed, old.gone = at if old.freed is None else old.freed, at
                new(event.address, event.size, event.stack, at)
            elif event.action in ("free_requested", "free_completed", "free"):
                known = now.get(event.address)
                life = known or new(event.address, event.size, Stack())
                if life.freed is None:
                    # That it was asked for is an event too: here it is lost, from before the trace.
                    waited = known is None and event.action == "free_completed"
                    life.freed, life.freed_by = 0 if waited else at, event.stack
                if event.action != "free_requested":
                    life.gone = at
                    del now[event.address]
        for segment in segments:
            address = _number(segment, "address", 0)
            for block in _list(segment.get("blocks"), "blocks"):
                size = _number(block, "size")
                state = _text(block, "state")
                if state.startswith("active"):
                    stack = self.stacks.of(_frames(block))
                    life = now.get(address) or new(address, 0, stack)
                    life.size, life.requested = size, _requested(block, size)
                    life.stack = life.stack if life.stack.where else stack
                    if life.freed is None and state != "active_allocated":
                        life.freed = 0
                address += size
        return lives

    def _at_start(self, segments: Sequence[Mapping[str, Any]]) -> tuple[_Ranges, bool]:
        """The addresses that were mapped at the start, and whether segments are expandable."""
        ranges = _Ranges()
        joined = any(event.action == "segment_map" for event in self.events)
        for segment in segments:
            grows = bool(segment.get("is_expandable", False))
            joined = joined or grows
            ranges.add(_number(segment, "address", 0), _number(segment, "total_size"), grows)
        for event in reversed(self.events):
            ranges.apply(event, back=True)
        return ranges, joined

    def _totals(self, segments: Sequence[Mapping[str, Any]]) -> tuple[list[int], ...]:
        """Bytes allocated, requested and reserved at the start and after each event. On the way
        each block's size is found, as the allocator has it."""
        first = sorted((life for life in self.lives if not life.born), key=lambda x: x.address)
        taken = [life.address for life in first]
        for life in first:
            self._size(life, taken)
        end = sum(_number(segment, "total_size") for segment in segments)
        moved = sum(RESERVES.get(event.action, 0) * event.size for event in self.events)
        totals = [
            sum(life.size for life in first if life.alive(0)),
            sum(life.requested for life in first),
            end - moved,
        ]
        lines: tuple[list[int], ...] = tuple([total] for total in totals)
        born = {life.born: life for life in self.lives if life.born}
        freed, gone = ({at: life for life in self.lives if (at := getattr(life, name))}
                       for name in ("freed", "gone"))  # fmt: skip
        for at, event in enumerate(self.events, start=1):
            self.ranges.apply(event)
            totals[2] += RESERVES.get(event.action, 0) * event.size
            if at in freed:
                totals[0] -= freed[at].size
            if at in gone:
                totals[1] -= gone[at].requested
                del taken[bisect_left(taken, gone[at].address)]
            if at in born:
                insort(taken, born[at].address)
                self._size(born[at], taken)
                totals[0] += born[at].size
                totals[1] += born[at].requested
            for line, total in zip(lines, totals, strict=True):
                line.append(total)
        return lines

    def _size(self, life: _Life, taken: list[int]) -> None:
        """A block of more than 1 MiB keeps all that is free behind it, where that is no more than
        1 MiB beyond what it needs; other blocks, and those of expandable segments, are split."""
        if life.size:
            return
        life.size = needs = rounded(life.requested, self.settings)
        if needs <= SMALL or self.joined:
            return
        behind = bisect_right(taken, life.address)
        end = self.ranges.end(life.address)
        room = min([end, *taken[behind : behind + 1]]) - life.address
        unsplit = self.settings.get("max_split_size", -1)
        whole = isinstance(unsplit, int) and 0 < unsplit <= needs
        if needs < room and (whole or room - needs <= SMALL):
            life.size = room

    # ---- what is said of it

    def device(self, index: int, notes: Sequence[Mapping[str, Any]]) -> GpuMemory:
        at = max(range(len(self.allocated)), key=self.allocated.__getitem__)
        spans = list(self._spans(notes))
        begins = self._steps(spans)
        groups, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        categories = dict.fromkeys(CATEGORIES, 0)
        for life in self.lives:
            if life.alive(at):
                category = self._category(life, begins)
                where = life.stack.where or f"{bytes_text(life.size)} each, without a stack"
                groups[category, where] += life.size
                counts[category, where] += 1
                categories[category] += life.size
        last = len(self.events)
        ends = [(name, end) for name, (_, end) in spans if name.startswith(STEPS)]
        steps = sorted(end for name, end in ends if name == ends[0][0])  # of one optimizer
        gaps = [b - a for a, b in itertools.pairwise(steps) if b > a]
        return GpuMemory(
            index,
            {"start": self._at(0), "allocated peak": self._at(at), "end": self._at(last)},
            {ALLOCATED: self.allocated[at], REQUESTED: max(self.requested),
             RESERVED: max(self.reserved)},
            failures=tuple(
                Failure(event.size, free=max(0, event.address), allocated=self.allocated[i],
                        reserved=self.reserved[i])
                for i, event in enumerate(self.events, start=1) if event.action == "oom"
            ),
            categories={name: size for name, size in categories.items() if size},
            groups=tuple(
                Allocation(*of, counts[of], size) for of, size in groups.most_common(GROUPS)
            ),
            events=last,
            seconds=(self.events[-1].time - self.events[0].time) / 1e6 if last else 0.0,
            step_seconds=statistics.median(gaps) / 1e6 if gaps else 0.0,
        )  # fmt: skip

    def _at(self, at: int) -> dict[str, int]:
        return {ALLOCATED: self.allocated[at], REQUESTED: self.requested[at],
                RESERVED: self.reserved[at]}  # fmt: skip

    @functools.cached_property
    def _workspaces(self) -> tuple[_Life, ...]:
        """cuBLAS's workspaces: the first product of a thread allocates one, and it stays. Of blocks
        of its size, which weights may have too, that is the first in forward and in backward."""
        first: dict[bool, _Life] = {}
        for life in self.lives:
            stays = life.born and life.freed is None and life.requested in WORKSPACES
            backward = self.stacked and not life.stack.where
            if stays and (backward or life.stack.kind == FORWARD):
                first.setdefault(backward, life)
        return tuple(first.values())

    def _category(self, life: _Life, begins: Sequence[int]) -> str:
        """One of a report's consumers, BEFORE or OTHER."""
        if any(life is own for own in self._workspaces):
            return "workspace"
        stack = life.stack
        kind = stack.kind
        if life.freed_by is not None and life.freed_by.zeroes:
            return "gradients"
        if not stack.where and not life.born:
            return BEFORE if life.freed is None else OTHER
        if not stack.where:  # autograd's threads have no frames of Python
            kind = BACKWARD if self.stacked else ""
        if kind == LOADS:
            return "parameters"
        if kind == STATE or (kind == STEP and life.freed is None):
            return "optimizer_states"
        if kind == FORWARD:
            return "activations"
        if kind not in (BACKWARD, DIVIDES):
            return "workspace" if kind == STEP else OTHER
        at = bisect_left(begins, life.born)
        outlives = life.alive(begins[at]) if at < len(begins) else life.freed is None
        return "gradients" if outlives else "workspace"

    def _steps(self, spans: Sequence[_Span]) -> list[int]:
        """After which events an optimizer is at work."""
        times = [event.time for event in self.events]
        told = [start for name, (start, _) in spans if name.startswith(STEPS)]
        seen = [i for i, e in enumerate(self.events, start=1) if e.stack.kind in (STATE, STEP)]
        return sorted({*seen, *(bisect_right(times, start) for start in told)})

    def _spans(self, notes: Sequence[Mapping[str, Any]]) -> Iterator[_Span]:
        """Each annotation with when it began and ended; one without an end lasts as the trace."""
        open_: dict[str, list[int]] = {}
        end = max((event.time for event in self.events), default=0)
        for note in notes:
            name, time = _text(note, "name")[:120], _number(note, "time_us", 0)
            if _text(note, "stage") == "START":
                open_.setdefault(name, []).append(time)
            elif open_.get(name):
                yield name, (open_[name].pop(), time)
        yield from ((name, (time, end)) for name, times in open_.items() for time in times)


def _requested(block: Mapping[str, Any], size: int) -> int:
    """What was asked for a block; before PyTorch 2.1 its history says so."""
    if "requested_size" in block:
        return _number(block, "requested_size")
    history = block.get("history")
    if isinstance(history, list) and history and isinstance(history[0], Mapping):
        return _number(history[0], "real_size", size)
    return size


def rounded(size: int, settings: Mapping[str, Any]) -> int:
    """Bytes of the block that PyTorch's allocator makes for a tensor, where it can split one."""
    divisions = 0
    if isinstance(of := settings.get("roundup_power2_divisions"), Mapping):
        power = min(32 * GiB, max(SMALL, 1 << max(0, size.bit_length() - 1))) // MiB
        divisions = found if isinstance(found := of.get(str(power)), int) else 0
    if divisions > 1 and size > SMALLEST * divisions:
        floor = 1 << (size.bit_length() - 1)
        step = floor >> (divisions.bit_length() - 1)
        return size if size == floor else -(-size // step) * step if step else 2 * floor
    return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)
