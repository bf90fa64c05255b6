"""Families: the architectures, one file each: what their config.json says and how they run.

To add one: a file with a FAMILY, and its line here. The sources are the modelling files of
transformers 5.23.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    wrappers,
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


# Other names of a family: the same code, and the same keys (vLLM's registry maps them so).
SAME_AS = {"kimi_k2": "deepseek_v3"}


def from_config(config: Mapping[str, Any], label: str = "") -> Model:
    """The Model that a parsed config.json describes. Raises PlanError naming each bad key."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        message = f"must be a word, not {shown(kind)}" if kind is not None else "missing"
        message += "; a Hugging Face config.json has one"
        raise PlanError([Issue("model.model_type", message)])
    label = label or f"Your {kind} model"
    family = FAMILIES.get(SAME_AS.get(kind, kind))
    if family is None:
        if wrappers.is_wrapper(config):
            return _wrapped(config, label)
        message = (
            f"architecture {shown(kind)} is not known yet, and is not approximated; "
            f"known: {', '.join(sorted(FAMILIES))}"
        )
        raise PlanError([Issue("model.model_type", message)])
    keys = Keys({**config, "model_type": SAME_AS.get(kind, kind)}, family.aliases)
    model = family.config(keys, label)
    if keys.issues:
        raise PlanError(keys.issues)
    return replace(model, notes=(*model.notes, *keys.notes))


def _wrapped(config: Mapping[str, Any], label: str) -> Model:
    """The language model inside a wrapper, with a note about what is left out."""
    kind, inner = config["model_type"], wrappers.opened(config)
    inside = inner.get("model_type")
    word = SAME_AS.get(inside, inside) if isinstance(inside, str) else None
    if word not in FAMILIES or not FAMILIES[word].decoder or FAMILIES[word].bridge:
        message = (
            f"architecture {shown(kind)} is not known yet, nor, as the language model inside it, "
            f"{shown(inside)}; neither is approximated. Known: {', '.join(sorted(FAMILIES))}"
        )
        raise PlanError([Issue("model.text_config.model_type", message)])
    try:
        model = from_config(inner, label)
    except PlanError as e:
        raise PlanError(
            Issue(f"model.text_config.{i.field.removeprefix('model.')}", i.message)
            for i in e.issues
        ) from None
    return replace(model, notes=(*model.notes, wrappers.left_out(config, model.hidden_size)))
