"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: their towers (qwen_tower) and their language models,
which can stand alone: Qwen's own, but each sequence has its rotary angles, since tokens of an image
turn by its rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families import qwen_tower, wrappers
from memcore.models.families.decoders import llama_like
from memcore.models.families.family import HF_ONLY, Family
from memcore.models.families.llama import FAMILIES as DENSE
from memcore.models.families.llava import text_embedding
from memcore.models.families.qwen3_next import FAMILIES as HYBRIDS
from memcore.models.families.qwen_moe import FAMILIES as MIXTURES
from memcore.models.model import Model
from memcore.tape.kinds import FULL, deep, is_deep
from memcore.tape.structure import CAUSAL, EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _text(name: str, family: Family, stem: str, config: Callable[[Keys], Model]) -> Family:
    def own(k: Keys) -> Model:
        model = config(k)
        if "vision_config" in k.config:
            whole = {**k.config, "model_type": name.removesuffix("_text")}
            beside = wrappers.beside(whole, model.hidden_size)
            k.notes.append(wrappers.note(whole, beside, families.weights_of(model)))
            model = replace(model, left_out=beside or 0)
        return replace(model, family=name, traits=replace(model.traits, rotary_own=True))

    classes = {f"{stem}ForConditionalGeneration": CAUSAL, f"{stem}TextModel": EMBEDDING}
    return replace(family, config=own, classes=classes)


QWEN2 = partial(llama_like, family="qwen2_vl_text")
TEXTS = {
    name: _text(name, family, stem, config)
    for name, family, stem, config in (
        ("qwen2_vl_text", DENSE["qwen2"], "Qwen2VL", QWEN2),
        ("qwen2_5_vl_text", DENSE["qwen2"], "Qwen2_5_VL", QWEN2),
        ("qwen3_vl_text", DENSE["qwen3"], "Qwen3VL", DENSE["qwen3"].config),
        (
            "qwen3_vl_moe_text",
            MIXTURES["qwen3_moe"],
            "Qwen3VLMoe",
            partial(llama_like, family="qwen3_vl_moe_text"),
        ),
    )
}


def _whole(
    name: str, stem: str, tower: str, usual: Mapping[str, Any], text: Family, untrained: str = ""
) -> Family:
    """The tower and the text of one of them. usual: of a tower whose config does not say."""

    def config(k: Keys) -> Model:
        inner = wrappers.opened(k.config)
        keys = Keys(inner, text.aliases)
        model = text.config(keys)
        if "text_config" in k.config:
            k.absorb("text_config", keys)
        else:
            k.take(keys)
        own = k.within("vision_config", qwen_tower.ALIASES)
        seen = qwen_tower.of_config(own, tower, model.hidden_size, **usual)
        k.absorb("vision_config", own)
        k.notes.append(SIZED)
        kinds, read = model.kinds or (FULL,) * model.layers, seen.traits.deepstack
        if read > model.layers:
            k.fail(
                "vision_config.deepstack_visual_indexes",
                f"names {read:,} layers, more than the {model.layers:,} of the text that add them",
            )
        if read:
            model = replace(model, kinds=(*map(deep, kinds[:read]), *kinds[read:]))
        return replace(model, family=name, tower=seen)

    def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
        out = text.layer(t, s, x, kind)
        assert isinstance(out, Tensor)
        return qwen_tower.deepened(t, s, out) if is_deep(kind) and not s.served else out

    return replace(
        text,
        config=config,
        layer=layer,
        kernels=HF_ONLY,
        losses=("eager",),
        alone=True,
        untrained=untrained,
        before=text_embedding,
        bridge=qwen_tower.bridge,
        classes={f"{stem}ForConditionalGeneration": CAUSAL},
    )


SIZED = (
    f"Images are taken to be squares, {qwen_tower.SIDE} pixels a side unless the plan says another "
    "size."
)
# What a server loads of a Qwen3.5 or 3.6, whose config.json is planned as its language model: a
# word of this project, which its presets with images and `with_images` give as the model_type.
WITH_IMAGES = "_with_images"
OF_QWEN3_5 = {"width": 1152, "depth": 27, "patch": 16, "deepstack": ()}
UNTRAINED = "what it keeps for backward has not been held against PyTorch yet"


def with_images(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with its tower of images, where servers load one that other plans leave out."""
    named = f"{config.get('model_type')}{WITH_IMAGES}"
    sees = isinstance(config.get("vision_config"), Mapping)
    return {**config, "model_type": named} if sees and named in FAMILIES else config


FAMILIES = TEXTS | {
    name: _whole(name, stem, tower, usual, TEXTS[f"{name}_text"])
    for name, stem, tower, usual in (
        ("qwen2_vl", "Qwen2VL", qwen_tower.QWEN2, {"width": 1280, "depth": 32, "patch": 14}),
        ("qwen2_5_vl", "Qwen2_5_VL", qwen_tower.QWEN2_5, {"width": 3584, "depth": 32, "patch": 14}),
        ("qwen3_vl", "Qwen3VL", qwen_tower.QWEN3, {"width": 1152, "depth": 27, "patch": 16}),
        ("qwen3_vl_moe", "Qwen3VLMoe", qwen_tower.QWEN3, {"width": 1152, "depth": 27, "patch": 16}),
    )
} | {
    f"{name}{WITH_IMAGES}": _whole(
        f"{name}{WITH_IMAGES}", stem, qwen_tower.QWEN3, OF_QWEN3_5, HYBRIDS[f"{name}_text"],
        UNTRAINED,
    )
    for name, stem in (("qwen3_5", "Qwen3_5"), ("qwen3_5_moe", "Qwen3_5Moe"))
}  # fmt: skip
