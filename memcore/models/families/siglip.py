"""SigLIP's towers. Of images: patches alone, no class token, layers as CLIP's; what attends to all
patches behind them, where there is such, makes one result of all that training of the tower alone
does not read. Of texts: CLIP's, whose tokens see every other. SigLIP 2 has the same in files that
call themselves siglip."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import unread
from memcore.models.config import Keys
from memcore.models.families import clip, vit
from memcore.models.families.decoders import model_of
from memcore.models.families.family import Family, encoder
from memcore.models.model import Model
from memcore.tape.dims import ONE, PATCHES, POSITIONS, PROJECTED, QKV, B, D, F
from memcore.tape.primitives import add, embedding, layer_norm, patches
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _vision(k: Keys) -> Model:
    """The tower by itself."""
    model = model_of(k, "siglip_vision_model")
    pooled = k.flag("vision_use_head", True)
    return replace(model, traits=replace(model.traits, pooled=pooled))


def _text(k: Keys) -> Model:
    return model_of(k, "siglip_text_model")


def _config(k: Keys) -> Model:
    if k.flag("vision_use_head", True):  # what it computes nobody reads
        k.fail("vision_use_head", "a head behind the tower is not known here; set it to false")
    return replace(model_of(k, "siglip_vision_model"), stack="vision")


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=True)
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


def _vision_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "post_layernorm")
    if s.traits.pooled:
        t.parameter("head.probe", (ONE, 1, D), idle=True)
        t.parameter("head.attention.in_proj_weight", (QKV, D), idle=True)
        t.parameter("head.attention.in_proj_bias", (QKV,), idle=True)
        unread(t, "head.layernorm", D)
        unread(t, "head.attention.out_proj", D, D)
        unread(t, "head.mlp.fc1", F, D)
        unread(t, "head.mlp.fc2", D, F)
    return x


def _text_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    unread(t, "head", PROJECTED, D)
    return layer_norm(t, x, D, "final_layer_norm")


FAMILIES = {
    "siglip_vision_model": encoder(
        _vision, _embed, clip.layer, _vision_head, {"SiglipVisionModel": EMBEDDING}
    ),
    "siglip_text_model": encoder(
        _text, clip.embed_text, clip.layer, _text_head, {"SiglipTextModel": EMBEDDING}
    ),
}
TOWER = Family(_config, _embed, clip.layer, clip.no_head)
