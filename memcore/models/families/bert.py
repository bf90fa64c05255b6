"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA and ALBERT, trained on masked tokens:
every token sees every other, norms come last.

BertForMaskedLM and RobertaForMaskedLM: no pooler; the loss is over all positions.
BertForSequenceClassification and RobertaForSequenceClassification read the first token,
BertForTokenClassification and BertForQuestionAnswering every one; BertModel and RobertaModel have a
pooler, which is not read here. DistilBERT has no types and no pooler.
ELECTRA has no pooler, and its embedding may be narrower than its layers; its generator is
ElectraForMaskedLM, its discriminator, which says of each token whether it was replaced,
ElectraForPreTraining.
ALBERT's layers are one set of weights, behind a narrow embedding. The last one is planned as that
which has them: its gradient comes first in backward and waits for those of the layers before it,
which are added to it. transformers' code of it has no checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from memcore.layers.ops import (
    TOKENS,
    activation,
    attended,
    by_heads,
    classes_loss,
    dropped,
    first_token,
    labelled_loss,
    plain_mlp,
    spans_loss,
    tokens_loss,
    unread,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import model_of
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, CP, EMBED, ONE, POSITIONS, TP, TYPES, VOCAB, D, Factor, Q, S
from memcore.tape.kinds import EVERY, Part, tied
from memcore.tape.primitives import add, dropout, embedding, keeps_result, layer_norm, linear
from memcore.tape.structure import (
    CLASSIFICATION,
    EMBEDDING,
    LABELLED,
    MASKED,
    REPLACED,
    SPANS,
    Structure,
)
from memcore.tape.tape import Tape, Tensor

ROBERTAS = ("roberta", "xlm-roberta", "camembert", "mpnet")


def encoder_config(k: Keys, family: str) -> Model:
    model = model_of(k, family)
    if model.max_positions < 1:
        offset, rows = model.position_rows - model.max_positions, model.position_rows
        k.fail("max_position_embeddings", f"must be above {offset}, not {rows}")
    return model


def embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    if s.family in ROBERTAS:  # counted anew for each sequence, so that padding has no position
        positions = t.new("position_ids", TOKENS, "int64")
        types = t.new("token_type_ids", TOKENS, "int64")
    else:  # from a buffer
        positions = t.shared("position_ids", (1, S / CP), "int64")
        if s.family in ("bert", "electra", "albert"):
            types = t.new("token_type_ids", (1, S / CP), "int64")
    x = embedding(t, "word_embeddings", ids, VOCAB / TP, EMBED, s.traits.tied_embeddings)
    if s.family != "distilbert":
        # Where there is one row of types, it stands for all sequences.
        types = Tensor(types.storage, TOKENS, types.dtype, False)
        typed = embedding(t, "token_type_embeddings", types, TYPES, EMBED, tied=False)
        x = add(t, x, typed, "with types")
    placed = embedding(t, "position_embeddings", positions, POSITIONS, EMBED, tied=False)
    x = layer_norm(t, add(t, x, placed, "with positions"), EMBED, "LayerNorm")
    x = dropped(t, s, x, "dropout")
    if s.traits.projected_embeddings:
        x = linear(t, "embeddings_project", x, EMBED, D, bias=True)
    return x


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, x, kind)
    if s.family != "distilbert":  # which drops out of its probabilities alone
        h = dropped(t, s, h, "attention dropout")
    x = layer_norm(t, add(t, h, x, "residual"), D, "attention.output.LayerNorm")
    h = plain_mlp(t, x, s.traits.activation, True, ("intermediate.dense", "output.dense"))
    h = dropped(t, s, h, "MLP dropout")
    return layer_norm(t, add(t, h, x, "residual"), D, "output.LayerNorm")


def layer_around(
    mixes: Callable[[Tape, Structure, Tensor], Tensor],
) -> Callable[[Tape, Structure, Tensor, str], Tensor]:
    """A layer of BERT's form, each of whose norms stands behind a sum, around an attention of its
    own."""

    def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
        h = dropped(t, s, mixes(t, s, x), "attention dropout")
        x = layer_norm(t, add(t, h, x, "residual"), D, "attention.LayerNorm")
        h = plain_mlp(t, x, s.traits.activation, True, ("intermediate.dense", "output.dense"))
        h = dropped(t, s, h, "MLP dropout")
        return layer_norm(t, add(t, h, x, "residual"), D, "output.LayerNorm")

    return layer


def attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("attention", Part.ATTENTION):
        q, k, v = (linear(t, name, x, D, Q / TP, bias=True) for name in ("query", "key", "value"))
        q, k = by_heads(t, q, k, copies_grad=s.attention == "eager")
        return attended(
            t, s, q, k, value_heads(t, s, v), kind, "output.dense", bias=True, softmax_fp32=False
        )


