"""Qwen3-Next and Qwen3.5 (text): three gated delta nets to one layer of gated attention, each
before small experts or an MLP. Qwen3.5's two pairs of projections are one each here, as vLLM runs
them: of the same weights."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    KEY_ROWS,
    QUERY_ROWS,
    TOKENS,
    attention_core,
    by_heads,
    gated_mlp,
    head_behind,
    partial_rotary,
    rms_norm_plus_one,
    rotary_tables,
    value_heads,
)
from memcore.layers.recurrent import gated_delta_net
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    sparse_kinds,
)
from memcore.models.families.family import mixed_kinds, state_dtype
from memcore.models.families.llama import embed, turning
from memcore.models.families.qwen_moe import shared_mixture, sparse
from memcore.models.model import Model, Recurrence
from memcore.tape.dims import GATED_Q, HEAD_DIM, KV, TP, D, Q
from memcore.tape.kinds import Part, dense, is_dense, recurs
from memcore.tape.primitives import add, heads_first, keeps_result, linear, multiply, split
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

CHUNK = 64  # tokens of a span: fla/ops/gated_delta_rule/chunk.py


def _next(k: Keys) -> Model:
    model = _like(k, "qwen3_next")
    return sparse_kinds(model, sparse(k))


def _dense(k: Keys) -> Model:
    model = _like(k, "qwen3_5_text")
    return replace(model, kinds=tuple(map(dense, model.kinds)))


def _moe(k: Keys) -> Model:
    model = _like(k, "qwen3_5_moe_text")
    k.assumed.pop("intermediate_size", None)  # of dense layers, which it has not
    return model


def _like(k: Keys, family: str) -> Model:
    """What all have in common."""
    k.refuse("attn_output_gate", True)
    model = llama_like(k, family)
    every = k.count("full_attention_interval", 4)
    kinds = mixed_kinds(k, "layer_types", model.layers, lambda i: bool((i + 1) % every))
    rotated = int(model.head_dim * k.rope("partial_rotary_factor", 0.25))
    of = delta_net(k)
    traits = replace(
        model.traits,
        recurrence_split=family != "qwen3_next",
        rotary_own=family != "qwen3_next",
        recurrence_grouped=of.heads != of.groups,
    )
    return replace(model, rotary_dim=rotated, recurrence=of, kinds=kinds, traits=traits)


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
        projects=False,
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
    with t.scope("self_attn", Part.ATTENTION):
        both = linear(t, "q_proj", x, D, GATED_Q / TP, bias)
        k, v = (linear(t, name, x, D, KV / TP, bias) for name in ("k_proj", "v_proj"))
        q, gate = split(t, both, [QUERY_ROWS, (*TOKENS, Q / TP)])
        k = heads_first(t, k, KEY_ROWS, copies_grad=False)
        q, k = (rms_norm_plus_one(t, x, f"{n}_norm", HEAD_DIM) for x, n in ((q, "q"), (k, "k")))
        q, k = by_heads(t, q, k, copies_grad=False)
        q, k = partial_rotary(t, q, k, rotary_tables(t, sequences=turning(s)))
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        out = multiply(t, out, keeps_result(t, gate, "sigmoid"), "gated")
        return linear(t, "o_proj", out, Q / TP, D, bias)


_head = head_behind(rms_norm_plus_one)
FAMILIES = {
    "qwen3_next": family_of("qwen3_next", _next, embed, _layer, _head),
    "qwen3_5_text": family_of("qwen3_5_text", _dense, embed, _layer, _head),
    "qwen3_5_moe_text": family_of("qwen3_5_moe_text", _moe, embed, _layer, _head),
}
