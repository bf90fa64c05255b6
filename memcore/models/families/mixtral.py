"""Mixtral and GraniteMoe: Llama's layers with a mixture of experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memcore.layers import megatron
from memcore.layers.experts import all_tokens, routed_experts, softmax_router, top_k
from memcore.layers.ops import behind_norm, normed_mlp, rms_norm
from memcore.models.config import Keys
from memcore.models.families.llama import attention, embed, head, llama_like, scaled, windowed
from memcore.models.families.rows import family_of
from memcore.models.model import Model
from memcore.tape.dims import EXPERTS, D
from memcore.tape.kinds import FULL, SLIDING, dense, is_dense
from memcore.tape.primitives import add, cast, linear, multiply, softmax
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor
from memcore.units import bytes_text

Attention = Callable[[Tape, Structure, Tensor, str], Tensor]
Mixture = Callable[[Tape, Structure, Tensor], Tensor]


def routing(
    k: Keys,
    key: str,
    experts: int,
    most: int,
    whole: Keys | None = None,
    sent_to: str = "num_experts_per_tok",
) -> tuple[int, int]:
    """How many experts there are, and to how many of them a token is sent (`sent_to`); with
    defaults. `whole`: the config that these keys are inside of."""
    whole = whole or k
    experts = k.count(key, experts, 100_000)
    chosen = k.count(sent_to, most, 100_000)
    if chosen > experts:
        k.fail(sent_to, f"{chosen:,} of {experts:,} experts; use at most all of them")
    if whole.flag("output_router_logits", False):
        whole.notes.append(
            "The config.json asks for output_router_logits: transformers then adds a loss that "
            "balances the experts, which is not planned. In bf16 it keeps about "
            f"{bytes_text(2 * experts)} more for each token and each layer with experts."
        )
    return experts, chosen


def with_experts(model: Model, routed: tuple[int, int], size: int) -> Model:
    return replace(model, experts=routed[0], top_k=routed[1], expert_size=size)


def sparse_kinds(model: Model, is_sparse: Callable[[int], bool]) -> Model:
    """The model with dense layers where `is_sparse(index)` does not hold."""
    kinds = model.kinds or (FULL,) * model.layers
    kinds = tuple(kind if is_sparse(i) else dense(kind) for i, kind in enumerate(kinds))
    return replace(model, kinds=kinds) if len(set(kinds)) > 1 or is_dense(kinds[0]) else model


def all_sliding(k: Keys, model: Model, uses: bool) -> Model:
    """The model with a window in every layer, where it uses one at all."""
    if not uses or k.config.get("sliding_window", 4096) is None:
        return model
    return windowed(model, k.count("sliding_window", 4096), (SLIDING,) * model.layers)


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


def _mixtral(k: Keys) -> Model:
    model = llama_like(k, "mixtral")
    model = with_experts(model, routing(k, "num_local_experts", 8, 2), model.intermediate_size)
    return all_sliding(k, model, k.config.get("sliding_window") is not None)


def _mixtral_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        if s.traits.router_jitter:
            x = multiply(t, x, t.new("jitter", x.shape, x.dtype), "jittered")
        if t.kernels == "megatron":
            return megatron.mixture(t, s, x)
        return routed_experts(t, s, x, *softmax_router(t, s, x, cast_back=False))


def _granite(k: Keys) -> Model:
    model = llama_like(k, "granitemoe")
    return with_experts(model, routing(k, "num_local_experts", 8, 2), model.intermediate_size)


def granite_mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """The softmax is taken over the TOP_K only."""
    with t.scope("block_sparse_moe"):
        with t.scope("router"):
            logits = linear(t, "logits", x, D, EXPERTS, bias=False)
            largest, index = top_k(t, cast(t, logits, "fp32", "logits (fp32)"), "top_k")
            weights = cast(t, softmax(t, largest, "softmax"), x.dtype, "weights, cast")
        return routed_experts(t, s, x, weights, index)


FAMILIES = {
    "mixtral": family_of(
        "mixtral", _mixtral, embed, sparse_layer(attention, _mixtral_mixture), head
    ),
    "granitemoe": family_of(
        "granitemoe", _granite, embed, sparse_layer(attention, granite_mixture), head
    ),
}
