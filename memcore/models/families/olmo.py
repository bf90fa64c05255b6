"""OLMo: Llama's layers with layer norms that have no weights, in fp32."""

from __future__ import annotations

from memcore.layers.ops import gated_mlp, head_behind
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import embed, llama_like
from memcore.models.families.olmoe import attention
from memcore.models.model import Model
from memcore.tape.dims import D
from memcore.tape.primitives import add, cast, layer_norm
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    return llama_like(
        k,
        label,
        "olmo",
        vocab=50_304,
        attention_bias=k.flag("attention_bias", False),
        rotary_fp32=True,
        attention_clipped=k.config.get("clip_qkv") is not None,
    )


def _norm(t: Tape, x: Tensor, name: str) -> Tensor:
    wide = cast(t, x, "fp32", f"{name}, x (fp32)")
    return cast(t, layer_norm(t, wide, D, name, affine=False), x.dtype, f"{name}, cast")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, attention(t, s, _norm(t, x, "input_layernorm"), kind), "residual")
    return add(t, x, gated_mlp(t, s, _norm(t, x, "post_attention_layernorm")), "residual")


_head = head_behind(_norm)
FAMILY = Family(_config, embed, _layer, _head, kernels=HF_ONLY, classes=decoder_classes("Olmo"))
