"""Jamba: Mamba's layers, every few layers attention without positions, and an MLP or experts
behind each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.layers.experts import routed_experts, softmax_router
from memcore.layers.ops import gated_mlp, head_behind, rms_norm
from memcore.layers.recurrent import normed_mamba_mixer
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    routing,
    sparse_kinds,
    with_experts,
)
from memcore.models.families.llama import attention, embed
from memcore.models.families.mamba2 import SELECTIVE_CHUNK
from memcore.models.model import Model, Recurrence
from memcore.tape.kinds import FULL, RECURRENT, is_dense, nope, recurs
from memcore.tape.primitives import add, cast
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "jamba")
    k.refuse("mamba_proj_bias", False)
    hidden = model.hidden_size
    inner = k.count("mamba_expand", 2, 1000) * hidden
    given = k.config.get("mamba_dt_rank", "auto")
    rank = -(-hidden // 16) if given == "auto" else k.count("mamba_dt_rank", 1)
    attends = _every(k, "attn", 8, 4)
    model = replace(
        model,
        rotary_dim=0,
        kinds=tuple(nope(FULL) if attends(i) else RECURRENT for i in range(model.layers)),
        recurrence=Recurrence(
            inner, 1, k.count("mamba_d_state", 16), 0, k.count("mamba_d_conv", 4, 1000),
            SELECTIVE_CHUNK, projects=False, step_rank=rank,
        ),
    )  # fmt: skip
    routed = routing(k, "num_experts", 16, 2)
    mixes = _every(k, "expert", 2, 1)
    if routed[0] == 1:
        return sparse_kinds(model, lambda i: False)
    return sparse_kinds(with_experts(model, routed, model.intermediate_size), mixes)


def _every(k: Keys, what: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is the one of each period that has such a part."""
    period = k.count(f"{what}_layer_period", period)
    offset = k.count_or_zero(f"{what}_layer_offset", offset)
    if offset >= period:
        k.fail(f"{what}_layer_offset", f"must be less than {what}_layer_period, {period:,}")
    return lambda i: i % period == offset


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    h = normed_mamba_mixer(t, s, h) if recurs(kind) else attention(t, s, h, kind)
    x = add(t, x, h, "residual")
    h = rms_norm(t, x, "pre_ff_layernorm")
    if is_dense(kind):
        return add(t, x, gated_mlp(t, s, h, name="feed_forward"), "residual")
    with t.scope("feed_forward"):
        weights, index = softmax_router(t, s, h, cast_back=False)
        weights = cast(t, weights, h.dtype, "weights, cast")
        return add(t, x, routed_experts(t, s, h, weights, index), "residual")


_head = head_behind(rms_norm, "final_layernorm")
FAMILY = family_of("jamba", _config, embed, _layer, _head)
