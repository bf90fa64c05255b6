"""Gemma 4 (text): Gemma 3's norms around each part, layers that see all tokens with wide heads of
their own, and in the mixture experts beside the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memcore.layers.experts import normalised, routed_experts, taken, top_k
from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    causal_lm_head,
    gated_mlp,
    l2_norm,
    rms_norm_fp32_weight,
    rotary_tables,
    slides,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import HF_ONLY, Family, layer_kinds
from memcore.models.families.gemma import embed
from memcore.models.families.llama import windowed
from memcore.models.families.mixtral import with_experts
from memcore.models.model import Heads, Model
from memcore.tape.dims import (
    EXPERTS,
    HALF_ROTARY,
    HEAD_DIM,
    HEADS,
    KV,
    KV_HEADS,
    TOP_K,
    TP,
    D,
    Factor,
    Q,
)
from memcore.tape.kinds import FULL, Part, apart
from memcore.tape.primitives import (
    add,
    heads_first,
    linear,
    multiply,
    rotate,
    scale,
    softmax,
)
from memcore.tape.structure import CAUSAL, EMBEDDING, Structure, Traits
from memcore.tape.tape import Gradients, Tape, Tensor

GROUPED = 256  # widest heads that SDPA is given fewer keys of (integrations/sdpa_attention.py)


def _config(k: Keys, label: str) -> Model:
    heads = k.count("num_attention_heads", 8, 10**6)
    kv_heads = k.count("num_key_value_heads", 4, 10**6)
    k.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    k.refuse("use_bidirectional_attention", None, False, "vision")
    per_layer = k.config.get("hidden_size_per_layer_input", 256 if "hidden_size" in k.config else 0)
    if per_layer:
        k.fail(
            "hidden_size_per_layer_input",
            "embeddings of each layer, as the smallest Gemma 4 have (256 where there is no key) "
            "are not known; 0 is",
        )
    k.refuse("num_kv_shared_layers", 0)
    dim = k.count("head_dim", 256, GROUPED)
    alike = k.flag("attention_k_eq_v", False)
    sparse = k.flag("enable_moe_block", False)
    positions = k.count("max_position_embeddings", 131_072)
    model = Model(
        family="gemma4_text",
        label=label,
        layers=k.count("num_hidden_layers", 30, 100_000),
        hidden_size=k.count("hidden_size", 2304),
        intermediate_size=k.count("intermediate_size", 9216),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        rotary_dim=dim,
        vocab_size=k.count("vocab_size", 262_144),
        max_positions=positions,
        traits=Traits(
            activation=k.word("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
            tied_embeddings=k.flag("tie_word_embeddings", True),
            attention_bias=k.flag("attention_bias", False),
            attention_dropout=k.dropout("attention_dropout", 0.0),
            logits_softcap=k.config.get("final_logit_softcapping") is not None,
            keys_as_values=alike,
            experts_beside=sparse,
        ),
    )
    kinds = layer_kinds(k, model.layers, lambda i: (i + 1) % 6 != 0) or (FULL,) * model.layers
    kinds = (*kinds[:-1], FULL)  # transformers makes the last one see all tokens
    model = windowed(model, k.count("sliding_window", 512), kinds)
    wide, few = _of_full_layers(k, kinds, alike, kv_heads)
    k.divides("num_attention_heads", heads, "num_global_key_value_heads", few)
    tables = [("full", positions)] + [("sliding", positions)] * any(map(slides, kinds))
    model = replace(
        model,
        kinds=tuple(kind if slides(kind) else apart(kind) for kind in kinds),
        heads_apart=Heads(heads, few, wide, wide),
        traits=replace(model.traits, keys_repeated=wide > GROUPED),
        rotary_tables=tuple(tables),
    )
    if not sparse:
        return model
    experts, chosen = (k.count(key, 1, 100_000) for key in ("num_experts", "top_k_experts"))
    if chosen > experts:
        k.fail("top_k_experts", f"{chosen:,} of {experts:,} experts; use at most all of them")
    return with_experts(model, (experts, chosen), k.count("moe_intermediate_size", 1))


def _of_full_layers(k: Keys, kinds: tuple[str, ...], alike: bool, kv_heads: int) -> tuple[int, int]:
    """Width of a head, and heads of keys, of layers that see all tokens: as published, or for each
    layer, as transformers saves them."""
    given, key = k.config.get("per_layer_config"), "per_layer_config"
    if given is None:
        few = k.count_or("num_global_key_value_heads", kv_heads, 10**6) if alike else kv_heads
        return k.count("global_head_dim", 512, 10**6), few
    whole = [i for i, kind in enumerate(kinds) if not slides(kind)]
    message = "must give every layer that sees all tokens, and no other, the same heads"
    if not isinstance(given, Mapping):
        k.fail(key, message)
        return 512, kv_heads
    own = {int(layer): heads for layer, heads in given.items() if layer.isdigit()}
    first = own.get(whole[0])
    if set(own) != set(whole) or any(heads != first for heads in own.values()):
        k.fail(key, message)
    read = Keys(first if isinstance(first, Mapping) else {}, {})
    found = read.count("head_dim", 512, 10**6), read.count("num_key_value_heads", kv_heads, 10**6)
    for issue in read.issues:
        k.fail(key, issue.message)
    return found


def _norm(t: Tape, x: Tensor, name: str, width: Factor = D) -> Tensor:
    return rms_norm_fp32_weight(t, x, name, width, widened=True, powered=True)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, _norm(t, x, "input_layernorm"), kind)
    x = add(t, x, _norm(t, h, "post_attention_layernorm"), "residual")
    h = gated_mlp(t, s, _norm(t, x, "pre_feedforward_layernorm"))
    if s.traits.experts_beside:
        h = _norm(t, h, "post_feedforward_layernorm_1")
        weights, index = _router(t, x)
        rows = _norm(t, x, "pre_feedforward_layernorm_2")
        routed = routed_experts(t, s, rows, weights, index)
        h = add(t, h, _norm(t, routed, "post_feedforward_layernorm_2"), "MLP and experts")
    x = add(t, x, _norm(t, h, "post_feedforward_layernorm"), "residual")
    return _scaled_in_place(t, x)


def _scaled_in_place(t: Tape, x: Tensor) -> Tensor:
    """x *= layer_scalar, a buffer of one number. Saves nothing."""
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.start("layer scalar", x)

    def backward(g: Gradients) -> Gradients:
        return [t.new("layer scalar grad", x.shape, x.dtype)]

    t.finish("layer scalar", [x], out, [], backward)
    return out


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Values of layers that see all tokens may be their keys, normed but not turned."""
    bias, own = s.traits.attention_bias, slides(kind)
    few = (*TOKENS, KV_HEADS / TP, HEAD_DIM)
    with t.scope("self_attn", Part.ATTENTION):
        tables = rotary_tables(t, " (sliding)" if own else " (full)")
        q = linear(t, "q_proj", x, D, Q / TP, bias)
        q = heads_first(t, q, (*TOKENS, HEADS / TP, HEAD_DIM), copies_grad=False)
        q = rotate(t, _norm(t, q, "q_norm", HEAD_DIM), *tables, HALF_ROTARY, "q_rotary")
        q = heads_first(t, q, QUERIES, copies_grad=False)
        k = v = heads_first(t, linear(t, "k_proj", x, D, KV / TP, bias), few, copies_grad=False)
        if own or not s.traits.keys_as_values:
            v = heads_first(t, linear(t, "v_proj", x, D, KV / TP, bias), few, copies_grad=False)
        k = rotate(t, _norm(t, k, "k_norm", HEAD_DIM), *tables, HALF_ROTARY, "k_rotary")
        k = heads_first(t, k, KEYS, copies_grad=False)
        v = heads_first(t, l2_norm(t, v, "v_norm", powered=True), KEYS, copies_grad=False)
        out = attention_core(t, s, q, k, v, kind, repeated=s.traits.keys_repeated)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def _router(t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """The TOP_K largest of a softmax in fp32, each times a weight of its expert's."""
    with t.scope("router"):
        h = l2_norm(t, x, "norm", powered=True)
        h = scale(t, multiply(t, h, t.parameter("scale", (D,)), "weighted"), "scaled")
        logits = linear(t, "proj", h, D, EXPERTS, bias=False)
        weights, index = top_k(t, softmax(t, logits, "softmax", "fp32"), "top_k")
        weights = normalised(t, weights, "weights, normalised")
        of_experts = t.parameter("per_expert_scale", (EXPERTS,))
        factors = taken(t, of_experts, index, (*TOKENS, TOP_K), "factors")
        return multiply(t, weights, factors, "weights, scaled"), index


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, _norm(t, x, "norm"))


FAMILY = Family(
    _config, embed, _layer, _head, kernels=HF_ONLY,
    classes={"Gemma4ForCausalLM": CAUSAL, "Gemma4TextModel": EMBEDDING},
)  # fmt: skip
