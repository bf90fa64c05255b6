"""The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen's own, but each sequence has its
rotary angles, since tokens of an image turn by its rows and columns."""

from __future__ import annotations

from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families.family import Family
from memcore.models.families.llama import FAMILIES as DENSE
from memcore.models.families.qwen_moe import FAMILIES as MIXTURES
from memcore.models.model import Model
from memcore.tape.structure import CAUSAL, EMBEDDING


def _text(name: str, family: Family, stem: str) -> Family:
    def config(k: Keys, label: str) -> Model:
        model = family.config(k, label)
        # The weights of a token's experts always sum to 1 here, whatever norm_topk_prob says.
        traits = replace(model.traits, rotary_own=True, router_normalised=bool(model.experts))
        return replace(model, family=name, traits=traits)

    classes = {f"{stem}ForConditionalGeneration": CAUSAL, f"{stem}TextModel": EMBEDDING}
    return replace(family, config=config, classes=classes)


FAMILIES = {
    name: _text(name, family, stem)
    for name, family, stem in (
        ("qwen2_vl_text", DENSE["qwen2"], "Qwen2VL"),
        ("qwen2_5_vl_text", DENSE["qwen2"], "Qwen2_5_VL"),
        ("qwen3_vl_text", DENSE["qwen3"], "Qwen3VL"),
        ("qwen3_vl_moe_text", MIXTURES["qwen3_moe"], "Qwen3VLMoe"),
    )
}
