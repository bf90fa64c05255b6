"""LLaVA: a vision tower, two linear layers, and a decoder that reads images as tokens.

LlavaForConditionalGeneration. The features are those of the last layer of the tower but one (as
published), without the class token; the layer behind it runs and is read by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memcore.errors import shown
from memcore.layers.ops import HIDDEN, activation, token_embedding, unread
from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families import llama
from memcore.models.families.decoders import family_of
from memcore.models.families.family import Family
from memcore.models.model import Model
from memcore.tape.dims import MAIN, PATCHES, VOCAB, B, D, S, of_stack
from memcore.tape.primitives import contiguous, embedding, linear, scattered_into, split, wanted
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

TEXT = ("llama", "mistral")  # decoders that its layers can be
VISION = "vision"


def part(k: Keys, key: str, kind: str, known: dict[str, Family], defaults: dict[str, int]) -> Model:
    """The model that one of the configs inside this one describes."""
    given = k.config.get(key)
    given = defaults if given is None else given
    if not isinstance(given, dict):
        k.fail(key, "must be a config.json of its own, in braces")
        given = {}
    word = given.get("model_type", kind)
    if not isinstance(word, str) or word not in known:
        listed = ", ".join(known)
        k.fail(f"{key}.model_type", f"{shown(word)} is not known here; known: {listed}")
        word = kind
    keys = Keys({**given, "model_type": word}, known[word].aliases)
    model = known[word].config(keys)
    k.absorb(key, keys)
    return model


def plans(config: Mapping[str, Any]) -> bool:
    """Whether a LLaVA has a tower and a text that it is planned with."""
    for key, known in (("text_config", TEXT), ("vision_config", ("clip_vision_model",))):
        inside = config.get(key)
        kind = inside.get("model_type") if isinstance(inside, Mapping) else None
        if isinstance(kind, str) and kind not in known:
            return False
    return True


def _config(k: Keys) -> Model:
    known = {name: llama.FAMILIES[name] for name in TEXT}
    text = part(k, "text_config", "llama", known, {})
    vision = part(k, "vision_config", "clip_vision_model", families.TOWERS, CLIP_LARGE)
    k.refuse("vision_feature_select_strategy", "default")
    read = k.config.get("vision_feature_layer", -2)
    if type(read) is not int or not -vision.layers <= read <= -1:
        k.fail("vision_feature_layer", "must be one layer, counted from the last: -2")
        read = -1
    traits = replace(
        text.traits,
        tied_embeddings=text.traits.tied_embeddings or k.flag("tie_word_embeddings", False),
        projector_bias=k.flag("multimodal_projector_bias", True),
    )
    k.refuse("projector_hidden_act", "gelu")
    tower = replace(vision, idle=-1 - read)
    return replace(text, family="llava", traits=traits, tower=tower)


CLIP_LARGE = {
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}


def text_embedding(t: Tape, s: Structure) -> Tensor:
    """The text's embedding, which the model looks up first."""
    b, length, rows, width = (of_stack(MAIN, x) for x in (B, S, VOCAB, D))
    ids = t.input("input_ids", (b, length), "int64", needs_grad=False)
    return wanted(t, embedding(t, "embed_tokens", ids, rows, width, s.traits.tied_embeddings))


def _bridge(t: Tape, s: Structure, x: Tensor) -> Tensor:
    images, wide, tokens = (of_stack(VISION, f) for f in (B, D, PATCHES))
    unread(t, "post_layernorm", wide)
    with t.scope("multi_modal_projector"):
        (x,) = split(t, x, [(images, tokens, wide)], sliced=True)
        x = contiguous(t, x, x.shape, "without the class token")
        bias = s.traits.projector_bias
        h = linear(t, "linear_1", x, wide, D, bias)
        h = linear(t, "linear_2", activation(t, h, "gelu"), D, D, bias)
    h = contiguous(t, h, h.shape, "features in one row")
    return scattered_into(t, t.carry("text embeddings", HIDDEN, t.parameter_dtype), h)


FAMILY: Family = family_of(
    "llava",
    _config,
    token_embedding,
    llama.layer,
    llama.head,
    losses=("eager",),
    before=text_embedding,
    bridge=_bridge,
)
