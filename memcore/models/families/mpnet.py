"""MPNet (all-mpnet-base-v2), trained on masked tokens: RoBERTa's layers, whose scores have a bias
by the distance of two tokens, made once for all layers. Its code has eager attention alone, and no
checkpointing."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import HIDDEN, SCORES, TOKENS, activation, dropped, labelled_loss
from memcore.models.config import Keys
from memcore.models.families import bert, t5
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, HEADS, POSITIONS, TP, VOCAB, B, D, Q, S
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    contiguous,
    dropout,
    embedding,
    heads_first,
    layer_norm,
    linear,
    matmul,
    scale,
    softmax,
)
from memcore.tape.structure import MASKED, Structure
from memcore.tape.tape import Tape, Tensor

BIAS = "position bias of every sequence"
KEYS = (B, HEADS, S, HEAD_DIM)


def _config(k: Keys) -> Model:
    k.config = {**k.config, "type_vocab_size": 1}  # it has no types
    model = bert.encoder_config(k, "mpnet")
    buckets = k.count("relative_attention_num_buckets", 32)
    return replace(model, type_rows=0, buckets=buckets)


def _embed(t: Tape, s: Structure) -> tuple[Tensor, Tensor]:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    places = t.new("position_ids", TOKENS, "int64")  # counted anew, so that padding has none
    x = embedding(t, "word_embeddings", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    placed = embedding(t, "position_embeddings", places, POSITIONS, D, tied=False)
    x = dropped(t, s, layer_norm(t, add(t, x, placed, "with positions"), D, "LayerNorm"), "dropout")
    with t.scope("encoder"):
        return x, contiguous(t, t5.position_bias(t), SCORES, BIAS)


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    bias = t.carry(BIAS, SCORES, t.parameter_dtype)
    with t.scope("attention", Part.ATTENTION):
        q, k, v = (linear(t, name, x, D, Q / TP, bias=True) for name in ("q", "k", "v"))
        given = (q, k, v)
        q, k, v = (heads_first(t, each, KEYS, copies_grad=True) for each in given)
        with t.scope("core", Part.CORE):
            q, k, v = (contiguous(t, each, KEYS, "by heads") for each in (q, k, v))
            scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
            biased = add(t, scores, bias, "scores and bias")
            weights = softmax(t, biased, "softmax")
            if s.traits.attention_dropout:
                weights = dropout(t, weights, "dropout")
            out = matmul(t, weights, v, KEYS, S, "weighted values")
            t.hold(biased)
            out = contiguous(t, out, HIDDEN, "joined heads")
        t.hold(*given)
        return linear(t, "o", out, Q / TP, D, bias=True)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head != MASKED:
        return bert.head(t, s, x)
    with t.scope("lm_head"):
        h = activation(t, linear(t, "dense", x, D, D, bias=True), "gelu")
        h = layer_norm(t, h, D, "layer_norm")
        logits = bert.decoded(t, s, h, D)
    return labelled_loss(t, logits)


FAMILY = encoder(
    _config, _embed, bert.layer_around(_attention), _head, bert.every_class("MPNet"),
    attentions=("eager",), carries=True, checkpoints=False,
    note="Its code in transformers has no checkpointing: layers keep all that backward needs.",
)  # fmt: skip
