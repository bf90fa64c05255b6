"""Hunyuan with experts (A13B): Hunyuan's attention, routed experts that a softmax weighs, and one
that every token passes."""

from __future__ import annotations

from memcore.errors import shown
from memcore.layers.experts import normalised, routed_experts, top_k
from memcore.layers.ops import gated_mlp
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import attention, embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, D
from memcore.tape.primitives import add, cast, linear, softmax
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    for key in ("moe_topk", "num_experts", "num_shared_expert", "moe_intermediate_size"):
        _of_all_layers(k, key)
    model = llama_like(k, "hunyuan_v1_moe")
    k.refuse("moe_intermediate_size", None, model.intermediate_size)
    return model


def _of_all_layers(k: Keys, key: str) -> None:
    """A number for each layer becomes one for all, where they are the same."""
    given = k.config.get(key)
    if not isinstance(given, list):
        return
    if not given or any(n != given[0] for n in given):
        k.fail(key, f"{shown(given)} differs among the layers, which is not planned")
    k.config = {**k.config, key: given[0] if given else 1}


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        shared = gated_mlp(t, s, x, name="shared_mlp")
        return add(t, routed_experts(t, s, x, *_router(t, s, x)), shared, "routed and shared")


def _router(t: Tape, s: Structure, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts. Its matrix is in fp32, also where a model is
    loaded in 16 bits, unless a framework casts all weights; and so is what it reads."""
    wide = s.buffers == t.parameter_dtype
    with t.scope("gate"):
        given = cast(t, x, "fp32", "input (fp32)") if wide else x
        logits = linear(t, "logits", given, D, EXPERTS, bias=False)
        scores = softmax(t, cast(t, logits, "fp32", "logits (fp32)"), "softmax")
        weights, index = top_k(t, scores, "top_k")
        weights = normalised(t, weights, "weights, normalised")
        return cast(t, weights, logits.dtype, "weights, cast"), index


FAMILY = family_of("hunyuan_v1_moe", _config, embed, sparse_layer(attention, _mixture), head)
