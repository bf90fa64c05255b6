"""Seed-OSS: Llama's layers with biases on queries, keys, values, and dropout behind each part."""

from __future__ import annotations

from memcore.layers.ops import dropped, gated_mlp, rms_norm
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, embed, head, llama_like
from memcore.models.model import Model
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    return llama_like(
        k,
        label,
        "seed_oss",
        intermediate=27_648,
        layers=64,
        heads=80,
        kv_heads=8,
        head_dim=128,
        vocab=155_136,
        positions=524_288,
        dropout=0.1,
        attention_bias=k.flag("attention_bias", True),
        out_bias=k.flag("attention_out_bias", False),
        mlp_bias=k.flag("mlp_bias", False),
        residual_dropout=k.dropout("residual_dropout", 0.1),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
    x = add(t, x, dropped(t, s, h, "attention dropout"), "residual")
    h = gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"))
    return add(t, x, dropped(t, s, h, "MLP dropout"), "residual")


FAMILY = Family(_config, embed, _layer, head, kernels=HF_ONLY, classes=decoder_classes("SeedOss"))
