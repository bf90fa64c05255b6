"""Gemma; Gemma 2 and 3 (text), which have norms before and after each part, and windows; and
VaultGemma, which is Gemma 2 without the norms after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from memcore.layers.ops import (
    attended,
    by_heads,
    causal_lm_head,
    gated_mlp,
    query_key_value,
    rms_norm_plus_one,
    rotary,
    rotary_tables,
    slides,
    token_embedding,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families import llama
from memcore.models.families.decoders import family_of, llama_like, model_of, windowed
from memcore.models.families.family import (
    WITH_LIGER,
    encoder,
    layer_kinds,
)
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM
from memcore.tape.kinds import EVERY, SLIDING_EVERY, Part
from memcore.tape.primitives import add, scale
from memcore.tape.structure import EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, family: str) -> Model:
    if family != BOTH_WAYS:
        k.refuse("use_bidirectional_attention", None, False)
    return model_of(k, family)


def _windowed(k: Keys, model: Model, every: int) -> Model:
    """All layers slide but every `every`-th."""
    if k.config.get("sliding_window", 4096) is None:
        k.fail("sliding_window", "must be a whole number: these models have sliding layers")
        return model
    kinds = layer_kinds(k, model.layers, lambda i: (i + 1) % every != 0)
    return windowed(model, k.count("sliding_window", 4096), kinds)


def _gemma(k: Keys) -> Model:
    k.refuse("use_bidirectional_attention", None, False)
    return llama_like(k, "gemma")


def _capped(k: Keys, family: str) -> Model:
    return _windowed(k, _config(k, family), 2)


def _gemma3(k: Keys, family: str = "gemma3_text") -> Model:
    model = _windowed(k, _config(k, family), k.count("sliding_window_pattern", 6))
    tables = []  # full layers have their positions stretched, sliding ones a base of their own
    if not all(map(slides, model.kinds)):
        tables.append(("full", math.ceil(model.max_positions * k.stretch)))
    if any(map(slides, model.kinds)):
        tables.append(("sliding", model.max_positions))
    return replace(model, rotary_tables=tuple(tables))


# Gemma 3 as an encoder, as EmbeddingGemma is (transformers 5.23, Gemma3TextConfig: half of
# sliding_window on either side); its two dense layers behind are not in its config.json.
BOTH_WAYS = "gemma3_text_both_ways"


def both_ways(config: Mapping[str, Any]) -> bool:
    """Whether a config is of a Gemma 3 in which every token sees every other."""
    key = "use_bidirectional_attention"
    return config.get("model_type") == "gemma3_text" and config.get(key) is True


def _both_ways(k: Keys) -> Model:
    k.config.get("use_bidirectional_attention")
    model = _gemma3(k, BOTH_WAYS)
    kinds = tuple(SLIDING_EVERY if slides(kind) else EVERY for kind in model.kinds)
    return replace(model, kinds=kinds, window=max(1, model.window // 2))


def _embedded(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return rms_norm_plus_one(t, x, "norm")


def embed(t: Tape, s: Structure) -> Tensor:
    return scale(t, token_embedding(t, s), "scaled")


def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, rms_norm_plus_one(t, x, "input_layernorm"), kind)
    x = add(t, x, rms_norm_plus_one(t, h, "post_attention_layernorm"), "residual")
    h = gated_mlp(t, s, rms_norm_plus_one(t, x, "pre_feedforward_layernorm"))
    return add(t, x, rms_norm_plus_one(t, h, "post_feedforward_layernorm"), "residual")


def _layer_of_gemma(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm_plus_one(t, x, "input_layernorm")
    x = add(t, x, llama.attention(t, s, h, kind), "residual")
    second = "post_attention" if s.family == "gemma" else "pre_feedforward"
    h = rms_norm_plus_one(t, x, f"{second}_layernorm")
    return add(t, x, gated_mlp(t, s, h), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, s.traits.attention_bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        tables = rotary_tables(t)
        if s.family != "gemma2":
            q = rms_norm_plus_one(t, q, "q_norm", HEAD_DIM, contiguous=False)
            k = rms_norm_plus_one(t, k, "k_norm", HEAD_DIM, contiguous=False)
            tables = rotary_tables(t, " (sliding)" if slides(kind) else " (full)")
        q, k = rotary(t, q, k, tables, tokens_first=s.family == "gemma2")
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", s.traits.attention_bias)


def head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, rms_norm_plus_one(t, x, "norm"))


FAMILIES = {
    "gemma": family_of("gemma", _gemma, embed, _layer_of_gemma, head),
    # SDPA has no soft caps, so transformers does not offer it for Gemma 2.
    "gemma2": family_of("gemma2", partial(_capped, family="gemma2"), embed, layer, head),
    "vaultgemma": family_of(
        "vaultgemma", partial(_capped, family="vaultgemma"), embed, _layer_of_gemma, head
    ),
    "gemma3_text": family_of("gemma3_text", _gemma3, embed, layer, head),
}
ENCODER = encoder(
    _both_ways, embed, layer, _embedded, {"Gemma3TextModel": EMBEDDING}, kernels=WITH_LIGER
)
