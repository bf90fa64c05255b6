"""T5, mT5 and UMT5: an encoder, and a decoder that reads the encoder's result in every layer.

T5ForConditionalGeneration, MT5ForConditionalGeneration, UMT5ForConditionalGeneration, and of each
the encoder by itself, which is T5EncoderModel and its likes. Positions are a bias on the scores:
the first layer of each stack looks it up, and all layers of the stack add it; in UMT5 every layer
has its own. One table of embeddings
serves encoder, decoder and, in T5 1.0, head. Where config.json says that nothing is tied, as that
of Flan-T5 does, the head is loaded by itself, and the factor before it goes. So it is with mT5
and UMT5, whatever their config.json says; UMT5 keeps the factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memcore.errors import shown
from memcore.layers.ops import HIDDEN, TOKENS, activation, dropped, labelled_loss, masked
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.decoders import ENCODER
from memcore.models.families.family import ALL, Family
from memcore.models.model import Model
from memcore.tape.dims import (
    BUCKETS,
    HEAD_DIM,
    HEADS,
    TP,
    VOCAB,
    B,
    D,
    F,
    Factor,
    Q,
    S,
    Shape,
    of_stack,
)
from memcore.tape.kinds import EVERY, FULL, Part
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    dropout,
    embedding,
    heads_first,
    keeps_result,
    linear,
    matmul,
    mean,
    multiply,
    power,
    scale,
    shift,
    softmax,
)
from memcore.tape.structure import CAUSAL, EMBEDDING, Structure, Traits
from memcore.tape.tape import Tape, Tensor

LENGTH = of_stack(ENCODER, S)  # of the encoder's sequence, where the decoder reads it
HEARD: Shape = (HIDDEN[0], of_stack(ENCODER, HIDDEN[1]), D)
BIAS, CROSS_BIAS = "position bias", "cross-attention bias"
FIRST, ALONE = "-first", "-alone"  # layers that make the bias: for the others, or for themselves

ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}

DEFAULTS = {  # of T5Config and MT5Config
    "t5": {"num_layers": 6, "num_heads": 8, "d_ff": 2048, "vocab_size": 32_128,
           "feed_forward_proj": "relu"},
    "mt5": {"num_layers": 8, "num_heads": 6, "d_ff": 1024, "vocab_size": 250_112,
            "feed_forward_proj": "gated-gelu"},
}  # fmt: skip
DEFAULTS["umt5"] = DEFAULTS["mt5"]


def _kinds(family: str, word: str, layers: int) -> tuple[str, ...]:
    if layers == 1 or family == "umt5":
        return (word + ALONE,) * layers
    return (word + FIRST, *(word for _ in range(layers - 1)))


def _config(k: Keys) -> Model:
    family = str(k.config["model_type"])
    for key, default in DEFAULTS[family].items():
        k.assume(key, default)
    k.config = {**DEFAULTS[family], **k.config}
    layers = k.count("num_layers", 6, 100_000)
    projection = k.config["feed_forward_proj"]
    gated, _, word = str(projection).rpartition("-")
    if gated not in ("", "gated") or word not in ACTIVATIONS:
        k.fail("feed_forward_proj", f"{shown(projection)} is not known; use relu or gated-gelu")
        word = "relu"
    if k.head != EMBEDDING:  # of an encoder alone files say either
        k.refuse("is_encoder_decoder", True)
    heads = k.count("num_heads", 8, 10**6)
    # transformers 5 writes that all is tied and keeps here whether it was: a head that was loaded
    # by itself stays so.
    tied = k.flag("tie_word_embeddings", True) and k.flag("scale_decoder_outputs", True)
    tied = tied and family == "t5"
    dropped = k.dropout("dropout_rate", 0.1)
    decoder = Model(
        family=family,
        layers=k.count_or("num_decoder_layers", layers, 100_000),
        hidden_size=k.count("d_model", 512),
        intermediate_size=k.count("d_ff", 2048),
        heads=heads,
        kv_heads=heads,
        head_dim=k.count("d_kv", 64),
        vocab_size=k.count("vocab_size", 32_128),
        max_positions=k.count("n_positions", 512),
        buckets=k.count("relative_attention_num_buckets", 32),
        traits=Traits(
            activation="gelu_new" if projection == "gated-gelu" else ACTIVATIONS[word],
            tied_embeddings=tied,
            attention_dropout=dropped,
            residual_dropout=dropped,
            embedding_dropout=dropped,
            gated=bool(gated),
            head_scaled=tied or family == "umt5",
        ),
    )
    encoder = replace(
        decoder,
        family="t5_encoder",
        layers=layers,
        kinds=_kinds(family, EVERY, layers),
        stack=ENCODER,
    )
    if k.head == EMBEDDING:
        return replace(encoder, stack="")
    return replace(decoder, kinds=_kinds(family, FULL, decoder.layers), tower=encoder)


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    shared = bool(s.stack)  # with the decoder behind it
    return dropped(t, s, embedding(t, "shared", ids, VOCAB / TP, D, tied=shared), "dropout")


def _encoder_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor | Sequence[Tensor]:
    x, bias, weights = _self_attention(t, s, x, kind)
    x = _mlp(t, s, x)
    t.use(weights)  # the layer has a name for them until it returns
    return (x, bias) if kind.endswith(FIRST) else x


def _bridge(t: Tape, s: Structure, x: Tensor) -> Sequence[Tensor]:
    heard = dropped(t, s, _norm(t, x, "encoder.final_layer_norm"), "encoder.dropout")
    ids = t.new("decoder_input_ids", TOKENS, "int64")
    tied = s.traits.tied_embeddings  # else of this table's gradients the decoder's comes first
    x = embedding(t, "decoder.embed_tokens", ids, VOCAB / TP, D, tied, owner=False)
    return dropped(t, s, x, "decoder.dropout"), heard


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor | Sequence[Tensor]:
    heard = t.carry("encoder hidden states", HEARD, t.parameter_dtype)
    x, bias, weights = _self_attention(t, s, x, kind)
    across, wanted = _cross_bias(t, s, kind)
    with t.scope("EncDecAttention"):
        h = _norm(t, x, "layer_norm")
        h, more = _attention(t, s, h, heard, wanted, LENGTH)
        t.use(weights)
        x = add(t, x, dropped(t, s, h, "dropout"), "residual")
    x = _mlp(t, s, x)
    t.use(more)
    return (x, bias, across) if kind.endswith(FIRST) else x


def _self_attention(t: Tape, s: Structure, x: Tensor, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """The residual stream, the stack's bias, and the weights that its values were summed by."""
    with t.scope("SelfAttention"):
        h = _norm(t, x, "layer_norm")
        makes = kind.endswith((FIRST, ALONE))
        shape = (1, HEADS, S, S)
        bias = None if makes else t.carry(BIAS, shape, t.parameter_dtype)
        h, bias, weights = _biased(t, s, h, bias, kind)
        return add(t, x, dropped(t, s, h, "dropout"), "residual"), bias, weights


