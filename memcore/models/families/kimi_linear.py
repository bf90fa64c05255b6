"""Kimi Linear: three delta nets that forget each channel by itself to one layer of latent attention
without positions, and experts that a sigmoid scores (Kimi Team, arXiv 2510.26692)."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.recurrent import kimi_delta_attention
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, sparse_kinds
from memcore.models.families.deepseek import CACHE, attention, latent, mixture, router_groups
from memcore.models.families.deepseek_v32 import SPARSE
from memcore.models.families.family import listed, mixed_kinds
from memcore.models.families.llama import embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model, Recurrence
from memcore.tape.kinds import FULL, RECURRENT, nope, recurs
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

CHUNK = 64  # tokens of a span (vllm/model_executor/layers/fla/ops/kda.py)


def _config(k: Keys) -> Model:
    model = latent(k, "kimi_linear")
    k.assumed.pop("head_dim", None)  # which neither kind of layer has
    state, whole = _state(k)
    usual = (lambda i: i + 1 not in whole) if whole else (lambda i: i == 0 or i % 4 != 0)
    kinds = mixed_kinds(k, "layer_types", model.layers, usual)
    kinds = tuple(nope(kind) if kind == FULL else RECURRENT for kind in kinds)
    first = k.count_or_zero("first_k_dense_replace", 1)
    sparse = listed(k, "mlp_layer_types", model.layers, SPARSE)
    sparse = sparse or [i >= first for i in range(model.layers)]
    router_groups(k, model, 1, 1)
    return sparse_kinds(replace(model, recurrence=state, kinds=kinds), sparse.__getitem__)


def _state(k: Keys) -> tuple[Recurrence, set[int]]:
    """What a delta net keeps, and which layers, counted from one, are none, as published files say
    it; transformers writes it into keys of its own."""
    inside = k.within("linear_attn_config")
    if k.config.get("linear_attn_config") is not None:
        dim, heads = inside.count("head_dim", 128), inside.count("num_heads", 32)
        kernel = inside.count("short_conv_kernel_size", 4, 1000)
    else:
        dim, heads = k.count("linear_head_dim", 128), k.count("linear_num_heads", 32)
        kernel = k.count("linear_conv_kernel_dim", 4, 1000)
    inside.config.get("kda_layers")  # all others
    given = inside.config.get("full_attn_layers")
    if given is not None and (
        not isinstance(given, list) or any(type(n) is not int for n in given)
    ):
        inside.fail("full_attn_layers", "must be a list of the numbers of layers, from 1")
        given = None
    k.absorb("linear_attn_config", inside)
    state = Recurrence(heads, dim, dim, heads, kernel, CHUNK, dtype="fp32", projects=False)
    return state, set(given or ())


def _mixer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return kimi_delta_attention(t, x) if recurs(kind) else attention(t, s, x, kind)


FAMILY = family_of("kimi_linear", _config, embed, sparse_layer(_mixer, mixture), head, cache=CACHE)
