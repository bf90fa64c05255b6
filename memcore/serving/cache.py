"""Cache: keys, values and states of sequences, in the manager's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcore.plan.plan import Plan
from memcore.quantity.reading import (
    GIVEN,
    Read,
    at_least_zero,
    ceil,
    computed,
    floor,
    largest,
    least,
    nearest,
    quantity,
    total,
    where,
)
from memcore.report import LedgerRow, Serve
from memcore.serving.entries import BLOCK, ENTRIES_SOURCE, Group
from memcore.serving.pages import Pages, ceil_div
from memcore.serving.rows import row
from memcore.serving.server import STAGE_LAYERS, Server, kept_by_window
from memcore.serving.towers import PAGES_OF_ENCODER, PROFILED, tries_images
from memcore.tape.dims import Extent, Extents
from memcore.units import GiB
from memcore.words.stored import KV_DTYPES

SERVER = "how a server lays out one GPU: weights, one forward, overhead, and the rest for the cache"
KV_SOURCE = (
    "per layer and token keys and values of kv_heads x head_dim, or under latent attention one "
    "vector of kv_lora_rank + qk_rope_head_dim"
)
PAGES_SOURCE = (
    "vLLM's hybrid KV cache manager: layers of a kind in groups of equal size, all drawing blocks "
    "of the same bytes from one pool (vllm/v1/core/kv_cache_utils.py)"
)
INDEX_KEYS = "keys of indexers"
INDEX_SOURCE = (
    "vLLM's DeepseekV32IndexerCache: index_head_dim numbers of 8 bits and a scale of 4 bytes for "
    "128 of them (vllm/model_executor/models/deepseek_v2.py); of blocks that are chosen 16 bits "
    "(MiniMaxM3IndexerCache, vllm/models/minimax_m3/common/indexer.py); on average over all "
    "layers, of which those that share another's choice, or choose nothing, have none"
)
ENTRIES = "compressed entries"
PACKED = "scales of a latent, and its rotary part in 16 bits"
PACKED_SOURCE = (
    "FlashMLA's layout of an 8-bit token that an indexer chooses, as vLLM and SGLang have it: 512 "
    "values, an fp32 scale for each 128, 64 rotary numbers in bf16, 656 bytes in all "
    "(github.com/deepseek-ai/FlashMLA)"
)
CROSS_CACHE = "cross-attention cache"
STATE_SOURCE = (
    "what a layer keeps of a sequence, however long: vLLM's MambaStateShapeCalculator and "
    "MambaStateDtypeCalculator (vllm/model_executor/layers/mamba/mamba_utils.py); in transformers "
    "the convolution's state has one token more, and the other is fp32 (cache_utils.py)"
)
ALIGNED_SOURCE = (
    "vLLM has pages of one size: attention's get as many tokens, in multiples of 16, as make a "
    "page hold a state, and a state's are padded to it (vllm/platforms/interface.py)"
)
KERNEL_BLOCK = 16  # tokens: of the blocks that attention kernels take the smallest
HYBRID_MOST = 1.25  # where one kind has no more than this times the layers of the other, they pad
NO_PAGES = "The cache has no pages."
STATES = "states"  # what consumes the memory of states, in a row


GIVEN["server"] = lambda book: Server.of(book.plan)


@dataclass(frozen=True, slots=True)
class Room:
    """How cache memory is cut: in pages that layers of a kind share, or by sequence.

    group        layers that one block has a page for; full, windowed, recurrent: such groups
    tokens       of a page of attention's (ALIGNED_SOURCE); state_bytes: of a page, that one layer's
                 state fills
    page_bytes   of one layer
    block_bytes  of one block: a page of each layer of a group, and all layers of a draft's model
    """

    group: int
    full: int
    windowed: int
    recurrent: int
    tokens: int
    state_bytes: int
    page_bytes: int
    block_bytes: int


def room(server: Server) -> Room:
    """Pages of a server that has them (PAGES_SOURCE); of another, as if it had."""
    x = server.numbers
    if layout := server.layout:
        return Room(1, 1, 0, 0, BLOCK, 0, layout.block_bytes, layout.block_bytes)
    tokens = _page_tokens(x)
    state, page, block = state_bytes(x), _page_bytes(x, tokens), _block_bytes(x, tokens)
    return Room(*_groups(server), tokens, state, page, block)


def _groups(server: Server) -> tuple[int, int, int, int]:
    """Layers of a group, and groups that see all, that have a window, and that have a state."""
    held = server.caches
    kinds = (held.full, held.windowed, held.recurrent)
    some = [n for n in kinds if n]
    fewest, most = min(some), max(some)
    group = most if most < HYBRID_MOST * fewest else fewest
    full, windowed, recurrent = (ceil_div(n, group) for n in kinds)
    whole, part = server.pages
    return group, whole * full, part * windowed, recurrent


def growing_pages(server: Server, room: Room) -> Pages:
    """How the blocks of one sequence grow, and are let go of; states stay as they are."""
    s, held = server.plan.serve, server.caches
    if layout := server.layout:  # windows as they are while a sequence generates
        constant = sum(group.most(group.window, 1) for group in layout.windows)
        ahead = s.draft_tokens * (2 if server.draft else 1)
        return Pages(
            room.tokens, constant=constant, fixed=float(constant * room.tokens), ahead=ahead
        )
    states = held.recurrent * room.state_bytes * server.state_copies
    whole, part = server.pages
    return Pages(
        room.tokens,
        room.full,
        room.windowed,
        server.sight(bool(server.every.windowed)),
        server.chunked,
        server.plan.batched_tokens,
        whole * held.full / room.group,
        part * held.windowed / room.group,
        room.recurrent * server.state_copies,
        states * room.tokens / room.block_bytes,
        s.draft_tokens * (2 if server.draft else 1),
    )


def places(plan: Plan, served: Serve) -> int:
    """Tokens that the cache has places for, in a group of layers: what a stream is given."""
    server = Server.of(plan)
    if served.blocks:
        return served.blocks * served.block_tokens
    if server.bounded:
        cut = room(server)
        return served.kv_budget_bytes * cut.tokens // cut.block_bytes
    return served.kv_capacity_tokens


# --- of a token ----------------------------------------------------------------------------------


def token_bytes(x: Any, apart: bool | None = None) -> Read:
    """Bytes that one layer keeps of a token: of those with heads apart or not, or, where that is
    not said, of those that keep least; an indexer's key with it."""
    attended = attended_bytes(x, apart)
    if not x.server.index_bytes or x.server.plan.architecture.entries:
        return attended
    return attended + x.known(INDEX_KEYS, x.server.index_bytes, "bytes", source=INDEX_SOURCE)


