"""Arcee (AFM): Llama's layers with an MLP of two products, relu squared between them."""

from __future__ import annotations

from memcore.layers.ops import plain_mlp, rms_norm
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
        "arcee",
        hidden=2560,
        intermediate=18_432,
        positions=4096,
        activation="relu2",
        attention_bias=k.flag("attention_bias", False),
        mlp_bias=k.flag("mlp_bias", False),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    x = add(t, x, attention(t, s, h, kind), "residual")
    return add(t, x, up_down_mlp(t, s, rms_norm(t, x, "post_attention_layernorm")), "residual")


def up_down_mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """down(act(up(x)))."""
    with t.scope("mlp"):
        return plain_mlp(t, x, s.traits.activation, s.traits.mlp_bias, ("up_proj", "down_proj"))


FAMILY = Family(_config, embed, _layer, head, kernels=HF_ONLY, classes=decoder_classes("Arcee"))
