"""MiniMax-M2: OLMoE's attention, of which a part of each head turns, and experts that a sigmoid
scores."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import normalised, routed_experts, top_k
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import embed, head, llama_like
from memcore.models.families.mixtral import routing, sparse_layer, with_experts
from memcore.models.families.olmoe import attention
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, D
from memcore.tape.primitives import cast, keeps_result, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    k.refuse("router_jitter_noise", 0.0)
    model = llama_like(
        k,
        label,
        "minimax_m2",
        hidden=3072,
        intermediate=1536,
        layers=62,
        heads=48,
        kv_heads=8,
        head_dim=128,
        vocab=200_064,
        positions=196_608,
        query_norm=True,
        rotary_partial=True,
    )
    turned = int(model.head_dim * k.rope("partial_rotary_factor", 1.0))
    model = replace(model, rotary_dim=k.count_or("rotary_dim", turned, model.head_dim))
    return with_experts(model, routing(k, "num_local_experts", 256, 8), model.intermediate_size)


def sigmoid_router(t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """What only chooses experts (the correction bias) leaves no tensor behind."""
    with t.scope("gate"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=False)
        scores = keeps_result(t, cast(t, logits, "fp32", "logits (fp32)"), "sigmoid")
        weights, index = top_k(t, scores, "top_k")
        return normalised(t, weights, "weights, normalised"), index


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        return routed_experts(t, s, x, *sigmoid_router(t, x))


FAMILY = Family(
    _config, embed, sparse_layer(attention, _mixture), head, kernels=HF_ONLY,
    aliases={"num_experts": "num_local_experts"},
    classes=decoder_classes("MiniMaxM2", classifier=False),
)  # fmt: skip
