"""Words of serving: caches, strategies, runtimes, prefill."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import Word, table


@dataclass(frozen=True, slots=True)
class CacheManager(Word):
    """How cache memory is handed to sequences, and what goes with it.

    pages      blocks from one pool, as vLLM: its sampler, its padded vocabulary and its rotary
               table in 16 bits too
    dropped    tokens that a layer with a window keeps less than its window
    reserves   each sequence has room for its longest possible length from the start
    columns    tokens that the state of a short convolution has besides those that it needs
    state      dtype of a recurrence's state, or '' for what the model's config asks for
    partial    tokens that make no whole entry of a compressed cache yet are kept as they are
    """

    pages: bool = False
    dropped: int = 0
    reserves: bool = False
    columns: int = 0
    state: str = ""
    partial: bool = False


KV_CACHES = table("kv_caches", CacheManager)

STATE_DTYPES = table("state_dtypes", Word)

FLASH, EAGER = "flash", "eager"
SERVE_ATTENTION = table("serve_attention", Word)

CLOSED = "closed"
ARRIVALS = table("arrivals", Word)

LENGTHS = table("lengths", Word)


@dataclass(frozen=True, slots=True)
class Strategy(Word):
    """How a server batches requests and hands out its cache.

    static    batches that run to their end; else a sequence leaves as soon as it ends
    reserve   'max', 'pow2' or 'oracle': what a sequence reserves at its start; '' for pages
    shares    whether pages of a prefix that all prompts have in common are kept once
    """

    static: bool = False
    reserve: str = ""
    shares: bool = False


# The three reservations are those that vLLM was compared with (Kwon et al. 2023, section 6.1).
STRATEGIES = table("strategies", Strategy)

SERVE_OFFLOAD = table("serve_offload", Word)


@dataclass(frozen=True, slots=True)
class Runtime(Word):
    """What starts the kernels. `launches`: the host starts each by itself, and a step takes no less
    than that."""

    launches: bool = False


RUNTIMES = table("runtimes", Runtime)


@dataclass(frozen=True, slots=True)
class Prefill(Word):
    """`chunked`: with the tokens of those that generate; `elsewhere`: on GPUs of its own."""

    chunked: bool = False
    elsewhere: bool = False


PREFILLS = table("prefills", Prefill)

NO_DRAFT, EAGLE, MULTI_TOKEN = "none", "eagle", "mtp"
DRAFT_HEADS = table("draft_heads", Word)
