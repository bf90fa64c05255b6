"""Helium: Llama's layers, of whose heads neighbours turn together, and norms weighted in fp32."""

from __future__ import annotations

from functools import partial

from memcore.layers.ops import gated_mlp, head_behind, rms_norm_fp32_weight
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, embed, llama_like
from memcore.models.model import Model
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

_norm = partial(rms_norm_fp32_weight, widened=True)


def _config(k: Keys, label: str) -> Model:
    return llama_like(
        k,
        label,
        "helium",
        hidden=2560,
        intermediate=7040,
        layers=24,
        heads=20,
        kv_heads=20,
        head_dim=128,
        vocab=48_000,
        positions=4096,
        attention_bias=k.flag("attention_bias", False),
        out_bias=False,
        mlp_bias=k.flag("mlp_bias", False),
        rotary_interleaved=True,
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, attention(t, s, _norm(t, x, "input_layernorm"), kind), "residual")
    return add(t, x, gated_mlp(t, s, _norm(t, x, "post_attention_layernorm")), "residual")


_head = head_behind(_norm)
FAMILY = Family(_config, embed, _layer, _head, kernels=HF_ONLY, classes=decoder_classes("Helium"))
