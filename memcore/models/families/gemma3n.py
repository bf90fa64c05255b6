"""Gemma 3n (text): four residual streams, of which each layer computes one and says what becomes of
the others (AltUp), a part of low rank beside attention (LAuReL), embeddings of every token for each
layer, and last layers that read keys and values of layers before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from memcore.errors import shown
from memcore.layers.ops import (
    HIDDEN,
    STREAMED_HIDDEN,
    TOKENS,
    activation,
    causal_lm_head,
    gated_mlp,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.decoders import family_of, windowed
from memcore.models.families.family import heads_of, layer_kinds
from memcore.models.families.gemma4 import (
    READS,
    attention,
    of_layer,
    per_layer_inputs,
    powered_norm,
    sharing,
)
from memcore.models.model import Model
from memcore.tape.dims import KV, LOW_RANK, STREAM_PAIRS, STREAMS, TP, VOCAB, D, F, Shape
from memcore.tape.kinds import FULL, is_reused, is_thinned, thinned
from memcore.tape.primitives import (
    add,
    added,
    cast,
    contiguous,
    embedding,
    heads_first,
    joined,
    keeps_input,
    keeps_result,
    less,
    linear,
    matmul,
    mean,
    multiply,
    of_every_use,
    plain_product,
    power,
    reused_linear,
    scale,
    shift,
    split,
    wanted,
)
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Gradients, Tape, Tensor

COEFFICIENTS: Shape = (*TOKENS, STREAMS)
BY_PAIRS: Shape = (*TOKENS, STREAMS, STREAMS)


def _config(k: Keys) -> Model:
    hidden = k.count("hidden_size", 2048)
    heads = k.count("num_attention_heads", 8, 10**6)
    kv_heads = k.count("num_key_value_heads", 2, 10**6)
    heads_of(k, hidden, heads, kv_heads)
    dim = k.count("head_dim", 256, 256)
    layers = k.count("num_hidden_layers", 35, 100_000)
    positions = k.count("max_position_embeddings", 32_768)
    streams = k.count("altup_num_inputs", 4, 1000)
    k.refuse("altup_active_idx", 0)
    k.refuse("altup_correct_scale", True)
    if k.config.get("altup_coef_clip", 120.0) is None:
        k.fail("altup_coef_clip", "null is not planned; give the largest coefficient")
    model = Model(
        family="gemma3n_text",
        layers=layers,
        layer_embedding=k.count("hidden_size_per_layer_input", 256),
        layer_rows=k.count("vocab_size_per_layer_input", 262_144),
        hidden_size=hidden,
        intermediate_size=_width(k, layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        rotary_dim=dim,
        vocab_size=k.count("vocab_size", 262_400),
        max_positions=positions,
        streams=streams,
        low_rank=k.count("laurel_rank", 64),
        traits=Traits(
            activation=k.word("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
            tied_embeddings=k.flag("tie_word_embeddings", True),
            attention_bias=k.flag("attention_bias", False),
            attention_dropout=k.dropout("attention_dropout", 0.0),
            logits_softcap=k.config.get("final_logit_softcapping", 30.0) is not None,
            streams=True,
            projected_streams=streams - 1,
        ),
        rotary_tables=(("full", positions), ("sliding", positions)),
    )
    kinds = layer_kinds(k, layers, lambda i: (i + 1) % 5 != 0) or (FULL,) * layers
    last = k.count_or_zero("num_kv_shared_layers", 15)
    thin = _thinned(k, layers)
    kinds = sharing(k, kinds, last)
    kinds = tuple(thinned(kind) if thin[i] else kind for i, kind in enumerate(kinds))
    return windowed(
        replace(model, notes=(READS,) if last else ()), k.count("sliding_window", 512), kinds
    )


def _width(k: Keys, layers: int) -> int:
    """The width of every MLP: a number, or a list of one for each layer."""
    given = k.config.get("intermediate_size", 16_384)
    if not isinstance(given, list):
        return k.count("intermediate_size", 16_384)
    if len(given) < layers or any(n != given[0] for n in given):
        k.fail("intermediate_size", "must be a number, or the same number for each layer")
    k.config = {**k.config, "intermediate_size": given[0] if given else 1}
    return k.count("intermediate_size", 16_384)


def _thinned(k: Keys, layers: int) -> list[bool]:
    """Of each layer whether its MLP reads only the largest of its gates."""
    given = k.config.get("activation_sparsity_pattern")
    if given is None:
        return [layers > 10 and i < 10 for i in range(layers)]
    if (
        not isinstance(given, list)
        or len(given) < layers
        or any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in given)
    ):
        message = f"must be a number for each layer, not {shown(given)}"
        k.fail("activation_sparsity_pattern", message)
        return [False] * layers
    return [n > 0 for n in given[:layers]]


def _embed(t: Tape, s: Structure) -> Sequence[Tensor]:
    """The streams: the embedding, and projections of it that are made as large as it is."""
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "embed_tokens", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    x = scale(t, wanted(t, x), "scaled")
    known = t.new("input_ids with embeddings of layers", TOKENS, "int64")
    inputs = per_layer_inputs(t, x, known)
    size = _size(t, x, "size")
    streams = [x]
    for i in range(s.traits.projected_streams):
        h = linear(t, f"altup_projections.{i}", x, D, D, bias=False)
        streams.append(_of_size(t, cast(t, h, x.dtype, "projected"), size))
    return joined(t, streams, STREAMED_HIDDEN, "streams"), inputs


def _size(t: Tape, x: Tensor, name: str) -> Tensor:
    """The root of the mean square of each token."""
    return power(t, mean(t, power(t, x, f"{name}, squares"), f"{name}, mean"), name)


def _of_size(t: Tape, x: Tensor, size: Tensor) -> Tensor:
    """x, made as large as something else is."""
    own = mean(t, power(t, x, "own squares"), "own mean")
    own = keeps_result(t, keeps_input(t, own, "own mean, clamped"), "own size")
    return multiply(t, multiply(t, x, size, "x size"), own, "x size / own size")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Sequence[Tensor]:
    """The streams, and what layers behind this one read of it."""
    with t.scope("altup"):
        modalities = _modalities(t)
        predicted = _predicted(t, x, modalities)
    (first,) = split(t, predicted, [HIDDEN], sliced=True)
    h = powered_norm(t, first, "input_layernorm")
    low = _low_rank(t, h)
    if s.served and is_reused(kind):
        _unread_keys(t, s, h)
    h, *shared = attention(t, s, h, kind)
    attended = powered_norm(t, h, "post_attention_layernorm")
    gated = add(t, first, attended, "residual")
    x = scale(t, add(t, gated, low, "attention and low rank"), "halved")
    h = _mlp(t, s, powered_norm(t, x, "pre_feedforward_layernorm"), kind)
    fed = powered_norm(t, h, "post_feedforward_layernorm")
    named = [predicted, low, attended, gated, x, h, fed]
    x = add(t, x, fed, "residual")
    with t.scope("altup"):
        corrected = _corrected(t, s, predicted, x, modalities(x))
        (first,) = split(t, corrected, [HIDDEN], sliced=True)
        first = contiguous(t, first, HIDDEN, "first stream")
        of_output = t.parameter("correct_output_scale", (D,))
        first = multiply(t, first, of_output, "first stream, scaled")
    out = _added_to_others(t, corrected, of_layer(t, s, first))
    t.use(*named, x)  # have names until the layer returns
    return out, *shared


def _unread_keys(t: Tape, s: Structure, x: Tensor) -> None:
    """vLLM has keys and values of layers that read others' too: they are in the published files,
    and of one product with the queries (vllm/model_executor/models/gemma3n.py)."""
    with t.scope("self_attn"):
        for name in ("k_proj", "v_proj"):
            linear(t, name, x, D, KV / TP, s.traits.attention_bias)


def _modalities(t: Tape) -> Callable[[Tensor], Tensor]:
    """What says of a token how its streams mix: of what a layer reads, and of what it computed."""
    with t.scope("router_norm"):
        of_norm = of_every_use(t, t.parameter("weight", (D,)))
    router = reused_linear(t, "modality_router", D, STREAMS, bias=False)

    def run(x: Tensor) -> Tensor:
        h = router(scale(t, powered_norm(t, x, "router_norm", weight=of_norm), "router input"))
        h = keeps_result(t, cast(t, h, "fp32", "routed (fp32)"), "tanh")
        return cast(t, h, x.dtype, "modalities")

    return run


def _predicted(t: Tape, x: Tensor, modalities: Callable[[Tensor], Tensor]) -> Tensor:
    """Every stream as a mixture of all, and itself."""
    (first,) = split(t, x, [HIDDEN], sliced=True)
    pairs = linear(t, "prediction_coefs", modalities(first), STREAMS, STREAM_PAIRS, bias=False)
    pairs = heads_first(t, pairs, BY_PAIRS, copies_grad=True)
    by_streams = heads_first(t, x, (*TOKENS, D, STREAMS), copies_grad=False)
    mixed = matmul(t, by_streams, pairs, by_streams.shape, STREAMS, "predictions")
    mixed = added(t, heads_first(t, mixed, x.shape, copies_grad=False), x, "predictions and input")
    return cast(t, contiguous(t, mixed, x.shape, "predictions, contiguous"), x.dtype, "predicted")


def _corrected(t: Tape, s: Structure, predicted: Tensor, x: Tensor, modalities: Tensor) -> Tensor:
    """Every prediction, and its share of what the first turned out to be beside it."""
    (first,) = split(t, predicted, [HIDDEN], sliced=True)
    news = contiguous(t, add(t, x, first, "news"), STREAMED_HIDDEN, "news, repeated")
    with t.scope("correction_coefs"):
        w = t.parameter("weight", (STREAMS, STREAMS))
        w = w if s.served else keeps_input(t, w, "clamp")
        shares = shift(t, plain_product(t, modalities, w, STREAMS, STREAMS), "1 + coefficients")
    shares = heads_first(t, shares, (*COEFFICIENTS, 1), copies_grad=False)
    return added(t, multiply(t, news, shares, "corrections"), predicted, "corrected")


def _added_to_others(t: Tape, x: Tensor, h: Tensor) -> Tensor:
    """x[1:] += h. Saves nothing; backward copies the gradient for the part that is written."""

    def backward(g: Gradients) -> Gradients:
        return [t.new("streams grad", x.shape, x.dtype), t.new("h grad", h.shape, h.dtype)]

    t.start("other streams", x, h)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("other streams", [x, h], out, [], backward)
    return out


def _low_rank(t: Tape, x: Tensor) -> Tensor:
    with t.scope("laurel"):
        h = linear(t, "linear_left", x, D, LOW_RANK, bias=False)
        h = linear(t, "linear_right", h, LOW_RANK, D, bias=False)
        return add(t, x, powered_norm(t, h, "post_laurel_norm"), "low rank")


def _mlp(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    if not is_thinned(kind):
        return gated_mlp(t, s, x)
    with t.scope("mlp"):
        gate = _largest(t, linear(t, "gate_proj", x, D, F / TP, bias=False))
        gate = activation(t, gate, s.traits.activation)
        product = multiply(t, gate, linear(t, "up_proj", x, D, F / TP, bias=False), "gate x up")
        return linear(t, "down_proj", product, F / TP, D, bias=False)


def _largest(t: Tape, x: Tensor) -> Tensor:
    """By how much a token's gates go beyond what a share of them would, were they normal."""
    middle = mean(t, x, "mean")
    spread = _deviation(t, x)
    spread = multiply(t, spread, t.new("multiplier", (), x.dtype), "deviation, scaled")
    return keeps_result(t, less(t, x, add(t, middle, spread, "cutoff"), "beyond cutoff"), "relu")


