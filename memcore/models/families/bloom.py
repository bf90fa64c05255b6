"""BLOOM and MPT: ALiBi instead of positions, one joint projection, eager attention only.

BLOOM norms its embedding, MPT has no biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memcore.layers.ops import (
    CAUSAL,
    KEYS,
    QUERIES,
    SCORES,
    TOKENS,
    core,
    dropped,
    head_behind,
    joint_heads,
    masked,
    plain_mlp,
    token_embedding,
    weighted_values,
)
from memcore.models.families.decoders import family_of
from memcore.tape.dims import CP, HEAD_DIM, HEADS, QKV, TP, B, D, F, Q, S
from memcore.tape.kinds import Part, Role
from memcore.tape.primitives import (
    add,
    composed,
    contiguous,
    dropout,
    heads_first,
    keeps_input,
    layer_norm,
    linear,
    masked_fill,
    matmul,
    scale,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _embed(t: Tape, s: Structure) -> Tensor:
    x = token_embedding(t, s, "word_embeddings")
    return layer_norm(t, x, D, "word_embeddings_layernorm")


def _bloom_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    after = s.traits.residual_after_norm

    def added(x: Tensor, residual: Tensor, name: str) -> Tensor:
        return add(t, residual, dropout(t, x, name) if s.traits.residual_dropout else x, "residual")

    h = layer_norm(t, x, D, "input_layernorm")
    x = added(_bloom_attention(t, s, h), h if after else x, "attention dropout")
    h = layer_norm(t, x, D, "post_attention_layernorm")
    residual = h if after else x
    with t.scope("mlp"):
        h = linear(t, "dense_h_to_4h", h, D, F / TP, bias=True)
        h = composed(t, h, "gelu", forward=4, backward=5)
        h = linear(t, "dense_4h_to_h", h, F / TP, D, bias=True)
    return added(h, residual, "MLP dropout")


def _bloom_attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("self_attention", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias=True)
        parts = split(t, joint, [(*TOKENS, Q / TP)] * 3, sliced=True)
        q, k, v = (
            contiguous(t, heads_first(t, p, shape, False), shape, f"{name}, contiguous")
            for p, shape, name in zip(parts, (QUERIES, KEYS, KEYS), "qkv", strict=True)
        )
        t.use(t.shared("alibi", (B, HEADS / TP, 1, S), t.parameter_dtype))

        def run(heads: Sequence[Tensor]) -> Tensor:
            q, k, v = heads
            scores = matmul(t, q, k, SCORES, HEAD_DIM, "scores with alibi", product="baddbmm")
            return weighted_values(t, s, masked(t, scores), v, softmax_fp32=True)

        out = core(t, run, q, k, v)
        return linear(t, "dense", out, Q / TP, D, bias=True)


def _mpt_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _mpt_attention(t, s, layer_norm(t, x, D, "norm_1", bias=False))
    x = add(t, dropped(t, s, h, "resid_attn_dropout"), x, "residual")
    h = layer_norm(t, x, D, "norm_2", bias=False)
    with t.scope("ffn"):
        h = plain_mlp(t, h, s.traits.activation, False, ("up_proj", "down_proj"))
        return add(t, dropped(t, s, h, "dropout"), x, "residual")


def _mpt_attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "Wqkv", x, D, QKV / TP, bias=False)
        if s.traits.attention_clipped:
            joint = keeps_input(t, joint, "clipped")
        q, k, v = joint_heads(t, joint, [(*TOKENS, Q / TP)] * 3)

        def run(heads: Sequence[Tensor]) -> Tensor:
            q, k, v = (contiguous(t, x, x.shape, f"{n}, contiguous")
                       for x, n in zip(heads, "qkv", strict=True))  # fmt: skip
            scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
            alibi = t.shared("alibi", (HEADS / TP, 1, S), "fp32")
            scores = add(t, scores, alibi, "scores with alibi")
            mask = t.shared(CAUSAL, (B, 1, S / CP, S), "bool", Role.CAUSAL_MASK)
            scores = masked_fill(t, scores, mask, "scores, masked")
            return weighted_values(t, s, scores, v, softmax_fp32=True)

        out = core(t, run, q, k, v)
        return linear(t, "out_proj", out, Q / TP, D, bias=False)


FAMILIES = {
    "bloom": family_of(
        "bloom",
        None,
        _embed,
        _bloom_layer,
        head_behind(layer_norm, "ln_f", width=D),
    ),
    "mpt": family_of(
        "mpt",
        None,
        partial(token_embedding, name="wte"),
        _mpt_layer,
        head_behind(layer_norm, "norm_f", width=D, bias=False),
    ),
}
