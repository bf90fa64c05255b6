"""ViT and DeiT, trained to classify images: patches and a class token, every one sees every other.

ViTForImageClassification: no pooler; the class token's last state is classified. ViTModel has a
pooler, which is not read here. DeiT has a second token, of a teacher's class, that its classifier
does not read.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    HIDDEN,
    attended,
    by_heads,
    dropped,
    labelled_loss,
    plain_mlp,
    value_heads,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import encoder, image_classes, labels, own_keys
from memcore.models.model import Image, Model
from memcore.tape.dims import CHANNELS, HEIGHT, ONE, PATCHES, POSITIONS, TP, VOCAB, WIDTH, B, D, Q
from memcore.tape.kinds import EVERY, Part
from memcore.tape.primitives import add, cast, joined, layer_norm, linear, patches, split
from memcore.tape.structure import EMBEDDING, Structure, Traits
from memcore.tape.tape import Tape, Tensor


def image_of(k: Keys, size: int, patch: int, extra: int) -> Image:
    """`image_size` and `patch_size`: numbers, or height and width."""
    height, width = k.pair("image_size", size)
    patch_height, patch_width = k.pair("patch_size", patch)
    if patch_height > height or patch_width > width:
        k.fail("patch_size", "must not be larger than image_size")
    channels = k.count("num_channels", 3, 1000)
    return Image(height, width, patch_height, patch_width, channels, extra)


def of_images(
    k: Keys,
    family: str,
    traits: Traits,
    *,
    patch: int,
    extra: int,
    classes: int = 1,
    stack: str = "",
) -> Model:
    """The keys that ViT and the towers made like it share, with their defaults.

    patch    pixels of a patch's side, if the config names none; extra: tokens that are no patches
    """
    hidden = k.count("hidden_size", 768)
    heads = k.count("num_attention_heads", 12, 10**6)
    k.divides("hidden_size", hidden, "num_attention_heads", heads)
    layers = k.count("num_hidden_layers", 12, 100_000)
    image = image_of(k, 224, patch, extra=extra)
    return Model(
        family=family,
        layers=layers,
        **own_keys(hidden, heads),
        intermediate_size=k.count("intermediate_size", 3072),
        vocab_size=classes,
        max_positions=image.tokens,
        position_rows=image.tokens,
        image=image,
        kinds=(EVERY,) * layers,
        stack=stack,
        traits=traits,
    )


def _vit(k: Keys) -> Model:
    model = _config(k, "vit", extra=1)
    return replace(model, head_dim=k.count_or("head_dim", model.head_dim, 10**6))


def _deit(k: Keys) -> Model:
    return _config(k, "deit", extra=2)


def _config(k: Keys, family: str, extra: int) -> Model:
    traits = Traits(
        activation=k.word("hidden_act", "gelu", ACTIVATIONS),
        attention_bias=k.flag("qkv_bias", True),
        attention_dropout=k.dropout("attention_probs_dropout_prob", 0.0),
        residual_dropout=k.dropout("hidden_dropout_prob", 0.0),
    )
    if k.head == EMBEDDING:
        k.refuse("pooler_output_size", k.config.get("hidden_size"), None)
    return of_images(k, family, traits, patch=16, extra=extra, classes=labels(k))


def tower(k: Keys, family: str, activation: str, patch: int, extra: int) -> Model:
    """A vision tower before a text model."""
    traits = Traits(
        activation=k.word("hidden_act", activation, ACTIVATIONS),
        attention_dropout=k.dropout("attention_dropout", 0.0),
    )
    return of_images(k, family, traits, patch=patch, extra=extra, stack="vision")


def text_of(
    k: Keys, family: str, activation: str, vocab: int, sizes: tuple[int, int, int], positions: int
) -> Model:
    """A tower of text, as CLIP has it; `sizes`: its width, its MLP's, and its heads."""
    hidden = k.count("hidden_size", sizes[0])
    heads = k.count("num_attention_heads", sizes[2], 10**6)
    k.divides("hidden_size", hidden, "num_attention_heads", heads)
    rows = k.count("max_position_embeddings", positions)
    return Model(
        family=family,
        layers=k.count("num_hidden_layers", 12, 100_000),
        **own_keys(hidden, heads),
        intermediate_size=k.count("intermediate_size", sizes[1]),
        vocab_size=k.count("vocab_size", vocab),
        max_positions=rows,
        position_rows=rows,
        traits=Traits(
            activation=k.word("hidden_act", activation, ACTIVATIONS),
            attention_dropout=k.dropout("attention_dropout", 0.0),
        ),
    )


def pixels_of(t: Tape) -> Tensor:
    """A batch of images in the dtype of the weights that read them."""
    pixels = t.input("pixel_values", (B, CHANNELS, HEIGHT, WIDTH), "fp32", needs_grad=False)
    return cast(t, pixels, t.parameter_dtype, "pixel_values, cast")


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embeddings.projection", pixels_of(t), (B, PATCHES, D), bias=True)
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
        for name, shape in (("weight", (D, D)), ("bias", (D,))):  # whose result nobody reads
            t.parameter(f"pooler.dense.{name}", shape, idle=True)
        return x
    (first,) = split(t, x, [(B, D)], sliced=True)
    return labelled_loss(t, linear(t, "classifier", first, D, VOCAB, bias=True))


FAMILIES = {
    "vit": encoder(_vit, _embed, _layer, _head, image_classes("ViT")),
    "deit": encoder(_deit, _embed, _layer, _head, image_classes("DeiT")),
}
