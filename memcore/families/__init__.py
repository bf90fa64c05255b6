"""Families: the architectures, one file each: what their config.json says and how they run.

To add one: a file with a FAMILY, and its line here. The sources are the modelling files of
transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.families import (
    bert,
    bloom,
    clip,
    deepseek,
    falcon,
    gemma,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    llama4,
    llava,
    mamba2,
    mixtral,
    nemotron_h,
    olmo2,
    olmoe,
    opt,
    phi3,
    qwen3_next,
    qwen_moe,
    seed_oss,
    siglip,
    starcoder2,
    t5,
    vit,
)
from memcore.families.family import Family
from memcore.model import Keys, Model

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **bert.FAMILIES,
    **gemma.FAMILIES,
    **mixtral.FAMILIES,
    **mamba2.FAMILIES,
    **deepseek.FAMILIES,
    **qwen_moe.FAMILIES,
    **qwen3_next.FAMILIES,
    "bloom": bloom.FAMILY,
    "falcon": falcon.FAMILY,
    "gemma3": gemma3.FAMILY,
    "gpt2": gpt2.FAMILY,
    "gpt_neox": gpt_neox.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
    "llama4_text": llama4.FAMILY,
    "olmo2": olmo2.FAMILY,
    "olmoe": olmoe.FAMILY,
    "llava": llava.FAMILY,
    "nemotron_h": nemotron_h.FAMILY,
    "opt": opt.FAMILY,
    "phi3": phi3.FAMILY,
    "seed_oss": seed_oss.FAMILY,
    "starcoder2": starcoder2.FAMILY,
    "t5": t5.FAMILY,
    "mt5": t5.FAMILY,
    "vit": vit.FAMILY,
}


# What runs before another model's layers, by its own model_type; none of them is trained alone.
TOWERS: dict[str, Family] = {
    "clip_vision_model": clip.TOWER,
    "siglip_vision_model": siglip.TOWER,
    "t5_encoder": t5.TOWER,
}


def from_config(config: Mapping[str, Any], label: str = "") -> Model:
    """The Model that a parsed config.json describes. Raises PlanError naming each bad key."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise PlanError([Issue("model.model_type", "missing; a Hugging Face config.json has one")])
    if kind not in FAMILIES:
        message = (
            f"architecture {shown(kind)} is not known yet, and is not approximated; "
            f"known: {', '.join(sorted(FAMILIES))}"
        )
        inner = config.get("text_config")
        if isinstance(inner, Mapping) and inner.get("model_type") in FAMILIES:
            message = (
                f"architecture {shown(kind)} is not known yet, but its text_config is, as "
                f"{inner['model_type']}: that alone, as a config.json, is its text model"
            )
        raise PlanError([Issue("model.model_type", message)])
    keys = Keys(config, FAMILIES[kind].aliases)
    model = FAMILIES[kind].config(keys, label or f"Your {kind} model")
    if keys.issues:
        raise PlanError(keys.issues)
    return model
