"""Step-3.5 and Step-3.7 Flash (text): Gemma's norms, a gate for each head behind attention, layers
with a window that may have more heads, and experts whose activations are clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memcore.errors import shown
from memcore.layers.experts import Stacks, routed_experts
from memcore.layers.ops import (
    QUERY_ROWS,
    TOKENS,
    activation,
    attention_core,
    by_heads,
    by_rows,
    partial_rotary,
    query_key_value,
    rms_norm_plus_one,
    rotary_tables,
    slides,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    sparse_kinds,
)
from memcore.models.families.deepseek_v32 import SPARSE
from memcore.models.families.family import layer_kinds, listed
from memcore.models.families.gemma import head
from memcore.models.families.llama import embed
from memcore.models.families.olmoe import sigmoid_router
from memcore.models.model import Heads, Model
from memcore.tape.dims import EXPERT_F, HEAD_DIM, HEADS, SHARED_F, TP, D, F, Factor, Q
from memcore.tape.kinds import Part, apart, is_dense
from memcore.tape.primitives import (
    add,
    heads_first,
    keeps_input,
    keeps_result,
    linear,
    multiply,
    scale,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

FIRST = 3  # layers before those with experts, where nothing is said


def _config(k: Keys) -> Model:
    model = llama_like(k, "step3p5")  # fmt: skip
    kinds = layer_kinds(k, model.layers, lambda i: False)
    sliding = any(map(slides, kinds))
    more = _heads_of_windows(k, model.heads)
    k.divides("num_sliding_attention_heads", more, "num_key_value_heads", model.kv_heads)
    full, own = _turned(k, model, kinds)
    tables = [("full", model.max_positions)] if not sliding or not all(map(slides, kinds)) else []
    tables += [("sliding", model.max_positions)] if sliding else []
    model = replace(
        model,
        kinds=tuple(apart(kind) if slides(kind) else kind for kind in kinds),
        window=k.count("sliding_window", 512) if sliding else 0,
        rotary_dim=full,
        rotary_tables=tuple(tables),
        heads_apart=Heads(more, model.kv_heads, model.head_dim, own) if sliding else None,
    )
    sparse = _sparse(k, model.layers)
    return sparse_kinds(model, sparse.__getitem__)


def _heads_of_windows(k: Keys, heads: int) -> int:
    """Query heads of layers with a window, as the model's own config.json or transformers' says."""
    given = k.config.get("attention_other_setting")
    if isinstance(given, Mapping) and "num_sliding_attention_heads" not in k.config:
        many = given.get("num_attention_heads", heads)
        if type(many) is not int or not 1 <= many <= 10**6:
            k.fail("attention_other_setting", f"has {shown(many)} heads; a whole number is wanted")
            return heads
        return many
    return k.count_or("num_sliding_attention_heads", heads, 10**6)


def _turned(k: Keys, model: Model, kinds: tuple[str, ...]) -> tuple[int, int]:
    """Dimensions of a head that turn in layers that see all tokens, and in those with a window."""
    given = k.config.get("partial_rotary_factors")
    if given is None:
        of = [share_turned(k, word) for word in ("full_attention", "sliding_attention")]
    elif isinstance(given, list) and len(given) >= model.layers and all(map(_is_share, given)):
        windows = [slides(kind) for kind in kinds] or [False] * model.layers
        shares = dict(zip(windows, given, strict=False))
        of = [float(shares.get(windowed, 1.0)) for windowed in (False, True)]
    else:
        k.fail(
            "partial_rotary_factors", "must be a list of numbers from 0 to 1, one for each layer"
        )
        of = [1.0, 1.0]
    return int(model.head_dim * of[0]), int(model.head_dim * of[1])


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def share_turned(k: Keys, word: str, usual: float = 1.0) -> float:
    """The share of a head that turns in layers of a kind, as rope_parameters says it of each."""
    of = k.config.get("rope_parameters")
    own = of.get(word) if isinstance(of, Mapping) else None
    share = own.get("partial_rotary_factor", 1.0) if isinstance(own, Mapping) else usual
    return float(share) if _is_share(share) else usual


def _sparse(k: Keys, layers: int) -> list[bool]:
    """Whether each layer has experts: a list of words, the numbers of those that have, or all
    behind the first few."""
    words = listed(k, "mlp_layer_types", layers, SPARSE)
    if words is not None:
        return words
    given = k.config.get("moe_layers_enum")
    if given is None:
        first = k.count_or_zero("first_k_dense_replace", FIRST)
        return [i >= first for i in range(layers)]
    items = given.split(",") if isinstance(given, str) else given
    if not isinstance(items, list) or not all(str(i).strip().isdigit() for i in items):
        k.fail("moe_layers_enum", f"must be the numbers of layers, not {shown(given)}")
        return [True] * layers
    named = {int(i) for i in items}
    return [i in named for i in range(layers)]


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, rms_norm_plus_one(t, x, "input_layernorm"), kind)
    x = add(t, x, h, "residual")
    h = rms_norm_plus_one(t, x, "post_attention_layernorm")
    h = _mlp(t, s, h, F / TP, "mlp") if is_dense(kind) else _mixture(t, s, h)
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_rows(t, q, k, copies_grad=False)
        q = rms_norm_plus_one(t, q, "q_norm", HEAD_DIM)
        k = rms_norm_plus_one(t, k, "k_norm", HEAD_DIM)
        q, k = by_heads(t, q, k, copies_grad=False)
        v = value_heads(t, s, v)
        gate = linear(t, "g_proj", x, D, HEADS / TP, bias=False)
        tables = rotary_tables(t, " (sliding)" if slides(kind) else " (full)")
        q, k = partial_rotary(t, q, k, tables)
        out = heads_first(t, attention_core(t, s, q, k, v, kind), QUERY_ROWS, copies_grad=False)
        gate = keeps_result(t, gate, "sigmoid")
        gate = heads_first(t, gate, (*TOKENS, HEADS / TP, 1), copies_grad=False)
        out = multiply(t, out, gate, "gated")
        out = heads_first(t, out, (*TOKENS, Q / TP), copies_grad=False)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _mlp(t: Tape, s: Structure, x: Tensor, width: Factor, name: str) -> Tensor:
    bias = s.traits.mlp_bias
    with t.scope(name):
        gate = linear(t, "gate_proj", x, D, width, bias)
        gate = keeps_input(t, activation(t, gate, s.traits.activation), "gate, clamped")
        up = keeps_input(t, linear(t, "up_proj", x, D, width, bias), "up, clamped")
        out = linear(t, "down_proj", multiply(t, gate, up, "gated"), width, D, bias)
        t.use(x)
        return out


def _gate(t: Tape, s: Structure, both: Tensor) -> Tensor:
    gate, up = split(t, both, [(both.shape[0], EXPERT_F / TP)] * 2)
    gate = keeps_input(t, activation(t, gate, s.traits.activation), "gate, clamped")
    return multiply(t, gate, keeps_input(t, up, "up, clamped"), "gated")


STACKS = Stacks(_gate)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        shared = _mlp(t, s, x, SHARED_F / TP, "shared_experts")
        routed = routed_experts(t, s, x, *sigmoid_router(t, x), STACKS)
        return add(t, scale(t, routed, "routed, scaled"), shared, "routed and shared")


FAMILY = family_of("step3p5", _config, embed, _layer, head)
