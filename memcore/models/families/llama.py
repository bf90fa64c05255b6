"""Llama and its close relatives: mistral, ministral, ministral3, cwm, qwen2, qwen3, granite,
smollm3, hunyuan_v1_dense.

RMSNorm before attention and a gated MLP, rotary positions, grouped queries. They differ in biases,
in norms on queries and keys, in windows, in multipliers, and in layers without positions.
"""

from __future__ import annotations

from dataclasses import replace

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
    token_embedding,
    value_heads,
    widened_rotary,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.family import (
    layer_kinds,
)
from memcore.models.model import Model
from memcore.tape.dims import CP, HEAD_DIM, TP, B, D, Factor, Q, S
from memcore.tape.kinds import FULL, FULL_NOPE, SLIDING, SLIDING_NOPE, Part, turns
from memcore.tape.primitives import add, contiguous, linear, multiply, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


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


# Granite's numbers multiply, whatever they are, 1.0 included.
FAMILIES = {
    name: family_of(name, _smollm3 if name == "smollm3" else None, embed, layer, head)
    for name in (
        *("llama", "mistral", "qwen2", "qwen3", "hunyuan_v1_dense", "granite", "smollm3"),
        *("ministral", "ministral3", "cwm"),
    )
}
