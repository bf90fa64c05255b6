"""DINOv3: DINOv2's layers, in which queries and keys of patches turn by where these lie, and those
of the class token and of registers do not."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import HIDDEN, KEYS, QUERIES, attended, value_heads
from memcore.models.config import Keys
from memcore.models.families import dinov2, vit
from memcore.models.families.decoders import model_of
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import HALF_ROTARY, HEAD_DIM, HEADS, ONE, PATCHES, ROTARY, TP, TYPES, B, D, Q
from memcore.tape.kinds import Part, Role
from memcore.tape.primitives import heads_first, joined, layer_norm, linear, patches, rotate, split
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor

PREFIX = (B, HEADS / TP, 1, HEAD_DIM)  # a view, of the tokens that are no patches
TURNED = (B, HEADS / TP, PATCHES, HEAD_DIM)


def _config(k: Keys) -> Model:
    return replace(model_of(k, "dinov3_vit"), position_rows=0)


def _embed(t: Tape, s: Structure) -> Tensor:
    token = t.parameter("cls_token", (ONE, 1, D))
    t.parameter("mask_token", (ONE, 1, D), idle=True)  # which training without masks does not read
    registers = t.parameter("register_tokens", (ONE, TYPES, D))
    x = patches(t, "patch_embeddings", vit.named_pixels(t), (B, PATCHES, D), bias=True)
    return joined(t, [token, registers, x], HIDDEN, "tokens and patches")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    table = (1, 1, PATCHES, ROTARY)
    cos = t.shared("rotary cos", table, t.parameter_dtype, Role.ANGLES)
    sin = t.shared("rotary sin", table, t.parameter_dtype)

    def turned(x: Tensor, name: str) -> Tensor:
        prefix, rest = split(t, x, [PREFIX, TURNED])
        rest = rotate(t, rest, cos, sin, HALF_ROTARY, name)
        return joined(t, [prefix, rest], x.shape, f"{name}, joined")

    with t.scope("attention", Part.ATTENTION):
        q = linear(t, "q_proj", x, D, Q / TP, s.traits.attention_bias)
        k = linear(t, "k_proj", x, D, Q / TP, s.traits.key_bias)
        v = linear(t, "v_proj", x, D, Q / TP, s.traits.value_bias)
        q = turned(heads_first(t, q, QUERIES, copies_grad=True), "q_rotary")
        k = turned(heads_first(t, k, KEYS, copies_grad=True), "k_rotary")
        return attended(
            t, s, q, k, value_heads(t, s, v), kind, "o_proj", s.traits.out_bias, softmax_fp32=False
        )


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return layer_norm(t, x, D, "norm")


FAMILY = encoder(
    _config, _embed, dinov2.layer_around(_attention, ("up_proj", "down_proj")), _head,
    {"DINOv3ViTModel": EMBEDDING},
)  # fmt: skip
FAMILIES = {"dinov3_vit": FAMILY}
