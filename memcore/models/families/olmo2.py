"""OLMo 2: norms after each part instead of before, and over whole queries and keys."""

from __future__ import annotations

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    attention_core,
    causal_lm_head,
    gated_mlp,
    query_key_value,
    rms_norm_fp32_weight,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.family import WITH_LIGER, Family, decoder_classes
from memcore.models.families.llama import embed, llama_like
from memcore.models.model import Model
from memcore.tape.dims import KV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, heads_first, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    return llama_like(
        k, label, "olmo2", vocab=50_304, attention_bias=k.flag("attention_bias", False)
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm_fp32_weight(t, _attention(t, s, x, kind), "post_attention_layernorm")
    x = add(t, x, h, "residual")
    h = rms_norm_fp32_weight(t, gated_mlp(t, s, x), "post_feedforward_layernorm")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q = rms_norm_fp32_weight(t, q, "q_norm", Q / TP)
        k = rms_norm_fp32_weight(t, k, "k_norm", KV / TP)
        q = heads_first(t, q, QUERIES, copies_grad=True)
        k = heads_first(t, k, KEYS, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t, dtype="fp32"))
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, rms_norm_fp32_weight(t, x, "norm"))


FAMILY = Family(_config, embed, _layer, _head, kernels=WITH_LIGER, classes=decoder_classes("Olmo2"))
