"""Qwen2-MoE and Qwen3-MoE: mixtures of small experts, beside a shared one in Qwen2."""

from __future__ import annotations

from collections.abc import Callable

from memcore.layers import megatron
from memcore.layers.experts import routed_experts, softmax_router
from memcore.layers.ops import gated_mlp
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
)
from memcore.models.families.family import (
    numbers_of_layers,
)
from memcore.models.families.llama import attention, embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.tape.dims import ONE, SHARED_F, TP, D
from memcore.tape.primitives import add, keeps_result, linear, multiply
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def sparse(k: Keys) -> Callable[[int], bool]:
    """Whether a layer has experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step = k.count("decoder_sparse_step", 1)
    dense_layers = numbers_of_layers(k, "mlp_only_layers") or []
    return lambda i: i not in dense_layers and (i + 1) % step == 0


def shared_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Routed experts, and one that every token passes, weighted by a sigmoid."""
    with t.scope("mlp"):
        if t.kernels == "megatron":
            return megatron.mixture(
                t, s, x, shared=lambda t, s, x: _weighted(t, x, _shared(t, s, x))
            )
        shared = _shared(t, s, x)
        routed = routed_experts(t, s, x, *softmax_router(t, s, x))
        return add(t, routed, _weighted(t, x, shared), "routed and shared")


def _shared(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return gated_mlp(t, s, x, SHARED_F / TP, "shared_expert")


def _weighted(t: Tape, x: Tensor, shared: Tensor) -> Tensor:
    with t.scope("shared_expert_gate"):
        weight = keeps_result(t, linear(t, "logits", x, D, ONE, bias=False), "sigmoid")
        return multiply(t, shared, weight, "shared, weighted")


def _qwen3_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        if t.kernels == "megatron":
            return megatron.mixture(t, s, x)
        return routed_experts(t, s, x, *softmax_router(t, s, x))


FAMILIES = {
    "qwen2_moe": family_of("qwen2_moe", None, embed, sparse_layer(attention, shared_mixture), head),
    "qwen3_moe": family_of("qwen3_moe", None, embed, sparse_layer(attention, _qwen3_mixture), head),
}