def pooled(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """What a classifier reads of each sequence: of its first token."""
    first = first_token(t, x)
    if s.family in (*ROBERTAS, "electra"):
        first = dropped(t, s, first, "classifier dropout, first")
    h = linear(t, "pooler.dense", first, D, D, bias=True)
    return activation(t, h, "gelu") if s.family == "electra" else keeps_result(t, h, "tanh")


def of_tokens(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """What is said of every token: its class, or whether an answer begins and ends there."""
    if s.head == LABELLED:
        x = dropped(t, s, x, "classifier dropout")
        return labelled_loss(t, linear(t, "classifier", x, D, CLASSES, bias=True))
    if s.family == "distilbert":
        x = dropped(t, s, x, "dropout")
    return spans_loss(t, linear(t, "qa_outputs", x, D, CLASSES, bias=True))


def head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head in (LABELLED, SPANS):
        return of_tokens(t, s, x)
    if s.head == EMBEDDING:
        if s.family in ("distilbert", "electra", "deberta-v2"):
            return x
        unread(t, "pooler.dense", D, D)
        return x
    if s.head == CLASSIFICATION:
        h = dropped(t, s, pooled(t, s, x), "classifier dropout")
        return classes_loss(t, s, linear(t, "classifier", h, D, CLASSES, bias=True))
    if s.head == REPLACED:
        h = activation(t, linear(t, "dense", x, D, D, bias=True), s.traits.activation)
        return tokens_loss(t, linear(t, "dense_prediction", h, D, ONE, bias=True))
    kind = "gelu" if s.family in (*ROBERTAS, "electra") else s.traits.activation
    with t.scope("transform"):
        h = activation(t, linear(t, "dense", x, D, EMBED, bias=True), kind)
        h = layer_norm(t, h, EMBED, "LayerNorm")
    return labelled_loss(t, decoded(t, s, h, EMBED))


def decoded(t: Tape, s: Structure, h: Tensor, width: Factor) -> Tensor:
    """The logits of a head on masked tokens."""
    own = s.traits.tied_embeddings
    logits = linear(t, "decoder", h, width, VOCAB / TP, bias=True, tied=own)
    if not own and s.family in ("bert", "albert", "deberta-v2", *ROBERTAS):
        # What is tied to the head's bias else, and read nowhere.
        t.parameter("bias", (VOCAB / TP,), idle=True)
    return logits


def _electra(k: Keys) -> Model:
    model = encoder_config(k, "electra")
    width = k.count("embedding_size", 128)
    projected = replace(model.traits, projected_embeddings=width != model.hidden_size)
    return replace(model, embedding_size=width, traits=projected)


def _distilbert(k: Keys) -> Model:
    if k.head == SPANS and k.dropout("qa_dropout", 0.1) != k.dropout("dropout", 0.1):
        k.fail("qa_dropout", "that it drops where the model does not, or the reverse, is not known")
    return model_of(k, "distilbert")


def _albert(k: Keys) -> Model:
    for key in ("num_hidden_groups", "inner_group_num"):
        if k.count(key, 1) != 1:
            k.fail(key, "only 1 is planned: one set of weights for all layers")
    k.refuse("chunk_size_feed_forward", 0, None)
    model = encoder_config(k, "albert")
    drops = model.traits.residual_dropout
    if k.config.get("classifier_dropout_prob", 0.1) is not None:
        drops = k.dropout("classifier_dropout_prob", 0.1)
    return replace(
        model,
        embedding_size=k.count("embedding_size", 128),
        kinds=(*(tied(EVERY),) * (model.layers - 1), EVERY),
        traits=replace(model.traits, projected_embeddings=True, label_dropout=drops),
    )


def _albert_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = dropped(t, s, attention(t, s, x, EVERY), "attention dropout")
    x = layer_norm(t, add(t, x, h, "residual"), D, "attention.LayerNorm")
    h = plain_mlp(t, x, s.traits.activation, True, ("ffn", "ffn_output"))
    return layer_norm(t, add(t, h, x, "residual"), D, "full_layer_layer_norm")


def _albert_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head == MASKED:
        h = activation(t, linear(t, "dense", x, D, EMBED, bias=True), s.traits.activation)
        h = layer_norm(t, h, EMBED, "LayerNorm")
        return labelled_loss(t, decoded(t, s, h, EMBED))
    if s.head not in (CLASSIFICATION, LABELLED):
        return head(t, s, x)
    of_all = s.head == CLASSIFICATION
    h = pooled(t, s, x) if of_all else x
    if s.traits.label_dropout:
        h = dropout(t, h, "classifier dropout")
    logits = linear(t, "classifier", h, D, CLASSES, bias=True)
    return classes_loss(t, s, logits) if of_all else labelled_loss(t, logits)


def encoder_classes(stem: str) -> dict[str, str]:
    return {
        f"{stem}ForMaskedLM": MASKED,
        f"{stem}Model": EMBEDDING,
        f"{stem}ForSequenceClassification": CLASSIFICATION,
        f"{stem}ForTokenClassification": LABELLED,
    }


def every_class(stem: str) -> dict[str, str]:
    return encoder_classes(stem) | {f"{stem}ForQuestionAnswering": SPANS}


FAMILIES = {
    **{
        name: encoder(
            partial(encoder_config, family=name), embed, _layer, head, every_class(stem),
        )
        for name, stem in (
            ("bert", "Bert"),
            ("roberta", "Roberta"),
            ("xlm-roberta", "XLMRoberta"),
            ("camembert", "Camembert"),
        )
    },
    "electra": encoder(
        _electra, embed, _layer, head,
        every_class("Electra") | {"ElectraForPreTraining": REPLACED},
    ),
    "albert": encoder(
        _albert, embed, _albert_layer, _albert_head, every_class("Albert"),
        checkpoints=False, shares=True, unsharded="its layers are one set of weights",
        note="Its code in transformers has no checkpointing: layers keep all that backward needs.",
    ),
    "distilbert": encoder(
        _distilbert, embed, _layer, head, every_class("DistilBert"),
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
}  # fmt: skip
