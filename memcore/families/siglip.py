"""SigLIP's vision tower: patches alone, no class token, layers as CLIP's."""

from __future__ import annotations

from memcore.dims import ONE, PATCHES, POSITIONS, B, D
from memcore.families import clip, vit
from memcore.families.family import HF_ONLY, Family
from memcore.model import ACTIVATIONS, EVERY, Keys, Model, Traits
from memcore.primitives import add, embedding, patches
from memcore.structure import Structure
from memcore.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    hidden = k.count("hidden_size", 768)
    heads = k.count("num_attention_heads", 12, 10**6)
    k.divides("hidden_size", hidden, "num_attention_heads", heads)
    layers = k.count("num_hidden_layers", 12, 100_000)
    image = vit.image_of(k, 224, 16, extra=0)
    if k.flag("vision_use_head", True):  # what it computes nobody reads
        k.fail("vision_use_head", "a head behind the tower is not known here; set it to false")
    return Model(
        family="siglip_vision_model",
        label=label,
        layers=layers,
        hidden_size=hidden,
        intermediate_size=k.count("intermediate_size", 3072),
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        vocab_size=1,
        max_positions=image.tokens,
        position_rows=image.tokens,
        image=image,
        kinds=(EVERY,) * layers,
        stack="vision",
        traits=Traits(
            activation=k.word("hidden_act", "gelu_pytorch_tanh", ACTIVATIONS),
            attention_dropout=k.dropout("attention_dropout", 0.0),
        ),
    )


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=True)
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


TOWER = Family(_config, _embed, clip.layer, clip.no_head, kernels=HF_ONLY)
