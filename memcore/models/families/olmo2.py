"""OLMo 2 and 3: norms after each part instead of before, and over whole queries and keys. Of OLMo 3
three layers of four have a window."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    attended,
    by_heads,
    gated_mlp,
    head_behind,
    query_key_value,
    rms_norm_fp32_weight,
    rotary,
    rotary_tables,
    slides,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed
from memcore.models.model import Model
from memcore.tape.dims import KV, TP, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _olmo3(k: Keys) -> Model:
    model = llama_like(k, "olmo3")
    tables = tuple((word, rows) for word in ("full", "sliding") for _, rows in model.rotary_tables)
    return replace(model, rotary_tables=tables)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm_fp32_weight(t, _attention(t, s, x, kind), "post_attention_layernorm")
    x = add(t, x, h, "residual")
    h = rms_norm_fp32_weight(t, gated_mlp(t, s, x), "post_feedforward_layernorm")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q = rms_norm_fp32_weight(t, q, "q_norm", Q / TP)
        k = rms_norm_fp32_weight(t, k, "k_norm", KV / TP)
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t, _which(s, kind), dtype="fp32"))
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias)


def _which(s: Structure, kind: str) -> str:
    return "" if s.family == "olmo2" else " (sliding)" if slides(kind) else " (full)"


_head = head_behind(rms_norm_fp32_weight)
FAMILIES = {
    "olmo2": family_of("olmo2", None, embed, _layer, _head),
    "olmo3": family_of("olmo3", _olmo3, embed, _layer, _head),
}
