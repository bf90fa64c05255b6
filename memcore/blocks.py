"""Blocks: each architecture family as a sequence of ops.

A model is three blocks: the embedding, a layer (the same for every index), and the head with the
loss. `build` runs each once, forward and backward, and returns their tapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from memcore.dims import CP, HEAD_DIM, POSITIONS, QKV, TP, VOCAB, D, F, Q, S
from memcore.model import Model
from memcore.ops import (
    HIDDEN,
    KEYS,
    QUERIES,
    TOKENS,
    activation,
    attention_core,
    causal_lm_head,
    gated_mlp,
    rms_norm,
    rotary_attention,
)
from memcore.primitives import add, dropout, embedding, heads_first, layer_norm, linear, split
from memcore.tape import Tape, Tensor


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything about a model and a step that decides which tensors exist, and no size."""

    family: str
    activation: str
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    attention_dropout: bool
    residual_dropout: bool
    embedding_dropout: bool
    attention: str
    kernels: str
    cross_entropy: str
    parameter_dtype: str
    autocast: bool

    @classmethod
    def of(
        cls,
        model: Model,
        attention: str,
        kernels: str,
        cross_entropy: str,
        parameter_dtype: str,
        autocast: bool,
    ) -> Structure:
        return cls(
            model.family,
            model.activation,
            model.tied_embeddings,
            model.attention_bias,
            model.mlp_bias,
            model.attention_dropout,
            model.residual_dropout,
            model.embedding_dropout,
            attention,
            kernels,
            cross_entropy,
            parameter_dtype,
            autocast,
        )


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture builds its blocks.

    Each function runs forward on a tape. `mask_is_argument`: whether the layer takes the attention
    mask by position, so that full checkpointing saves it.
    """

    embed: Callable[[Tape, Structure], Tensor]
    layer: Callable[[Tape, Structure, Tensor], Tensor]
    head: Callable[[Tape, Structure, Tensor], Tensor]
    mask_is_argument: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    embed: Tape
    layer: Tape
    head: Tape


@functools.lru_cache(maxsize=512)
def build(structure: Structure) -> Blocks:
    """The tapes of one structure, forward and backward."""
    family = FAMILIES[structure.family]
    dtype = structure.parameter_dtype

    def tape(prefix: str, run: Callable[[Tape], Tensor]) -> Tape:
        t = Tape(dtype, structure.autocast)
        with t.scope(prefix):
            out = run(t)
            t.end_forward()
            grad = t.input("output grad", out.shape, out.dtype)
            grad.storage.birth = t.clock
            t.backward(out, grad)
        return t

    def layer(t: Tape) -> Tensor:
        x = t.input("input", HIDDEN, dtype)
        out = family.layer(t, structure, x)
        t.use(x)  # the loop over layers holds it until the layer returns
        return out

    def head(t: Tape) -> Tensor:
        return family.head(t, structure, t.input("input", HIDDEN, dtype))

    return Blocks(
        embed=tape("embed", lambda t: family.embed(t, structure)),
        layer=tape("layers", layer),
        head=tape("head", head),
    )


# -- llama ------------------------------------------------------------------------------------


def _rotary_tables(t: Tape) -> tuple[Tensor, Tensor]:
    shape = (1, 1, S / CP, HEAD_DIM)
    return t.shared("rotary cos", shape, t.parameter_dtype), t.shared(
        "rotary sin", shape, t.parameter_dtype
    )


def _llama_embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    return embedding(t, "embed_tokens", ids, VOCAB / TP, D, s.tied_embeddings)


def _llama_layer(t: Tape, s: Structure, x: Tensor) -> Tensor:
    cos, sin = _rotary_tables(t)
    h = rms_norm(t, x, "input_layernorm")
    h = rotary_attention(t, h, cos, sin, s.attention, s.attention_bias, s.attention_dropout)
    x = add(t, x, h, "residual")
    h = rms_norm(t, x, "post_attention_layernorm")
    return add(t, x, gated_mlp(t, h, s.activation, s.mlp_bias), "residual")


def _llama_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, rms_norm(t, x, "norm"), s.tied_embeddings)


# -- gpt2 -------------------------------------------------------------------------------------


def _gpt2_embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    positions = t.input("position_ids", (1, S / CP), "int64", needs_grad=False)
    words = embedding(t, "wte", ids, VOCAB / TP, D, s.tied_embeddings)
    x = add(t, words, embedding(t, "wpe", positions, POSITIONS, D, tied=False), "sum")
    return dropout(t, x, "drop") if s.embedding_dropout else x


def _gpt2_layer(t: Tape, s: Structure, x: Tensor) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn"):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True, transposed=True)
        q, k, v = (
            heads_first(t, part, shape, copies_grad=False)
            for part, shape in zip(
                split(t, joint, [(*TOKENS, Q / TP)] * 3), (QUERIES, KEYS, KEYS), strict=True
            )
        )
        h = attention_core(t, q, k, v, s.attention, softmax_fp32=False, drop=s.attention_dropout)
        h = linear(t, "c_proj", h, Q / TP, D, bias=True, transposed=True)
        if s.residual_dropout:
            h = dropout(t, h, "resid_dropout")
    x = add(t, x, h, "residual")
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        h = linear(t, "c_fc", h, D, F / TP, bias=True, transposed=True)
        h = activation(t, h, s.activation)
        h = linear(t, "c_proj", h, F / TP, D, bias=True, transposed=True)
        if s.residual_dropout:
            h = dropout(t, h, "dropout")
    return add(t, x, h, "residual")


def _gpt2_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, layer_norm(t, x, D, "ln_f"), s.tied_embeddings)


FAMILIES = {
    "llama": Family(_llama_embed, _llama_layer, _llama_head, mask_is_argument=False),
    "gpt2": Family(_gpt2_embed, _gpt2_layer, _gpt2_head, mask_is_argument=True),
}
