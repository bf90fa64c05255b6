"""OPT: learned positions, ReLU, biases, dropout; the 350M model projects its embeddings."""

from __future__ import annotations

from memcore.layers.ops import TOKENS, attended, by_heads, causal_lm_head, plain_mlp, value_heads
from memcore.models.families.decoders import family_of
from memcore.tape.dims import EMBED, POSITIONS, TP, VOCAB, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, dropout, embedding, layer_norm, linear, scale, wanted
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    positions = t.input("position_ids", TOKENS, "int64", needs_grad=False)
    tied = s.traits.tied_embeddings
    words = wanted(t, embedding(t, "embed_tokens", ids, VOCAB / TP, EMBED, tied))
    placed = embedding(t, "embed_positions", positions, POSITIONS, D, tied=False)
    if s.traits.projected_embeddings:
        words = linear(t, "project_in", words, EMBED, D, bias=False)
    return add(t, words, placed, "sum")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    first, affine, bias = s.traits.norm_first, s.traits.norm_affine, s.traits.mlp_bias

    def norm(x: Tensor, name: str, now: bool) -> Tensor:
        return layer_norm(t, x, D, name, affine) if now else x

    def dropped(x: Tensor, name: str) -> Tensor:
        return dropout(t, x, name) if s.traits.residual_dropout else x

    h = _attention(t, s, norm(x, "self_attn_layer_norm", first), kind)
    x = add(t, x, dropped(h, "attention dropout"), "residual")
    x = norm(x, "self_attn_layer_norm", not first)
    h = plain_mlp(t, norm(x, "final_layer_norm", first), s.traits.activation, bias, ("fc1", "fc2"))
    x = add(t, x, dropped(h, "MLP dropout"), "residual")
    return norm(x, "final_layer_norm", not first)


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q = scale(t, linear(t, "q_proj", x, D, Q / TP, bias), "q, scaled")
        k, v = (linear(t, name, x, D, Q / TP, bias) for name in ("k_proj", "v_proj"))
        q, k = by_heads(t, q, k, copies_grad=s.attention == "eager")
        return attended(t, s, q, k, value_heads(t, s, v), kind, "out_proj", bias)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.traits.final_norm:
        x = layer_norm(t, x, D, "final_layer_norm", s.traits.norm_affine)
    if s.traits.projected_embeddings:
        x = linear(t, "project_out", x, D, EMBED, bias=False)
        return causal_lm_head(t, s, x, EMBED)
    return causal_lm_head(t, s, x)


FAMILY = family_of("opt", None, _embed, _layer, _head)
