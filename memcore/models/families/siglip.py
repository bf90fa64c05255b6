"""SigLIP's towers. Of images: patches alone, no class token, layers as CLIP's; what attends to all
patches behind them, where there is such, makes one result of all that training of the tower alone
does not read. Of texts: CLIP's, whose tokens see every other. SigLIP 2 has the same in files that
call themselves siglip."""

from __future__ import annotations

from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families import clip, vit
from memcore.models.families.family import Family, encoder
from memcore.models.model import Model
from memcore.tape.dims import ONE, PATCHES, POSITIONS, PROJECTED, QKV, B, D, F, Shape
from memcore.tape.kinds import EVERY
from memcore.tape.primitives import add, embedding, layer_norm, patches
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _vision(k: Keys) -> Model:
    """The tower by itself."""
    model = vit.tower(k, "siglip_vision_model", "gelu_pytorch_tanh", patch=16, extra=0)
    pooled = k.flag("vision_use_head", True)
    return replace(model, stack="", traits=replace(model.traits, pooled=pooled))


def _text(k: Keys) -> Model:
    model = vit.text_of(k, "siglip_text_model", "gelu_pytorch_tanh", 32_000, (768, 3072, 12), 64)
    width = k.count_or("projection_size", model.hidden_size)
    return replace(model, projection=width, kinds=(EVERY,) * model.layers)


def _config(k: Keys) -> Model:
    if k.flag("vision_use_head", True):  # what it computes nobody reads
        k.fail("vision_use_head", "a head behind the tower is not known here; set it to false")
    return vit.tower(k, "siglip_vision_model", "gelu_pytorch_tanh", patch=16, extra=0)


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=True)
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


def _vision_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "post_layernorm")
    if s.traits.pooled:
        _idle(t, "head.probe", (ONE, 1, D))
        _idle(t, "head.attention.in_proj_weight", (QKV, D))
        _idle(t, "head.attention.in_proj_bias", (QKV,))
        _idle(t, "head.layernorm.weight", (D,))
        _idle(t, "head.layernorm.bias", (D,))
        for name, rows, width in (
            ("attention.out_proj", D, D),
            ("mlp.fc1", F, D),
            ("mlp.fc2", D, F),
        ):
            _idle(t, f"head.{name}.weight", (rows, width))
            _idle(t, f"head.{name}.bias", (rows,))
    return x


def _text_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    _idle(t, "head.weight", (PROJECTED, D))
    _idle(t, "head.bias", (PROJECTED,))
    return layer_norm(t, x, D, "final_layer_norm")


def _idle(t: Tape, name: str, shape: Shape) -> None:
    """A weight of what makes one result of all tokens, which nobody reads."""
    t.parameter(name, shape, idle=True)


FAMILIES = {
    "siglip_vision_model": encoder(
        _vision, _embed, clip.layer, _vision_head, {"SiglipVisionModel": EMBEDDING}
    ),
    "siglip_text_model": encoder(
        _text, clip.embed_text, clip.layer, _text_head, {"SiglipTextModel": EMBEDDING}
    ),
}
TOWER = Family(_config, _embed, clip.layer, clip.no_head)
