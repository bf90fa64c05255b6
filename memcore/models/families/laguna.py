"""Laguna (poolside): attention whose results a softplus weights, for each head or for each number,
layers with a window that may have more heads, and experts that a sigmoid scores beside shared ones.

transformers 5.23, models/laguna/modeling_laguna.py.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.errors import shown
from memcore.layers.experts import routed_experts
from memcore.layers.ops import (
    QUERY_ROWS,
    TOKENS,
    attention_core,
    by_heads,
    by_rows,
    gated_mlp,
    head_behind,
    partial_rotary,
    query_key_value,
    rms_norm,
    rotary_tables,
    slides,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    sparse_kinds,
)
from memcore.models.families.deepseek_v32 import SPARSE
from memcore.models.families.family import layer_kinds, listed
from memcore.models.families.llama import embed
from memcore.models.families.olmoe import sigmoid_router
from memcore.models.families.step3p5 import share_turned
from memcore.models.model import Heads, Model
from memcore.tape.dims import EXPERTS, HEAD_DIM, HEADS, SHARED_F, TP, D, Q
from memcore.tape.kinds import Part, apart, is_dense
from memcore.tape.primitives import add, cast, heads_first, keeps_input, linear, multiply, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

GATES = {True: True, "per-head": True, "per-element": False}


def _config(k: Keys) -> Model:
    model = llama_like(k, "laguna")  # fmt: skip
    k.config.get("moe_routed_scaling_factor")  # a number that is multiplied by
    gating = k.config.get("gating", True)
    if not isinstance(gating, (str, bool)) or gating not in GATES:
        k.fail("gating", f"must be true, 'per-head' or 'per-element', not {shown(gating)}")
        gating = True
    kinds = layer_kinds(k, model.layers, lambda i: False) or ("",) * model.layers
    sliding = any(map(slides, kinds))
    full, window = _heads(k, model, tuple(map(slides, kinds)))
    shares = share_turned(k, "full_attention", 0.5), share_turned(k, "sliding_attention")
    turned = [int(model.head_dim * share) for share in shares]
    tables = [("full", model.max_positions)] if not all(map(slides, kinds)) else []
    tables += [("sliding", model.max_positions)] if sliding else []
    own = Heads(window, model.kv_heads, model.head_dim, turned[1])
    model = replace(
        model,
        heads=full,
        kinds=tuple(apart(kind) if slides(kind) else kind for kind in kinds),
        window=k.count("sliding_window", 512) if sliding else 0,
        rotary_dim=turned[0],
        rotary_tables=tuple(tables),
        heads_apart=own if sliding else None,
        traits=replace(model.traits, gates_heads=GATES[gating]),
    )
    words = listed(k, "mlp_layer_types", model.layers, SPARSE)
    sparse = words if words is not None else [i > 0 for i in range(model.layers)]
    return sparse_kinds(model, sparse.__getitem__)


def _heads(k: Keys, model: Model, slides: tuple[bool, ...]) -> tuple[int, int]:
    """Query heads of layers that see all tokens, and of those with a window."""
    given, key = k.config.get("num_attention_heads_per_layer"), "num_attention_heads_per_layer"
    if given is None:
        return model.heads, model.heads
    if not isinstance(given, list) or len(given) < model.layers:
        k.fail(key, f"must be a list of a number for each of the {model.layers:,} layers")
        return model.heads, model.heads
    of = {w: {n for n, s in zip(given, slides, strict=False) if s is w} for w in (False, True)}
    found = []
    for windowed in (False, True):
        many = next(iter(of[windowed]), model.heads)
        if len(of[windowed]) > 1 or type(many) is not int or not 1 <= many <= 10**6:
            k.fail(key, "layers with a window must all have as many heads, and so must the others")
            many = model.heads
        k.divides(key, many, "num_key_value_heads", model.kv_heads)
        found.append(many)
    return found[0], found[1]


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, rms_norm(t, x, "input_layernorm"), kind), "residual")
    h = rms_norm(t, x, "post_attention_layernorm")
    return add(t, x, gated_mlp(t, s, h) if is_dense(kind) else _mixture(t, s, h), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias, by_head = s.traits.attention_bias, s.traits.gates_heads
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_rows(t, q, k, copies_grad=False)
        q, k = rms_norm(t, q, "q_norm", HEAD_DIM), rms_norm(t, k, "k_norm", HEAD_DIM)
        q, k = by_heads(t, q, k, copies_grad=False)
        v = value_heads(t, s, v)
        q, k = partial_rotary(
            t, q, k, rotary_tables(t, " (sliding)" if slides(kind) else " (full)")
        )
        out = attention_core(t, s, q, k, v, kind)
        gate = linear(t, "g_proj", x, D, (HEADS if by_head else Q) / TP, bias=False)
        gate = keeps_input(t, cast(t, gate, "fp32", "gate (fp32)"), "softplus")
        gate = cast(t, gate, out.dtype, "gate")
        if by_head:
            out = heads_first(t, out, QUERY_ROWS, copies_grad=False)
            gate = heads_first(t, gate, (*TOKENS, HEADS / TP, 1), copies_grad=False)
        out = multiply(t, out, gate, "gated")
        if by_head:
            out = heads_first(t, out, (*TOKENS, Q / TP), copies_grad=False)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        shared = gated_mlp(t, s, x, SHARED_F / TP, "shared_experts")
        weights, index = sigmoid_router(t, x)
        t.parameter("gate.e_score_correction_bias", (EXPERTS,), idle=True)
        routed = scale(t, routed_experts(t, s, x, weights, index), "routed, scaled")
        return add(t, routed, shared, "routed and shared")


FAMILY = family_of("laguna", _config, embed, _layer, head_behind(rms_norm))
