"""MiniMax-Text-01 and M1: lightning attention, every few layers softmax attention, and Mixtral's
experts. What a layer adds to is what its norm made (MiniMax, arXiv 2501.08313)."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import routed_experts, softmax_router
from memcore.layers.ops import rms_norm
from memcore.layers.recurrent import lightning_attention
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.family import mixed_kinds
from memcore.models.families.llama import attention, embed, head
from memcore.models.model import Model, Recurrence
from memcore.tape.kinds import recurs
from memcore.tape.primitives import add, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "minimax")
    state = Recurrence(
        model.heads, model.head_dim, model.head_dim, model.heads, kernel=1,
        chunk=k.count("block_size", 256), projects=False,
    )  # fmt: skip
    return replace(
        model,
        rotary_dim=k.count_or("rotary_dim", model.head_dim, model.head_dim),
        recurrence=state,
        kinds=mixed_kinds(k, "layer_types", model.layers, lambda i: bool(i % 2)),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = rms_norm(t, x, "input_layernorm")
    h = lightning_attention(t, x) if recurs(kind) else attention(t, s, x, kind)
    x = rms_norm(t, _summed(t, x, h), "post_attention_layernorm")
    with t.scope("mlp"):
        h = routed_experts(t, s, x, *softmax_router(t, s, x, cast_back=False))
    return _summed(t, x, h)


def _summed(t: Tape, x: Tensor, h: Tensor) -> Tensor:
    return add(t, scale(t, x, "residual, scaled"), scale(t, h, "result, scaled"), "residual")


FAMILY = family_of("minimax", _config, embed, _layer, head)
