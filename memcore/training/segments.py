"""Segments: what PyTorch's native allocator reserves, by its own rules, for the tensors of steps.

Every tensor of a step's instants in their order, handed to the rules of
c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.13): sizes rounded to 512 bytes, segments of 2 MiB for
up to 1 MiB, of 20 MiB for less than 10 MiB and else of whole 2 MiB, the smallest free block that
fits, split where more than 1 MiB is left, free neighbours merged. Nothing is given back to the GPU.
Streams besides the first are not followed: what they allocate counts as the first one's.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain

from memcore.step.step import AFTER, Alive, Step, interned
from memcore.tape.dims import Number, Shape, each_alone
from memcore.tape.ledger import Amounts, Group, Template, Window
from memcore.units import MiB

ROUND = 512
SMALL, SMALL_SEGMENT = MiB, 2 * MiB
LARGE, LARGE_SEGMENT, WHOLE = 10 * MiB, 20 * MiB, 2 * MiB
LEFT = MiB  # of a large block: no more than this is not split off

# Of a stack's layers the first and last so many are followed tensor by tensor; of those between
# only what they leave: their temporaries lie where those of the layers before them lay.
FOLLOWED = 3
STEPS = 3  # after which nothing new is reserved


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


Key = tuple[str, Shape, str]  # the name of a row, its shape and dtype
Held = dict[Key, list[Block]]


def _key(row: Template) -> Key:
    return row.name, row.shape, row.dtype


class _Replay:
    """The tensors of a step through an allocator."""

    def __init__(self, amounts: Amounts):
        self.amounts, self.kept = amounts, Allocator()
        self.held: Held = {}  # between windows

    def take(self, rows: Counter[Key]) -> None:
        for key, n in rows.items():
            if size := self._bytes(key):
                self.held.setdefault(key, []).extend(self.kept.take(size) for _ in range(n))

    def run(
        self, over: Window | None, gone: Counter[Key], new: Counter[Key], stays: Counter[Key]
    ) -> Counter[Key]:
        """A window, or nothing. `gone`: of what is held, what its rows of the same key have, and if
        none, is freed; `new`: what is held from now on; `stays`: rows that are held when it is
        over, of each key the last. Of these, which there were."""
        keys, steps = ([_key(r) for r in over.rows], over.steps) if over else ([], ())
        wanted, ready, here = Counter(keys), Held(), dict[int, Block]()
        for key, n in gone.items():
            blocks = self.held.get(key, [])
            for _ in range(min(n, len(blocks))):
                if len(found := ready.setdefault(key, [])) < wanted[key]:
                    found.append(blocks.pop())
                else:
                    self.kept.give(blocks.pop())
        self.take(new)
        left, stay = Counter(stays), set[int]()
        for _, deaths in reversed(steps):
            for i in deaths:
                if left[keys[i]] > 0:
                    left[keys[i]] -= 1
                    stay.add(i)
        for births, deaths in steps:
            for i in deaths:
                if i in here and i not in stay:
                    self.kept.give(here.pop(i))
            for i in births:
                if size := self._bytes(keys[i]):
                    found = ready.get(keys[i], [])
                    here[i] = found.pop(0) if found else self.kept.take(size)
        for block in chain.from_iterable(ready.values()):
            self.kept.give(block)
        for i, block in here.items():
            self.held.setdefault(keys[i], []).append(block)
        return stays - left

    def _bytes(self, key: Key) -> int:
        return int(self.amounts.bytes(key[1], key[2]))


def _listed(alive: Alive) -> Counter[Key]:
    """How many rows of each key are alive."""
    found: Counter[Key] = Counter()
    for group, n in alive:
        for row in group.rows:
            found[_key(row)] += int(n) * row.copies
    return found


def _change(before: Alive, after: Alive) -> Counter[Key]:
    """How many more rows of each key are alive after than before."""
    groups: dict[int, tuple[Group, int]] = {}  # equal groups are one object
    for alive, sign in ((before, -1), (after, 1)):
        for group, n in alive:
            groups[id(group)] = group, groups.get(id(group), (group, 0))[1] + sign * int(n)
    return _listed([one for one in groups.values() if one[1]])


def _followed(step: Step) -> set[int]:
    """Layers that are followed tensor by tensor."""
    order, found = range(step.running.count), set[int]()
    for way in (order, order[::-1]):
        seen = set[int]()
        for i in way:
            kind = step.running.kind(i)
            if kind not in seen or not FOLLOWED <= i < step.running.count - FOLLOWED:
                found.add(i)
            seen.add(kind)
    return found


def reserved_by_rules(step: Step, amounts: Amounts) -> Number:
    """Bytes that the native allocator reserves for steps of one pipeline stage, or of a model that
    is whole on its GPU; with sizes that are arrays, for each of them."""
    if amounts.arrays:
        return each_alone(amounts.sizes, lambda sizes: reserved_by_rules(step, Amounts(sizes)))
    return replayed(step, amounts).reserved


def replayed(step: Step, amounts: Amounts, steps: int = STEPS) -> Allocator:
    """The allocator after so many steps of a micro-batch each. What other forwards have left that
    wait for their backward is there throughout: taken and freed in a pipeline's order it comes to
    up to 3 % more."""
    replay, followed = _Replay(amounts), _followed(step)
    every = interned(replace(step, each=True)).instants
    instants = [i for i in every if i.layer < 0 or i.layer in followed]
    changes = [_change(instants[n - 1].alive, i.alive) for n, i in enumerate(instants)]
    # The first step makes the optimizer's moments, where what was freed has room for them.
    lazy = not step.flat and step.offload == "none"
    late = _listed([*step.every("moments"), *step.every("steps")]) if lazy else Counter[Key]()
    begun = _listed(instants[0].alive)
    late &= begun
    stayed = Counter[Key]()
    for again in range(steps):
        for n, instant in enumerate(instants):
            change = changes[n] if again or n else begun - late
            if late and instant.phase == AFTER:
                replay.take(late)
                late = Counter()
            after = changes[(n + 1) % len(instants)]
            stayed = replay.run(instant.window, -change, +change - stayed, +after)
    return replay.kept
