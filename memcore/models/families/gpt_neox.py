"""GPT-NeoX and Pythia: attention and MLP side by side, a quarter of each head rotated.

Persimmon has such layers one after the other, with norms of queries and keys, each head's by the
same weights.
"""

from __future__ import annotations

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attended,
    by_heads,
    dropped,
    embed_dropped,
    head_behind,
    partial_rotary,
    plain_mlp,
    rotary_tables,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, HEADS, KV_HEADS, QKV, TP, D
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, heads_first, layer_norm, linear, split
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _neox_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    attended = _neox_attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind)
    attended = dropped(t, s, attended, "post_attention_dropout")
    beside = s.traits.parallel_residual
    if not beside:
        attended = add(t, attended, x, "attention residual")
    h = layer_norm(t, x if beside else attended, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("dense_h_to_4h", "dense_4h_to_h"))
    h = dropped(t, s, h, "post_mlp_dropout")
    out = add(t, h, attended, "MLP and attention")
    return add(t, out, x, "residual") if beside else out


def _neox_attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("attention", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias)
        joint = heads_first(t, joint, joint.shape, copies_grad=True)
        q, k, v = split(t, joint, (QUERIES, KEYS, KEYS))
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        return attended(t, s, q, k, v, kind, "dense", bias, joint_v=True)


def _persimmon(k: Keys) -> Model:
    k.config = {**k.config, "num_key_value_heads": None}  # which its code does not read
    return llama_like(k, "persimmon")


def _persimmon_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _persimmon_attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind)
    x = add(t, x, h, "attention residual")
    h = layer_norm(t, x, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("dense_h_to_4h", "dense_4h_to_h"))
    return add(t, dropped(t, s, h, "dropout"), x, "residual")


def _persimmon_attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias=True)
        each = [(*TOKENS, heads / TP, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        q, k, v = split(t, joint, each, sliced=True)
        if s.traits.query_norm:
            q = layer_norm(t, q, HEAD_DIM, "q_layernorm")
            k = layer_norm(t, k, HEAD_DIM, "k_layernorm")
        q, k = by_heads(t, q, k, copies_grad=False)
        v = heads_first(t, v, KEYS, copies_grad=False)
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        return attended(t, s, q, k, v, kind, "dense", bias=True, joint_v=True)


FAMILIES = {
    "gpt_neox": family_of(
        "gpt_neox",
        None,
        embed_dropped("embed_in", "emb_dropout"),
        _neox_layer,
        head_behind(layer_norm, "final_layer_norm", width=D),
    ),
    # Its eager attention keeps values as views of the joint projection, which its norms keep too:
    # where they are copies is not known.
    "persimmon": family_of(
        "persimmon",
        _persimmon,
        embed,
        _persimmon_layer,
        head_behind(layer_norm, "final_layernorm", width=D),
    ),
}
