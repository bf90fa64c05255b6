"""Llama and its close relatives: mistral, ministral, ministral3, cwm, qwen2, qwen3, granite,
smollm3, hunyuan_v1_dense.

RMSNorm before attention and a gated MLP, rotary positions, grouped queries. They differ in biases,
in norms on queries and keys, in windows, in multipliers, and in layers without positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from memcore.layers.ops import (
    TOKENS,
    attention_core,
    by_heads,
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
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import (
    HF_ONLY,
    WITH_BOTH,
    Family,
    decoder_classes,
    heads_of,
    layer_kinds,
)
from memcore.models.model import Model
from memcore.tape.dims import CP, HEAD_DIM, HEADS, KV_HEADS, TP, B, D, Factor, Q, S
from memcore.tape.kinds import FULL, FULL_NOPE, SLIDING, SLIDING_NOPE, Part, turns
from memcore.tape.primitives import add, cast, contiguous, heads_first, linear, multiply, scale
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor


def unless_said(k: Keys, dim: int) -> int | None:
    """The width of a head as `llama_like` takes it, of a family that has its own where the file has
    no key; a null there is the hidden size over the heads."""
    return None if "head_dim" in k.config else dim


def llama_like(
    k: Keys,
    family: str,
    *,
    hidden: int = 4096,
    intermediate: int = 11_008,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vocab: int = 32_000,
    positions: int = 2048,
    tied: bool = False,
    activation: str = "silu",
    activations: Mapping[str, str] = ACTIVATIONS,
    dropout: float = 0.0,
    rotated: float | None = None,
    **traits: Any,
) -> Model:
    """The keys that Llama's relatives share, with the defaults of one of them. `out_bias` is as
    `attention_bias` unless it is said; `rotated` is the share of a head that is, where
    a config.json may say another."""
    traits.setdefault("out_bias", traits.get("attention_bias", False))
    hidden = k.count("hidden_size", hidden)
    heads = k.count("num_attention_heads", heads, 10**6)
    default_kv = heads if kv_heads is None else kv_heads
    absent = "num_key_value_heads" not in k.config
    if default_kv != heads:
        k.assume("num_key_value_heads", default_kv)
    kv = default_kv if absent else k.count_or("num_key_value_heads", heads, 10**6)
    if head_dim is None:
        heads_of(k, hidden, heads, kv)
        dim = k.count_or("head_dim", max(1, hidden // heads), 10**6)
    else:
        k.divides("num_attention_heads", heads, "num_key_value_heads", kv)
        dim = k.count("head_dim", head_dim, 10**6)
    n = k.count("num_hidden_layers", layers, 100_000)
    positions = k.count("max_position_embeddings", positions)
    model = Model(
        family=family,
        layers=n,
        hidden_size=hidden,
        intermediate_size=k.count("intermediate_size", intermediate),
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        rotary_dim=dim,
        rotary_tables=(("", math.ceil(positions * k.stretch)),),
        vocab_size=k.count("vocab_size", vocab),
        max_positions=positions,
        traits=Traits(
            activation=k.word("hidden_act", activation, activations),
            tied_embeddings=k.flag("tie_word_embeddings", tied),
            attention_dropout=k.dropout("attention_dropout", dropout),
            **traits,
        ),
    )
    if rotated is None:
        return model
    return replace(model, rotary_dim=int(dim * k.rope("partial_rotary_factor", rotated)))


def with_biases(family: str, **own: Any) -> Callable[[Keys], Model]:
    """What a config.json says of a family of whose layers it says which have biases; `own`: as
    `llama_like` takes it."""

    def config(k: Keys) -> Model:
        of_attention, of_mlp = k.flag("attention_bias", False), k.flag("mlp_bias", False)
        own_traits = {"attention_bias": of_attention, "mlp_bias": of_mlp, **own}
        return llama_like(k, family, **own_traits)

    return config


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
            q = heads_first(t, q, (*TOKENS, HEADS / TP, HEAD_DIM), copies_grad=False)
            k = heads_first(t, k, (*TOKENS, KV_HEADS / TP, HEAD_DIM), copies_grad=False)
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
    if not s.traits.rotary_widened:
        return turn(t, q, k, tables)
    q32, k32 = turn(t, cast(t, q, "fp32", "q (fp32)"), cast(t, k, "fp32", "k (fp32)"), tables)
    return cast(t, q32, q.dtype, "q_rotary, cast"), cast(t, k32, k.dtype, "k_rotary, cast")


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
    model = llama_like(k, "mistral", intermediate=14_336, kv_heads=8, positions=131_072)
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
    model = llama_like(
        k,
        "qwen2",
        intermediate=22_016,
        kv_heads=32,
        vocab=151_936,
        positions=32_768,
        attention_bias=True,
        out_bias=False,
    )
    return qwen_windows(k, model)


def _qwen3(k: Keys) -> Model:
    model = llama_like(
        k,
        "qwen3",
        intermediate=22_016,
        kv_heads=32,
        head_dim=128,
        vocab=151_936,
        positions=32_768,
        attention_bias=k.flag("attention_bias", False),
        query_norm=True,
    )
    return qwen_windows(k, model)


def _hunyuan(k: Keys) -> Model:
    return llama_like(
        k,
        "hunyuan_v1_dense",
        vocab=290_943,
        attention_bias=k.flag("attention_bias", False),
        query_norm=True,
        norm_after_rotary=True,
    )


def _smollm3(k: Keys) -> Model:
    model = llama_like(
        k,
        "smollm3",
        hidden=2048,
        layers=36,
        heads=16,
        kv_heads=4,
        vocab=128_256,
        positions=32_768,
        tied=True,
        attention_bias=k.flag("attention_bias", False),
        mlp_bias=k.flag("mlp_bias", False),
    )
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
    model = llama_like(k, "ministral", intermediate=14_336, kv_heads=8, positions=131_072)
    slides = k.config.get("sliding_window", 4096) is not None
    kinds = layer_kinds(k, model.layers, lambda i: slides)
    return windowed(model, k.count("sliding_window", 4096), kinds) if slides else model


def _ministral3(k: Keys) -> Model:
    """Queries are scaled by a number that grows with the position."""
    model = llama_like(
        k,
        "ministral3",
        intermediate=14_336,
        layers=34,
        kv_heads=8,
        head_dim=unless_said(k, 128),
        vocab=131_072,
        positions=262_144,
        temperature_tuned=True,
    )
    if k.config.get("sliding_window") is None:
        return model
    return windowed(model, k.count("sliding_window", 1), (SLIDING,) * model.layers)


def _cwm(k: Keys) -> Model:
    model = llama_like(
        k,
        "cwm",
        hidden=6144,
        intermediate=21_504,
        layers=64,
        heads=48,
        kv_heads=8,
        head_dim=unless_said(k, 128),
        vocab=128_256,
        positions=131_072,
        mlp_bias=k.flag("mlp_bias", False),
    )
    kinds = layer_kinds(k, model.layers, lambda i: i % 4 != 0)
    return windowed(model, k.count("sliding_window", 8192), kinds)


# Its numbers multiply, whatever they are, 1.0 included.
_granite = with_biases("granite", embeddings_scaled=True, residual_scaled=True, logits_scaled=True)
FAMILIES = {
    name: Family(config, embed, layer, head, kernels=kernels, classes=classes)
    for name, config, kernels, classes in (
        ("llama", with_biases("llama"), WITH_BOTH, decoder_classes("Llama")),
        ("mistral", _mistral, WITH_BOTH, decoder_classes("Mistral")),
        ("qwen2", _qwen2, WITH_BOTH, decoder_classes("Qwen2")),
        ("qwen3", _qwen3, WITH_BOTH, decoder_classes("Qwen3")),
        ("hunyuan_v1_dense", _hunyuan, HF_ONLY, decoder_classes("HunYuanDenseV1")),
        ("granite", _granite, WITH_BOTH, decoder_classes("Granite", classifier=False)),
        ("smollm3", _smollm3, WITH_BOTH, decoder_classes("SmolLM3")),
        ("ministral", _ministral, HF_ONLY, decoder_classes("Ministral")),
        ("ministral3", _ministral3, HF_ONLY, decoder_classes("Ministral3")),
        ("cwm", _cwm, HF_ONLY, decoder_classes("Cwm", classifier=False)),
    )
}
