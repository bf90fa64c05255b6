"""DINOv2: ViT's layers with a scale for each channel behind both parts.

Dinov2ForImageClassification reads the class token and the mean of the patches. What is dropped of
whole layers at random (drop_path_rate) is not known yet. With registers, a few tokens that are no
patches stand behind the class token and have no positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from memcore.layers.ops import HIDDEN, classes_loss, dropped, gated_mlp, plain_mlp
from memcore.models.config import Keys
from memcore.models.families import vit
from memcore.models.families.decoders import model_of
from memcore.models.families.family import encoder, image_classes
from memcore.models.model import Model
from memcore.tape.dims import JOINED, ONE, PATCHES, POSITIONS, TABLE, TYPES, VOCAB, B, D
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    joined,
    layer_norm,
    linear,
    mean_of_tokens,
    multiply,
    patches,
    split,
)
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor

Attention = Callable[[Tape, Structure, Tensor, str], Tensor]


def _registered(k: Keys) -> Model:
    model = model_of(k, "dinov2_with_registers")
    return replace(model, position_rows=model.position_rows - model.type_rows)


def _embed(t: Tape, s: Structure) -> Tensor:
    token = t.parameter("cls_token", (ONE, 1, D))
    if s.traits.embedding_masked:  # which training without masks does not read
        t.parameter("mask_token", (ONE, D), idle=True)
    x = patches(t, "patch_embeddings.projection", vit.pixels_of(t), (B, PATCHES, D), bias=True)
    x = joined(t, [token, x], (B, POSITIONS, D), "class token and patches")
    x = add(t, x, _positions(t, s), "with positions")
    if s.family == "dinov2_with_registers":
        registers = t.parameter("register_tokens", (ONE, TYPES, D))
        first, rest = split(t, x, [(B, 1, D), (B, PATCHES, D)], sliced=True)
        x = joined(t, [first, registers, rest], HIDDEN, "with registers")
    return dropped(t, s, x, "dropout")


def _positions(t: Tape, s: Structure) -> Tensor:
    """The table, or what it is interpolated to in fp32 for images of another size (transformers
    5.23, modeling_dinov2.py: interpolate_pos_encoding, which every forward calls)."""
    table = t.parameter("position_embeddings", (ONE, TABLE, D))
    if not s.traits.interpolated:
        return table
    wide = cast(t, table, "fp32", "positions (fp32)")
    found = contiguous(t, wide, (ONE, POSITIONS, D), "positions, interpolated")
    return cast(t, found, table.dtype, "positions, cast")


def layer_around(attend: Attention, names: tuple[str, str]) -> Attention:
    """A layer with this attention; `names`: of the two products of an MLP that is not gated."""

    def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
        h = attend(t, s, layer_norm(t, x, D, "norm1"), kind)
        x = add(t, _scaled(t, h, "layer_scale1"), x, "residual")
        h = layer_norm(t, x, D, "norm2")
        if s.traits.gated:
            h = gated_mlp(t, s, h)
        else:
            with t.scope("mlp"):
                h = plain_mlp(t, h, s.traits.activation, s.traits.mlp_bias, names)
        return add(t, _scaled(t, h, "layer_scale2"), x, "residual")

    return layer


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return vit.attention(t, s, x, kind, softmax_fp32=False)


_layer = layer_around(_attention, ("fc1", "fc2"))


def _scaled(t: Tape, x: Tensor, name: str) -> Tensor:
    with t.scope(name):
        return multiply(t, x, t.parameter("lambda1", (D,)), "scaled")


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "layernorm")
    if s.head == EMBEDDING:
        return x
    first, tokens = split(t, x, [(B, D), (B, PATCHES, D)], sliced=True)
    both = contiguous(t, first, (B, JOINED), "both", other=mean_of_tokens(t, tokens, "patches"))
    return classes_loss(t, s, linear(t, "classifier", both, JOINED, VOCAB, bias=True))


FAMILIES = {
    "dinov2": encoder(
        partial(model_of, family="dinov2"), _embed, _layer, _head, image_classes("Dinov2")
    ),
    "dinov2_with_registers": encoder(
        _registered, _embed, _layer, _head, image_classes("Dinov2WithRegisters")
    ),
}
