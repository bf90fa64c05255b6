"""Qwen2-MoE and Qwen3-MoE: mixtures of small experts, beside a shared one in Qwen2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.layers import megatron
from memcore.layers.experts import routed_experts, softmax_router
from memcore.layers.ops import gated_mlp
from memcore.models.config import Keys
from memcore.models.families.family import (
    layer_kinds,
    numbers_of_layers,
)
from memcore.models.families.llama import attention, embed, head, llama_like, windowed
from memcore.models.families.mixtral import (
    all_sliding,
    routing,
    sparse_kinds,
    sparse_layer,
    with_experts,
)
from memcore.models.families.rows import family_of
from memcore.models.model import Model
from memcore.tape.dims import ONE, SHARED_F, TP, D
from memcore.tape.primitives import add, keeps_result, linear, multiply
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def sparse(k: Keys) -> Callable[[int], bool]:
    """Whether a layer has experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step = k.count("decoder_sparse_step", 1)
    dense_layers = numbers_of_layers(k, "mlp_only_layers") or []
    return lambda i: i not in dense_layers and (i + 1) % step == 0


def _qwen2(k: Keys) -> Model:
    model = llama_like(k, "qwen2_moe")
    routed = routing(k, "num_experts", 60, 4)
    model = with_experts(model, routed, k.count("moe_intermediate_size", 1408))
    model = replace(model, shared_size=k.count("shared_expert_intermediate_size", 5632))
    uses = k.config.get("sliding_window", 4096) is not None and k.flag("use_sliding_window", False)
    end = k.count_or_zero("max_window_layers", 28)
    kinds = layer_kinds(k, model.layers, lambda i: uses and i % 2 == 0 and i < end)
    if uses:
        model = windowed(model, k.count("sliding_window", 4096), kinds)
    return sparse_kinds(model, sparse(k))


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


def _qwen3(k: Keys) -> Model:
    model = llama_like(k, "qwen3_moe")
    routed = routing(k, "num_local_experts", 128, 8)
    model = with_experts(model, routed, k.count("moe_intermediate_size", 768))
    model = all_sliding(k, model, k.flag("use_sliding_window", False))
    return sparse_kinds(model, sparse(k))


def _qwen3_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        if t.kernels == "megatron":
            return megatron.mixture(t, s, x)
        return routed_experts(t, s, x, *softmax_router(t, s, x))


FAMILIES = {
    "qwen2_moe": family_of(
        "qwen2_moe", _qwen2, embed, sparse_layer(attention, shared_mixture), head
    ),
    "qwen3_moe": family_of(
        "qwen3_moe", _qwen3, embed, sparse_layer(attention, _qwen3_mixture), head
    ),
}
