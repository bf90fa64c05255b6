"""Command R (cohere, cohere2, cohere2_moe): attention and MLP read one norm, which subtracts the
mean.

Of Command A and R7B (cohere2) three layers of four have a window, and the others no positions.
Mixtures (cohere2_moe) have experts in place of the MLP, and some that every token passes.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import divided, routed_experts, top_k
from memcore.layers.ops import (
    attended,
    by_heads,
    by_rows,
    causal_lm_head,
    gated_mlp,
    query_key_value,
    rms_norm,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    routing,
    sparse_kinds,
    with_experts,
)
from memcore.models.families.family import layer_kinds, listed
from memcore.models.families.llama import embed, turned
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, KV, SHARED_F, TP, D, Factor, Q
from memcore.tape.kinds import FULL, FULL_NOPE, SLIDING, Part, is_dense, turns
from memcore.tape.primitives import (
    add,
    cast,
    keeps_result,
    less,
    linear,
    mean,
    multiply,
    power,
    scale,
    shift,
    softmax,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _cohere2(k: Keys) -> Model:
    model = llama_like(k, "cohere2")
    every = _every(k)
    slides = layer_kinds(k, model.layers, lambda i: (i + 1) % every != 0)
    kinds = tuple(kind if kind == SLIDING else FULL_NOPE for kind in slides or ("",) * model.layers)
    return replace(model, kinds=kinds, window=k.count("sliding_window", 4096) if slides else 0)


def _mixed(k: Keys) -> Model:
    score = k.word("expert_selection_fn", "softmax", {w: w for w in ("softmax", "sigmoid")})
    joins = {w: w for w in ("average", "sum")}
    averaged = k.word("shared_expert_combination_strategy", "average", joins) == "average"
    model = llama_like(k, "cohere2_moe")
    inner, layers = model.intermediate_size, model.layers
    first = k.count_or_zero("first_k_dense_replace", 0)
    usual = [DENSE if i < first else SPARSE for i in range(layers)]
    fed = listed(k, "mlp_layer_types", layers, {"dense": DENSE, "sparse": SPARSE}) or usual
    before, after = k.count("prefix_dense_sliding_window_pattern", 1), _every(k)

    def windowed(i: int) -> bool:
        return bool((i + 1) % before if i < first else (i - first + 1) % after)

    slides = layer_kinds(k, layers, windowed) or (FULL,) * layers
    kinds = tuple(
        kind if kind == SLIDING or (word == DENSE and before == 1) else FULL_NOPE
        for kind, word in zip(slides, fed, strict=True)
    )
    shared = k.count_or_zero("num_shared_experts", 0)
    model = with_experts(model, routing(k, "num_experts", 8, 2), inner)
    model = replace(
        model,
        intermediate_size=k.count_or("prefix_dense_intermediate_size", inner),
        kinds=kinds,
        window=k.count("sliding_window", 4096) if SLIDING in kinds else 0,
        shared_size=shared * inner,
        traits=replace(
            model.traits,
            experts_beside=shared > 0,
            experts_averaged=averaged,
            norm_centred=k.config.get("rms_norm_eps") is None,
            router_sigmoid=score == "sigmoid",
            router_normalised=k.flag("norm_topk_prob", True),
        ),
    )
    return sparse_kinds(model, lambda i: fed[i] == SPARSE)


DENSE, SPARSE = "dense", "sparse"


def _every(k: Keys) -> int:
    """Of so many layers one has no window."""
    return k.count("sliding_window_pattern", 4)


def _norm(t: Tape, x: Tensor, name: str, width: Factor = D) -> Tensor:
    """Its rows less their mean, which is subtracted twice."""
    with t.scope(name):
        w = t.parameter("weight", (width,))
        x32 = cast(t, x, "fp32", "x (fp32)")
        m = mean(t, x32, "mean")
        square = power(t, less(t, x32, m, "for the variance"), "square")
        shifted = shift(t, mean(t, square, "variance"), "variance + eps")
        centred = less(t, x32, m, "centred")
        normal = multiply(t, centred, keeps_result(t, shifted, "rsqrt"), "normalised")
        w = cast(t, w, "fp32", "weight (fp32)")
        return cast(t, multiply(t, normal, w, "weighted"), x.dtype, "cast")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _normed(t, s, x, "input_layernorm")
    x = add(t, x, _attention(t, s, h, kind), "attention residual")
    return add(t, x, _fed(t, s, h, kind), "residual")


def _fed(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    if s.family != "cohere2_moe" or is_dense(kind):
        return gated_mlp(t, s, x)
    with t.scope("mlp"):
        with t.scope("gate"):
            largest, index = top_k(t, linear(t, "logits", x, D, EXPERTS, bias=False), "top_k")
            if s.traits.router_sigmoid:
                weights = keeps_result(t, largest, "sigmoid")
                if s.traits.router_normalised:
                    weights = divided(t, weights, "weights, normalised", "whole")
            else:
                weights = softmax(t, cast(t, largest, "fp32", "logits (fp32)"), "softmax")
            weights = cast(t, weights, x.dtype, "weights, cast")
        routed = routed_experts(t, s, x, weights, index)
        if not s.traits.experts_beside:
            return routed
        shared = gated_mlp(t, s, x, SHARED_F / TP, "shared_experts")
        both = add(t, routed, shared, "routed and shared")
        return scale(t, both, "averaged") if s.traits.experts_averaged else both


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias, normed = s.traits.attention_bias, s.traits.query_norm
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        if normed:
            q, k = by_rows(t, q, k, copies_grad=False)
            q, k = _norm(t, q, "q_norm", Q / TP), _norm(t, k, "k_norm", KV / TP)
        q, k = by_heads(t, q, k, copies_grad=not normed)
        if turns(kind):
            q, k = turned(t, s, q, k)
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias)


def _normed(t: Tape, s: Structure, x: Tensor, name: str) -> Tensor:
    return _norm(t, x, name) if s.traits.norm_centred else rms_norm(t, x, name)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, _normed(t, s, x, "norm"))


FAMILIES = {
    name: family_of(name, config, embed, _layer, _head)
    for name, config in (
        ("cohere", None),
        ("cohere2", _cohere2),
        ("cohere2_moe", _mixed),
    )
}
