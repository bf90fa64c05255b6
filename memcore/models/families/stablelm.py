"""StableLM: Llama's layers with layer norms, and a quarter of each head rotated; some run attention
and MLP side by side, and some norm queries and keys, each head with weights of its own."""

from __future__ import annotations

from memcore.layers.ops import (
    attended,
    by_heads,
    dropped,
    gated_mlp,
    head_behind,
    query_key_value,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed, turned
from memcore.models.model import Model
from memcore.tape.dims import KV, TP, D, Factor, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, contiguous, layer_norm
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    return llama_like(k, "stablelm")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    beside = s.traits.parallel_residual
    h = layer_norm(t, x, D, "input_layernorm")
    x = add(t, x, _attention(t, s, h, kind), "attention residual")
    h = gated_mlp(t, s, h if beside else layer_norm(t, x, D, "post_attention_layernorm"))
    h = dropped(t, s, h, "dropout")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, s.traits.attention_bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        if s.traits.query_norm:
            q = _by_head(t, q, "q_layernorm", Q / TP)
            k = _by_head(t, k, "k_layernorm", KV / TP)
        q, k = turned(t, s, q, k)
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias=False)


def _by_head(t: Tape, x: Tensor, name: str, width: Factor) -> Tensor:
    """One norm after another, and their results put together."""
    normed = layer_norm(t, x, width, name, bias=False)
    return contiguous(t, normed, x.shape, f"{name}, joined")


_head = head_behind(layer_norm, width=D)
FAMILY = family_of("stablelm", _config, embed, _layer, _head)
