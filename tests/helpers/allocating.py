"""A small caching allocator by PyTorch's rules, which counts what it does and writes snapshots.

Rounded to 512 bytes; best fit in a small and a large pool; segments of 2 MiB, 20 MiB, or the size
itself in steps of 2 MiB; or one that grows, in each pool, where segments are expandable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KIB, MIB = 2**10, 2**20
SMALL, SPLIT = MIB, MIB  # tensors of the small pool; what a large block must leave to be split
Frames = list[dict[str, Any]]


@dataclass
class Block:
    address: int
    size: int
    segment: int
    small: bool
    requested: int = 0
    state: str = "inactive"
    frames: Frames = field(default_factory=list)


class Allocator:
    """`counts`: bytes allocated, requested and reserved, and the largest free piece, after each
    event; `trace`: the events."""

    def __init__(self, expandable: bool = False, capacity: int = 2**40):
        self.expandable, self.capacity = expandable, capacity
        self.blocks: dict[int, Block] = {}
        self.segments: dict[int, int] = {}
        self.trace: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.counts = [(0, 0, 0, 0)]
        self.time = 1_000_000
        self._next = 2**30

    def alloc(self, requested: int, frames: Frames | None = None) -> int | None:
        """The address of a tensor's block; None where memory ran out."""
        frames = frames or []
        size = max(512, -(-requested // 512) * 512)
        small = size <= SMALL
        free = [
            b for b in self.blocks.values()
            if b.state == "inactive" and b.small == small and b.size >= size
        ]  # fmt: skip
        if free:
            block = min(free, key=lambda b: (b.size, b.address))
        elif (found := self._reserve(size, small, frames)) is None:
            self._event("oom", size, device_free=self.capacity - self.reserved, frames=frames)
            return None
        else:
            block = found
        left = block.size - size
        if left >= 512 if small or self.expandable else left > SPLIT:
            rest = Block(block.address + size, left, block.segment, small)
            self.blocks[rest.address] = rest
            block.size = size
        block.requested, block.state, block.frames = requested, "active_allocated", frames
        self._event("alloc", requested, block.address, frames)
        return block.address

    def free(self, address: int, frames: Frames | None = None, wait: bool = False) -> None:
        """Give a tensor back; with `wait`, another stream still uses it until `complete`."""
        self.blocks[address].state = "active_pending_free"
        self._event("free_requested", self.blocks[address].requested, address, frames)
        if not wait:
            self.complete(address, frames)

    def complete(self, address: int, frames: Frames | None = None) -> None:
        block = self.blocks[address]
        requested, block.state, block.requested = block.requested, "inactive", 0
        self._merge(block)
        self._event("free_completed", requested, address, frames)

    def empty_cache(self) -> None:
        for block in [b for b in self.blocks.values() if b.state == "inactive"]:
            if self.expandable:  # whole pages of 2 MiB at the end of the segment
                end = block.segment + self.segments[block.segment]
                size = block.size // (2 * MIB) * 2 * MIB
                if block.address + block.size != end or not size:
                    continue
                block.size -= size
                self.segments[block.segment] -= size
                if not block.size:
                    del self.blocks[block.address]
                self._event("segment_unmap", size, end - size)
            elif self.segments[block.segment] == block.size:
                del self.blocks[block.address], self.segments[block.segment]
                self._event("segment_free", block.size, block.segment)

    def note(self, name: str, stage: str) -> None:
        self.time += 10
        self.notes.append({"name": name, "stage": stage, "device": 0, "time_us": self.time})

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        """As torch.cuda.memory._snapshot; of the trace, the last so many events."""
        segments = []
        for start, size in self.segments.items():
            blocks = sorted(
                (b for b in self.blocks.values() if b.segment == start), key=lambda b: b.address
            )
            if not blocks:
                continue
            said = [
                {"address": b.address, "size": b.size, "requested_size": b.requested,
                 "state": b.state, "frames": b.frames} for b in blocks
            ]  # fmt: skip
            segments.append(
                {"device": 0, "address": start, "total_size": size, "stream": 0,
                 "segment_type": "small" if blocks[0].small else "large",
                 "is_expandable": self.expandable, "blocks": said, "frames": []}
            )  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [self.trace[len(self.trace) - last :] if last else self.trace],
            "allocator_settings": {"expandable_segments": self.expandable, "max_split_size": -1},
            "external_annotations": self.notes,
        }

    def _reserve(self, size: int, small: bool, frames: Frames) -> Block | None:
        pages = 2 * MIB if small else 20 * MIB
        if not self.expandable:
            total = pages if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + total > self.capacity:
                return None
            start = self._next
            self._next += total + 2 * MIB
            self.segments[start] = total
            self.blocks[start] = Block(start, total, start, small)
            self._event("segment_alloc", total, start, frames)
            return self.blocks[start]
        start = 2**45 if small else 2**46
        end = start + self.segments.get(start, 0)
        last = next(
            (b for b in self.blocks.values()
             if b.address + b.size == end and b.state == "inactive"), None
        )  # fmt: skip
        more = -(-(size - (last.size if last else 0)) // pages) * pages
        if self.reserved + more > self.capacity:
            return None
        self.segments[start] = self.segments.get(start, 0) + more
        if last:
            last.size += more
        else:
            last = self.blocks[end] = Block(end, more, start, small)
        self._event("segment_map", more, end, frames)
        return last

    def _merge(self, block: Block) -> None:
        for other in list(self.blocks.values()):
            if other.state != "inactive" or other.segment != block.segment or other is block:
                continue
            if other.address + other.size == block.address:
                del self.blocks[block.address]
                other.size += block.size
                block = other
            elif block.address + block.size == other.address:
                del self.blocks[other.address]
                block.size += other.size

    def _event(
        self, action: str, size: int, address: int = 0, frames: Frames | None = None, **more: int
    ) -> None:
        self.time += 10
        where = more or {"addr": address}
        self.trace.append(
            {"action": action, "size": size, "stream": 0, "time_us": self.time, **where,
             "frames": frames or []}
        )  # fmt: skip
        held = [b for b in self.blocks.values() if b.state == "active_allocated"]
        active = [b for b in self.blocks.values() if b.state != "inactive"]
        free = [b.size for b in self.blocks.values() if b.state == "inactive"]
        # A segment's event comes before the block is in use, as PyTorch records it.
        self.counts.append(
            (sum(b.size for b in held), sum(b.requested for b in active), self.reserved,
             max(free, default=0))
        )  # fmt: skip
