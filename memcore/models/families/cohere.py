"""Command R (cohere, cohere2): attention and MLP read one norm, which subtracts the mean.

Of Command A and R7B (cohere2) three layers of four have a window, and the others no positions.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    gated_mlp,
    head_behind,
    query_key_value,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes, layer_kinds
from memcore.models.families.llama import embed, llama_like, turned
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, HEADS, KV, KV_HEADS, TP, D, Factor, Q
from memcore.tape.kinds import FULL_NOPE, SLIDING, Part, turns
from memcore.tape.primitives import (
    add,
    cast,
    heads_first,
    keeps_result,
    less,
    linear,
    mean,
    multiply,
    power,
    shift,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str, family: str, query_norm: bool = False) -> Model:
    return llama_like(
        k,
        label,
        family,
        hidden=8192,
        intermediate=22_528,
        layers=40,
        heads=64,
        vocab=256_000,
        positions=8192,
        tied=True,
        attention_bias=k.flag("attention_bias", False),
        logits_scaled=True,
        rotary_widened=True,
        query_norm=query_norm,
    )


def _cohere(k: Keys, label: str) -> Model:
    return _config(k, label, "cohere", query_norm=k.flag("use_qk_norm", False))


def _cohere2(k: Keys, label: str) -> Model:
    model = _config(k, label, "cohere2")
    every = k.count("sliding_window_pattern", 4)
    slides = layer_kinds(k, model.layers, lambda i: (i + 1) % every != 0)
    kinds = tuple(kind if kind == SLIDING else FULL_NOPE for kind in slides or ("",) * model.layers)
    return replace(model, kinds=kinds, window=k.count("sliding_window", 4096) if slides else 0)


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
    h = _norm(t, x, "input_layernorm")
    x = add(t, x, _attention(t, s, h, kind), "attention residual")
    return add(t, x, gated_mlp(t, s, h), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias, normed = s.traits.attention_bias, s.traits.query_norm
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        if normed:
            q = heads_first(t, q, (*TOKENS, HEADS / TP, HEAD_DIM), copies_grad=False)
            k = heads_first(t, k, (*TOKENS, KV_HEADS / TP, HEAD_DIM), copies_grad=False)
            q, k = _norm(t, q, "q_norm", Q / TP), _norm(t, k, "k_norm", KV / TP)
        q = heads_first(t, q, QUERIES, copies_grad=not normed)
        k = heads_first(t, k, KEYS, copies_grad=not normed)
        if turns(kind):
            q, k = turned(t, s, q, k)
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        return linear(t, "o_proj", out, Q / TP, D, bias)


_head = head_behind(_norm)
FAMILIES = {
    name: Family(
        config, embed, _layer, _head, kernels=HF_ONLY,
        classes=decoder_classes(name.capitalize(), classifier=False),
    )
    for name, config in (("cohere", _cohere), ("cohere2", _cohere2))
}  # fmt: skip
