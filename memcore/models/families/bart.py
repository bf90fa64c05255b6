"""BART, mBART, PLBART, Pegasus, Marian (opus-mt), M2M100 (NLLB) and Blenderbot: an encoder, and a
decoder that reads the encoder's result in every layer. They differ in where norms stand, and in
their positions.

BartForConditionalGeneration and its likes: one table of embeddings serves encoder, decoder and
head. `encoder_layerdrop` leaves layers out of a step at random: counted is one that has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    activation,
    attended,
    classes_loss,
    dropped,
    labelled_loss,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import with_encoder
from memcore.models.families.family import ALL, Family
from memcore.models.families.t5 import HEARD
from memcore.models.families.whisper import ALIASES, HEARD_HEADS, across
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, CP, POSITIONS, TP, VOCAB, B, D, F, Q, S, Shape
from memcore.tape.kinds import EVERY, FULL, Part
from memcore.tape.primitives import (
    add,
    dropout,
    embedding,
    heads_first,
    keeps_result,
    layer_norm,
    linear,
    scale,
)
from memcore.tape.structure import CAUSAL, CLASSIFICATION, Structure
from memcore.tape.tape import Tape, Tensor

# Positions: trained; the same, of all sequences at once; a frozen table; a buffer.
LEARNED, ONCE, FIXED, MADE = "learned", "once", "fixed", "made"
DROPPED = (
    "Layers that a step leaves out at random (layerdrop) are counted as if none were: so much is "
    "needed where none is."
)


def _config(k: Keys, family: str) -> Model:
    for key in ("is_encoder_decoder", "tie_word_embeddings", "share_encoder_decoder_embeddings"):
        k.refuse(key, True)
    classifies = k.head == CLASSIFICATION
    if classifies:
        k.refuse("problem_type", None, "single_label_classification")
        if family == "bart" and "id2label" not in k.config:
            k.config = {"num_labels": 3, **k.config}
    layerdrop = 0.05 if family == "m2m_100" else 0.0
    if any(k.dropout(f"{which}_layerdrop", layerdrop) for which in ("encoder", "decoder")):
        k.notes.append(DROPPED)
    model = with_encoder(k, family, "bart_encoder")
    k.refuse("decoder_vocab_size", model.vocab_size, None)
    if not (classifies and k.dropout("classifier_dropout", 0.0)):
        return model
    traits = replace(model.traits, label_dropout=True)
    tower = replace(model.tower, traits=traits) if model.tower else None
    return replace(model, traits=traits, tower=tower)


def placed(t: Tape, s: Structure, x: Tensor, where: str, every: bool) -> Tensor:
    """Embeddings with positions. `every`: of each sequence apart."""
    how, tokens = s.traits.positions, TOKENS if every else (1, S / CP)
    tokens = (S / CP,) if how == ONCE else tokens
    early = s.family == "blenderbot-small" and not every  # its norm is of words alone
    with t.scope(where):
        if early:
            x = layer_norm(t, x, D, "layernorm_embedding")
        if how in (LEARNED, ONCE):
            index = t.new("position_ids", tokens, "int64")
            table = embedding(t, "embed_positions", index, POSITIONS, D, tied=False)
        else:
            shape = (POSITIONS, D)
            rows = (
                t.parameter("embed_positions.weight", shape, idle=True)
                if how == FIXED
                else t.buffer("embed_positions.weights", shape, s.buffers or t.parameter_dtype)
            )
            t.start("lookup", rows)
            table = t.new("positions", (*(TOKENS if how == MADE else (S,)), D), rows.dtype)
            t.finish("lookup", [], table, [], lambda g: [])
        x = add(t, x, table, "with positions")
        if s.traits.embedding_normed and not early:
            x = layer_norm(t, x, D, "layernorm_embedding")
        return dropped(t, s, x, "dropout")


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = scale(t, embedding(t, "shared", ids, VOCAB / TP, D, tied=True), "scaled")
    return placed(t, s, x, "encoder", every=True)


def _kept(t: Tape, x: Tensor) -> Tensor:
    """The encoder's result as it is, which every layer of the decoder keeps."""
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("encoder's result", [x], out, [x], lambda g: [g[0]])
    return out


def _bridge(t: Tape, s: Structure, x: Tensor) -> Sequence[Tensor]:
    heard = layer_norm(t, x, D, "encoder.layer_norm") if s.traits.final_norm else _kept(t, x)
    ids = t.new("decoder_input_ids", TOKENS, "int64")
    x = embedding(t, "decoder.embed_tokens", ids, VOCAB / TP, D, tied=True, owner=False)
    return placed(t, s, scale(t, x, "scaled"), "decoder", every=False), heard


