"""Gemma 4 (text): Gemma 3's norms around each part, layers that see all tokens with wide heads of
their own, and in the mixture experts beside the MLP. The smallest, E2B and E4B, embed every token
for each layer, and their last layers read keys and values of layers before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memcore.layers.experts import normalised, routed_experts, taken, top_k
from memcore.layers.ops import (
    KEY_ROWS,
    KEYS,
    QUERIES,
    QUERY_ROWS,
    TOKENS,
    activation,
    attention_core,
    gated_mlp,
    head_behind,
    l2_norm,
    rms_norm_fp32_weight,
    rotary_tables,
    slides,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.decoders import windowed, with_experts
from memcore.models.families.family import Family, layer_kinds
from memcore.models.families.gemma import embed
from memcore.models.model import Heads, Model
from memcore.tape.dims import (
    EXPERTS,
    FUSED,
    HALF_ROTARY,
    HEAD_DIM,
    KV,
    LAYERS,
    PER_LAYER,
    PER_LAYER_ROWS,
    PER_LAYERS,
    TOP_K,
    TP,
    VOCAB,
    D,
    F,
    Factor,
    Q,
    Shape,
)
from memcore.tape.kinds import FULL, Part, apart, is_reused, is_stored, reused, stored
from memcore.tape.primitives import (
    add,
    embedding,
    heads_first,
    linear,
    multiply,
    rotate,
    scale,
    softmax,
    split,
    wanted,
)
from memcore.tape.structure import CAUSAL, EMBEDDING, Structure, Traits
from memcore.tape.tape import Gradients, Tape, Tensor

GROUPED = 256  # widest heads that SDPA is given fewer keys of (integrations/sdpa_attention.py)


def _config(k: Keys) -> Model:
    heads = k.count("num_attention_heads", 8, 10**6)
    kv_heads = k.count("num_key_value_heads", 4, 10**6)
    k.divides("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    k.refuse("use_bidirectional_attention", None, False, "vision")
    dim = k.count("head_dim", 256, GROUPED)
    alike = k.flag("attention_k_eq_v", False)
    sparse = k.flag("enable_moe_block", False)
    positions = k.count("max_position_embeddings", 131_072)
    model = Model(
        family="gemma4_text",
        layers=k.count("num_hidden_layers", 30, 100_000),
        layer_embedding=k.count_or_zero("hidden_size_per_layer_input", 256),
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
    model = _small(k, model)
    if not sparse:
        return model
    experts, chosen = (k.count(key, 1, 100_000) for key in ("num_experts", "top_k_experts"))
    if chosen > experts:
        k.fail("top_k_experts", f"{chosen:,} of {experts:,} experts; use at most all of them")
    return with_experts(model, (experts, chosen), k.count("moe_intermediate_size", 1))


def _small(k: Keys, model: Model) -> Model:
    """The model with what only the smallest have, as a family of its own."""
    last = k.count_or_zero("num_kv_shared_layers", 0)
    doubled = k.flag("use_double_wide_mlp", False) and last > 0
    if not (model.layer_embedding or last):
        return model
    if not model.layer_embedding:
        k.fail("num_kv_shared_layers", "is planned with embeddings of each layer; set it to 0")
    rows = k.count("vocab_size_per_layer_input", 262_144)
    if rows != model.vocab_size:
        message = f"{rows:,} rows are not those of the vocabulary, {model.vocab_size:,}"
        k.fail("vocab_size_per_layer_input", message)
    return replace(
        model,
        family="gemma4_small_text",
        kinds=sharing(k, model.kinds, last),
        traits=replace(model.traits, doubled_mlp=doubled),
        notes=(*model.notes, READS) if last else model.notes,
    )


def sharing(k: Keys, kinds: tuple[str, ...], last: int) -> tuple[str, ...]:
    """Kinds of layers of which the last few read the keys and values that the last layer of their
    kind before these made."""
    own = kinds[: len(kinds) - last]
    if last and not set(kinds) <= set(own):
        k.fail("num_kv_shared_layers", "leaves no layer of each kind that has keys of its own")
    makers = {len(own) - 1 - own[::-1].index(kind) for kind in set(own)} if last else set()
    before = [stored(kind) if i in makers else kind for i, kind in enumerate(own)]
    return (*before, *map(reused, kinds[len(own) :]))


READS = "Layers that share keys and values are cached once, and in the time of a server read once."


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


def powered_norm(
    t: Tape, x: Tensor, name: str, width: Factor = D, weight: Tensor | None = None
) -> Tensor:
    """As ops.rms_norm_fp32_weight."""
    return rms_norm_fp32_weight(t, x, name, width, True, True, weight)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Sequence[Tensor]:
    """The residual stream, and what layers behind this one read of it."""
    h, *shared = attention(t, s, powered_norm(t, x, "input_layernorm"), kind)
    x = add(t, x, powered_norm(t, h, "post_attention_layernorm"), "residual")
    wide = FUSED if s.traits.doubled_mlp and is_reused(kind) else F
    h = gated_mlp(t, s, powered_norm(t, x, "pre_feedforward_layernorm"), wide / TP)
    if s.traits.experts_beside:
        h = powered_norm(t, h, "post_feedforward_layernorm_1")
        weights, index = _router(t, x)
        rows = powered_norm(t, x, "pre_feedforward_layernorm_2")
        routed = routed_experts(t, s, rows, weights, index)
        h = add(t, h, powered_norm(t, routed, "post_feedforward_layernorm_2"), "MLP and experts")
    x = add(t, x, powered_norm(t, h, "post_feedforward_layernorm"), "residual")
    return x, *shared


def _one_result(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return _scaled_in_place(t, _layer(t, s, x, kind)[0])


def _small_embed(t: Tape, s: Structure) -> Sequence[Tensor]:
    """Of each token what it is, and for each layer an embedding and a projection of the former."""
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    table = embedding(t, "embed_tokens", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    x = scale(t, wanted(t, table), "scaled")
    return x, per_layer_inputs(t, x, ids)


def per_layer_inputs(t: Tape, x: Tensor, ids: Tensor) -> Tensor:
    """What each layer reads of every token: embeddings of `ids`, and projections of x."""
    each = embedding(t, "embed_tokens_per_layer", ids, PER_LAYER_ROWS, PER_LAYERS, tied=False)
    each = heads_first(t, scale(t, each, "per layer, scaled"), OF_LAYERS, copies_grad=False)
    h = linear(t, "per_layer_model_projection", x, D, PER_LAYERS, bias=False)
    h = heads_first(t, scale(t, h, "projection, scaled"), OF_LAYERS, copies_grad=False)
    h = powered_norm(t, h, "per_layer_projection_norm", PER_LAYER)
    both = scale(t, add(t, h, each, "per layer"), "per layer inputs")
    both.storage.own_name = INPUTS
    return both


def _small_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor | Sequence[Tensor]:
    x, *shared = _layer(t, s, x, kind)
    return (_scaled_in_place(t, add(t, x, of_layer(t, s, x), "residual")), *shared)


def of_layer(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """What the embeddings of a layer make of x."""
    inputs = t.carry(INPUTS, OF_LAYERS, t.parameter_dtype)
    (own,) = split(t, inputs, [(*TOKENS, PER_LAYER)], sliced=True)
    h = linear(t, "per_layer_input_gate", x, D, PER_LAYER, bias=False)
    h = multiply(t, activation(t, h, s.traits.activation), own, "gate x per layer input")
    h = linear(t, "per_layer_projection", h, PER_LAYER, D, bias=False)
    return powered_norm(t, h, "post_per_layer_input_norm")


INPUTS, SHARED_KEYS, SHARED_VALUES = "per layer inputs", "shared keys", "shared values"
OF_LAYERS: Shape = (*TOKENS, LAYERS, PER_LAYER)


def _scaled_in_place(t: Tape, x: Tensor) -> Tensor:
    """x *= layer_scalar, a buffer of one number. Saves nothing."""
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.start("layer scalar", x)

    def backward(g: Gradients) -> Gradients:
        return [t.new("layer scalar grad", x.shape, x.dtype)]

    t.finish("layer scalar", [x], out, [], backward)
    return out


def attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Sequence[Tensor]:
    """Values of layers that see all tokens may be their keys, normed but not turned. With what it
    is made of where other layers read it."""
    bias, own = s.traits.attention_bias, slides(kind)
    with t.scope("self_attn", Part.ATTENTION):
        tables = rotary_tables(t, " (sliding)" if own else " (full)")
        q = linear(t, "q_proj", x, D, Q / TP, bias)
        q = heads_first(t, q, QUERY_ROWS, copies_grad=False)
        q = rotate(t, powered_norm(t, q, "q_norm", HEAD_DIM), *tables, HALF_ROTARY, "q_rotary")
        q = heads_first(t, q, QUERIES, copies_grad=False)
        if is_reused(kind):
            k, v = (t.carry(n, KEYS, t.parameter_dtype) for n in (SHARED_KEYS, SHARED_VALUES))
            return (_joined(t, s, q, k, v, kind),)
        k = v = heads_first(
            t, linear(t, "k_proj", x, D, KV / TP, bias), KEY_ROWS, copies_grad=False
        )
        if own or not s.traits.keys_as_values:
            v = heads_first(
                t, linear(t, "v_proj", x, D, KV / TP, bias), KEY_ROWS, copies_grad=False
            )
        k = rotate(t, powered_norm(t, k, "k_norm", HEAD_DIM), *tables, HALF_ROTARY, "k_rotary")
        k = heads_first(t, k, KEYS, copies_grad=False)
        v = heads_first(t, l2_norm(t, v, "v_norm", powered=True), KEYS, copies_grad=False)
        if not is_stored(kind):
            return (_joined(t, s, q, k, v, kind),)
        k.storage.own_name, v.storage.own_name = SHARED_KEYS, SHARED_VALUES
        return _joined(t, s, q, k, v, kind), k, v


def _joined(t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
    wide = s.traits.keys_repeated
    out = attention_core(t, s, q, k, v, kind, repeated=wide, reused=is_reused(kind))
    return linear(t, "o_proj", out, Q / TP, D, s.traits.attention_bias)


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


_head = head_behind(powered_norm)
FAMILY = Family(
    _config, embed, _one_result, _head,
    classes={"Gemma4ForCausalLM": CAUSAL, "Gemma4TextModel": EMBEDDING},
)  # fmt: skip
SMALL = replace(FAMILY, embed=_small_embed, layer=_small_layer, alone=True, carries=True)
FAMILIES = {"gemma4_text": FAMILY}
