"""Entries: the cache of attention to compressed tokens (DeepSeek-V4), as vLLM lays it out.

Every layer keeps the tokens of a window, and beyond it entries that stand for several tokens each;
an indexer has entries of its own. Tokens that make no whole entry yet lie in a state in fp32, which
is handed out as a window too. Each of these draws blocks of its own from one pool, for as many
tokens as make its pages about as large as the others'. A block has places for pages of each size
that entries have, as many of each as any group needs of one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from memcore.models.model import Entries, Indexer, Model
from memcore.serving.pages import ceil_div

BLOCK = 256  # tokens; vLLM sets it whatever is asked for
ENTRIES_SOURCE = (
    "vLLM's DeepSeek-V4: blocks of 256 tokens, pages of entries, of windows of 64 tokens and of "
    "compressors' states of 4 and 8, in fp32 (vllm/models/deepseek_v4/compressor.py, attention.py; "
    "vllm/v1/attention/backends/mla/sparse_swa.py), groups and places in a block as v0.22 has them "
    "(vllm/v1/core/kv_cache_utils.py; later versions leave out places that no group needs, 1 % of "
    "a block). An entry in 8 bits has its turned part in 16, and a scale for 64 numbers: 584 bytes "
    "of 512 numbers, pages in multiples of 576 bytes"
)
SCALED, KEY_SCALED = 64, 128  # numbers of an entry, and of an indexer's key, that share a scale
STATE = 4  # bytes of a number in a compressor's state
NARROW, WIDE = 576, 512  # bytes that a page is a multiple of: of entries in 8 bits, and in others
EIGHT = 8  # bits


def rounded(n: int, to: int) -> int:
    return ceil_div(n, to) * to


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose cache shares a table of blocks.

    tokens   of a block
    window   tokens that it keeps; 0: all
    pages    bytes of each of its pages of a block
    """

    name: str
    tokens: int
    window: int
    pages: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of its pages of one block."""
        return sum(self.pages)

    def most(self, length: int, forward: int) -> int:
        """Blocks of a sequence while forwards of so many tokens read it."""
        if not self.window:
            return ceil_div(length, self.tokens)
        return ceil_div(min(self.window - 1 + forward, length), self.tokens) + 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of one GPU; entry, key: bytes of one, of a layer and of an indexer."""

    groups: tuple[Group, ...]
    entry: int
    key: int

    @property
    def places(self) -> int:
        """Of pages of one size, in a block."""
        return max(max(Counter(group.pages).values()) for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Of one block of the pool: so many places for a page of each size. A state's page takes
        the place of a larger one."""
        return self.places * sum(set(self.whole.pages))

    @property
    def whole(self) -> Group:
        """What keeps all of a sequence."""
        return self.groups[0]

    @property
    def windows(self) -> tuple[Group, ...]:
        return self.groups[1:]


def entry_bytes(model: Model, bits: float) -> int:
    """Of one layer's entry, or of a token in its window."""
    width, turned = model.head_dim, model.rotary_dim
    if bits != EIGHT:
        return int(width * bits / 8)
    still = width - turned
    return still + 2 * turned + still // SCALED + 1


def key_bytes(indexer: Indexer) -> int:
    """Of one of an indexer's entries: 8 bits a number and scales in fp32."""
    return indexer.dim + 4 * ceil_div(indexer.dim, KEY_SCALED)


def layout_of(model: Model, bits: float, windowed: int, fine: int, coarse: int) -> Layout:
    """The cache of a GPU with so many layers: with a window, which all have, and with each kind of
    entries."""
    entries, indexer = model.entries, model.indexer
    assert entries
    assert indexer
    step = NARROW if bits == EIGHT else WIDE
    entry, key = entry_bytes(model, bits), key_bytes(indexer)
    own = BLOCK // entries.fine

    def page(count: int, each: int) -> int:
        return rounded(count * each, step)

    whole = (
        (page(own, entry),) * fine
        + (page(own, key),) * fine
        + (page(ceil_div(BLOCK, entries.coarse), entry),) * coarse
    )
    small, large = _state_pages(entries, indexer, model.head_dim, step)
    places = max(Counter(whole).values(), default=0)
    per_group = _places([places, windowed, fine, coarse])
    split = ceil_div(windowed, per_group)
    groups = [Group("entries", BLOCK, 0, whole)]
    for i in range(split):
        layers = len(range(i, windowed, split))
        groups.append(Group("windows", own, model.window, (page(own, entry),) * layers))
    if fine:
        groups.append(Group("states", FINE_TOKENS, 2 * entries.fine, small * fine))
    if coarse:
        groups.append(Group("states", COARSE_TOKENS, entries.coarse, large * coarse))
    return Layout(tuple(groups), entry, key)


FINE_TOKENS, COARSE_TOKENS = 4, 8  # of a block of a compressor's states


def _state_pages(
    entries: Entries, indexer: Indexer, width: int, step: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pages of the states of a layer whose entries overlap, and its indexer's, and of another's:
    what a token gives to an entry, and with which weights."""
    fine = (2 * 2 * n * STATE * FINE_TOKENS for n in (width, indexer.dim))
    return (
        tuple(rounded(n, step) for n in fine),
        (rounded(2 * width * STATE * COARSE_TOKENS, step),),
    )


def _places(counts: list[int]) -> int:
    """Places of a page that groups are cut to: those that waste least of all, at least the first's;
    of several, most (kv_cache_utils._approximate_gcd)."""
    least, most = max(counts[0], 1), max(*counts, 1)
    return min(range(least, most + 1), key=lambda n: (sum(rounded(c, n) - c for c in counts), -n))