def _encoder_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return feed_forward(t, s, self_attention(t, s, x, EVERY))


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    heard = t.carry("encoder hidden states", HEARD, t.parameter_dtype)
    x = self_attention(t, s, x, FULL)

    def hears(h: Tensor) -> Tensor:
        with t.scope("encoder_attn", Part.ATTENTION):
            q, k, v = _projected(t, s, h, heard, HEARD_HEADS)
            out = across(t, s, q, k, v, "scores, scaled", copied=True)
            return linear(t, "out_proj", out, Q / TP, D, bias=True)

    return feed_forward(t, s, _normed(t, s, x, "encoder_attn_layer_norm", hears))


def _normed(t: Tape, s: Structure, x: Tensor, name: str, run: Callable[[Tensor], Tensor]) -> Tensor:
    """A part of a layer beside the residual stream, its norm before it or behind both."""
    first = s.traits.norm_first
    h = dropped(t, s, run(layer_norm(t, x, D, name) if first else x), f"{name}, dropout")
    x = add(t, x, h, "residual")
    return x if first else layer_norm(t, x, D, name)


def self_attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    def run(h: Tensor) -> Tensor:
        with t.scope("self_attn", Part.ATTENTION):
            q, k, v = _projected(t, s, h, h, KEYS)
            return attended(t, s, q, k, v, kind, "out_proj", bias=True, softmax_fp32=False)

    return _normed(t, s, x, "self_attn_layer_norm", run)


def _projected(
    t: Tape, s: Structure, x: Tensor, of: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of x; keys and values of `of`."""
    copies = s.attention == "eager"
    q = heads_first(t, linear(t, "q_proj", x, D, Q / TP, bias=True), QUERIES, copies)
    k, v = (
        heads_first(t, linear(t, name, of, D, Q, bias=True), shape, copies)
        for name in ("k_proj", "v_proj")
    )
    return q, k, v


def feed_forward(t: Tape, s: Structure, x: Tensor) -> Tensor:
    def run(h: Tensor) -> Tensor:
        h = activation(t, linear(t, "fc1", h, D, F / TP, bias=True), s.traits.activation)
        if s.traits.activation_dropout:
            h = dropout(t, h, "activation_dropout")
        return linear(t, "fc2", h, F / TP, D, bias=True)

    return _normed(t, s, x, "final_layer_norm", run)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.traits.final_norm:
        x = layer_norm(t, x, D, "decoder.layer_norm")
    if s.head == CLASSIFICATION:
        return _classified(t, s, x)
    logits = linear(t, "lm_head", x, D, VOCAB / TP, bias=False, tied=True)
    if s.traits.head_bias:  # a buffer, of noughts
        bias = t.buffer("final_logits_bias", (1, VOCAB / TP), s.buffers or t.parameter_dtype)
        logits = add(t, logits, bias, "with bias")
    loss = labelled_loss(t, logits)
    t.use(x)  # the decoder's output holds it
    return loss


def _classified(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Of each sequence its last token, which ends it, through two layers."""
    ends = t.new("which tokens end a sequence", TOKENS, "bool")
    t.start("last tokens", x)
    h = t.new("of the last tokens", (B, D), x.dtype)
    t.finish("last tokens", [x], h, [ends], t.grads("grad", x))
    if s.traits.label_dropout:
        h = dropout(t, h, "dropout of states")
    h = keeps_result(t, linear(t, "dense", h, D, D, bias=True), "tanh")
    if s.traits.label_dropout:
        h = dropout(t, h, "dropout")
    return classes_loss(t, s, linear(t, "out_proj", h, D, CLASSES, bias=True))


def _family(name: str, first: str, classifier: str = "") -> Family:
    classes = {first: CAUSAL} | ({classifier: CLASSIFICATION} if classifier else {})
    return Family(
        partial(_config, family=name), _embed, _layer, _head, losses=("eager",), alone=True,
        bridge=_bridge, carries=True, arguments=ALL, classes=classes,
        aliases=ALIASES | {"initializer_range": "init_std"},
    )  # fmt: skip


FAMILIES = {
    "bart": _family("bart", "BartForConditionalGeneration", "BartForSequenceClassification"),
    "mbart": _family("mbart", "MBartForConditionalGeneration", "MBartForSequenceClassification"),
    "pegasus": _family("pegasus", "PegasusForConditionalGeneration"),
    "marian": _family("marian", "MarianMTModel"),
    "plbart": _family(
        "plbart", "PLBartForConditionalGeneration", "PLBartForSequenceClassification"
    ),
    "blenderbot": _family("blenderbot", "BlenderbotForConditionalGeneration"),
    "blenderbot-small": _family("blenderbot-small", "BlenderbotSmallForConditionalGeneration"),
    "m2m_100": _family("m2m_100", "M2M100ForConditionalGeneration"),
}
TOWER: Family = Family(partial(_config, family="bart"), _embed, _encoder_layer, _head)
