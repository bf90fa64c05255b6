"""ViT and DeiT, trained to classify images: patches and a class token, every one sees every other.

ViTForImageClassification: no pooler; the class token's last state is classified. ViTModel has a
pooler, which is not read here. DeiT has a second token, of a teacher's class, that its classifier
does not read.
"""

from __future__ import annotations

from functools import partial

from memcore.layers.ops import (
    HIDDEN,
    attended,
    by_heads,
    dropped,
    first_token,
    labelled_loss,
    plain_mlp,
    unread,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import model_of
from memcore.models.families.family import encoder, image_classes
from memcore.models.model import Model
from memcore.tape.dims import CHANNELS, HEIGHT, ONE, PATCHES, POSITIONS, TP, VOCAB, WIDTH, B, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, cast, joined, layer_norm, linear, patches
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, family: str) -> Model:
    if k.head == EMBEDDING:
        k.refuse("pooler_output_size", k.config.get("hidden_size"), None)
    return model_of(k, family)


def pixels_of(t: Tape) -> Tensor:
    """A batch of images in the dtype of the weights that read them."""
    pixels = t.input("pixel_values", (B, CHANNELS, HEIGHT, WIDTH), "fp32", needs_grad=False)
    return cast(t, pixels, t.parameter_dtype, "pixel_values, cast")


def named_pixels(t: Tape) -> Tensor:
    """The same, which the model has a name for until it returns."""
    pixels = pixels_of(t)
    t.named.append(pixels.storage)
    return pixels


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embeddings.projection", named_pixels(t), (B, PATCHES, D), bias=True)
    names = ("cls_token", "distillation_token") if s.family == "deit" else ("cls_token",)
    tokens = [t.parameter(name, (ONE, 1, D)) for name in names]
    x = joined(t, [*tokens, x], HIDDEN, "class token and patches")
    x = add(t, x, t.parameter("position_embeddings", (ONE, POSITIONS, D)), "with positions")
    return dropped(t, s, x, "dropout")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, layer_norm(t, x, D, "layernorm_before"), kind)
    x = add(t, dropped(t, s, h, "attention dropout"), x, "residual")
    with t.scope("mlp"):
        h = layer_norm(t, x, D, "layernorm_after")
        h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    return add(t, dropped(t, s, h, "MLP dropout"), x, "residual")


def attention(t: Tape, s: Structure, x: Tensor, kind: str, softmax_fp32: bool = True) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("attention", Part.ATTENTION):
        q, k, v = (linear(t, name, x, D, Q / TP, bias) for name in ("q_proj", "k_proj", "v_proj"))
        q, k = by_heads(t, q, k, copies_grad=s.attention == "eager")
        return attended(
            t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias=True, softmax_fp32=softmax_fp32
        )


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "layernorm")
    if s.head == EMBEDDING:
        unread(t, "pooler.dense", D, D)
        return x
    first = first_token(t, x)
    return labelled_loss(t, linear(t, "classifier", first, D, VOCAB, bias=True))


FAMILIES = {
    "vit": encoder(partial(_config, family="vit"), _embed, _layer, _head, image_classes("ViT")),
    "deit": encoder(partial(_config, family="deit"), _embed, _layer, _head, image_classes("DeiT")),
}