def _deviation(t: Tape, x: Tensor) -> Tensor:
    """torch.std over the last dimension. Saves x and its result."""
    t.start("deviation", x)
    out = t.new("deviation", x.shape[:-1], x.dtype)
    t.finish("deviation", [x], out, [x, out], lambda g: [t.new("gate grad", x.shape, x.dtype)])
    return out


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """All streams, made as large as the first is, as one."""
    first, same = split(t, x, [HIDDEN] * 2, sliced=True)
    size = _size(t, first, "size")
    streams = [same]
    for i in range(s.traits.projected_streams):
        (stream,) = split(t, x, [HIDDEN], sliced=True)
        h = linear(t, f"altup_unembed_projections.{i}", stream, D, D, bias=False)
        streams.append(_of_size(t, cast(t, h, x.dtype, "projected"), size))
    whole = joined(t, streams, STREAMED_HIDDEN, "streams")
    t.start("mean of streams", whole)
    out = t.new("mean of streams", HIDDEN, whole.dtype)
    t.finish("mean of streams", [whole], out, [],
             lambda g: [t.new("streams grad", whole.shape, whole.dtype)])  # fmt: skip
    return causal_lm_head(t, s, powered_norm(t, out, "norm"))


FAMILIES = {"gemma3n_text": family_of("gemma3n_text", _config, _embed, _layer, _head, carries=True)}
