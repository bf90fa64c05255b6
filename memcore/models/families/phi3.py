"""Phi-3: joint projections for queries, keys and values, and for gate and up."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    attended,
    dropped,
    fused_gated_mlp,
    joint_heads,
    partial_rotary,
    rms_norm,
    rotary_tables,
)
from memcore.models.config import Keys
from memcore.models.families.llama import embed, head, llama_like, windowed
from memcore.models.families.rows import family_of
from memcore.models.model import Model
from memcore.tape.dims import QKV, TP, D
from memcore.tape.kinds import SLIDING, Part
from memcore.tape.primitives import add, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "phi3")
    share = k.rope("partial_rotary_factor", 1.0)
    model = replace(model, rotary_dim=int(model.head_dim * share))
    if k.config.get("sliding_window") is None:
        return model
    return windowed(model, k.count("sliding_window", 1), (SLIDING,) * model.layers)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
    h = dropped(t, s, h, "resid_attn_dropout")
    x = add(t, x, h, "residual")
    h = fused_gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"))
    h = dropped(t, s, h, "resid_mlp_dropout")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        joint = linear(t, "qkv_proj", x, D, QKV / TP, bias=False)
        q, k, v = joint_heads(t, joint, sliced=True)
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        return attended(t, s, q, k, v, kind, "o_proj", bias=False, joint_v=True)


FAMILY = family_of("phi3", _config, embed, _layer, head)
