"""Phi-3: joint projections for queries, keys and values, and for gate and up."""

from __future__ import annotations

from memcore.layers.ops import (
    attended,
    dropped,
    fused_gated_mlp,
    joint_heads,
    partial_rotary,
    rms_norm,
    rotary_tables,
)
from memcore.models.families.decoders import family_of
from memcore.models.families.llama import embed, head
from memcore.tape.dims import QKV, TP, D
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


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


FAMILY = family_of("phi3", None, embed, _layer, head)
