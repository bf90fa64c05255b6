"""Phi-1, 1.5 and 2: attention and MLP read one layer norm; half of each head is rotated."""

from __future__ import annotations

from memcore.layers.ops import dropped, embed_dropped, head_behind, plain_mlp
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import attention
from memcore.models.model import Model
from memcore.tape.dims import D
from memcore.tape.primitives import add, layer_norm
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    k.refuse("qk_layernorm", False, None)
    return llama_like(k, "phi")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "input_layernorm")
    attended = dropped(t, s, attention(t, s, h, kind, "dense"), "attention dropout")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    h = dropped(t, s, h, "MLP dropout")
    return add(t, add(t, attended, h, "attention and MLP"), x, "residual")


_embed = embed_dropped("embed_tokens", "embed_dropout")
_head = head_behind(layer_norm, "final_layernorm", width=D)
FAMILY = family_of("phi", _config, _embed, _layer, _head)
