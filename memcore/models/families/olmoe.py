"""OLMoE: norms over whole queries and keys, which may be clipped, and many small experts.

MiniMax-M2 has that attention, of which a part of each head turns, and experts that a sigmoid
scores.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import normalised, routed_experts, softmax_router, top_k
from memcore.layers.ops import attended, by_heads, query_key_value, rms_norm, value_heads
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed, head, turned
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, KV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import cast, keeps_result, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _olmoe(k: Keys) -> Model:
    model = llama_like(k, "olmoe")
    if model.heads * model.head_dim != model.hidden_size:
        k.fail(
            "head_dim",
            f"{model.heads:,} heads of {model.head_dim:,} are not the hidden size, "
            f"{model.hidden_size:,}, as which transformers makes the norm of all queries",
        )
    return model


def _minimax(k: Keys) -> Model:
    model = llama_like(k, "minimax_m2")
    turned = int(model.head_dim * k.rope("partial_rotary_factor", 1.0))
    return replace(model, rotary_dim=k.count_or("rotary_dim", turned, model.head_dim))


def attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        if s.traits.query_norm:
            q, k = rms_norm(t, q, "q_norm", Q / TP), rms_norm(t, k, "k_norm", KV / TP)
        if s.traits.attention_clipped:
            q, k, v = (clipped(t, x, f"{n}, clipped") for x, n in ((q, "q"), (k, "k"), (v, "v")))
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = turned(t, s, q, k)
        return attended(t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias)


def clipped(t: Tape, x: Tensor, name: str) -> Tensor:
    """x.clamp_(-c, c), in place. Saves a copy of what x was."""
    t.start(name, x)
    copy = t.new(f"{name}, before", x.shape, x.dtype)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(name, [x], out, [copy], t.grads(f"{name} grad", x))
    return out


def sigmoid_router(t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """What only chooses experts (the correction bias) leaves no tensor behind."""
    with t.scope("gate"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=False)
        scores = keeps_result(t, cast(t, logits, "fp32", "logits (fp32)"), "sigmoid")
        weights, index = top_k(t, scores, "top_k")
        return normalised(t, weights, "weights, normalised"), index


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        return routed_experts(t, s, x, *softmax_router(t, s, x))


def _minimax_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        return routed_experts(t, s, x, *sigmoid_router(t, x))


FAMILIES = {
    name: family_of(name, config, embed, sparse_layer(attention, mixture), head)
    for name, config, mixture in (
        ("olmoe", _olmoe, _mixture),
        ("minimax_m2", _minimax, _minimax_mixture),
    )
}
