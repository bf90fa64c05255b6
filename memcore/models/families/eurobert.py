"""EuroBERT: Llama's layers, of which every token sees every other, trained on masked tokens."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import activation, classes_loss, first_token, labelled_loss, rms_norm
from memcore.models.config import Keys
from memcore.models.families.bert import encoder_classes, of_tokens
from memcore.models.families.decoders import llama_like
from memcore.models.families.family import encoder
from memcore.models.families.llama import embed, layer
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, TP, VOCAB, D
from memcore.tape.kinds import EVERY
from memcore.tape.primitives import linear
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, LABELLED, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "eurobert")
    pooling = k.config.get("classifier_pooling", "late")  # of a classifier alone
    if k.head == CLASSIFICATION and pooling != "bos":
        k.fail("classifier_pooling", "of a classifier only bos, its first token, is planned")
    return replace(model, kinds=(EVERY,) * model.layers)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = rms_norm(t, x, "norm")
    if s.head == EMBEDDING:
        return x
    if s.head == LABELLED:
        return of_tokens(t, s, x)
    if s.head == CLASSIFICATION:
        first = first_token(t, x)
        h = activation(t, linear(t, "dense", first, D, D, bias=True), "gelu")
        return classes_loss(t, s, linear(t, "classifier", h, D, CLASSES, bias=True))
    bias, tied = s.traits.mlp_bias, s.traits.tied_embeddings  # so its code names the head's bias
    logits = linear(t, "lm_head", x, D, VOCAB / TP, bias, tied=tied)
    return labelled_loss(t, logits, widened=True)


FAMILY = encoder(_config, embed, layer, _head, encoder_classes("EuroBert"))
