"""ERNIE 4.5 (dense): Llama's layers, of whose heads neighbours turn together, in fp32."""

from __future__ import annotations

from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import embed, head, layer, llama_like, unless_said
from memcore.models.model import Model


def _config(k: Keys, label: str) -> Model:
    bias = k.flag("use_bias", False)
    return llama_like(
        k,
        label,
        "ernie4_5",
        hidden=1024,
        intermediate=3072,
        layers=18,
        heads=16,
        kv_heads=2,
        head_dim=unless_said(k, 128),
        vocab=103_424,
        positions=131_072,
        tied=True,
        attention_bias=bias,
        mlp_bias=bias,
        rotary_interleaved=True,
        rotary_fp32=True,
        rotary_widened=True,
    )


FAMILY = Family(
    _config, embed, layer, head, kernels=HF_ONLY,
    classes=decoder_classes("Ernie4_5", classifier=False),
)  # fmt: skip
