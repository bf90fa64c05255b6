"""ESM-1b and ESM-2, of proteins, trained on masked tokens: norms first, rotary or learned
positions, and a GELU composed of an error function. The weights of the head for contacts are there,
and nobody reads them."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    TOKENS,
    attended,
    by_heads,
    classes_loss,
    dropped,
    first_token,
    labelled_loss,
    rotary_tables,
    unread,
    value_heads,
    widened_rotary,
)
from memcore.models.config import Keys
from memcore.models.families import bert
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, HEADS, LAYERS, ONE, POSITIONS, TP, VOCAB, B, D, F, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    cast,
    composed,
    embedding,
    keeps_result,
    layer_norm,
    linear,
    masked_fill,
    multiply,
    scale,
    shift,
)
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, LABELLED, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    if k.config.get("vocab_size") is None:
        k.fail("vocab_size", "missing; there is no default of it")
    for key in ("is_folding_model", "use_cache"):
        k.config.get(key)
    k.refuse("is_folding_model", False, None)
    turned = k.word("position_embedding_type", "absolute", {"absolute": "", "rotary": "rotary"})
    k.config = {**k.config, "position_embedding_type": "absolute", "type_vocab_size": 1,
                "hidden_act": "gelu"}  # fmt: skip
    model = bert.encoder_config(k, "esm")
    traits = replace(
        model.traits,
        rotary_widened=bool(turned),
        embedding_normed=k.flag("emb_layer_norm_before", False),
        embedding_masked=k.flag("token_dropout", False),
    )
    found = replace(model, type_rows=0, traits=traits)
    if not turned:
        return found
    rows = model.position_rows
    return replace(found, position_rows=0, max_positions=rows, rotary_dim=model.head_dim)


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    with t.scope("embeddings"):
        if not s.traits.rotary_widened:
            places = t.new("position_ids", TOKENS, "int64")
        x = embedding(t, "word_embeddings", ids, VOCAB / TP, D, s.traits.tied_embeddings)
        if s.traits.embedding_masked:
            x = _without_masked(t, x)
        if not s.traits.rotary_widened:
            placed = embedding(t, "position_embeddings", places, POSITIONS, D, tied=False)
            x = add(t, x, placed, "with positions")
        return layer_norm(t, x, D, "layer_norm") if s.traits.embedding_normed else x


def _without_masked(t: Tape, x: Tensor) -> Tensor:
    """Masked tokens are nought, and the others as much larger as makes up for them."""
    x = masked_fill(t, x, t.new("masked tokens", (*TOKENS, 1), "bool"), "without masked")
    x = scale(t, x, "by those masked in training")
    share = t.new("those not masked", (B, 1, 1), "fp32")
    return cast(t, multiply(t, x, share, "by those not masked"), t.parameter_dtype, "cast")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, layer_norm(t, x, D, "attention.LayerNorm"), kind)
    x = add(t, dropped(t, s, h, "attention dropout"), x, "residual")
    h = layer_norm(t, x, D, "LayerNorm")
    h = _gelu(t, linear(t, "intermediate.dense", h, D, F / TP, bias=True))
    h = linear(t, "output.dense", h, F / TP, D, bias=True)
    return add(t, dropped(t, s, h, "MLP dropout"), x, "residual")


def _gelu(t: Tape, x: Tensor) -> Tensor:
    """x / 2 (1 + erf(x / sqrt(2)))."""
    half = scale(t, x, "x / 2")
    # Its derivative is 2 / sqrt(pi) exp(-x^2) times the gradient: four steps, and the result.
    erf = composed(t, scale(t, x, "x / sqrt(2)"), "erf", forward=0, backward=5)
    return multiply(t, half, shift(t, erf, "1 + erf"), "product")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("attention", Part.ATTENTION):
        q, k, v = (linear(t, name, x, D, Q / TP, bias=True) for name in ("query", "key", "value"))
        copies = s.attention == "eager"
        q, k = by_heads(t, q, k, copies_grad=copies)
        v = value_heads(t, s, v)
        q = scale(t, q, "q, scaled")
        if s.traits.rotary_widened:
            q, k = widened_rotary(t, q, k, rotary_tables(t))
        return attended(t, s, q, k, v, kind, "output.dense", bias=True, softmax_fp32=False)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "emb_layer_norm_after")
    with t.scope("contact_head.regression"):
        t.parameter("weight", (LAYERS, HEADS), idle=True)
        t.parameter("bias", (ONE,), idle=True)
    if s.head == LABELLED:
        return bert.of_tokens(t, s, x)
    if s.head == EMBEDDING:
        unread(t, "pooler.dense", D, D)
        return x
    if s.head == CLASSIFICATION:
        first = first_token(t, x)
        first = dropped(t, s, first, "classifier dropout, first")
        h = keeps_result(t, linear(t, "dense", first, D, D, bias=True), "tanh")
        h = dropped(t, s, h, "classifier dropout")
        return classes_loss(t, s, linear(t, "out_proj", h, D, CLASSES, bias=True))
    with t.scope("lm_head"):
        h = _gelu(t, linear(t, "dense", x, D, D, bias=True))
        h = layer_norm(t, h, D, "layer_norm")
        tied = s.traits.tied_embeddings
        logits = linear(t, "decoder", h, D, VOCAB / TP, bias=False, tied=tied)
        logits = add(t, logits, t.parameter("bias", (VOCAB / TP,)), "with bias")
    return labelled_loss(t, logits)


FAMILY = encoder(_config, _embed, _layer, _head, bert.encoder_classes("Esm"))
