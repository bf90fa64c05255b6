"""Llama and its close relatives: mistral, ministral, ministral3, cwm, qwen2, qwen3, granite,
smollm3, hunyuan_v1_dense.

RMSNorm before attention and a gated MLP, rotary positions, grouped queries. They differ in biases,
in norms on queries and keys, in windows, in multipliers, and in layers without positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from memcore.layers.ops import (
    attention_core,
    by_heads,
    by_rows,
    causal_lm_head,
    normed_mlp,
    partial_rotary,
    query_key_value,
    rms_norm,
    rotary,
    rotary_tables,
    slides,
    token_embedding,
    value_heads,
    widened_rotary,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import (
    heads_of,
    layer_kinds,
)
from memcore.models.families.rows import Row, Sizes, family_of, rows, spelled_out
from memcore.models.model import Model
from memcore.tape.dims import CP, HEAD_DIM, TP, B, D, Factor, Q, S
from memcore.tape.kinds import FULL, FULL_NOPE, SLIDING, SLIDING_NOPE, Part, turns
from memcore.tape.primitives import add, contiguous, linear, multiply, scale
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor

LLAMA = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32_000, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_dropout": 0.0,
}  # fmt: skip


def llama_like(
    k: Keys, family: str, activations: Mapping[str, str] = ACTIVATIONS, **more: Any
) -> Model:
    """The keys that Llama's relatives share, with the defaults and traits that the row of one in
    presets/families/families.toml has, and `more` traits. `out_bias` is as `attention_bias` unless
    it is said; of a default `partial_rotary_factor` a config.json may say another."""
    row = spelled_out(rows("families")[family], "families")
    usual = LLAMA | row.get("defaults", {})
    traits = traits_of(k, row) | more
    traits.setdefault("out_bias", traits.get("attention_bias", False))
    hidden = k.count("hidden_size", usual["hidden_size"])
    heads = k.count("num_attention_heads", usual["num_attention_heads"], 10**6)
    default_kv = usual.get("num_key_value_heads", heads)
    absent = "num_key_value_heads" not in k.config
    if default_kv != heads:
        k.assume("num_key_value_heads", default_kv)
    kv = default_kv if absent else k.count_or("num_key_value_heads", heads, 10**6)
    head_dim = usual.get("head_dim")
    if head_dim is None and "head_dim" not in k.config:
        head_dim = usual.get("absent_head_dim")  # which a null does not stand for
    if head_dim is None:
        heads_of(k, hidden, heads, kv)
        dim = k.count_or("head_dim", max(1, hidden // heads), 10**6)
    else:
        k.divides("num_attention_heads", heads, "num_key_value_heads", kv)
        dim = k.count("head_dim", head_dim, 10**6)
    n = k.count("num_hidden_layers", usual["num_hidden_layers"], 100_000)
    positions = k.count("max_position_embeddings", usual["max_position_embeddings"])
    model = Model(
        family=family,
        layers=n,
        hidden_size=hidden,
        intermediate_size=k.count("intermediate_size", usual["intermediate_size"]),
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        rotary_dim=dim,
        rotary_tables=(("", math.ceil(positions * k.stretch)),),
        vocab_size=k.count("vocab_size", usual["vocab_size"]),
        max_positions=positions,
        traits=Traits(
            activation=k.word("hidden_act", usual["hidden_act"], activations),
            tied_embeddings=k.flag("tie_word_embeddings", usual["tie_word_embeddings"]),
            attention_dropout=k.dropout("attention_dropout", usual["attention_dropout"]),
            **traits,
        ),
    )
    if "partial_rotary_factor" not in usual:
        return model
    turned = k.rope("partial_rotary_factor", usual["partial_rotary_factor"])
    return replace(model, rotary_dim=int(dim * turned))


def traits_of(k: Keys, row: Row) -> dict[str, Any]:
    """Traits that a row has, or that keys say: of the same name, or as a formula."""
    flags = row.get("flags", {})
    sizes = Sizes({"parts": {}, "keys": {**flags, **row.get("keys", {})}}, k)
    return {name: sizes[name] for name in flags} | {
        name: sizes.of(value) for name, value in row.get("traits", {}).items()
    }


def embed(t: Tape, s: Structure) -> Tensor:
    return token_embedding(t, s)


def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    x = add(t, x, scaled(t, s, attention(t, s, h, kind)), "residual")
    h = normed_mlp(t, s, x, "post_attention_layernorm")
    return add(t, x, scaled(t, s, h), "residual")


def head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, rms_norm(t, x, "norm"))


def scaled(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return scale(t, x, "residual, scaled") if s.traits.residual_scaled else x


def attention(
    t: Tape, s: Structure, x: Tensor, kind: str, out_name: str = "o_proj", out_norm: str = ""
) -> Tensor:
    """From a layer's norm to what is added to the residual. `out_norm`: of the norm of what heads
    give, where there is one."""
    late = s.traits.norm_after_rotary
    normed = s.traits.query_norm and not late
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, s.traits.attention_bias)
        if normed:  # per head, before heads and tokens change places
            q, k = by_rows(t, q, k, copies_grad=False)
            q, k = _normed(t, q, k)
        q, k = by_heads(t, q, k, copies_grad=not normed)
        if s.traits.keys_scaled and not s.served:
            k = scale(t, k, "k, scaled")
        if turns(kind):
            q, k = turned(t, s, q, k)
        if late:
            q, k = _normed(t, q, k)
        if s.traits.temperature_tuned:  # by a number for each position
            scales = t.new("temperature", (1, 1, S / CP, 1), q.dtype)
            q = multiply(t, q, scales, "q, tuned")
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        out = rms_norm(t, out, out_norm, Q / TP) if out_norm else out
        return linear(t, out_name, out, Q / TP, D, s.traits.out_bias)


def _normed(t: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return rms_norm(t, q, "q_norm", HEAD_DIM), rms_norm(t, k, "k_norm", HEAD_DIM)


def turned(t: Tape, s: Structure, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by their positions: whole heads, or a part of each."""
    turn = partial_rotary if s.traits.rotary_partial else rotary
    dtype = "fp32" if s.traits.rotary_fp32 else ""
    tables = rotary_tables(t, dtype=dtype, sequences=turning(s))
    if s.traits.rotary_interleaved:
        tables = repeated(t, *tables)
    if s.traits.rotary_widened:
        return widened_rotary(t, q, k, tables, turn)
    return turn(t, q, k, tables)


