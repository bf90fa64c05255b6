"""Mixtral and GraniteMoe: Llama's layers with a mixture of experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Callable

from memcore.layers import megatron
from memcore.layers.experts import all_tokens, routed_experts, softmax_router, top_k
from memcore.layers.ops import behind_norm, normed_mlp, rms_norm
from memcore.models.families.decoders import family_of
from memcore.models.families.llama import attention, embed, head, scaled
from memcore.tape.dims import EXPERTS, D
from memcore.tape.kinds import is_dense
from memcore.tape.primitives import add, cast, linear, multiply, softmax
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

Attention = Callable[[Tape, Structure, Tensor, str], Tensor]
Mixture = Callable[[Tape, Structure, Tensor], Tensor]


def sparse_layer(attend: Attention, mixture: Mixture, apart: bool = False) -> Attention:
    """A layer of Llama's form, with a mixture of experts or an MLP by its kind. `apart`: under
    Megatron its first norm is no part of a product."""

    def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
        def attention(h: Tensor) -> Tensor:
            return attend(t, s, h, kind)

        first, second = "input_layernorm", "post_attention_layernorm"
        h = behind_norm(t, x, first, attention) if apart else attention(rms_norm(t, x, first))
        x = add(t, x, scaled(t, s, h), "residual")
        if is_dense(kind):
            h = normed_mlp(t, s, x, second)
        else:
            h = behind_norm(t, x, second, lambda h: mixture(t, s, all_tokens(t, h)))
        return add(t, x, scaled(t, s, h), "residual")

    return layer


def _mixtral_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        if s.traits.router_jitter:
            x = multiply(t, x, t.new("jitter", x.shape, x.dtype), "jittered")
        if t.kernels == "megatron":
            return megatron.mixture(t, s, x)
        return routed_experts(t, s, x, *softmax_router(t, s, x, cast_back=False))


def granite_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """The softmax is taken over the TOP_K only."""
    with t.scope("block_sparse_moe"):
        with t.scope("router"):
            logits = linear(t, "logits", x, D, EXPERTS, bias=False)
            largest, index = top_k(t, cast(t, logits, "fp32", "logits (fp32)"), "top_k")
            weights = cast(t, softmax(t, largest, "softmax"), x.dtype, "weights, cast")
        return routed_experts(t, s, x, weights, index)


FAMILIES = {
    "mixtral": family_of("mixtral", None, embed, sparse_layer(attention, _mixtral_mixture), head),
    "granitemoe": family_of(
        "granitemoe", None, embed, sparse_layer(attention, granite_mixture), head
    ),
}
