"""NanoChat: Llama's attention with norms behind the rotation, an MLP without a gate, and norms
without weights, one of them before the first layer."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    attended,
    by_heads,
    head_behind,
    l2_norm,
    plain_mlp,
    query_key_value,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed
from memcore.models.model import Model
from memcore.tape.kinds import Part
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "nanochat")
    capped = k.config.get("final_logit_softcapping", 15.0) is not None
    return replace(model, traits=replace(model.traits, logits_softcap=capped))


def _embed(t: Tape, s: Structure) -> Tensor:
    return l2_norm(t, embed(t, s), "norm")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, l2_norm(t, x, "input_layernorm"), kind), "residual")
    h = l2_norm(t, x, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, False, ("fc1", "fc2"))
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t))
        q, k = l2_norm(t, q, "q_norm"), l2_norm(t, k, "k_norm")
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias)


_head = head_behind(l2_norm)
FAMILY = family_of("nanochat", _config, _embed, _layer, _head)
