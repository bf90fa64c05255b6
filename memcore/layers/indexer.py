"""Indexer: chooses the tokens that each token attends to (DeepSeek-V3.2, GLM-5, MiniMax-M3), as
transformers 5.23.0 runs it: without gradients, and with a mask of each layer's own in place of the
causal one.
"""

from __future__ import annotations

from memcore.layers.ops import TOKENS, rms_norm_plus_one, rotary_tables
from memcore.tape.dims import (
    CP,
    HALF_ROTARY,
    HEADS,
    INDEX_BLOCKS,
    INDEX_CHOSEN,
    INDEX_COPIES,
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_MORE,
    INDEX_PADDED,
    INDEX_Q,
    INDEX_TOP,
    Q_RANK,
    TP,
    B,
    D,
    S,
    Shape,
)
from memcore.tape.kinds import Part, is_shared
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    keeps_result,
    layer_norm,
    linear,
    matmul,
    rotate,
    scale,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

PAIRS: Shape = (B, S / CP, S)
INDICES: Shape = (*TOKENS, INDEX_TOP)


def chosen_tokens(t: Tape, s: Structure, x: Tensor, low: Tensor, kind: str) -> Tensor | None:
    """The layer's mask; an engine's kernels read the indices and have none. `low`: compressed
    queries. A layer that shares another's choice has the indices from it."""
    with t.without_grad(), t.scope("indexer"):
        if is_shared(kind):
            index = t.shared("chosen tokens", INDICES, "int32")
        else:
            index = _top(t, s, x, low)
        if s.served:
            return None
        t.start("mask", index)
        ones, wide = t.new("unmasked", PAIRS, "bool"), t.new("indices", INDICES, "int64")
        left = t.new("left out", PAIRS, "bool")
        t.use(ones, wide)
        own = t.new("mask", (B, 1, S / CP, S), "bool" if s.attention == "sdpa" else x.dtype)
        t.finish("mask", [index, left], own, [], lambda g: [])
        return own


def _top(t: Tape, s: Structure, x: Tensor, low: Tensor) -> Tensor:
    """Where the INDEX_TOP largest scores of each token are, over all heads together."""
    tables = rotary_tables(t)
    q = linear(t, "wq_b", low, Q_RANK, INDEX_Q, bias=False)
    k = layer_norm(t, linear(t, "wk", x, D, INDEX_DIM, bias=False), INDEX_DIM, "k_norm")
    q, k = (_turned(t, of, tables, n) for of, n in ((q, "q"), (k, "k")))
    q, k = (cast(t, of, "fp32", f"{n} (fp32)") for of, n in ((q, "q"), (k, "k")))
    weights = cast(t, linear(t, "weights_proj", x, D, INDEX_HEADS, bias=False), "fp32", "weights")
    weights = scale(t, weights, "weights, scaled")
    of_heads: Shape = (*TOKENS, INDEX_HEADS, S)
    if s.served:
        return _in_one_kernel(t, q, k, weights, of_heads)
    k = contiguous(t, k, (INDEX_COPIES, S / CP, S, INDEX_DIM), "k of each token")
    scores = matmul(t, q, k, of_heads, INDEX_DIM, "scores of heads")
    scores = keeps_result(t, scale(t, scores, "scores of heads, scaled"), "relu")
    found = matmul(t, weights, scores, PAIRS, INDEX_HEADS, "scores")
    t.use(q, k, scores, weights)
    masked = add(t, found, found, "scores, masked")
    t.start("top_k", masked)
    t.use(t.new("largest", INDICES, masked.dtype), wide := t.new("places", INDICES, "int64"))
    return cast(t, wide, "int32", "chosen tokens")


