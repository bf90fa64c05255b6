"""Entries: keys and values that stand for several tokens each (DeepSeek-V4's compressed attention),
and the indexer that chooses some of them, as transformers 5.23.0 runs them.

A token gives each number of its entry a weight of its own; an entry is what its tokens gave. Where
an indexer chooses, entries are of few tokens, and each has a part of those of the entry before.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcore.layers.ops import TOKENS, rms_norm_fp32_weight
from memcore.layers.streams import summed
from memcore.tape.dims import (
    COARSE_ENTRIES,
    COARSE_KEYS,
    COARSE_RATE,
    COARSE_SINKED,
    CP,
    FINE_ENTRIES,
    FINE_KEYS,
    FINE_PLUS,
    FINE_RATE,
    FINE_SINKED,
    FINE_SPAN,
    FINE_TOP,
    HALF_ROTARY,
    HEAD_DIM,
    INDEX_COPIES,
    INDEX_DIM,
    INDEX_HEADS,
    INDEX_Q,
    Q_RANK,
    ROTARY,
    TWO_HEADS,
    TWO_INDEX,
    B,
    D,
    Factor,
    S,
    Shape,
)
from memcore.tape.kinds import Part, is_coarse, is_fine
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    joined,
    keeps_result,
    linear,
    matmul,
    multiply,
    scale,
    softmax,
    split,
    written,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


@dataclass(frozen=True, slots=True)
class Compressed:
    """The entries of a kind of layer: how many, of how many tokens, and what a token attends to
    with them; overlaps: each is made of the tokens before its own too."""

    rate: Factor
    entries: Factor
    keys: Factor
    sinked: Factor
    overlaps: bool


FINE = Compressed(FINE_RATE, FINE_ENTRIES, FINE_KEYS, FINE_SINKED, True)
COARSE = Compressed(COARSE_RATE, COARSE_ENTRIES, COARSE_KEYS, COARSE_SINKED, False)


def compressed(kind: str) -> Compressed | None:
    """What a layer of this kind sees beyond its window; None: nothing."""
    return FINE if is_fine(kind) else COARSE if is_coarse(kind) else None


def turned_tail(t: Tape, x: Tensor, tables: tuple[Tensor, Tensor], name: str) -> Tensor:
    """The last ROTARY dimensions of a head turned in fp32, neighbours against each other; the
    result is put together anew. `tables`: with a number for each pair, repeated here."""
    with t.scope(name):
        cos, sin = (
            contiguous(t, of, (*of.shape[:-1], ROTARY), n)
            for of, n in zip(tables, ("cos", "sin"), strict=True)
        )
        part: Shape = (*x.shape[:-1], ROTARY)
        rest, tail = split(t, x, [x.shape, part], sliced=True)
        straight = multiply(t, cast(t, tail, "fp32", "tail (fp32)"), cos, "tail cos")
        across = cast(t, _quarter_turned(t, tail), "fp32", "turned (fp32)")
        turned = add(t, straight, multiply(t, across, sin, "turned sin"), "sum")
        low = cast(t, turned, x.dtype, "sum, cast")
        return joined(t, [rest, low], x.shape, "joined")


def _quarter_turned(t: Tape, x: Tensor) -> Tensor:
    """Each pair of neighbours (a, b) as (-b, a). Saves nothing."""
    half: Shape = (*x.shape[:-1], HALF_ROTARY)
    t.start("quarter turn", x)
    negative = t.new("negative", half, x.dtype)
    out = t.new("quarter turn", x.shape, x.dtype)
    t.use(negative)

    def backward(g: object) -> list[Tensor]:
        part = t.new("quarter turn grad, half", half, x.dtype)
        one = t.new("quarter turn grad, padded", x.shape, x.dtype)
        t.free(part)
        t.free(t.new("quarter turn grad, padded", x.shape, x.dtype))
        return [one]

    t.finish("quarter turn", [x], out, [], backward)
    return out


def entries_of(t: Tape, x: Tensor, of: Compressed, width: Factor, two: Factor) -> Tensor:
    """The normed and turned entries of all tokens, (B, entries, width). `two`: twice the width."""
    wide = two if of.overlaps else width
    each: Shape = (B, of.entries, of.rate, wide)
    kv = linear(t, "kv_proj", x, D, wide, bias=False)
    gate = linear(t, "gate_proj", x, D, wide, bias=False)
    bias = t.parameter("position_bias", (of.rate, wide))
    kv, gates = _whole(t, kv, each), _whole(t, gate, each)
    gates = add(t, gates, bias, "gates, biased")
    if of.overlaps:
        kv, gates = (_overlapping(t, v, of, width, n) for v, n in ((kv, "kv"), (gates, "gates")))
    shares = softmax(t, cast(t, gates, "fp32", "gates (fp32)"), "softmax")
    shares = cast(t, shares, kv.dtype, "shares")
    entry = summed(t, multiply(t, kv, shares, "weighted"), (B, of.entries, width), "entries")
    entry = rms_norm_fp32_weight(t, entry, "kv_norm", width)
    angles = (B, of.entries, HALF_ROTARY)
    tables = (t.new("cos", angles, t.parameter_dtype), t.new("sin", angles, t.parameter_dtype))
    return turned_tail(t, entry, tables, "kv_rotary")


def _whole(t: Tape, x: Tensor, shape: Shape) -> Tensor:
    """Those tokens that make whole entries, a view. Backward pads the gradient for the others."""
    out = Tensor(x.storage, shape, x.dtype, False)
    t.finish("whole entries", [x], out, [], lambda g: [g[0]])
    return out


def _overlapping(t: Tape, x: Tensor, of: Compressed, width: Factor, name: str) -> Tensor:
    """Of each entry's tokens their second half, behind the first half of the tokens before."""
    shape: Shape = (B, of.entries, FINE_SPAN, width)
    one: Shape = (B, of.entries, of.rate, width)
    base = t.new(f"{name}, overlapping", shape, x.dtype)
    own, next_ones = split(t, x, [one, one], sliced=True)
    base = written(t, base, own, f"{name}, of its tokens")
    return written(t, base, next_ones, f"{name}, of those before")


