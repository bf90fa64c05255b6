"""Words of serving: caches, strategies, runtimes, prefill."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.words.word import Word


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


KV_CACHES = {
    "paged": CacheManager(
        "Paged",
        "Blocks are handed out as sequences grow; only the last is part empty (vLLM).",
        pages=True,
    ),
    "contiguous": CacheManager(
        "Contiguous",
        "Each sequence reserves room for its longest possible length.",
        reserves=True,
        state="fp32",
    ),
    "dynamic": CacheManager(
        "Dynamic",
        "transformers' DynamicCache: grows by a copy for each token; a sliding layer keeps its "
        "window less one.",
        dropped=1,
        columns=1,
        state="fp32",
        partial=True,
    ),
}

STATE_DTYPES = {  # of a recurrence, as vLLM's --mamba-ssm-cache-dtype chooses it
    "auto": Word("Auto", "What the model's config asks for, or else that of the weights."),
    "fp32": Word("fp32", "4 bytes per value."),
    "bf16": Word("bf16", "2 bytes per value."),
    "fp16": Word("fp16", "2 bytes per value."),
}

FLASH, EAGER = "flash", "eager"
SERVE_ATTENTION = {
    FLASH: Word("Flash", "Scores stay on the chip."),
    EAGER: Word(
        "Eager",
        "Scores of each forward's tokens with the whole context lie in memory, in fp32, as with "
        "llama.cpp's --flash-attn off.",
    ),
}

CLOSED = "closed"
ARRIVALS = {
    "poisson": Word("Poisson", "Each by itself, at the rate on average."),
    "regular": Word("Regular", "One after the other, equally far apart."),
    "burst": Word("All at once", "Every request is there at the start: the rate does not matter."),
    CLOSED: Word(
        "Closed loop",
        "As many as are served at once, each of which asks again as soon as it has its answer: how "
        "benchmarks load an engine.",
    ),
}

LENGTHS = {
    "lognormal": Word(
        "Log-normal", "Many short ones and few long ones, with the mean and variation given."
    ),
    "fixed": Word("Fixed", "Every prompt and every output has its mean length."),
}


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
STRATEGIES = {
    "static": Strategy(
        "Static batches",
        "A batch runs until its last sequence ends; each reserves the longest sequence.",
        static=True,
        reserve="max",
    ),
    "max": Strategy(
        "Longest reserved",
        "Continuous batching; each sequence reserves the longest sequence, in one piece.",
        reserve="max",
    ),
    "pow2": Strategy(
        "Power of two reserved",
        "Continuous batching; the output's length is guessed to the next power of two.",
        reserve="pow2",
    ),
    "oracle": Strategy(
        "Exact length reserved",
        "Continuous batching that knows each output's length beforehand, which no server does.",
        reserve="oracle",
    ),
    "paged": Strategy(
        "Paged", "Continuous batching; blocks are handed out as sequences grow (PagedAttention)."
    ),
    "shared": Strategy(
        "Paged, prefix shared",
        "The same, and the blocks of the prefix that all prompts share are kept and computed once.",
        shares=True,
    ),
}

SERVE_OFFLOAD = {
    "none": Word("No", "In the GPU's memory alone."),
    "cpu": Word(
        "Host DRAM",
        "Where the cache has pages, a second tier for what does not run: blocks that are used "
        "again come back over PCIe (vLLM's --kv-offloading-size, SGLang's hierarchical cache, "
        "LMCache). Else all of it, fetched layer by layer for each step (transformers' "
        "OffloadedCache); the GPU has two layers of what runs.",
    ),
}


@dataclass(frozen=True, slots=True)
class Runtime(Word):
    """What starts the kernels. `launches`: the host starts each by itself, and a step takes no less
    than that."""

    launches: bool = False


RUNTIMES = {
    "graphs": Runtime(
        "CUDA graphs",
        "An engine with graphs for decoding, as vLLM, SGLang and TensorRT-LLM.",
    ),
    "compiled": Runtime(
        "Compiled whole",
        "The model compiled into one graph of fused kernels, as gpt-fast.",
    ),
    "native": Runtime("Native", "A program without Python, as llama.cpp."),
    "eager": Runtime(
        "Eager",
        "Python starts each kernel, which small batches wait for: transformers' generate, or an "
        "engine without graphs.",
        launches=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Prefill(Word):
    """`chunked`: with the tokens of those that generate; `elsewhere`: on GPUs of its own."""

    chunked: bool = False
    elsewhere: bool = False


PREFILLS = {
    "whole": Prefill("Whole", "A prompt in one forward, which those that generate wait for."),
    "chunked": Prefill(
        "Chunked",
        "A prompt in pieces, each in one step with a token of all that generate, batched tokens "
        "together.",
        chunked=True,
    ),
    "disaggregated": Prefill(
        "Disaggregated",
        "On another replica, which sends the cache over: nobody waits, and every replica that "
        "generates needs one that reads.",
        elsewhere=True,
    ),
}

NO_DRAFT, EAGLE, MULTI_TOKEN = "none", "eagle", "mtp"
DRAFT_HEADS = {
    NO_DRAFT: Word("None", "Guessed from the text, by n-grams."),
    EAGLE: Word(
        "EAGLE-3 head",
        "One layer of this model's width with a head of 32,000 tokens, in 16 bits, which reads the "
        "hidden states of three layers (Li et al. 2025).",
    ),
    MULTI_TOKEN: Word(
        "Multi-token prediction",
        "The model's own last layer once more, stored as the others, as DeepSeek-V3, Qwen3-Next "
        "and GLM-4.5 are published with; embedding and head are the model's.",
    ),
}
