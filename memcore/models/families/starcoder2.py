"""StarCoder2: layer norms and biases with rotary positions and grouped queries."""

from __future__ import annotations

from memcore.layers.ops import (
    attended,
    by_heads,
    dropped,
    embed_dropped,
    head_behind,
    plain_mlp,
    query_key_value,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.families.decoders import family_of
from memcore.tape.dims import D
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, layer_norm
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor
from memcore.words.training import MLP


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind), "residual")
    h = t.again(MLP, lambda x: _mlp(t, s, x), x)
    with t.scope("mlp"):
        h = dropped(t, s, h, "residual_dropout")
    return add(t, x, h, "residual")


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    h = layer_norm(t, x, D, "post_attention_layernorm")
    with t.scope("mlp"):
        return plain_mlp(t, h, s.traits.activation, s.traits.mlp_bias, ("c_fc", "c_proj"))


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t))
        out = attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias)
        return dropped(t, s, out, "residual_dropout")


_embed = embed_dropped("embed_tokens", "embedding_dropout")
_head = head_behind(layer_norm, width=D)
FAMILY = family_of("starcoder2", None, _embed, _layer, _head)