def beyond(
    t: Tape, s: Structure, x: Tensor, low: Tensor, kind: str, tables: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor | None]:
    """The entries of a layer, and which of them each token sees, as a mask to add; an engine's
    kernels need none. `low`: compressed queries."""
    of = compressed(kind)
    assert of
    with t.scope("compressor"):
        entries = entries_of(t, x, of, HEAD_DIM, TWO_HEADS)
        if is_fine(kind):
            return entries, _chosen(t, s, x, low, tables, entries)
        return entries, None if s.served else _causal(t, entries)


def _causal(t: Tape, entries: Tensor) -> Tensor:
    """Zero where an entry's tokens are before the query."""
    with t.without_grad():
        shape: Shape = (B, 1, S / CP, COARSE_ENTRIES)
        t.start("mask of entries", entries)
        zeros, later = t.new("zeros", shape, entries.dtype), t.new("later", shape, "bool")
        out = t.new("mask of entries", shape, entries.dtype)
        t.use(zeros, later)
        return out


def _chosen(
    t: Tape, s: Structure, x: Tensor, low: Tensor, tables: tuple[Tensor, Tensor], entries: Tensor
) -> Tensor | None:
    """Zero where an indexer chose an entry for a query. No gradient comes through a choice, but
    what would be kept for one is there until the indexer returns."""
    of_heads: Shape = (*TOKENS, INDEX_HEADS, FINE_ENTRIES)
    pairs: Shape = (*TOKENS, FINE_ENTRIES)
    with t.without_grad(), t.scope("indexer"):
        keys = entries_of(t, x, FINE, INDEX_DIM, TWO_INDEX)
        q = linear(t, "q_b_proj", low, Q_RANK, INDEX_Q, bias=False)
        q = Tensor(q.storage, (B, INDEX_HEADS, S / CP, INDEX_DIM), q.dtype, False)
        q = turned_tail(t, q, tables, "q_rotary")
        if s.served:
            with t.scope("scorer"):
                linear(t, "weights_proj", x, D, INDEX_HEADS, bias=False)
            with t.scope("choice", Part.CHOICE):
                flops = (2.0, (*of_heads, INDEX_DIM))
                t.start("scores", q, keys, flops=[flops], product="bmm")
                t.use(t.new("scores", pairs, "fp32"))
            return None
        q32, k32 = (cast(t, v, "fp32", f"{n} (fp32)") for v, n in ((q, "q"), (keys, "keys")))
        with t.scope("scorer"):
            copies: Shape = (INDEX_COPIES, S / CP, FINE_ENTRIES, INDEX_DIM)
            k32 = contiguous(t, k32, copies, "keys of each token")
            scores = matmul(t, q32, k32, of_heads, INDEX_DIM, "scores of heads")
            positive = keeps_result(t, scores, "relu")
            scaled = scale(t, positive, "scores of heads, scaled")
            weights = cast(
                t, linear(t, "weights_proj", x, D, INDEX_HEADS, bias=False), "fp32", "weights"
            )
            weights = scale(t, weights, "weights, scaled")
            weighed = multiply(t, scaled, weights, "scores of heads, weighted")
            scores = summed(t, weighed, pairs, "scores")
        t.start("top_k", scores)
        later = t.new("later", pairs, "bool")
        left = t.new("scores, masked", pairs, scores.dtype)
        t.use(t.new("largest", (*TOKENS, FINE_TOP), scores.dtype))
        places = t.new("places", (*TOKENS, FINE_TOP), "int64")
        index = t.new("chosen entries", (*TOKENS, FINE_TOP), "int64")
        t.use(later, left, places, q, keys, q32, k32, positive, scaled, weights)
    with t.without_grad():
        t.start("mask of entries", index)
        safe = t.new("places, safe", (*TOKENS, FINE_TOP), "int64")
        out = t.new("mask of entries", (B, 1, S / CP, FINE_PLUS), entries.dtype)
        t.use(safe, index)
        return out
