"""CLIP's towers. Of images: a class token and patches, a norm before the first layer. Of text: as
the encoder of Stable Diffusion and FLUX (CLIPTextModel), every token sees those before it."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import HIDDEN, KEYS, QUERIES, TOKENS, attention_core, plain_mlp, value_heads
from memcore.models.config import Keys
from memcore.models.families import vit
from memcore.models.families.family import HF_ONLY, MASK, Family, encoder
from memcore.models.model import Model
from memcore.tape.dims import CP, ONE, PATCHES, POSITIONS, TP, VOCAB, B, D, Q, S
from memcore.tape.kinds import FULL, Part
from memcore.tape.primitives import (
    add,
    contiguous,
    embedding,
    heads_first,
    layer_norm,
    linear,
    patches,
)
from memcore.tape.structure import EMBEDDING, Structure
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


def _vision(k: Keys, label: str) -> Model:
    """The tower by itself."""
    return replace(_config(k, label), stack="")


def _text(k: Keys, label: str) -> Model:
    model = vit.text_of(k, label, "clip_text_model", "quick_gelu", 49_408, (512, 2048, 8), 77)
    return replace(model, kinds=(FULL,) * model.layers)


def embed_text(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "token_embedding", ids, VOCAB / TP, D, tied=False)
    places = t.shared("position_ids", (1, S / CP), "int64")  # from a buffer
    placed = embedding(t, "position_embedding", places, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


def _text_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return layer_norm(t, x, D, "final_layer_norm")


def _vision_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    for name in ("weight", "bias"):  # of a norm of the class token, which nobody reads
        t.parameter(f"post_layernorm.{name}", (D,), idle=True)
    return x


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
FAMILIES = {
    "clip_vision_model": encoder(
        _vision, _embed, layer, _vision_head, {"CLIPVisionModel": EMBEDDING}
    ),
    "clip_text_model": replace(
        encoder(_text, embed_text, layer, _text_head, {"CLIPTextModel": EMBEDDING}), arguments=MASK
    ),
}
