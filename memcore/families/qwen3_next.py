"""Qwen3-Next: three gated delta nets to one layer of gated attention, each before small experts."""

from __future__ import annotations

from dataclasses import replace

from memcore.dims import GATED_Q, HEAD_DIM, HEADS, KV, KV_HEADS, TP, D, Q
from memcore.families.family import HF_ONLY, Family, mixed_kinds, state_dtype
from memcore.families.llama import embed, llama_like
from memcore.families.mixtral import routing, sparse_kinds, with_experts
from memcore.families.qwen_moe import shared_mixture, sparse
from memcore.model import Keys, Model, Recurrence, is_dense, recurs
from memcore.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    causal_lm_head,
    gated_mlp,
    partial_rotary,
    rms_norm_plus_one,
    rotary_tables,
    value_heads,
)
from memcore.primitives import add, heads_first, keeps_result, linear, multiply, split
from memcore.recurrent import gated_delta_net
from memcore.structure import Structure
from memcore.tape import Tape, Tensor

CHUNK = 64  # tokens of a span: fla/ops/gated_delta_rule/chunk.py


def _config(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "qwen3_next",
        hidden=2048,
        intermediate=5632,
        layers=48,
        heads=16,
        kv_heads=2,
        head_dim=256,
        vocab=151_936,
        positions=32_768,
        attention_bias=k.flag("attention_bias", False),
        router_normalised=k.flag("norm_topk_prob", True),
    )
    model = with_experts(
        model, routing(k, "num_experts", 512, 10), k.count("moe_intermediate_size", 512)
    )
    every = k.count("full_attention_interval", 4)
    kinds = mixed_kinds(k, "layer_types", model.layers, lambda i: bool((i + 1) % every))
    model = replace(
        model,
        shared_size=k.count("shared_expert_intermediate_size", 512),
        rotary_dim=int(model.head_dim * k.rope("partial_rotary_factor", 0.25)),
        recurrence=delta_net(k),
        kinds=kinds,
    )
    return sparse_kinds(model, sparse(k))


def delta_net(k: Keys) -> Recurrence:
    values, keys = k.count("linear_num_value_heads", 32), k.count("linear_num_key_heads", 16)
    k.divides("linear_num_value_heads", values, "linear_num_key_heads", keys)
    return Recurrence(
        heads=values,
        head_dim=k.count("linear_value_head_dim", 128),
        state=k.count("linear_key_head_dim", 128),
        groups=keys,
        kernel=k.count("linear_conv_kernel_dim", 4, 1000),
        chunk=CHUNK,
        dtype=state_dtype(k, "mamba_ssm_dtype"),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm_plus_one(t, x, "input_layernorm")
    h = gated_delta_net(t, s, h) if recurs(kind) else _attention(t, s, h, kind)
    x = add(t, x, h, "residual")
    h = rms_norm_plus_one(t, x, "post_attention_layernorm")
    h = gated_mlp(t, s, h) if is_dense(kind) else shared_mixture(t, s, h)
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Queries and a gate for each from one projection; the gate's sigmoid weights the results."""
    bias = s.traits.attention_bias
    with t.scope("self_attn"):
        both = linear(t, "q_proj", x, D, GATED_Q / TP, bias)
        k, v = (linear(t, name, x, D, KV / TP, bias) for name in ("k_proj", "v_proj"))
        q, gate = split(t, both, [(*TOKENS, HEADS / TP, HEAD_DIM), (*TOKENS, Q / TP)])
        k = heads_first(t, k, (*TOKENS, KV_HEADS / TP, HEAD_DIM), copies_grad=False)
        q, k = (rms_norm_plus_one(t, x, f"{n}_norm", HEAD_DIM) for x, n in ((q, "q"), (k, "k")))
        q = heads_first(t, q, QUERIES, copies_grad=False)
        k = heads_first(t, k, KEYS, copies_grad=False)
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        out = multiply(t, out, keeps_result(t, gate, "sigmoid"), "gated")
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, rms_norm_plus_one(t, x, "norm"))


FAMILY = Family(_config, embed, _layer, _head, kernels=HF_ONLY, trained=False)
