"""Pages: of which blocks the cache of one sequence is, as vLLM hands them out.

Layers of a kind are in groups of equal size, and every group has blocks of its own for the same
tokens (vllm/v1/core/kv_cache_utils.py). Before each forward a group with a window lets go of the
blocks that the tokens to come no longer see (single_type_kv_cache_manager.py,
remove_skipped_blocks); groups that see all keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass


def ceil_div(tokens: int, block: int) -> int:
    return -(-tokens // block)


@dataclass(frozen=True, slots=True)
class Pages:
    """What is the same for all sequences.

    block            tokens of a block
    full, windowed   groups of layers that keep everything, and a window of `window` tokens
    chunked          a window begins anew at each multiple of it (attention in chunks)
    forward          most tokens of a forward
    whole, part      layers that see all, and those with a window, over those of a group: what a
                     token has of a group's place for one. Where a group is not full, the rest is
                     lost
    constant         blocks of every sequence, whatever its length, as of a state; fixed: the places
                     of these that are filled
    ahead            places beyond the next token, for those that a draft guesses
    """

    block: int
    full: int = 1
    windowed: int = 0
    window: int = 0
    chunked: bool = False
    forward: int = 1
    whole: float = 1.0
    part: float = 0.0
    constant: int = 0
    fixed: float = 0.0
    ahead: int = 0

    def unseen(self, computed: int) -> int:
        """Tokens that the next one does not see in a layer with a window."""
        if self.chunked:
            return computed // self.window * self.window
        return max(0, computed - self.window + 1)

    def blocks(self, places: int, computed: int, shared: int = 0) -> int:
        """Blocks of a sequence with so many places, of which `computed` were there before the
        forward, besides its first `shared` blocks, which are not its own."""
        total = ceil_div(places, self.block)
        found = self.full * (total - shared) + self.constant
        if self.windowed:
            gone = max(shared, self.unseen(computed) // self.block)
            found += self.windowed * (total - gone)
        return found

    def in_window(self, longest: int) -> int:
        """Blocks that a group with a window has at most of one sequence: the window and what one
        forward adds, which need not begin where a block does
        (kv_cache_interface.py, max_admission_blocks_per_request)."""
        if self.chunked:
            return ceil_div(min(self.window + self.forward, longest), self.block)
        return ceil_div(min(self.window - 1 + self.forward, longest), self.block) + 1

    def most(self, longest: int) -> int:
        """Blocks that one sequence has at most, which vLLM divides its cache by."""
        found = self.full * ceil_div(longest, self.block) + self.constant
        return found + (self.windowed * self.in_window(longest) if self.windowed else 0)

    def asked(self, tokens: int, longest: int) -> int:
        """Blocks that must be free for a sequence of so many tokens to be let in
        (kv_cache_manager.py, full_sequence_must_fit)."""
        total = ceil_div(tokens, self.block)
        found = self.full * total + self.constant
        if self.windowed:
            found += self.windowed * min(total, self.in_window(longest))
        return found

    def places(self, tokens: int) -> float:
        """Places that so many tokens take without blocks, where a window keeps what it sees;
        besides `fixed`."""
        return self.whole * tokens + (self.part and self.part * min(tokens, self.window))
