"""Gemma 3 with vision: SigLIP's tower, patches pooled to fewer tokens, and Gemma 3's decoder.

Gemma3ForConditionalGeneration. As its processor does, each sequence says which of its tokens are of
an image: they see each other, so that every layer's mask is a tensor of its own for each sequence.
"""

from __future__ import annotations

import math
from dataclasses import replace

from memcore.layers.ops import HIDDEN, rms_norm_plus_one
from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families import gemma
from memcore.models.families.decoders import family_of
from memcore.models.families.family import Family
from memcore.models.families.llava import VISION, part, text_embedding
from memcore.models.model import Model
from memcore.tape.dims import MERGED, PATCHES, B, D, of_stack
from memcore.tape.primitives import (
    cast,
    contiguous,
    layer_norm,
    plain_product,
    pooled,
    scale,
    scattered_into,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

TEXT, TOWER = "gemma3_text", "siglip_vision_model"
AROUND = 4  # processing_gemma3: an empty line, the start of an image, its end, an empty line


def _config(k: Keys) -> Model:
    text = part(k, "text_config", TEXT, {TEXT: gemma.FAMILIES[TEXT]}, {})
    vision = part(k, "vision_config", TOWER, {TOWER: families.TOWERS[TOWER]}, {})
    tied = k.flag("tie_word_embeddings", True)
    index = k.config.get("image_token_index", 262_144)
    if type(index) is not int or not 0 <= index < text.vocab_size:
        k.fail("image_token_index", f"must be one of the {text.vocab_size:,} tokens of the text")
    traits = replace(text.traits, tied_embeddings=tied, masked_images=True)
    image = vision.image
    assert image
    read = _read(k, image.height // image.patch_height, image.width // image.patch_width)
    tower = replace(vision, image=replace(image, merged=read, around=AROUND))
    return replace(text, family="gemma3", traits=traits, tower=tower)


def _read(k: Keys, rows: int, columns: int) -> int:
    """Tokens of one image that the decoder reads: averages of square windows of patches."""
    side = math.isqrt(k.count("mm_tokens_per_image", 256, 10**6))
    if rows != columns:
        k.fail(
            "vision_config.image_size",
            "images must be as high as wide, counted in patches of patch_size",
        )
    if side > rows:
        most = rows * rows
        k.fail("mm_tokens_per_image", f"must be at most the {most:,} patches of an image")
        side = rows
    return max(1, rows // max(1, rows // max(1, side))) ** 2


def _before(t: Tape, s: Structure) -> Tensor:
    return scale(t, text_embedding(t, s), "scaled")


def _bridge(t: Tape, s: Structure, x: Tensor) -> Tensor:
    images, wide, tokens, read = (of_stack(VISION, f) for f in (B, D, PATCHES, MERGED))
    x = given = layer_norm(t, x, wide, "post_layernorm")
    with t.scope("multi_modal_projector"):
        w = t.parameter("mm_input_projection_weight", (wide, D))
        x = contiguous(t, x, (images, tokens, wide), "patches in rows and columns")
        h = pooled(t, x, (images, read, wide), "avg_pool")
        h = rms_norm_plus_one(t, h, "mm_soft_emb_norm", wide)
        h = contiguous(t, h, h.shape, "tokens first")  # of one image a view
        h = plain_product(t, h, w, wide, D)
        h = cast(t, h, given.dtype, "features, cast")
    return scattered_into(t, t.carry("text embeddings", HIDDEN, t.parameter_dtype), h)


FAMILY: Family = family_of(
    "gemma3",
    _config,
    gemma.embed,
    gemma.layer,
    gemma.head,
    losses=("eager",),
    before=_before,
    bridge=_bridge,
)
