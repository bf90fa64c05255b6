"""DINOv2: ViT's layers with a scale for each channel behind both parts.

Dinov2ForImageClassification reads the class token and the mean of the patches. What is dropped of
whole layers at random (drop_path_rate) is not known yet. With registers, a few tokens that are no
patches stand behind the class token and have no positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.layers.ops import HIDDEN, classes_loss, dropped, gated_mlp, plain_mlp
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families import vit
from memcore.models.families.family import encoder, image_classes, labels
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
from memcore.tape.structure import EMBEDDING, Structure, Traits
from memcore.tape.tape import Tape, Tensor

Attention = Callable[[Tape, Structure, Tensor, str], Tensor]


def _plain(k: Keys) -> Model:
    masked = k.flag("use_mask_token", True)
    return _config(k, "dinov2", patch=14, extra=1, masked=masked)


def _registered(k: Keys) -> Model:
    registers = k.count("num_register_tokens", 4, 10_000)
    model = _config(k, "dinov2_with_registers", patch=16, extra=1 + registers, masked=True)
    return replace(model, position_rows=model.position_rows - registers, type_rows=registers)


def _config(k: Keys, family: str, patch: int, extra: int, masked: bool) -> Model:
    k.refuse("drop_path_rate", 0, 0.0, None)
    gated = k.flag("use_swiglu_ffn", False)
    traits = Traits(
        activation="silu" if gated else k.word("hidden_act", "gelu", ACTIVATIONS),
        attention_bias=k.flag("qkv_bias", True),
        mlp_bias=True,
        attention_dropout=k.dropout("attention_probs_dropout_prob", 0.0),
        residual_dropout=k.dropout("hidden_dropout_prob", 0.0),
        embedding_masked=masked,
        gated=gated,
    )
    inner = k.count("mlp_ratio", 4, 1000) * k.count("hidden_size", 768)
    model = vit.of_images(k, family, traits, patch=patch, extra=extra, classes=labels(k))
    assert model.image
    model = replace(model, image=replace(model.image, free=True))
    k.assumed.pop("intermediate_size", None)
    # Of a gated MLP two thirds, in steps of 8.
    return replace(model, intermediate_size=-(-(inner * 2 // 3) // 8) * 8 if gated else inner)


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
    "dinov2": encoder(_plain, _embed, _layer, _head, image_classes("Dinov2")),
    "dinov2_with_registers": encoder(
        _registered, _embed, _layer, _head, image_classes("Dinov2WithRegisters")
    ),
}
