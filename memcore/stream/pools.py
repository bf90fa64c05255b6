"""Pools: how the memory of the KV cache is handed to sequences, in tokens.

`held` is what sequences were given, `computed` what of it holds keys and values. A pool says
whether a sequence gets in, and for how many iterations the running ones can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def ceil_div(n: int, size: int) -> int:
    return -(-n // size)


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

    def __init__(self, slots: int, reserve: Callable[[int, int], int]):
        self.capacity = slots
        self.reserve = reserve
        self.buddy = Buddy(slots)
        self.chunks: dict[int, tuple[int, int]] = {}
        self.held = self.asked = 0

    def ever(self, prompt: int, output: int) -> bool:
        """Whether an empty pool has room for it."""
        return power_of_two(self.reserve(prompt, output)) <= self.capacity

    def admit(self, i: int, prompt: int, output: int, length: int) -> int | None:
        """Room for a sequence: how many of its tokens are there already, or None for no room."""
        asked = self.reserve(prompt, output)
        address = self.buddy.take(asked)
        if address is None:
            return None
        self.chunks[i] = address, asked
        self.asked += asked
        self.held += power_of_two(asked)
        return 0

    def release(self, i: int, length: int) -> None:
        """Take back what a sequence of `length` tokens holds."""
        address, asked = self.chunks.pop(i)
        self.buddy.give_back(address)
        self.asked -= asked
        self.held -= power_of_two(asked)

    def start(self, computed: int, iteration: int) -> None:
        """A sequence begins to generate at this iteration."""

    def stop(self, computed: int, iteration: int) -> None:
        """A sequence generates no more."""

    def go_on(self, iteration: int, most: int) -> int:
        """For how many of `most` iterations every generating sequence has room."""
        return most


class Paged:
    """Blocks of `block` tokens, handed out as sequences grow; of the first `shared` tokens, which
    all prompts have in common, whole blocks are kept once.

    As vLLM V1: a sequence is let in when there are blocks for all of its prompt
    (scheduler_reserve_full_isl), and a generating one that finds none preempts the last.
    """

    reserves = False

    def __init__(self, slots: int, block: int, shared: int = 0):
        self.block = block
        self.blocks = self.free = slots // block
        self.capacity = self.blocks * block
        self.shared = shared // block  # blocks
        self.kept = self.shared * block  # tokens
        self.cached = False  # whether anybody has computed them yet
        self.needs: dict[int, int] = {}  # generating sequences that need a block in a phase
        self.generating = 0

    @property
    def held(self) -> int:
        return (self.blocks - self.free) * self.block

    @property
    def asked(self) -> int:
        return self.held

    def ever(self, prompt: int, output: int) -> bool:
        return ceil_div(prompt + output - 1, self.block) <= self.blocks

    def admit(self, i: int, prompt: int, output: int, length: int) -> int | None:
        there = self.shared if self.cached else 0
        needed = ceil_div(length, self.block) - there
        if needed > self.free:
            return None
        self.free -= needed
        self.cached = self.shared > 0
        return there * self.block

    def release(self, i: int, length: int) -> None:
        self.free += ceil_div(length, self.block) - self.shared

    def start(self, computed: int, iteration: int) -> None:
        phase = (computed - iteration) % self.block
        self.needs[phase] = self.needs.get(phase, 0) + 1
        self.generating += 1

    def stop(self, computed: int, iteration: int) -> None:
        phase = (computed - iteration) % self.block
        self.needs[phase] -= 1
        if not self.needs[phase]:
            del self.needs[phase]
        self.generating -= 1

    def go_on(self, iteration: int, most: int) -> int:
        """Hands out the blocks of as many iterations as there are blocks for: in each round of
        `block` iterations every generating sequence needs one."""
        rounds = min(most // self.block, self.free // max(1, self.generating))
        self.free -= rounds * self.generating
        first = iteration + rounds * self.block
        rest = most - rounds * self.block
        for step in self._steps_in_need(first, rest):
            wanted = self.needs[-(first + step) % self.block]
            if wanted > self.free:
                return most - rest + step
            self.free -= wanted
        return most

    def _steps_in_need(self, first: int, steps: int) -> Iterable[int]:
        """After how many iterations from `first` some sequence needs a block, less than `steps`."""
        block, needs = self.block, self.needs
        steps = min(steps, block)  # a second round starts only where the first finds no block
        if steps < len(needs):
            return (step for step in range(steps) if -(first + step) % block in needs)
        return sorted(step for phase in needs if (step := -(phase + first) % block) < steps)
