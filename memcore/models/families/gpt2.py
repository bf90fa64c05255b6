"""GPT-2: layer norms, learned positions, one joint projection, biases and dropout. GPT-BigCode
(SantaCoder, StarCoder) has such layers with one head of keys and values."""

from __future__ import annotations

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    dropped,
    head_behind,
    joint_heads,
    plain_mlp,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, model_of
from memcore.models.families.family import (
    MASK,
)
from memcore.models.model import Model
from memcore.tape.dims import CONTEXT, CP, POSITIONS, QKV, TP, VOCAB, D, Q, S
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    dropout,
    embedding,
    heads_first,
    layer_norm,
    linear,
    split,
    wanted,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor
from memcore.words.training import MLP


def _gpt2(k: Keys) -> Model:
    k.refuse("reorder_and_upcast_attn", False, None)
    return model_of(k, "gpt2")


def embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = wanted(t, embedding(t, "wte", ids, VOCAB / TP, D, s.traits.tied_embeddings))
    if s.traits.positions != "none":
        positions = t.input("position_ids", (1, S / CP), "int64", needs_grad=False)
        x = add(t, x, embedding(t, "wpe", positions, POSITIONS, D, tied=False), "sum")
    return dropout(t, x, "drop") if s.traits.embedding_dropout else x


def _bigcode_embed(t: Tape, s: Structure) -> Tensor:
    t.buffer("bias", (CONTEXT, CONTEXT), "bool")  # a mask of older versions; nothing reads it
    return embed(t, s)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True, transposed=True)
        q, k, v = joint_heads(t, joint, [(*TOKENS, Q / TP)] * 3)
        h = attention_core(t, s, q, k, v, kind, softmax_fp32=False)
        h = linear(t, "c_proj", h, Q / TP, D, bias=True, transposed=True)
        h = dropped(t, s, h, "resid_dropout")
    x = add(t, x, h, "residual")
    h = t.again(MLP, lambda x: _mlp(t, s, x), x)
    with t.scope("mlp"):
        h = dropped(t, s, h, "dropout")
    return add(t, x, h, "residual")


def _bigcode_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True)
        if s.traits.multi_query:
            q, k, v = joint_heads(t, joint)
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


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        return plain_mlp(t, h, s.traits.activation, True, ("c_fc", "c_proj"), transposed=True)


_head = head_behind(layer_norm, "ln_f", width=D)
FAMILIES = {
    "gpt2": family_of("gpt2", _gpt2, embed, _layer, _head, arguments=MASK),
    "gpt_bigcode": family_of(
        "gpt_bigcode",
        None,
        _bigcode_embed,
        _bigcode_layer,
        _head,
    ),
}