def chosen_blocks(t: Tape, s: Structure, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor | None:
    """MiniMax-M3's: heads that choose blocks of tokens, each for the queries of one key. Returns
    the layer's mask, (batch, heads, tokens, tokens); an engine's kernels read indices and have
    none."""
    heads = INDEX_HEADS / TP
    q_heads: Shape = (*TOKENS, heads, INDEX_DIM)
    scores_of: Shape = (B, heads, S / CP, S)
    with t.without_grad(), t.scope("indexer"):
        q = linear(t, "q_proj", x, D, INDEX_Q / TP, bias=False)
        q = rms_norm_plus_one(t, Tensor(q.storage, q_heads, q.dtype, False), "q_norm", INDEX_DIM)
        k = linear(t, "k_proj", x, D, INDEX_DIM, bias=False)
        k = rms_norm_plus_one(t, k, "k_norm", INDEX_DIM)
        q, k = (_turned(t, of, tables, n) for of, n in ((q, "q"), (k, "k")))
        if s.served:
            with t.scope("choice", Part.CHOICE):
                flops = (2.0, (*scores_of, INDEX_DIM))
                t.start("scores of blocks", q, k, flops=[flops], product="bmm")
                t.use(t.new("scores of blocks", (*scores_of[:-1], INDEX_BLOCKS), "fp32"))
            return None
        q32, k32 = (cast(t, of, "fp32", f"{n} (fp32)") for of, n in ((q, "q"), (k, "k")))
        scores = matmul(t, q32, k32, scores_of, INDEX_DIM, "scores")
        t.start("masked", scores)
        seen = t.new("future", PAIRS, "bool")
        masked = t.new("scores, masked", scores_of, "fp32")
        padded = t.new("scores, padded", (*scores_of[:-1], INDEX_MORE), "fp32")
        blocks = t.new("scores of blocks", (*scores_of[:-1], INDEX_BLOCKS), "fp32")
        largest = t.new("largest", (*scores_of[:-1], INDEX_CHOSEN), "fp32")
        places = t.new("places", (*scores_of[:-1], INDEX_CHOSEN), "int64")
        t.use(q, k, q32, k32, scores, seen, masked, padded, blocks, largest)
        return _mask_of_blocks(t, x, places, scores_of)


def _mask_of_blocks(t: Tape, x: Tensor, places: Tensor, scores_of: Shape) -> Tensor:
    """Zero where a query's head sees a key, else the smallest number."""
    each: Shape = (B, HEADS / TP, S / CP, S)
    t.start("mask", places)
    small = t.new("mask of blocks", (*scores_of[:-1], INDEX_BLOCKS), x.dtype)
    tokens = t.new("mask of tokens", (*scores_of[:-1], INDEX_PADDED), "bool")
    chosen = t.new("chosen", each, "bool")
    t.use(small, tokens)
    seen, keep = t.new("seen", PAIRS, "bool"), t.new("kept", each, "bool")
    t.use(seen)
    zeros, left = t.new("zeros", each, x.dtype), t.new("left out", each, "bool")
    own = t.new("mask", each, x.dtype)
    t.use(chosen, keep, zeros, left)
    t.finish("mask", [places], own, [], lambda g: [])
    return own


def _in_one_kernel(t: Tape, q: Tensor, k: Tensor, weights: Tensor, of_heads: Shape) -> Tensor:
    """Scores over all heads together, none of which is in memory (DeepGEMM's fp8_mqa_logits)."""
    with t.scope("choice", Part.CHOICE):
        t.start("scores", q, k, weights, flops=[(2.0, (*of_heads, INDEX_DIM))], product="bmm")
        t.use(t.new("scores", PAIRS, "fp32"))
    return t.new("chosen tokens", INDICES, "int32")


def _turned(t: Tape, x: Tensor, tables: tuple[Tensor, Tensor], name: str) -> Tensor:
    turned = Tensor(x.storage, (*x.shape[:-1], 2, HALF_ROTARY), x.dtype, False)
    part = rotate(t, turned, *tables, HALF_ROTARY, f"{name}_rotary")
    return contiguous(t, part, x.shape, f"{name}, joined", other=x)
