"""CLIP's vision tower: a class token and patches, a norm before the first layer."""

from __future__ import annotations

from memcore.layers.ops import HIDDEN, KEYS, QUERIES, attention_core, plain_mlp, value_heads
from memcore.models.config import Keys
from memcore.models.families import vit
from memcore.models.families.family import HF_ONLY, Family
from memcore.models.model import Model
from memcore.tape.dims import ONE, PATCHES, POSITIONS, TP, B, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    contiguous,
    embedding,
    heads_first,
    layer_norm,
    linear,
    patches,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    return vit.tower(k, label, "clip_vision_model", "quick_gelu", patch=32, extra=1)


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=False)
    token = t.parameter("class_embedding", (D,))
    x = contiguous(t, Tensor(token.storage, (B, 1, D), token.dtype, True), HIDDEN, "joined", x)
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return layer_norm(t, add(t, x, placed, "with positions"), D, "pre_layrnorm")


def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, layer_norm(t, x, D, "layer_norm1"), kind), "residual")
    with t.scope("mlp"):
        h = layer_norm(t, x, D, "layer_norm2")
        h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = (linear(t, n, x, D, Q / TP, bias=True) for n in ("q_proj", "k_proj", "v_proj"))
        q = heads_first(t, q, QUERIES, copies_grad=s.attention == "eager")
        k = heads_first(t, k, KEYS, copies_grad=s.attention == "eager")
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind, softmax_fp32=True)
        return linear(t, "out_proj", out, Q / TP, D, bias=True)


def no_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    raise NotImplementedError("a tower has no head")


TOWER = Family(_config, _embed, layer, no_head, kernels=HF_ONLY)
