"""GPT-BigCode (SantaCoder, StarCoder): GPT-2's layers with one head of keys and values."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    dropped,
    head_behind,
    plain_mlp,
)
from memcore.models.config import Keys
from memcore.models.families.family import Family, decoder_classes
from memcore.models.families.gpt2 import ALIASES, config_of, embed
from memcore.models.model import Model
from memcore.tape.dims import CONTEXT, KV, QKV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, heads_first, layer_norm, linear, split
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    model, alone = (
        config_of(k, label, "gpt_bigcode", "gelu_pytorch_tanh"),
        k.flag("multi_query", True),
    )
    kv_heads = 1 if alone else model.kv_heads
    return replace(model, kv_heads=kv_heads, traits=replace(model.traits, multi_query=alone))


def _embed(t: Tape, s: Structure) -> Tensor:
    t.buffer("bias", (CONTEXT, CONTEXT), "bool")  # a mask of older versions; nothing reads it
    return embed(t, s)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True)
        if s.traits.multi_query:
            q, k, v = split(t, joint, [(*TOKENS, Q / TP), (*TOKENS, KV / TP), (*TOKENS, KV / TP)])
            q = heads_first(t, q, QUERIES, copies_grad=False)
            k, v = (heads_first(t, x, KEYS, copies_grad=False) for x in (k, v))
        else:
            joint = heads_first(t, joint, joint.shape, copies_grad=True)
            q, k, v = split(t, joint, (QUERIES, KEYS, KEYS))
        h = attention_core(t, s, q, k, v, kind)
        h = dropped(t, s, linear(t, "c_proj", h, Q / TP, D, bias=True), "resid_dropout")
    x = add(t, h, x, "residual")
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        h = dropped(t, s, plain_mlp(t, h, s.traits.activation, True, ("c_fc", "c_proj")), "dropout")
    return add(t, x, h, "residual")


_head = head_behind(layer_norm, "ln_f", width=D)
FAMILY = Family(
    _config, _embed, _layer, _head, aliases=ALIASES, classes=decoder_classes("GPTBigCode")
)
