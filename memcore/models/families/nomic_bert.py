"""Nomic BERT (nomic-embed-text): BERT's layers with rotary positions and a gated MLP, no biases in
them."""

from __future__ import annotations

from memcore.layers.ops import (
    TOKENS,
    activation,
    attended,
    by_heads,
    classes_loss,
    dropped,
    first_token,
    gated_mlp,
    labelled_loss,
    query_key_value,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.bert import encoder_classes, of_tokens
from memcore.models.families.decoders import model_of
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, TP, TYPES, VOCAB, D
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, embedding, keeps_result, layer_norm, linear
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, LABELLED, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    k.refuse("num_experts", 0, 1, None)
    return model_of(k, "nomic_bert")


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    types = t.new("token_type_ids", TOKENS, "int64")
    x = embedding(t, "word_embeddings", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    typed = embedding(t, "token_type_embeddings", types, TYPES, D, tied=False)
    x = layer_norm(t, add(t, x, typed, "with types"), D, "LayerNorm")
    return dropped(t, s, x, "dropout")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = dropped(t, s, _attention(t, s, x, kind), "post_attention_dropout")
    x = layer_norm(t, add(t, x, h, "residual"), D, "post_attention_layernorm")
    attended = h
    h = dropped(t, s, gated_mlp(t, s, x), "post_mlp_dropout")
    t.hold(attended)
    return layer_norm(t, add(t, x, h, "residual"), D, "post_mlp_layernorm")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias=False)
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = rotary(t, q, k, rotary_tables(t))
        return attended(
            t, s, q, k, value_heads(t, s, v), kind, "o_proj", bias=False, softmax_fp32=False
        )


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head == EMBEDDING:
        return x
    if s.head == LABELLED:
        return of_tokens(t, s, x)
    if s.head == CLASSIFICATION:
        first = first_token(t, x)
        h = keeps_result(t, linear(t, "pooler.dense", first, D, D, bias=True), "tanh")
        h = dropped(t, s, h, "classifier dropout")
        return classes_loss(t, s, linear(t, "classifier", h, D, CLASSES, bias=True))
    with t.scope("transform"):
        h = activation(t, linear(t, "dense", x, D, D, bias=True), s.traits.activation)
        h = layer_norm(t, h, D, "layer_norm")
    tied = s.traits.tied_embeddings
    if not tied:  # what its code ties to the head's bias, and reads nowhere
        t.parameter("bias", (VOCAB / TP,), idle=True)
    return labelled_loss(t, linear(t, "decoder", h, D, VOCAB / TP, bias=True, tied=tied))


# As the files of Nomic's own code have them (huggingface.co/nomic-ai/nomic-embed-text-v1.5).
NOMICS_OWN = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "attn_pdrop": "attention_probs_dropout_prob",
    "resid_pdrop": "hidden_dropout_prob",
}
FAMILY = encoder(_config, _embed, _layer, _head, encoder_classes("NomicBert"), aliases=NOMICS_OWN)
