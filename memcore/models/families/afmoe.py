"""AFMoE (Arcee Trinity): norms before and behind each part, attention whose results a sigmoid
weights, without positions in every fourth layer and with a window in the others, and experts that a
sigmoid scores beside shared ones."""

from __future__ import annotations

from memcore.layers.experts import divided, routed_experts, top_k
from memcore.layers.ops import (
    attention_core,
    by_heads,
    by_rows,
    gated_mlp,
    head_behind,
    query_key_value,
    value_heads,
)
from memcore.layers.ops import rms_norm_fp32_weight as norm
from memcore.models.families.decoders import (
    family_of,
)
from memcore.models.families.llama import embed, turned
from memcore.tape.dims import EXPERTS, HEAD_DIM, SHARED_F, TP, D, Q
from memcore.tape.kinds import Part, is_dense, turns
from memcore.tape.primitives import add, cast, keeps_result, linear, multiply, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, norm(t, x, "input_layernorm"), kind)
    x = add(t, x, norm(t, h, "post_attention_layernorm"), "residual")
    h = norm(t, x, "pre_mlp_layernorm")
    h = gated_mlp(t, s, h) if is_dense(kind) else _mixture(t, s, h)
    return add(t, x, norm(t, h, "post_mlp_layernorm"), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        gate = linear(t, "gate_proj", x, D, Q / TP, bias=False)
        q, k = by_rows(t, q, k, copies_grad=False)
        q, k = norm(t, q, "q_norm", HEAD_DIM), norm(t, k, "k_norm", HEAD_DIM)
        q, k = by_heads(t, q, k, copies_grad=False)
        if turns(kind):
            q, k = turned(t, s, q, k)
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        out = multiply(t, out, keeps_result(t, gate, "sigmoid"), "gated")
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        t.parameter("expert_bias", (EXPERTS,), idle=True)
        with t.scope("router"):
            logits = linear(t, "gate", x, D, EXPERTS, bias=False)
            scores = keeps_result(t, cast(t, logits, "fp32", "logits (fp32)"), "sigmoid")
            weights, index = top_k(t, scores, "top_k")
            weights = divided(t, weights, "weights, normalised", "denominator")
            weights = scale(t, weights, "weights, scaled")
        shared = gated_mlp(t, s, x, SHARED_F / TP, "shared_experts")
        return add(t, shared, routed_experts(t, s, x, weights, index), "shared and routed")


_head = head_behind(norm)
FAMILY = family_of("afmoe", None, embed, _layer, _head)
