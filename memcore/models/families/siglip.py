"""SigLIP's vision tower: patches alone, no class token, layers as CLIP's."""

from __future__ import annotations

from memcore.models.config import Keys
from memcore.models.families import clip, vit
from memcore.models.families.family import HF_ONLY, Family
from memcore.models.model import Model
from memcore.tape.dims import ONE, PATCHES, POSITIONS, B, D
from memcore.tape.primitives import add, embedding, patches
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    if k.flag("vision_use_head", True):  # what it computes nobody reads
        k.fail("vision_use_head", "a head behind the tower is not known here; set it to false")
    return vit.tower(k, label, "siglip_vision_model", "gelu_pytorch_tanh", patch=16, extra=0)


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=True)
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


TOWER = Family(_config, _embed, clip.layer, clip.no_head, kernels=HF_ONLY)