def repeated(t: Tape, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Each layer's own tables, of which neighbours turn together, not halves of a head."""
    own = (contiguous(t, x, x.shape, name) for x, name in ((cos, "cos"), (sin, "sin")))
    return tuple(own)  # type: ignore[return-value]


def turning(s: Structure) -> Factor:
    """Sequences with rotary angles of their own: in training, where images may lie in each."""
    return B if s.traits.rotary_own and not s.served else 1


def windowed(model: Model, window: int, kinds: tuple[str, ...]) -> Model:
    """The model with a sliding window for layers of a sliding kind."""
    return replace(model, window=window, kinds=kinds) if any(map(slides, kinds)) else model


def _mistral(k: Keys) -> Model:
    model = llama_like(k, "mistral")
    window = k.config.get("sliding_window", 4096)
    if window is None:
        return model
    return windowed(model, k.count("sliding_window", 4096), (SLIDING,) * model.layers)


def qwen_windows(k: Keys, model: Model, start: int = 28) -> Model:
    """Qwen's windows: off unless use_sliding_window, and then from max_window_layers on."""
    uses = k.config.get("sliding_window", 4096) is not None and k.flag("use_sliding_window", False)
    start = k.count_or_zero("max_window_layers", start)
    kinds = layer_kinds(k, model.layers, lambda i: uses and i >= start)
    if not uses:
        return model
    return windowed(model, k.count("sliding_window", 4096), kinds)


def _qwen2(k: Keys) -> Model:
    model = llama_like(k, "qwen2")
    return qwen_windows(k, model)


def _qwen3(k: Keys) -> Model:
    model = llama_like(k, "qwen3")
    return qwen_windows(k, model)


def _hunyuan(k: Keys) -> Model:
    return llama_like(k, "hunyuan_v1_dense")


def _smollm3(k: Keys) -> Model:
    model = llama_like(k, "smollm3")
    every = k.count("no_rope_layer_interval", 4)
    given = k.config.get("no_rope_layers")
    if given is not None and (
        not isinstance(given, list)
        or len(given) < model.layers
        or any(turns not in (0, 1) for turns in given)
    ):
        k.fail("no_rope_layers", "must be a list of 0 (no positions) and 1, one for each layer")
        return model
    turns = given or [int((i + 1) % every != 0) for i in range(model.layers)]
    window = k.config.get("sliding_window")
    uses = k.flag("use_sliding_window", False) and window is not None
    slide = layer_kinds(k, model.layers, lambda i: uses and not turns[i]) or (FULL,) * model.layers
    words = {(FULL, 1): FULL, (FULL, 0): FULL_NOPE, (SLIDING, 1): SLIDING,
             (SLIDING, 0): SLIDING_NOPE}  # fmt: skip
    kinds = tuple(words[slide[i] if uses else FULL, int(turns[i])] for i in range(model.layers))
    return replace(model, kinds=kinds, window=k.count("sliding_window", 1) if uses else 0)


def _ministral(k: Keys) -> Model:
    model = llama_like(k, "ministral")
    slides = k.config.get("sliding_window", 4096) is not None
    kinds = layer_kinds(k, model.layers, lambda i: slides)
    return windowed(model, k.count("sliding_window", 4096), kinds) if slides else model


def _ministral3(k: Keys) -> Model:
    """Queries are scaled by a number that grows with the position."""
    model = llama_like(k, "ministral3")
    if k.config.get("sliding_window") is None:
        return model
    return windowed(model, k.count("sliding_window", 1), (SLIDING,) * model.layers)


def _cwm(k: Keys) -> Model:
    model = llama_like(k, "cwm")
    kinds = layer_kinds(k, model.layers, lambda i: i % 4 != 0)
    return windowed(model, k.count("sliding_window", 8192), kinds)


# Its numbers multiply, whatever they are, 1.0 included.
_granite = partial(llama_like, family="granite")
FAMILIES = {
    name: family_of(name, config, embed, layer, head)
    for name, config in (
        ("llama", partial(llama_like, family="llama")),
        ("mistral", _mistral),
        ("qwen2", _qwen2),
        ("qwen3", _qwen3),
        ("hunyuan_v1_dense", _hunyuan),
        ("granite", _granite),
        ("smollm3", _smollm3),
        ("ministral", _ministral),
        ("ministral3", _ministral3),
        ("cwm", _cwm),
    )
}
