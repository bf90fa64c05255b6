"""Falcon: 7B (one KV head, one norm for attention and MLP) and 40B (grouped heads, two norms)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    REPEATED_KEYS,
    SCORES,
    attention_core,
    core,
    head_behind,
    masked,
    plain_mlp,
    rotary,
    rotary_tables,
    token_embedding,
    weighted_values,
)
from memcore.models.families.decoders import family_of
from memcore.tape.dims import HEAD_DIM, QKV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    contiguous,
    dropout,
    indexed,
    layer_norm,
    linear,
    matmul,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    traits = s.traits
    h = layer_norm(t, x, D, "ln_attn" if traits.two_norms else "input_layernorm")
    if traits.two_norms:
        h_mlp = layer_norm(t, x, D, "ln_mlp")
    attended = _attention(t, s, h)
    if traits.parallel_residual:
        h = h_mlp if traits.two_norms else h
    else:
        dropped = (
            dropout(t, attended, "attention dropout") if traits.attention_dropout else attended
        )
        x = add(t, x, dropped, "residual")
        h = layer_norm(t, x, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, traits.activation, traits.mlp_bias, ("dense_h_to_4h", "dense_4h_to_h"))
    if traits.parallel_residual:
        h = add(t, h, attended, "MLP and attention")
    if traits.residual_dropout:
        h = dropout(t, h, "hidden_dropout")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """All layouts of the joint projection; the 40B layout copies K and V to every head."""
    with t.scope("self_attention", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, s.traits.mlp_bias)
        if s.traits.grouped_layout:
            q = contiguous(t, split(t, joint, [QUERIES], sliced=True)[0], QUERIES, "q, every head")
            k, v = (indexed(t, joint, KEYS, f"{n}, indexed") for n in "kv")
            k, v = (contiguous(t, x, QUERIES, f"{n}, every head") for x, n in ((k, "k"), (v, "v")))
        elif s.traits.multi_query:
            q = split(t, joint, [QUERIES], sliced=True)[0]
            k, v = (indexed(t, joint, KEYS, f"{n}, indexed") for n in "kv")
        else:
            q, k, v = split(t, joint, [QUERIES, KEYS, KEYS], sliced=True)
        q, k = rotary(t, q, k, rotary_tables(t))
        if s.attention != "eager":
            out = attention_core(t, s, q, k, v, "full", always_masked=True)
        else:

            def run(heads: Sequence[Tensor]) -> Tensor:
                q, k, v = heads
                if s.traits.multi_query:
                    k, v = (contiguous(t, x, REPEATED_KEYS, f"{n}, repeated")
                            for x, n in ((k, "k"), (v, "v")))  # fmt: skip
                scores = matmul(t, q, k, SCORES, HEAD_DIM, "scores")
                return weighted_values(t, s, masked(t, scores), v, softmax_fp32=False)

            out = core(t, run, q, k, v)
        return linear(t, "dense", out, Q / TP, D, s.traits.mlp_bias)


_embed = partial(token_embedding, name="word_embeddings")
_head = head_behind(layer_norm, "ln_f", width=D)
FAMILY = family_of("falcon", None, _embed, _layer, _head)
