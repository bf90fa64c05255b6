"""Pools: how the memory of the KV cache is handed to sequences, in places of one token.

`held` is what sequences were given, `asked` what of it they asked for. A pool says whether a
sequence gets in, and how far the running ones can go on. Where layers differ, a place is one in a
group of layers (memcore.serving.pages).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from memcore.serving.pages import Pages, ceil_div

TOKENS = Pages(1)  # every layer keeps every token


def power_of_two(n: int) -> int:
    """The least power of two that is not less than `n`."""
    return 1 << max(0, n - 1).bit_length()


class Buddy:
    """The buddy system: chunks are powers of two, halved when needed and joined when both are free.

    Knowlton 1965; the vLLM paper assumes it of Orca (Kwon et al. 2023, section 6.1). Memory that is
    no power of two is several of them, each at a multiple of its own size.
    """

    def __init__(self, slots: int):
        orders = range(slots.bit_length())
        self.free: list[dict[int, None]] = [{} for _ in orders]  # addresses by order, last in first
        self.taken: dict[int, int] = {}
        self.roots = set()
        start = 0
        for order in reversed(orders):
            if slots >> order & 1:
                self.free[order][start] = None
                self.roots.add((start, order))
                start += 1 << order

    def take(self, size: int) -> int | None:
        """The address of a chunk of at least `size` slots, if there is one."""
        order = found = power_of_two(size).bit_length() - 1
        while found < len(self.free) and not self.free[found]:
            found += 1
        if found >= len(self.free):
            return None
        address, _ = self.free[found].popitem()
        while found > order:
            found -= 1
            self.free[found][address + (1 << found)] = None
        self.taken[address] = order
        return address

    def give_back(self, address: int) -> None:
        order = self.taken.pop(address)
        while (address, order) not in self.roots:
            buddy = address ^ (1 << order)
            if buddy not in self.free[order]:
                break
            del self.free[order][buddy]
            address, order = min(address, buddy), order + 1
        self.free[order][address] = None


class Contiguous:
    """Each sequence holds one chunk for its whole life: `reserve(prompt, output)` tokens.

    A chunk is a power of two, as the buddy system gives it. What of a chunk nobody asked for is
    lost, as is what is free and too small.
    """

    reserves = True  # tokens that are not there yet
    cached = False
    kept = 0

    def __init__(self, slots: int, reserve: Callable[[int, int], int], pages: Pages = TOKENS):
        self.capacity = slots
        self.reserve, self.pages = reserve, pages
        self.buddy = Buddy(slots)
        self.chunks: dict[int, tuple[int, int]] = {}
        self.held = self.asked = 0

    def wants(self, prompt: int, output: int) -> int:
        """Places that a sequence reserves, those of a state included."""
        tokens = self.pages.places(self.reserve(prompt, output))
        return math.ceil(tokens + self.pages.fixed)

    def ever(self, prompt: int, output: int) -> bool:
        """Whether an empty pool has room for it."""
        return power_of_two(self.wants(prompt, output)) <= self.capacity

    def admit(self, i: int, prompt: int, output: int, length: int) -> int | None:
        """Room for a sequence: how many of its tokens are there already, or None for no room."""
        asked = self.wants(prompt, output)
        address = self.buddy.take(asked)
        if address is None:
            return None
        self.chunks[i] = address, asked
        self.asked += asked
        self.held += power_of_two(asked)
        return 0

    def drop(self, i: int) -> None:
        """Take back what a sequence holds."""
        address, asked = self.chunks.pop(i)
        self.buddy.give_back(address)
        self.asked -= asked
        self.held -= power_of_two(asked)

    def read(self, i: int, start: int, now: int) -> bool:
        """Room for `now` tokens of a prompt, of which `start` are there."""
        return True

    def start(self, i: int, tokens: int, at: int) -> None:
        """A sequence of so many tokens generates from `at` on."""

    def slide(self, i: int, tokens: int, at: int) -> None:
        """It no longer sees its first token in a layer with a window."""

    def leave(self, i: int, tokens: int, at: int) -> None:
        """It generates no more, and gives back what it holds."""
        self.drop(i)

    def cover(self, last: int) -> int:
        """Room for every generating sequence until `last`, or how far there is."""
        return last

    def uncover(self, last: int) -> None:
        """Give back what was taken for later than `last`."""


class Batch(Contiguous):
    """Room for a batch: sequences side by side, each with as much as the longest may take."""

    def ever(self, prompt: int, output: int) -> bool:
        return self.wants(prompt, output) <= self.capacity

    def admit(self, i: int, prompt: int, output: int, length: int) -> int | None:
        asked = self.wants(prompt, output)
        if self.held + asked > self.capacity:
            return None
        self.chunks[i] = 0, asked
        self.asked = self.held = self.held + asked
        return 0

    def drop(self, i: int) -> None:
        self.asked = self.held = self.held - self.chunks.pop(i)[1]


class Paged:
    """Blocks, handed out as sequences grow (memcore.serving.pages); of the first `shared` tokens,
    which all prompts have in common, whole blocks are kept once.

    As vLLM V1: a sequence is let in when there are blocks for all of its prompt
    (scheduler_reserve_full_isl), gets them with each part that is read, and a generating one that
    finds none preempts the last. What a step lets go of is there for whoever takes in it.

    Generating sequences go on together: `covered` is until when all of them have their places. At
    a time t a sequence that began with n tokens at s takes a block of each group where
    n + t - s + more is a multiple of the block, and of each with a window lets one go where
    n + t - s + 1 - window is, once it has begun to slide; `lag` later, where a draft's guesses
    have their places before they are computed.

    Where it is `sure`, as TensorRT-LLM's GUARANTEED_NO_EVICT: a sequence is let in when all that
    are inside can end beside it, so that none is ever put out.
    """

    reserves = False

    def __init__(
        self, slots: int, block: int, shared: int = 0, pages: Pages | None = None,
        longest: int | None = None, lag: int = 0, found: float = 0.0, sure: bool = False,
    ):  # fmt: skip
        self.pages = pages or Pages(block)
        self.sure = sure
        self.ends: dict[int, int] = {}  # blocks that each will have had at its end
        self.promised = 0  # and all together
        self.found = found  # share of each prompt that the prefix cache has, of blocks of its own
        self.block = block
        self.blocks = self.free = slots // block
        self.capacity = self.blocks * block
        self.longest = longest or self.capacity
        self.lag, self.more = lag, self.pages.ahead - lag
        self.shared = shared // block  # blocks
        self.kept = self.shared * block  # tokens
        self.cached = False  # whether anybody has computed them yet
        self.groups = self.pages.full + self.pages.windowed
        self.needs: dict[int, int] = {}  # generating sequences that need a block in a phase
        self.frees: dict[int, int] = {}  # and those that let one go
        self.generating = self.sliding = 0
        self.covered = -1
        self.reading: dict[int, tuple[int, int]] = {}  # of those that are read: blocks, of a group
        self.late: dict[int, int] = {}  # blocks that who has just begun needs for its first step
        self.gone: dict[int, int] = {}  # blocks that windows have let go of; -1: those that slide

    @property
    def held(self) -> int:
        return (self.blocks - self.free) * self.block

    @property
    def asked(self) -> int:
        return self.held

    @property
    def prefix(self) -> int:
        """Blocks that keep the shared prefix: of a window no more than it sees of it."""
        if not self.pages.windowed:
            return self.pages.full * self.shared
        seen = self.shared - self.pages.unseen(self.kept) // self.block
        return self.pages.full * self.shared + self.pages.windowed * seen

    def ever(self, prompt: int, output: int) -> bool:
        return self._at_end(prompt, output) <= self.blocks

    def _at_end(self, prompt: int, output: int) -> int:
        return self.pages.asked(prompt + output - 1 + self.pages.ahead, self.longest)

    def admit(self, i: int, prompt: int, output: int, length: int) -> int | None:
        first = self.shared and not self.cached
        needed = self.pages.asked(length + self.pages.ahead, self.longest)
        if needed - (0 if first else self.prefix) > self.free:
            return None
        if self.sure:
            own = self._at_end(prompt, output) - self.prefix
            if self.prefix + self.promised + own > self.blocks:
                return None
            self.ends[i] = own
            self.promised += own
        there = self.kept if self.cached else 0
        if self.found:
            there = max(there, min(int(prompt * self.found), length - 1))
        if first:
            self.free -= self.prefix
            self.cached = True
        self.free -= self.pages.constant
        self.reading[i] = self.pages.constant, 0
        return there

    def read(self, i: int, start: int, now: int) -> bool:
        before, total = self.reading[i]
        places = max(self.kept, start + now) + (self.more if total else 0)
        held = self.pages.blocks(places, start, self.shared)
        if held - before > self.free:
            return False
        self.free -= held - before
        self.reading[i] = held, ceil_div(places, self.block)
        return True

    def drop(self, i: int) -> None:
        self.free += self.reading.pop(i)[0]
        self.promised -= self.ends.pop(i, 0)

    def start(self, i: int, tokens: int, at: int) -> None:
        if not self.generating:
            self.covered = max(self.covered, at - 1)
        held, total = self.reading.pop(i)
        late = self.groups * (self._total(tokens, at) - total)
        if late:
            self.late[i] = late
        self.free += held + late - self._held(i, tokens, at)
        _count(self.needs, (tokens - at + self.more) % self.block, 1)
        self.generating += 1

    def slide(self, i: int, tokens: int, at: int) -> None:
        before = self._held(i, tokens, at)
        if self.pages.chunked:
            self.gone[i] = max(self.shared, self.pages.unseen(tokens) // self.block)
        else:
            self.gone[i] = -1
            _count(self.frees, self._of_window(tokens - at), 1)
            self.sliding += 1
        self.free += before - self._held(i, tokens, at)

    def leave(self, i: int, tokens: int, at: int) -> None:
        self.free += self._held(i, tokens, at) - self.late.pop(i, 0)
        if self.gone.pop(i, 0) < 0:
            _count(self.frees, self._of_window(tokens - at), -1)
            self.sliding -= 1
        _count(self.needs, (tokens - at + self.more) % self.block, -1)
        self.generating -= 1
        self.promised -= self.ends.pop(i, 0)

    def _of_window(self, phase: int) -> int:
        return (phase - self.lag + 1 - self.pages.window) % self.block

    def _total(self, tokens: int, at: int) -> int:
        """Blocks of a group for a generating sequence that has so many tokens at `at`."""
        return ceil_div(tokens + self.covered - at + 1 + self.more, self.block)

    def _held(self, i: int, tokens: int, at: int) -> int:
        """All that it has of its own, or will have when all are covered."""
        pages, total = self.pages, self._total(tokens, at)
        found = pages.full * (total - self.shared) + pages.constant
        if pages.windowed:
            gone = self.gone.get(i, self.shared)
            if gone < 0:
                gone = (tokens + self.covered - at - self.lag + 1 - pages.window) // self.block
            found += pages.windowed * (total - gone)
        return found

    def cover(self, last: int) -> int:
        """Hands out the blocks of as many steps as there are blocks for: in each round of `block`
        steps every generating sequence needs one."""
        if self.late:
            wanted = sum(self.late.values())
            if wanted > self.free:
                return min(self.covered, last - 1)
            self.free -= wanted
            self.late.clear()
        most = last - self.covered
        if most <= 0 or not self.generating:
            self.covered = max(self.covered, last)
            return self.covered
        each = self.groups * self.generating - self.pages.windowed * self.sliding
        rounds = most // self.block if self.groups else 0
        if rounds and self.sliding:
            high = self._high()
            if self.free < high:
                rounds = 0
            elif each > 0:
                rounds = min(rounds, (self.free - high) // each + 1)
        elif rounds:
            rounds = min(rounds, self.free // each)
        self.free -= rounds * each
        first = self.covered + 1 + rounds * self.block
        for step in self._steps(first, last - first + 1):
            taken = self._taken(first + step)
            if taken > self.free:
                self.covered = first + step - 1
                return self.covered
            self.free -= taken
        self.covered = last
        return last

    def uncover(self, last: int) -> None:
        while self.covered > last:
            self.free += self._taken(self.covered)
            self.covered -= 1

    def _taken(self, at: int) -> int:
        """Blocks that are taken at this step, less those that are let go of."""
        taken = self.groups * self.needs.get(-at % self.block, 0)
        if self.sliding:
            taken -= self.pages.windowed * self.frees.get(-at % self.block, 0)
        return taken

    def _high(self) -> int:
        """The most blocks that a round has taken at any of its steps."""
        level = high = 0
        first = self.covered + 1
        for step in self._steps(first, self.block):
            level += self._taken(first + step)
            high = max(high, level)
        return high

    def _steps(self, first: int, steps: int) -> Iterable[int]:
        """After how many steps from `first` blocks are taken or let go of, less than `steps`."""
        block, needs, frees = self.block, self.needs, self.frees
        steps = min(steps, block)  # a second round starts only where the first finds no block
        if steps < len(needs) + len(frees):
            return (
                step for step in range(steps)
                if (phase := -(first + step) % block) in needs or phase in frees
            )  # fmt: skip
        phases = needs.keys() | frees.keys() if frees else needs
        return sorted(step for phase in phases if (step := -(phase + first) % block) < steps)


def _count(counts: dict[int, int], key: int, by: int) -> None:
    """One more or one fewer; what nobody has is no key."""
    found = counts.get(key, 0) + by
    if found:
        counts[key] = found
    else:
        del counts[key]
