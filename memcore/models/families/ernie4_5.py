"""ERNIE 4.5: Llama's layers, of whose heads neighbours turn together, in fp32; dense, or with
experts that a softmax weighs and a bias helps to choose, and shared ones."""

from __future__ import annotations

from memcore.layers.experts import divided, routed_experts, top_k
from memcore.layers.ops import gated_mlp
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
)
from memcore.models.families.llama import attention, embed, head, layer
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, SHARED_F, TP, D
from memcore.tape.primitives import add, cast, linear, softmax
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _moe(k: Keys) -> Model:
    model = llama_like(k, "ernie4_5_moe")
    k.refuse("moe_layer_end_index", -1, None, model.layers - 1)
    return model


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        shared = gated_mlp(t, s, x, SHARED_F / TP, "shared_experts")
        return add(t, routed_experts(t, s, x, *_router(t, x)), shared, "routed and shared")


def _router(t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts, in fp32, as its matrix is loaded: that one is
    not cast. The bias that helps to choose experts leaves no tensor behind."""
    with t.scope("gate"):
        wide = cast(t, x, "fp32", "input (fp32)")
        logits = linear(t, "logits", wide, D, EXPERTS, bias=False)
        t.parameter("e_score_correction_bias", (EXPERTS,), idle=True)
        weights, index = top_k(t, softmax(t, logits, "softmax"), "top_k")
        weights = divided(t, weights, "weights, normalised", "clamped", keeps_sum=True)
        return cast(t, weights, x.dtype, "weights, cast"), index


FAMILIES = {
    "ernie4_5": family_of("ernie4_5", None, embed, layer, head),
    "ernie4_5_moe": family_of("ernie4_5_moe", _moe, embed, sparse_layer(attention, _mixture), head),
}
