"""The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen's own, but each sequence has its
rotary angles, since tokens of an image turn by its rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.models.config import Keys
from memcore.models.families.family import Family
from memcore.models.families.llama import FAMILIES as DENSE
from memcore.models.families.llama import llama_like, qwen_windows
from memcore.models.families.mixtral import routing, sparse_kinds, with_experts
from memcore.models.families.qwen_moe import FAMILIES as MIXTURES
from memcore.models.families.qwen_moe import sparse
from memcore.models.model import Model
from memcore.tape.structure import CAUSAL, EMBEDDING


def _qwen2(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "qwen2_vl_text",
        hidden=8192,
        intermediate=29_568,
        layers=80,
        heads=64,
        kv_heads=8,
        vocab=152_064,
        positions=32_768,
        attention_bias=True,
        out_bias=False,
    )
    return qwen_windows(k, model, 80)


def _mixture(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "qwen3_vl_moe_text",
        hidden=2048,
        intermediate=5632,
        layers=24,
        heads=16,
        kv_heads=16,
        vocab=151_936,
        positions=128_000,
        tied=True,
        attention_bias=k.flag("attention_bias", False),
        query_norm=True,
        router_normalised=True,
    )
    routed = routing(k, "num_local_experts", 60, 4)
    model = with_experts(model, routed, k.count("moe_intermediate_size", 1408))
    return sparse_kinds(model, sparse(k))


def _text(name: str, family: Family, stem: str, config: Callable[[Keys, str], Model]) -> Family:
    def own(k: Keys, label: str) -> Model:
        model = config(k, label)
        return replace(model, family=name, traits=replace(model.traits, rotary_own=True))

    classes = {f"{stem}ForConditionalGeneration": CAUSAL, f"{stem}TextModel": EMBEDDING}
    return replace(family, config=own, classes=classes)


FAMILIES = {
    name: _text(name, family, stem, config)
    for name, family, stem, config in (
        ("qwen2_vl_text", DENSE["qwen2"], "Qwen2VL", _qwen2),
        ("qwen2_5_vl_text", DENSE["qwen2"], "Qwen2_5_VL", _qwen2),
        ("qwen3_vl_text", DENSE["qwen3"], "Qwen3VL", DENSE["qwen3"].config),
        ("qwen3_vl_moe_text", MIXTURES["qwen3_moe"], "Qwen3VLMoe", _mixture),
    )
}
