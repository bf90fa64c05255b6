"""LFM2 and LFM2-MoE: short convolutions between gates, and every few layers Qwen 3's attention; an
MLP behind each, or experts that a sigmoid scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.errors import shown
from memcore.layers.experts import divided, routed_experts, top_k
from memcore.layers.ops import activation, head_behind, rms_norm
from memcore.layers.recurrent import short_convolution
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    sparse_kinds,
)
from memcore.models.families.family import mixed_kinds, numbers_of_layers
from memcore.models.families.llama import attention, embed
from memcore.models.model import Model, Recurrence
from memcore.tape.dims import EXPERTS, TP, D, F, ceil_div
from memcore.tape.kinds import FULL, RECURRENT, is_dense, recurs
from memcore.tape.primitives import add, keeps_result, linear, multiply, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

KINDS = {"full_attention": FULL, "conv": RECURRENT}


def _like(k: Keys, family: str) -> Model:
    """What both have in common."""
    model = llama_like(k, family)
    kernel = k.count("conv_L_cache", 3, 1000)
    return replace(
        model,
        kinds=mixed_kinds(k, "layer_types", model.layers, _convolves(k), KINDS),
        recurrence=Recurrence(model.hidden_size, 1, 0, 0, kernel, 1, projects=False),
    )


def _convolves(k: Keys) -> Callable[[int], bool]:
    """Whether a layer is a convolution where `layer_types` does not say it: those that
    `full_attn_idxs` does not name, or none."""
    given = numbers_of_layers(k, "full_attn_idxs")
    return lambda i: given is not None and i not in given


def _lfm2(k: Keys) -> Model:
    model = _like(k, "lfm2")
    width = model.intermediate_size
    if k.flag("block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        factor = k.config.get("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor <= 0:
                k.fail("block_ffn_dim_multiplier", f"must be above 0, not {shown(factor)}")
                factor = 1.0
            multiple = k.count("block_multiple_of", 256)
            width = multiple * ceil_div(int(factor * width), multiple)
    return replace(model, intermediate_size=width)


def _moe(k: Keys) -> Model:
    if k.config.get("layer_types") is None and "num_hidden_layers" in k.config:
        k.fail("layer_types", f"missing; it must be a list of {', '.join(KINDS)}")
    model = _like(k, "lfm2_moe")
    k.flag("use_expert_bias", True)  # which leaves no tensor behind
    dense = k.count_or_zero("num_dense_layers", 2)
    return sparse_kinds(model, lambda i: i >= dense)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "operator_norm")
    if recurs(kind):
        h = short_convolution(t, s, h)
    else:
        h = attention(t, s, h, kind, "out_proj")
    x = add(t, h, x, "residual")
    h = rms_norm(t, x, "ffn_norm")
    with t.scope("feed_forward"):
        routed = s.family == "lfm2_moe" and not is_dense(kind)
        h = routed_experts(t, s, h, *_router(t, s, h)) if routed else _mlp(t, s, h)
    return add(t, x, h, "residual")


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    gate = activation(t, linear(t, "w1", x, D, F / TP, bias=False), s.traits.activation)
    product = multiply(t, gate, linear(t, "w3", x, D, F / TP, bias=False), "gate x up")
    out = linear(t, "w2", product, F / TP, D, bias=False)
    t.use(x)  # has a name until the MLP returns
    return out


def _router(t: Tape, s: Structure, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts, in the dtype of the weights. The bias that helps
    to choose experts leaves no tensor behind."""
    with t.scope("gate"):
        scores = keeps_result(t, linear(t, "logits", x, D, EXPERTS, bias=False), "sigmoid")
        weights, index = top_k(t, scores, "top_k")
        if s.traits.router_normalised:
            weights = divided(t, weights, "weights, normalised", "sum + number")
        return scale(t, weights, "weights, scaled"), index


_head = head_behind(rms_norm, "embedding_norm")
FAMILIES = {
    "lfm2": family_of("lfm2", _lfm2, embed, _layer, _head),
    "lfm2_moe": family_of("lfm2_moe", _moe, embed, _layer, _head),
}
