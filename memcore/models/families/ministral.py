"""Ministral, Ministral 3 and CWM: Mistral's layers, of which some see all tokens."""

from __future__ import annotations

from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes, layer_kinds
from memcore.models.families.llama import embed, head, layer, llama_like, unless_said, windowed
from memcore.models.model import Model
from memcore.tape.kinds import SLIDING


def _ministral(k: Keys, label: str) -> Model:
    model = llama_like(k, label, "ministral", intermediate=14_336, kv_heads=8, positions=131_072)
    slides = k.config.get("sliding_window", 4096) is not None
    kinds = layer_kinds(k, model.layers, lambda i: slides)
    return windowed(model, k.count("sliding_window", 4096), kinds) if slides else model


def _ministral3(k: Keys, label: str) -> Model:
    """Queries are scaled by a number that grows with the position."""
    model = llama_like(
        k,
        label,
        "ministral3",
        intermediate=14_336,
        layers=34,
        kv_heads=8,
        head_dim=unless_said(k, 128),
        vocab=131_072,
        positions=262_144,
        temperature_tuned=True,
    )
    if k.config.get("sliding_window") is None:
        return model
    return windowed(model, k.count("sliding_window", 1), (SLIDING,) * model.layers)


def _cwm(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "cwm",
        hidden=6144,
        intermediate=21_504,
        layers=64,
        heads=48,
        kv_heads=8,
        head_dim=unless_said(k, 128),
        vocab=128_256,
        positions=131_072,
        mlp_bias=k.flag("mlp_bias", False),
    )
    kinds = layer_kinds(k, model.layers, lambda i: i % 4 != 0)
    return windowed(model, k.count("sliding_window", 8192), kinds)


FAMILIES = {
    "ministral": Family(
        _ministral, embed, layer, head, kernels=HF_ONLY, classes=decoder_classes("Ministral")
    ),
    "ministral3": Family(
        _ministral3, embed, layer, head, kernels=HF_ONLY, classes=decoder_classes("Ministral3")
    ),
    "cwm": Family(
        _cwm, embed, layer, head, kernels=HF_ONLY,
        classes=decoder_classes("Cwm", classifier=False),
    ),
}  # fmt: skip
