"""Segments: what PyTorch's native allocator reserves, by its own rules, for the tensors of a step.

Every tensor of one step in its order, handed to the rules of c10/cuda/CUDACachingAllocator.cpp
(PyTorch 2.13): sizes rounded to 512 bytes, segments of 2 MiB for up to 1 MiB, of 20 MiB for less
than 10 MiB and else of whole 2 MiB, the smallest free block that fits, split where more than 1 MiB
is left, free neighbours merged. Nothing is given back to the GPU. Streams besides the first are not
followed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from memcore.step.step import Alive, Step, read_together, resident, stepping
from memcore.tape.dims import Number, each_alone
from memcore.tape.ledger import (
    BACKWARD,
    FORWARD,
    Amounts,
    Group,
    Window,
    gradients,
    outputs,
    saved,
    window,
)
from memcore.units import MiB

ROUND = 512
SMALL, SMALL_SEGMENT = MiB, 2 * MiB
LARGE, LARGE_SEGMENT, WHOLE = 10 * MiB, 20 * MiB, 2 * MiB
LEFT = MiB  # of a large block: no more than this is not split off

# Of a stack's layers the first and last so many are followed tensor by tensor; of those between
# only what they leave: their temporaries lie where those of the layers before them lay.
FOLLOWED = 3


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment: in use or free, with its neighbours."""

    size: int
    small: bool
    number: int
    before: Block | None = None
    after: Block | None = None
    free: bool = False


class Allocator:
    """The native allocator. `reserved` is what it has taken from the GPU, in bytes."""

    def __init__(self) -> None:
        self.reserved = self.allocated = self.most = 0
        self._made = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}

    def _block(self, size: int, small: bool) -> Block:
        self._made += 1
        return Block(size, small, self._made)

    def take(self, n: int) -> Block:
        """A block for a tensor of so many bytes."""
        n = max(1, -(-n // ROUND)) * ROUND
        small = n <= SMALL
        free = self._free[small]
        at = bisect_left(free, (n,))
        if at < len(free):
            block = free.pop(at)[2]
        else:
            segment = SMALL_SEGMENT if small else LARGE_SEGMENT if n < LARGE else 0
            block = self._block(segment or -(-n // WHOLE) * WHOLE, small)
            self.reserved += block.size
        left = block.size - n
        if left >= ROUND if small else left > LEFT:
            rest = self._block(left, small)
            rest.before, rest.after, rest.free = block, block.after, True
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, n
            insort(free, (left, rest.number, rest))
        block.free = False
        self.allocated += block.size
        self.most = max(self.most, self.allocated)
        return block

    def give(self, block: Block) -> None:
        """The tensor is gone: its block is free, with the free ones beside it."""
        self.allocated -= block.size
        free = self._free[block.small]
        for other in (block.before, block.after):
            if other and other.free:
                del free[bisect_left(free, (other.size, other.number))]
                first, second = (other, block) if other is block.before else (block, other)
                first.size += second.size
                first.after = second.after
                if first.after:
                    first.after.before = first
                block = first
        block.free = True
        insort(free, (block.size, block.number, block))


class _Replay:
    """One step's tensors through an allocator."""

    def __init__(self, amounts: Amounts):
        self.amounts, self.kept = amounts, Allocator()

    def take(self, alive: Alive) -> list[tuple[str, Block]]:
        """All rows of these groups."""
        found = []
        for group, times in alive:
            sizes = [(r.name, self._bytes(r), r.copies) for r in group.rows]
            for _ in range(int(times)):
                found += [
                    (name, self.kept.take(n)) for name, n, copies in sizes if n
                    for _ in range(copies)
                ]  # fmt: skip
        return found

    def give(self, blocks: Iterable[tuple[str, Block]]) -> None:
        for _, block in blocks:
            self.kept.give(block)

    def run(
        self, over: Window, there: Iterable[tuple[str, Block]], stays: Collection[str]
    ) -> list[tuple[str, Block]]:
        """A window. `there`: blocks that its rows of the same name have already; `stays`: names of
        rows that outlive it, which come back with their blocks."""
        ready = dict(there)
        sizes = [self._bytes(r) for r in over.rows]
        names = [r.name for r in over.rows]
        held: dict[int, Block] = {}
        for births, deaths in over.steps:
            for i in deaths:
                if i in held and names[i] not in stays:
                    self.kept.give(held.pop(i))
            for i in births:
                if sizes[i]:
                    known = names[i] in ready
                    held[i] = ready.pop(names[i]) if known else self.kept.take(sizes[i])
        self.give(ready.items())
        left = []
        for i, block in held.items():
            if names[i] in stays:
                left.append((names[i], block))
            else:
                self.kept.give(block)
        return left

    def _bytes(self, row: Any) -> int:
        return int(self.amounts.bytes(row.shape, row.dtype))


def _names(*groups: Group) -> set[str]:
    return {row.name for group in groups for row in group.rows}


def _followed(step: Step, order: Iterable[int]) -> set[int]:
    """Layers that are followed tensor by tensor, in the order in which they run."""
    count, seen, found = step.running.count, set(), set()
    for i in order:
        kind = step.running.kind(i)
        if i < FOLLOWED or i >= count - FOLLOWED or kind not in seen:
            found.add(i)
        seen.add(kind)
    return found


def reserved_by_rules(step: Step, amounts: Amounts) -> Number:
    """Bytes that the native allocator reserves for a step of a model that is whole on its GPU; with
    sizes that are arrays, for each of them."""
    if amounts.arrays:
        return each_alone(amounts.sizes, lambda sizes: reserved_by_rules(step, Amounts(sizes)))
    replay, blocks, count = _Replay(amounts), step.blocks, step.running.count
    replay.take(resident(step))
    merge = step.keeps_gradients or step.accumulated
    if step.keeps_gradients:
        every = [(gradients(blocks.embed), 1), (gradients(blocks.head), 1)]
        replay.take([*every, *step.made(step.layers.counts)])
    together = replay.take([(group, 1) for group in read_together(step)])
    first = replay.run(window(blocks.embed, FORWARD), (), _names(saved(blocks.embed)))
    kept = []
    followed = _followed(step, range(count))
    for i in range(count):
        group = step.kept(step.running.kind(i))
        here = replay.run(step.forward(i), (), _names(group)) if i in followed else None
        kept.append(replay.take([(group, 1)]) if here is None else here)
    results = _names(outputs(blocks.head))
    left = replay.run(window(blocks.head, FORWARD), (), _names(saved(blocks.head)) | results)
    made = () if merge else _names(gradients(blocks.head))
    replay.run(window(blocks.head, BACKWARD, merge), left, results.union(made))
    followed = _followed(step, reversed(range(count)))
    for i in reversed(range(count)):
        tape = blocks.layers[step.running.kind(i)]
        if i in followed:
            stays = () if merge else _names(gradients(tape))
            replay.run(step.backward(i, merge), kept[i], stays)
        else:
            replay.give(kept[i])
            if not merge:
                replay.take([(gradients(tape), 1)])
    replay.give(together)
    replay.run(window(blocks.embed, BACKWARD, merge), first, _names(gradients(blocks.embed)))
    replay.take(stepping(step))
    return replay.kept.reserved