def _biased(
    t: Tape, s: Structure, x: Tensor, bias: Tensor | None, kind: str
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _projected(t, x, x, S)
    bias = bias or position_bias(t)
    out, weights = _weighed(t, s, q, k, v, bias, "" if EVERY in kind else "causal mask", S)
    return linear(t, "o", out, Q, D, bias=False), bias, weights


def _attention(
    t: Tape, s: Structure, x: Tensor, of: Tensor, bias: Tensor, length: Factor
) -> tuple[Tensor, Tensor]:
    q, k, v = _projected(t, x, of, length)
    out, weights = _weighed(t, s, q, k, v, bias, "", length)
    return linear(t, "o", out, Q, D, bias=False), weights


def _projected(t: Tape, x: Tensor, of: Tensor, length: Factor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of x; keys and values of `of`, which has this length."""
    q = linear(t, "q", x, D, Q, bias=False)
    q = heads_first(t, q, (B, HEADS, S, HEAD_DIM), copies_grad=True)
    k, v = (
        heads_first(
            t, linear(t, name, of, D, Q, bias=False), (B, HEADS, length, HEAD_DIM), copies_grad=True
        )
        for name in ("k", "v")
    )
    return q, k, v


def _weighed(
    t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: str, length: Factor
) -> tuple[Tensor, Tensor]:
    """softmax(q k + bias) v, heads joined, and the weights. The softmax is in the scores' dtype."""
    with t.scope("core", Part.CORE):
        q, k, v = (contiguous(t, x, x.shape, "by heads") for x in (q, k, v))
        scores = scale(t, matmul(t, q, k, (B, HEADS, S, length), HEAD_DIM, "scores"), "times one")
        scores = add(t, scores, bias, "scores and bias")
        if mask:
            scores = masked(t, scores, mask)
        if t.autocast:
            scores = cast(t, scores, "fp32", "scores (fp32)")
        weights = softmax(t, scores, "softmax")
        if s.traits.attention_dropout:
            weights = dropout(t, weights, "attn_dropout")
        out = matmul(t, weights, v, q.shape, length, "weighted values")
        return contiguous(t, out, (B, S, Q), "joined heads"), weights


def position_bias(t: Tape) -> Tensor:
    """Distances between tokens, sorted into buckets, each with a number for every head. Saves the
    buckets."""
    with t.scope("relative_attention_bias"):
        w = t.parameter("weight", (BUCKETS, HEADS))
        pairs = (S, S)
        t.start("buckets")
        distances = [t.new(n, pairs, "int64") for n in ("distances", "absolute", "far", "near")]
        buckets = t.new("buckets", pairs, "int64")
        t.use(*distances)
        t.finish("buckets", [], buckets, [], lambda g: [])
        t.start("lookup", buckets)
        out = t.new(BIAS, (1, HEADS, S, S), w.dtype)
        t.finish("lookup", [w], out, [buckets], t.grads("weight grad", w))
        return out


def _cross_bias(t: Tape, s: Structure, kind: str) -> tuple[Tensor, Tensor]:
    """Zeros: as a result, and as what is added. The first layer makes them for all; where layers
    are checkpointed, transformers asks for their gradient."""
    dtype = "bf16" if t.autocast else t.parameter_dtype
    shape = (1, HEADS, S, LENGTH)
    if not kind.endswith((FIRST, ALONE)):
        zeros = t.carry(CROSS_BIAS, shape, dtype) if s.again else t.shared(CROSS_BIAS, shape, dtype)
        return zeros, zeros
    t.start("zeros")
    zeros = t.new(CROSS_BIAS, shape, dtype)
    t.finish("zeros", [], zeros, [], lambda g: [])
    result = Tensor(zeros.storage, shape, dtype, False)
    if s.again and s.family != "umt5":
        zeros.needs_grad = True
        t.carried.append(zeros)
    return result, zeros


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    kind = s.traits.activation
    with t.scope("DenseReluDense"):
        h = normed = _norm(t, x, "layer_norm")
        if s.traits.gated:
            gate = activation(t, linear(t, "wi_0", h, D, F, bias=False), kind)
            h = multiply(t, gate, linear(t, "wi_1", h, D, F, bias=False), f"{kind}(gate) x up")
        else:
            h = activation(t, linear(t, "wi", h, D, F, bias=False), kind)
        h = dropped(t, s, h, "dropout")
        h = cast(t, h, t.parameter_dtype, "in the dtype of wo")
        out = linear(t, "wo", h, F, D, bias=False)
        t.use(h)  # has a name until the MLP returns
        t.hold(normed)
        return add(t, x, dropped(t, s, out, "dropout"), "residual")


def _norm(t: Tape, x: Tensor, name: str) -> Tensor:
    """T5LayerNorm: no mean is taken off, no bias. The variance is that of an fp32 copy, what it
    divides is x itself; the result has the weight's dtype."""
    with t.scope(name):
        w = t.parameter("weight", (D,))
        square = power(t, cast(t, x, "fp32", "x (fp32)"), "square")
        rstd = keeps_result(t, shift(t, mean(t, square, "variance"), "variance + eps"), "rsqrt")
        normal = multiply(t, x, rstd, "normalised")
        return multiply(t, cast(t, normal, w.dtype, "normalised, cast"), w, "weighted")


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = dropped(t, s, _norm(t, x, "decoder.final_layer_norm"), "decoder.dropout")
    read = scale(t, x, "scaled") if s.traits.head_scaled else x
    tied = s.traits.tied_embeddings
    loss = labelled_loss(t, linear(t, "lm_head", read, D, VOCAB / TP, bias=False, tied=tied))
    t.use(x, read)  # the decoder's output holds one, a variable the other
    return loss


def _encoder_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return dropped(t, s, _norm(t, x, "final_layer_norm"), "dropout")


ENCODER_ALONE = Family(
    _config, _embed, _encoder_layer, _encoder_head, attentions=("eager",), losses=("eager",),
    decoder=False, alone=True, carries=True, arguments=ALL, aliases=ALIASES,
)  # fmt: skip
TOWER = Family(_config, _embed, _encoder_layer, _head)
_FAMILY = Family(
    _config, _embed, _layer, _head, attentions=("eager",), losses=("eager",),
    alone=True, bridge=_bridge, carries=True, arguments=ALL, aliases=ALIASES,
    classes={
        "T5ForConditionalGeneration": CAUSAL,
        "T5WithLMHeadModel": CAUSAL,  # its name before transformers 3
        "T5EncoderModel": EMBEDDING,
    },
)  # fmt: skip
FAMILIES = {
    "t5": _FAMILY,
    "mt5": replace(
        _FAMILY, classes={"MT5ForConditionalGeneration": CAUSAL, "MT5EncoderModel": EMBEDDING}
    ),
    "umt5": replace(
        _FAMILY, classes={"UMT5ForConditionalGeneration": CAUSAL, "UMT5EncoderModel": EMBEDDING}
    ),
}
