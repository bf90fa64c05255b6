"""MiMo-V2-Flash: layers that see all tokens, and such with a window, which have sinks and more keys
and values; values are narrower than keys. DeepSeek-V3's router, without shared experts."""

from __future__ import annotations

from dataclasses import replace

from memcore.errors import shown
from memcore.layers.experts import routed_experts
from memcore.layers.ops import (
    KEYS,
    PRODUCT,
    QUERIES,
    REPEATED_KEYS,
    SCORES,
    TOKENS,
    WINDOWED,
    core,
    mask_of,
    masked,
    partial_rotary,
    rotary_tables,
    slides,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
    sparse_kinds,
)
from memcore.models.families.deepseek import RESULTS, router, router_groups
from memcore.models.families.family import layer_kinds
from memcore.models.families.gpt_oss import less_maximum, seen, with_sinks
from memcore.models.families.llama import embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Heads, Model
from memcore.tape.dims import (
    BOTH_DIMS,
    CP,
    HEAD_DIM,
    HEADS,
    KV,
    KV_HEADS,
    KV_VALUES,
    REPEATED,
    TP,
    V_DIM,
    VALUES,
    B,
    D,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import FULL, SLIDING, Part, apart
from memcore.tape.primitives import (
    cast,
    contiguous,
    dropout,
    flash_attention,
    heads_first,
    linear,
    matmul,
    scale,
    softmax,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

REPEATED_VALUES: Shape = (B, REPEATED, S / CP, V_DIM)
OWN_VALUES: Shape = (B, KV_HEADS / TP, S / CP, V_DIM)


def _config(k: Keys) -> Model:
    model = llama_like(k, "mimo_v2_flash")
    width = k.count("v_head_dim", 128, 10**6)
    for key, alike in (
        ("swa_num_attention_heads", model.heads),
        ("swa_head_dim", model.head_dim),
        ("swa_v_head_dim", width),
    ):
        k.refuse(key, alike)
    k.refuse("add_swa_attention_sink_bias", True)
    k.refuse("add_full_attention_sink_bias", False)
    router_groups(k, model, 1, 1)
    several = k.count_or("swa_num_key_value_heads", 2 * model.kv_heads, 10**6)
    k.divides("num_attention_heads", model.heads, "swa_num_key_value_heads", several)
    turned = _turned(k, model.head_dim)
    window = k.count("sliding_window", 129)
    given = k.config.get("sliding_window_size")
    if given is not None:  # tokens before the one that looks
        window = k.count("sliding_window_size", 128) + 1
    kinds = _kinds(k, model.layers)
    sparse = _sparse(k, model.layers)
    tables = [(name, model.max_positions) for name in ("full", "sliding")]
    model = replace(
        model,
        kinds=tuple(apart(kind) if slides(kind) else kind for kind in kinds),
        window=window if any(map(slides, kinds)) else 0,
        value_dim=width,
        rotary_dim=turned,
        rotary_tables=tuple(tables),
        heads_apart=Heads(model.heads, several, model.head_dim, turned, width),
    )
    return sparse_kinds(model, lambda i: sparse[i])


def _turned(k: Keys, head_dim: int) -> int:
    """Dimensions of a head that turn: as many of both kinds of layers."""
    return int(head_dim * k.rope("partial_rotary_factor", 0.334))


def _kinds(k: Keys, layers: int) -> tuple[str, ...]:
    """Of the model's own config.json 1 in hybrid_layer_pattern is a window."""
    own = pattern(k, "hybrid_layer_pattern", layers)
    if k.config.get("layer_types") is None and own:
        return tuple(SLIDING if n else FULL for n in own)
    return layer_kinds(k, layers, lambda i: i > 0 and (i + 1) % 6 != 0) or (FULL,) * layers


def _sparse(k: Keys, layers: int) -> list[bool]:
    """Whether each layer has experts; all but the first where nothing is said."""
    given, known = k.config.get("mlp_layer_types"), ("dense", "sparse")
    own = pattern(k, "moe_layer_freq", layers)
    if given is None:
        return list(map(bool, own)) or [i > 0 for i in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(g not in known for g in given):
        k.fail("mlp_layer_types", f"must be a list of dense or sparse, one for each of {layers:,}")
        return [True] * layers
    return [g == "sparse" for g in given[:layers]]


def pattern(k: Keys, key: str, layers: int) -> list[int]:
    """A list of 0 and 1 for each layer, or none."""
    given = k.config.get(key)
    if given is None:
        return []
    if not isinstance(given, list) or len(given) < layers or any(n not in (0, 1) for n in given):
        k.fail(key, f"must be a list of 0 and 1 for each of {layers:,} layers, not {shown(given)}")
        return []
    return given[:layers]


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias, own = s.traits.attention_bias, slides(kind)
    with t.scope("self_attn", Part.ATTENTION):
        q = linear(t, "q_proj", x, D, Q / TP, bias)
        q = heads_first(t, q, QUERIES, copies_grad=True)
        k = heads_first(t, linear(t, "k_proj", x, D, KV / TP, bias), KEYS, copies_grad=True)
        v = linear(t, "v_proj", x, D, KV_VALUES / TP, bias)
        v = scale(t, heads_first(t, v, OWN_VALUES, copies_grad=True), "v, scaled")
        tables = rotary_tables(t, " (sliding)" if own else " (full)")
        q, k = partial_rotary(t, q, k, tables)
        sinks = [t.parameter("sinks", (HEADS / TP,))] if own else []
        if s.attention == "eager":
            out = core(t, lambda heads: _eager(t, s, kind, *heads), q, k, v, *sinks)
        else:
            out = core(t, lambda heads: _flash(t, s, kind, *heads), q, k, v)
            for sink in sinks:
                out = seen(t, out, sink)
        return linear(t, "o_proj", out, VALUES / TP, D, bias=False)


def _flash(t: Tape, s: Structure, kind: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    product = WINDOWED if slides(kind) else PRODUCT
    out = flash_attention(t, q, k, v, (B, HEADS / TP, S / CP), product, s.attention)
    return heads_first(t, out, (*TOKENS, VALUES / TP), copies_grad=False)


def _eager(
    t: Tape, s: Structure, kind: str, q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor
) -> Tensor:
    """Scores, with a sink as one more column, less their maximum; softmax in their dtype."""
    k = contiguous(t, k, REPEATED_KEYS, "k, repeated")
    v = contiguous(t, v, REPEATED_VALUES, "v, repeated")
    scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
    scores = masked(t, scores, *mask_of(kind))
    for sink in sinks:
        scores = with_sinks(t, scores, sink)
    probabilities = softmax(t, less_maximum(t, scores), "softmax")
    if sinks:
        (probabilities,) = split(t, probabilities, [SCORES], sliced=True)
    if s.traits.attention_dropout:
        probabilities = dropout(t, probabilities, "attn_dropout")
    probabilities = cast(t, probabilities, v.dtype, "probabilities")
    out = matmul(t, probabilities, v, RESULTS, S, "weighted values")
    return contiguous(t, out, (*TOKENS, VALUES / TP), "joined heads")


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        return routed_experts(t, s, x, *router(t, s, x, sigmoid=True))


# Its sinks and its values' width need a kernel that takes them: eager, or FlashAttention 4.
FAMILY = family_of(
    "mimo_v2_flash",
    _config,
    embed,
    sparse_layer(_attention, _mixture),
    head,
    cache=(1, KV_HEADS / TP, BOTH_DIMS),
)