def attended_bytes(x: Any, apart: bool | None = None) -> Read:
    """The same of keys and values alone, which attention reads."""
    server = x.server
    cache = server.cache_of(server.least if apart is None else apart)
    amounts, dtype = server.amounts(1, 1), KV_DTYPES[server.plan.serve.kv_dtype]
    if server.plan.value_dtype != server.plan.serve.kv_dtype:
        other = KV_DTYPES[server.plan.value_dtype]
        keys = x.known(f"bits of a key, {dtype.label}", dtype.bits, source="the dtype")
        values = x.known(f"bits of a value, {other.label}", other.bits, source="the dtype")
        first = cache[0]
        assert isinstance(first, int)
        return x.shape((*cache[1:],), amounts) * (keys + values) / (16 // first)
    bits = x.known(f"bits of {dtype.label}", dtype.bits, source="the dtype")
    first, *rest = cache
    if isinstance(first, int):
        kept = x.known("keys and values", first, source=KV_SOURCE) * x.shape((*rest,), amounts)
    else:
        kept = x.shape(cache, amounts)
    if not server.packed:
        return kept * bits / 8
    return kept * bits / 8 + x.known(PACKED, server.packed, "bytes", source=PACKED_SOURCE)


def index_keys(x: Any) -> Read:
    """Bytes of indexers' keys of one sequence."""
    if x.server.plan.architecture.entries:
        return nearest(_of_kinds(x, x.serve.room_tokens)[1])
    each = x.known(INDEX_KEYS, x.server.index_bytes, "bytes", source=INDEX_SOURCE)
    return nearest(_attending(x) * x.serve.room_tokens * each)


def entries_bytes(x: Any) -> Read:
    """Bytes of compressed entries of one sequence."""
    return nearest(_of_kinds(x, x.serve.room_tokens)[0])


def _of_kinds(x: Any, tokens: Read) -> tuple[Read, Read]:
    """Bytes of the compressed entries of so many tokens, and of indexers' keys: in pages those of
    whole blocks; else of whole entries, and where a cache keeps tokens that make none yet, what
    each of these gives to two, and with which weights."""
    server, entries = x.server, x.server.plan.architecture.entries
    fine = x.known("layers with entries that are chosen", server.caches.fine, source=_config(x))
    coarse = x.known("layers with entries that all are read", server.caches.coarse,
                     source=_config(x))  # fmt: skip
    few = x.known("tokens of an entry that is chosen", entries.fine, "tokens", source=_config(x))
    many = x.known("tokens of another", entries.coarse, "tokens", source=_config(x))
    if layout := server.layout:
        count = ceil(tokens / x.serve.block_tokens)
        pages = layout.whole.pages
        own = sum(pages[: server.caches.fine]) + sum(pages[2 * server.caches.fine :])
        of_keys = layout.whole.bytes - own
        each = (x.known(f"bytes of a block's {n}", v, "bytes", source=ENTRIES_SOURCE)
                for n, v in (("entries", own), ("indexers' keys", of_keys)))  # fmt: skip
        one, key = each
        return count * one, count * key
    one = attended_bytes(x)
    key = x.known(INDEX_KEYS, server.key_bytes, "bytes", source=INDEX_SOURCE)
    of_fine, of_coarse = floor(tokens / few), floor(tokens / many)
    if server.manager.partial:
        parts = x.known("numbers of a token, and their weights", 2, source=PARTIAL_SOURCE)
        series = x.known("of its own entry and of the next", 2, source=PARTIAL_SOURCE)
        before = where(tokens >= entries.fine, parts * few, 0)
        left = tokens - few * of_fine
        of_fine = of_fine + parts * series * left + before
        of_coarse = of_coarse + parts * (tokens - many * of_coarse)
    return fine * of_fine * one + coarse * of_coarse * one, fine * of_fine * key


PARTIAL_SOURCE = (
    "transformers' DeepseekV4CSACache and DeepseekV4HCACache: tokens that make no whole entry, and "
    "of entries that overlap the last one's tokens; layers without entries have its usual cache, "
    "with values beside keys that are the same"
)


def _attending(x: Any) -> Read:
    """Layers of this GPU that attend."""
    caches = x.server.caches
    said = "layers that attend, on this GPU" if caches.recurrent else "layers on this GPU"
    return x.known(said, caches.attends, source=_config(x))


def _config(x: Any) -> str:
    return f"config.json of {x.server.plan.architecture.label}"


def _of_draft(x: Any) -> Read:
    """Bytes that a token of a draft's model adds."""
    draft = x.server.draft
    source = f"config.json of {draft.plan.architecture.label}"
    return x.known("the same of the draft's model", draft.kv_per_token, "bytes", source=source)


def _shares(x: Any) -> Read:
    """Bytes that a token adds to compressed entries, of which each stands for several."""
    server, entries = x.server, x.server.plan.architecture.entries
    if not entries:
        return 0
    layout = server.layout
    entry = layout.entry if layout else attended_bytes(x)
    of = x.known("bytes of an entry", entry, "bytes", source=KV_SOURCE) if layout else entry
    key = x.known(INDEX_KEYS, server.key_bytes, "bytes", source=INDEX_SOURCE)
    caches = server.caches
    fine = x.known("layers with entries that are chosen", caches.fine, source=_config(x))
    coarse = x.known("layers with entries that all are read", caches.coarse, source=_config(x))
    return fine * (of + key) / entries.fine + coarse * of / entries.coarse


@quantity(
    "serve.kv_bytes_per_token",
    "KV cache per token",
    "bytes",
    "What one more token adds on one GPU, while no window is full.",
)
def kv_bytes_per_token(x: Any) -> Read:
    own = ceil(_kept(x) if x.server.uneven else _attending(x) * token_bytes(x) + _shares(x))
    return own + _of_draft(x) if x.server.draft else own


# --- of a state ----------------------------------------------------------------------------------


def state_bytes(x: Any) -> Read:
    """Bytes of one layer's state of one sequence."""
    amounts = x.server.amounts(1, 1)
    return total(x.shape(of, amounts) * x.width(dtype) for _, of, dtype in x.server.states)


def copies(x: Any) -> Read:
    """States that a layer holds of one sequence: with a draft one more for each guess, of which the
    last right one stays (vllm/model_executor/layers/mamba/abstract.py)."""
    one, guesses = x.known("state of a sequence", 1, source=STATE_SOURCE), x.plan.serve.draft_tokens
    return where(guesses > 0, one + guesses, one)


@quantity(
    "serve.state_bytes_per_sequence",
    "State per sequence",
    "bytes",
    "What layers with a state keep of one sequence, however long it is: each that runs at once "
    "has one, from its first token on.",
    [STATE_SOURCE],
)
def state_bytes_per_sequence(x: Any) -> Read:
    if not x.server.caches.recurrent:
        return x.said(0, "All layers attend.", [SERVER])
    return total(x.each_of("serve.rows", STATES, lambda: x.serve.states))


@computed("serve.states")
def states(x: Any) -> list[int]:
    """Bytes of each kind of state of one sequence, of all layers that keep one."""
    server = x.server
    layers, amounts = server.caches.recurrent * server.state_copies, server.amounts(1, 1)
    return [layers * int(amounts.bytes(shape, dtype)) for _, shape, dtype in server.states]


# --- of a page and a block -----------------------------------------------------------------------


def _aligned(x: Any) -> bool:
    """Whether a page of attention has to hold a state (ALIGNED_SOURCE)."""
    return bool(x.server.caches.attends and x.server.caches.recurrent)


def _page_tokens(x: Any) -> Read:
    """Tokens of a page: more than the plan says where a layer's state would not fit in one."""
    given = x.plan.serve.block_size
    if not _aligned(x):
        return given
    smallest = x.known("tokens at least", KERNEL_BLOCK, "tokens", source=ALIGNED_SOURCE)
    step = largest(given, smallest)
    return step * ceil(state_bytes(x) / (step * token_bytes(x)))


def _page_bytes(x: Any, tokens: Read) -> Read:
    """Bytes of one layer's page."""
    return ceil(tokens * token_bytes(x)) if x.server.caches.attends else state_bytes(x)


def _block_bytes(x: Any, tokens: Read) -> Read:
    group = x.known("layers of a group", _groups(x.server)[0], source=PAGES_SOURCE)
    own = group * _page_bytes(x, tokens)
    return own + tokens * _of_draft(x) if x.server.draft else own


@quantity(
    "serve.block_tokens",
    "Tokens of a block",
    "tokens",
    "Keys and values of so many tokens, in each layer of a group that attends.",
)
def block_tokens(x: Any) -> Read:
    if not x.server.manager.pages:
        return x.said(0, NO_PAGES, [SERVER])
    if x.server.layout:
        meaning = "Entries of so many tokens, in each layer that has some."
        given = x.known("tokens of a block", BLOCK, "tokens", source=ENTRIES_SOURCE)
        return x.said(given, meaning, [ENTRIES_SOURCE])
    if not _aligned(x):
        return _page_tokens(x)
    meaning = (
        "Keys and values of so many tokens, in each layer of a group that attends. As many as make "
        "a page hold a layer's state."
    )
    return x.said(_page_tokens(x), meaning, [ALIGNED_SOURCE])


@quantity(
    "serve.block_bytes",
    "Bytes of a block",
    "bytes",
    "One block: a page of each layer of a group.",
    [PAGES_SOURCE],
)
def block_bytes(x: Any) -> Read:
    if not x.server.manager.pages:
        return x.said(0, sources=[SERVER])
    if layout := x.server.layout:
        own = x.known("a place for each page", layout.block_bytes, "bytes", source=ENTRIES_SOURCE)
        if x.server.draft:
            own = own + x.serve.block_tokens * _of_draft(x)
        return x.said(own, sources=[ENTRIES_SOURCE])
    return _block_bytes(x, x.serve.block_tokens)


@quantity(
    "serve.blocks_per_sequence", "Blocks of a sequence", "", "At its longest.", [PAGES_SOURCE]
)
def blocks_per_sequence(x: Any) -> Read:
    """At its longest: all of a prompt's window is there before its prefill lets go of any."""
    server, s = x.server, x.plan.serve
    if not server.manager.pages:
        return x.said(0, NO_PAGES, [SERVER])
    if server.plan.architecture.encoder_decoder:
        block = x.serve.block_tokens
        blocks = ceil(s.prompt_len / block) + ceil(s.output_len / block)
        return x.said(blocks, sources=[PAGES_SOURCE, PAGES_OF_ENCODER])
    if layout := server.layout:
        found = [_of_group(x, group, x.serve.batched_tokens) for group in layout.groups]
        return x.said(total(found), sources=[ENTRIES_SOURCE])
    _, full, windowed, recurrent = _groups(server)
    length, block, parts = x.serve.sequence_tokens, x.serve.block_tokens, []
    if recurrent:
        groups = x.known("groups of layers with a state", recurrent, source=PAGES_SOURCE)
        parts.append(groups * copies(x))
    if full:
        groups = x.known("groups of layers that see all", full, source=PAGES_SOURCE)
        parts.append(groups * ceil(length / block))
    if windowed:
        groups = x.known("groups of layers with a window", windowed, source=PAGES_SOURCE)
        more = 0 if server.chunked else 1
        seen = least(_window(x) - more + x.serve.batched_tokens, length)
        parts.append(groups * (ceil(seen / block) + more))
    return total(parts)


WHILE_READ = "While its prompt is read it takes more."


def _of_group(x: Any, group: Group, forward: Read) -> Read:
    """Blocks of one group of layers with compressed entries, where forwards have so many tokens of
    the sequence."""
    tokens = x.known(f"tokens of a block of {group.name}", group.tokens, "tokens",
                     source=ENTRIES_SOURCE)  # fmt: skip
    length = x.serve.sequence_tokens
    if not group.window:
        return ceil(length / tokens)
    window = x.known(
        f"tokens that {group.name} keep", group.window, "tokens", source=ENTRIES_SOURCE
    )
    return ceil(least(window - 1 + forward, length) / tokens) + 1


# --- of a sequence -------------------------------------------------------------------------------


def _window(x: Any) -> Read:
    window = x.server.plan.architecture.window
    return x.known("window", window, "tokens", source="config.json")


def _kept(x: Any, tokens: Read | None = None) -> Read:
    """Bytes that the layers keep of so many tokens, or of one while no window is full: a window
    keeps no more than it sees."""
    server = x.server
    full = x.known("layers that see all", server.caches.full, source=SERVER)
    seen, windowed = tokens, x.known("with a window", server.windowed, source=SERVER)
    if server.plan.architecture.entries and server.manager.partial:
        plain = server.windowed - server.caches.fine - server.caches.coarse
        windowed = windowed + x.known("without entries, twice", plain, source=PARTIAL_SOURCE)
    if tokens is not None:
        if server.windowed and kept_by_window(server):
            seen = least(_window(x) - server.manager.dropped, tokens)
        full, windowed = full * tokens, windowed * seen
    if server.uneven:
        whole, part = (token_bytes(x, server.apart(with_window)) for with_window in (False, True))
        return full * whole + windowed * part
    found = (full + windowed if server.windowed else full) * token_bytes(x)
    if tokens is not None and server.plan.architecture.entries:
        found = found + total(_of_kinds(x, tokens))
    return found


@quantity("serve.sequence_tokens", "Tokens of a sequence", "tokens", "At its end.")
def sequence_tokens(x: Any) -> Read:
    return x.plan.serve.prompt_len + x.plan.serve.output_len


@quantity("serve.reserved_tokens", "Tokens reserved", "tokens")
def reserved_tokens(x: Any) -> Read:
    if not x.server.reserves:
        return x.said(0, "Nothing is reserved.", [SERVER])
    asked, most = x.plan.serve.max_seq_len, x.server.plan.architecture.max_positions
    limit = x.known("the model's limit", most, "tokens", source=_config(x))
    own = largest(limit, x.serve.sequence_tokens)
    if x.server.fits_context:
        own = _fitted(x, own)
    meaning = "For which a sequence has memory from its start."
    other = f"{meaning} serve.max_seq_len sets another limit."
    return x.said(where(asked > 0, asked, own), where(asked > 0, meaning, other))


FIT_SOURCE = (
    "llama.cpp's --fit, on by default: where nobody says a context, it is shortened until 1 GiB of "
    "each GPU stays free, down to 4,096 tokens, and a multiple of 256 (common/fit.cpp, "
    "common_params_fit_impl; common/common.h, October 2026)"
)


def _of_context(x: Any, tokens: Read) -> Read:
    """Bytes that follow a context's length, of all sequences."""
    found = x.plan.serve.concurrency * _reserved(x, tokens)
    if not x.server.scores:
        return found
    heads = x.known("heads", x.server.plan.architecture.heads, source="config.json")
    return found + x.width("fp32") * heads * x.serve.batched_tokens * tokens


def _fitted(x: Any, most: Read) -> Read:
    """Tokens of llama.cpp's own context, of `most` at most: as many as memory has room for, by the
    straight line between what the shortest and the longest take."""

    def known(name: str, value: float, unit: str) -> Read:
        return x.known(name, value, unit, source=FIT_SOURCE)

    shortest = least(most, largest(known("at least", 4096, "tokens"), x.serve.sequence_tokens))
    margin, step = known("stays free", GiB, "bytes"), known("a multiple of", 256, "tokens")
    low, high = (_of_context(x, n) for n in (shortest, most))
    left = at_least_zero(x.serve.free_bytes - margin - low)
    more = floor((most - shortest) * left / largest(high - low, 1) / step) * step
    return least(most, shortest + more)


@quantity(
    "serve.room_tokens",
    "Tokens of a sequence's room",
    "tokens",
    "That the cache has room for, for each sequence.",
)
def room_tokens(x: Any) -> Read:
    return x.serve.reserved_tokens if x.server.reserves else x.serve.sequence_tokens


@quantity("serve.sequence_bytes", "KV cache per sequence", "bytes")
def sequence_bytes(x: Any) -> Read:
    server, meaning = x.server, "At its full length, on each GPU."
    if layout := server.layout:
        held = total(_of_group(x, group, 1) for group in layout.groups)
        return x.said(held * x.serve.block_bytes, f"{meaning} {WHILE_READ}", [ENTRIES_SOURCE])
    if server.manager.pages:
        return x.said(x.serve.blocks_per_sequence * x.serve.block_bytes, meaning)
    if server.reserves:
        meaning = "Reserved for the longest sequence that the server lets in, on each GPU."
    return x.said(_reserved(x, x.serve.room_tokens), meaning)


def _reserved(x: Any, tokens: Read) -> Read:
    """Bytes of a sequence of so many tokens, without pages."""
    found = ceil(_kept(x, tokens))
    if x.server.draft:
        found = found + tokens * _of_draft(x)
    if x.server.caches.recurrent:
        found = found + x.serve.state_bytes_per_sequence
    return found


@quantity(
    "serve.cross_bytes_per_sequence",
    "Cross-attention cache per sequence",
    "bytes",
    "Keys and values of the encoder's tokens in every decoder layer, made once.",
)
def cross_bytes_per_sequence(x: Any) -> Read:
    if not x.server.plan.architecture.encoder_decoder:
        return x.said(0, "There is no encoder.", [SERVER])
    prompt = x.plan.serve.prompt_len
    if not x.server.manager.pages:
        return ceil(_attending(x) * prompt * token_bytes(x))
    blocks = ceil(prompt / x.serve.block_tokens)
    return x.said(blocks * x.serve.block_bytes, sources=[PAGES_SOURCE, PAGES_OF_ENCODER])


@quantity("serve.wasted_bytes_per_sequence", "KV cache never used, per sequence", "bytes")
def wasted_bytes_per_sequence(x: Any) -> Read:
    """Of one sequence's cache, what nothing is in, averaged over its life, in which it has half of
    its output. Of pages only the last is half empty, and states do not fill theirs; a reservation
    is there for the longest sequence from the start."""
    server = x.server
    if server.reserves:
        reserved = x.serve.reserved_tokens
        used = x.serve.sequence_tokens - x.plan.serve.output_len / 2
        unused = _kept(x, reserved) - _kept(x, used)
        if server.draft:
            unused = unused + (reserved - used) * _of_draft(x)
        meaning = "Of what is reserved, all but a prompt and half of its output, on average."
        return x.said(nearest(unused), meaning)
    if not server.manager.pages:
        return x.said(0, "Nothing is reserved.", [SERVER])
    idle = (x.serve.block_tokens - 1) / 2
    if server.plan.architecture.encoder_decoder:
        idle = x.known("of the encoder's and of its own", 2, source=PAGES_SOURCE) * idle
    meaning = "Of a sequence's last block half is empty on average."
    found = nearest(idle * x.serve.kv_bytes_per_token)
    if server.caches.recurrent:
        layers = x.known("layers with a state", server.caches.recurrent, source=SERVER)
        unfilled = _page_bytes(x, x.serve.block_tokens) - state_bytes(x)
        found = found + layers * copies(x) * unfilled
        meaning += " A state does not fill its page."
    return x.said(found, meaning)


@quantity("serve.profiled_images", "Images of one forward", "images")
def profiled_images(x: Any) -> Read:
    """The most images of one forward: PROFILED; without pages, those of as many prompts as it
    has room for."""
    tower, s = x.server.plan.architecture.tower, x.plan.serve
    if not (tower and tower.image and (s.images or tries_images(x.server))):
        return x.said(0, "Prompts have none.", [SERVER])
    meaning = "As many as it may bring at once."
    if not x.server.manager.pages:
        prompts = largest(1, floor(x.serve.batched_tokens / s.prompt_len))
        return x.said(prompts * s.images, meaning)
    each = x.known("tokens of an image", tower.image.prompted, "tokens", source="config.json")
    if most := tower.image.most:  # an engine tries the largest, whatever prompts will have
        most = x.known("tokens of the largest image", most, "tokens", source=LARGEST_IMAGE)
        room = largest(x.serve.batched_tokens, most, each)
        return x.said(largest(1, floor(room / each)), f"{meaning} {AS_LARGE}", [PROFILED])
    budget = floor(largest(x.serve.batched_tokens, each) / each)
    return x.said(largest(1, least(budget, x.serve.sequence_limit * s.images)), meaning, [PROFILED])


LARGEST_IMAGE = "max_pixels of the model's preprocessor_config.json"
AS_LARGE = "An engine tries images of the largest size, of which there are as many tokens."


# --- rows ----------------------------------------------------------------------------------------


def state_rows(server: Server) -> list[LedgerRow]:
    """States of all sequences that are held, of all layers that keep one."""
    x, amounts = server.numbers, server.amounts(1, 1)
    if not server.caches.recurrent:
        return []
    copies, held = server.caches.recurrent * server.state_copies, x.serve.held
    why = "what layers keep of one sequence however long it is, for all that run at once"
    return [
        row(
            name, STATES, Extents.of(Extent(copies, "copies"), *amounts.factors(shape)), dtype,
            each, held, STATE_SOURCE, why, RUNS,
        )
        for (name, shape, dtype), each in zip(server.states, x.serve.states, strict=True)
    ]  # fmt: skip


RUNS = "while its sequence runs"


def kv_rows(server: Server) -> list[LedgerRow]:
    """Keys and values of the sequences that are held, in whole blocks, those of an encoder's
    tokens apart; none where no layer attends."""
    if not server.caches.attends:
        return []
    x, caches, amounts = server.numbers.serve, server.caches, server.amounts(1, 1)
    (every,) = amounts.factors((STAGE_LAYERS,))
    shapes = [(server.cache_of(server.least), every)]
    if server.uneven:
        shapes = [
            (server.cache_of(server.apart(windowed)), Extent(layers, f"layers that see {seen}"))
            for layers, windowed, seen in (
                (caches.full, False, "all"), (caches.windowed, True, "a window"),
            )
        ]  # fmt: skip
    both = (server.plan.serve.kv_dtype, server.plan.value_dtype)
    dtype = " and ".join(dict.fromkeys(KV_DTYPES[word].label for word in both))

    def of_tokens(tokens: int) -> Extents:
        return Extents(tuple(
            (*amounts.factors(of[:1]), layers, *amounts.factors(of[1:]), Extent(tokens, "tokens"))
            for of, layers in shapes
        ))  # fmt: skip

    def keys(name: str, tokens: int, n: int, why: str) -> LedgerRow:
        shape = of_tokens(tokens)
        return row(name, "kv_cache", shape, dtype, n, x.held, KV_SOURCE, why, RUNS)

    cross = x.cross_bytes_per_sequence
    heard = server.plan.serve.prompt_len if server.plan.architecture.encoder_decoder else 0
    why = "keys and values of one sequence at its end, for all that run at once"
    if server.reserves:
        why = "reserved for the longest sequence that the server lets in, for all that run at once"
    own = x.sequence_bytes - x.state_bytes_per_sequence - cross
    index = index_keys(server.numbers)
    if server.plan.architecture.entries:
        return _entry_rows(server, own, int(index), dtype, why)
    rows = [keys("kv cache", x.room_tokens - heard, own - int(index), why)]
    if index:
        stored = "8 bits and scales" if server.manager.pages else dtype
        rows.append(_of_bytes(INDEX_KEYS, int(index), stored, x.held, INDEX_SOURCE, why))
    if heard:
        why = "keys and values of the encoder's tokens in every decoder layer, made once"
        rows.append(keys(CROSS_CACHE, heard, cross, why))
    return rows


def _of_bytes(name: str, n: int, dtype: str, held: int, source: str, why: str) -> LedgerRow:
    """A part of the cache whose shape is no more than its bytes."""
    shape = Extents.of(Extent(n, "bytes"))
    return row(name, "kv_cache", shape, dtype, n, held, source, why, RUNS)


def _entry_rows(server: Server, own: int, index: int, dtype: str, why: str) -> list[LedgerRow]:
    """Of a model with compressed entries: these, indexers' keys, and the rest of its blocks."""
    held, entries = server.numbers.serve.held, int(entries_bytes(server.numbers))
    keys = "8 bits and scales" if server.manager.pages else dtype
    rest = (
        "the window of each layer, tokens that make no whole entry yet, and what blocks have beside"
    )
    return [
        _of_bytes(name, n, stored, held, source, because)
        for name, n, stored, source, because in (
            ("kv cache", own - index - entries, dtype, KV_SOURCE, rest),
            (ENTRIES, entries, dtype, ENTRIES_SOURCE, why),
            (INDEX_KEYS, index, keys, INDEX_SOURCE, why),
        )
        if n
    ]
