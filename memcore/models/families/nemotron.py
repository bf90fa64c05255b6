"""Nemotron (Minitron, Nemotron-4): layer norms by 1 + weight, an MLP of two products with relu
squared between them, and half of each head rotated."""

from __future__ import annotations

from memcore.layers.ops import head_behind
from memcore.models.config import Keys
from memcore.models.families.arcee import up_down_mlp
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, embed, llama_like
from memcore.models.model import Model
from memcore.tape.dims import D
from memcore.tape.primitives import add, cast, layer_normed, shift
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    return llama_like(
        k,
        label,
        "nemotron",
        hidden=6144,
        intermediate=24_576,
        heads=48,
        vocab=256_000,
        positions=4096,
        activation="relu2",
        attention_bias=k.flag("attention_bias", False),
        mlp_bias=k.flag("mlp_bias", False),
        rotary_partial=True,
        rotated=0.5,
    )


def _norm(t: Tape, x: Tensor, name: str) -> Tensor:
    """NemotronLayerNorm1P: under autocast all that it reads is cast to bf16."""
    with t.scope(name):
        parts = [x, shift(t, t.parameter("weight", (D,)), "1 + weight"), t.parameter("bias", (D,))]
        if t.autocast:
            parts = [cast(t, p, "bf16", f"{n} (bf16)") for p, n in zip(parts, "xwb", strict=True)]
        x, *both = parts
        return layer_normed(t, x, both, fp32=False)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, attention(t, s, _norm(t, x, "input_layernorm"), kind), "residual")
    return add(t, x, up_down_mlp(t, s, _norm(t, x, "post_attention_layernorm")), "residual")


_head = head_behind(_norm)
FAMILY = Family(_config, embed, _layer, _head, kernels=HF_ONLY, classes=decoder_classes("Nemotron"))
