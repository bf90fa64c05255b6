"""Persimmon: GPT-NeoX's layers one after the other, with norms of queries and keys, each head's by
the same weights."""

from __future__ import annotations

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    dropped,
    head_behind,
    partial_rotary,
    plain_mlp,
    rotary_tables,
)
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import embed, llama_like
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, HEADS, KV_HEADS, QKV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, heads_first, layer_norm, linear, split
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    k.config = {**k.config, "num_key_value_heads": None}  # which its code does not read
    return llama_like(
        k,
        label,
        "persimmon",
        intermediate=16_384,
        layers=36,
        heads=64,
        vocab=262_144,
        positions=16_384,
        activation="relu2",
        query_norm=k.flag("qk_layernorm", True),
        residual_dropout=k.dropout("hidden_dropout", 0.0),
        rotated=0.5,
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind)
    x = add(t, x, h, "attention residual")
    h = layer_norm(t, x, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("dense_h_to_4h", "dense_4h_to_h"))
    return add(t, dropped(t, s, h, "dropout"), x, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias=True)
        each = [(*TOKENS, heads / TP, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        q, k, v = split(t, joint, each, sliced=True)
        if s.traits.query_norm:
            q = layer_norm(t, q, HEAD_DIM, "q_layernorm")
            k = layer_norm(t, k, HEAD_DIM, "k_layernorm")
        q = heads_first(t, q, QUERIES, copies_grad=False)
        k = heads_first(t, k, KEYS, copies_grad=False)
        v = heads_first(t, v, KEYS, copies_grad=False)
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        out = attention_core(t, s, q, k, v, kind, joint_v=True)
        return linear(t, "dense", out, Q / TP, D, bias=True)


_head = head_behind(layer_norm, "final_layernorm", width=D)
# Its eager attention keeps values as views of the joint projection, which its norms keep too: where
# they are copies is not known.
FAMILY = Family(
    _config, embed, _layer, _head, attentions=("sdpa", "flash"), kernels=HF_ONLY,
    classes=decoder_classes("Persimmon"),
)  # fmt: skip
