"""Cache: keys, values and states of sequences, in the manager's blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from memcore.plan.plan import Plan
from memcore.report import LedgerRow, Serve
from memcore.serving.pages import Pages
from memcore.serving.server import STAGE_LAYERS, Server, one_forward
from memcore.tape.dims import ceil_div
from memcore.tape.ledger import Amounts
from memcore.words.stored import KV_DTYPES

KV_SOURCE = (
    "per layer and token keys and values of kv_heads x head_dim, or under latent attention one "
    "vector of kv_lora_rank + qk_rope_head_dim"
)
PAGES_SOURCE = (
    "vLLM's hybrid KV cache manager: layers of a kind in groups of equal size, all drawing blocks "
    "of the same bytes from one pool (vllm/v1/core/kv_cache_utils.py)"
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
STATES = "states"  # what consumes the memory of states, in a row


@dataclass(frozen=True, slots=True)
class Room:
    """How cache memory is cut: in pages that layers of a kind share, or by sequence.

    group        layers that one block has a page for; full, windowed, recurrent: such groups
    tokens       of a page of attention's (ALIGNED_SOURCE); state_bytes: of a page, that one layer's
                 state fills
    page_bytes   of one layer; draft_bytes: of all layers of a draft's model, beside each block
    blocks       that one sequence needs at its longest: all of a prompt's window is there before
                 its prefill lets go of any
    """

    group: int
    full: int
    windowed: int
    recurrent: int
    tokens: int
    state_bytes: int
    page_bytes: int
    draft_bytes: int
    blocks: int

    @property
    def block_bytes(self) -> int:
        return self.group * self.page_bytes + self.draft_bytes


def room(server: Server, amounts: Amounts) -> Room:
    """Pages of a server that has them (PAGES_SOURCE)."""
    held = server.caches
    some = [n for n in (held.full, held.windowed, held.recurrent) if n]
    least, most = min(some), max(some)
    group = most if most < HYBRID_MOST * least else least
    tokens, state = page_tokens(server, amounts), server.state_bytes(amounts)
    page = math.ceil(tokens * token_bytes(server, amounts)) if held.attends else state
    beside = tokens * server.draft.kv_per_token if server.draft else 0
    full, windowed, recurrent = (
        ceil_div(n, group) for n in (held.full, held.windowed, held.recurrent)
    )
    found = Room(group, full, windowed, recurrent, tokens, state, page, beside, 0)
    *heard, own = sequences(server)
    blocks = growing_pages(server, found).most(own) + full * sum(ceil_div(n, tokens) for n in heard)
    return replace(found, blocks=blocks)


def growing_pages(server: Server, room: Room) -> Pages:
    """How the blocks of one sequence grow, and are let go of; states stay as they are."""
    s, model, held = server.plan.serve, server.plan.architecture, server.caches
    states = held.recurrent * room.state_bytes * server.state_copies
    return Pages(
        room.tokens,
        room.full,
        room.windowed,
        model.window if server.every.windowed else 0,
        server.chunked,
        s.max_batched_tokens,
        held.full / room.group,
        held.windowed / room.group,
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
        cut = room(server, one_forward(server))
        return served.kv_budget_bytes * cut.tokens // cut.block_bytes
    return served.kv_capacity_tokens


def token_bytes(server: Server, amounts: Amounts) -> float:
    """That one layer keeps of a token."""
    return server.cached(amounts) * server.kv_bits / 8


def page_tokens(server: Server, amounts: Amounts) -> int:
    """Tokens of a page: more than the plan says where a layer's state would not fit in one
    (ALIGNED_SOURCE)."""
    given, held = server.plan.serve.block_size, server.caches
    if not (held.attends and held.recurrent):
        return given
    step = max(KERNEL_BLOCK, given)
    state = server.state_bytes(amounts)
    return step * math.ceil(state / (step * token_bytes(server, amounts)))


def sequences(server: Server) -> tuple[int, ...]:
    """Tokens that a layer keeps at a sequence's end, by what they are of: an encoder's apart."""
    s = server.plan.serve
    if server.plan.architecture.encoder_decoder:
        return s.prompt_len, s.output_len
    return (server.length,)


def cross_bytes(server: Server, amounts: Amounts) -> int:
    """Of a sequence's cache, keys and values of the encoder's tokens, in every decoder layer."""
    if not server.plan.architecture.encoder_decoder:
        return 0
    s = server.plan.serve
    if server.manager.pages:
        pages = room(server, amounts)
        return int(ceil_div(s.prompt_len, pages.tokens)) * pages.block_bytes
    kept = server.stage_layers * server.cached(amounts) * s.prompt_len
    return math.ceil(kept * server.kv_bits / 8)


def sequence_bytes(server: Server, amounts: Amounts) -> int:
    """Cache of one sequence without pages: a window keeps no more than it sees."""
    own = math.ceil(server.layer_tokens(server.room_tokens) * token_bytes(server, amounts))
    own += server.caches.recurrent * server.state_copies * server.state_bytes(amounts)
    return own + (server.room_tokens * server.draft.kv_per_token if server.draft else 0)


def padding_bytes(server: Server, pages: Room) -> int:
    """Of one sequence: what its states leave of their pages."""
    unfilled = server.caches.recurrent * (pages.page_bytes - pages.state_bytes)
    return server.state_copies * unfilled


def state_rows(server: Server, amounts: Amounts, running: int) -> list[LedgerRow]:
    """States of one sequence, of all layers that keep one."""
    layers = server.caches.recurrent
    copies = layers * server.state_copies
    if not layers:
        return []
    rows = []
    for name, shape, dtype in server.states:
        each = copies * int(amounts.bytes(shape, dtype))
        rows.append(
            LedgerRow(
                name, STATES, f"copies {copies:,} x {amounts.text(shape)}", dtype, each, running,
                each * running, "hbm", "while its sequence runs", "exact", STATE_SOURCE,
                "what layers keep of one sequence however long it is, for all that run at once",
            )
        )  # fmt: skip
    return rows


def kv_rows(
    server: Server, amounts: Amounts, sequence: int, cross: int, running: int
) -> list[LedgerRow]:
    """Keys and values of the sequences that run at once, in whole blocks, those of an encoder's
    tokens apart; none where no layer attends."""
    if not server.caches.attends:
        return []
    first, *rest = server.cache
    shape = amounts.text((first, STAGE_LAYERS, *rest))
    dtype = KV_DTYPES[server.plan.serve.kv_dtype].label

    def row(name: str, tokens: int, n: int, source: str, why: str) -> LedgerRow:
        return LedgerRow(
            name, "kv_cache", f"{shape} x tokens {tokens:,}", dtype, n, running, n * running, "hbm",
            "while its sequence runs", "exact", source, why,
        )  # fmt: skip

    *heard, _ = sequences(server)
    why = "keys and values of one sequence at its end, for all that run at once"
    if server.reserves:
        why = "reserved for the longest sequence that the server lets in, for all that run at once"
    own = server.room_tokens - sum(heard)
    rows = [row("kv cache", own, sequence - cross, KV_SOURCE, why)]
    for tokens in heard:
        why = "keys and values of the encoder's tokens in every decoder layer, made once"
        rows.append(row(CROSS_CACHE, tokens, cross, KV_SOURCE, why))
    return rows
