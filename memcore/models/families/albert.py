"""ALBERT: BERT's layers, all of which are one set of weights, behind a narrow embedding.

The last layer is planned as the one that has them: its gradient comes first in backward and waits
for those of the layers before it, which are added to it. transformers' code has no checkpointing.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import activation, classes_loss, dropped, labelled_loss, plain_mlp
from memcore.models.config import Keys
from memcore.models.families import bert
from memcore.models.families.family import encoder
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, EMBED, D
from memcore.tape.kinds import EVERY, tied
from memcore.tape.primitives import add, dropout, layer_norm, linear
from memcore.tape.structure import CLASSIFICATION, LABELLED, MASKED, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    for key in ("num_hidden_groups", "inner_group_num"):
        if k.count(key, 1) != 1:
            k.fail(key, "only 1 is planned: one set of weights for all layers")
    k.refuse("chunk_size_feed_forward", 0, None)
    own = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    k.config = {**own, **k.config}
    model = bert.encoder_config(
        k, label, "albert", 30_000, 0, hidden=4096, heads=64, intermediate=16_384
    )
    said = k.config.get("classifier_dropout_prob", 0.1)
    drops = k.dropout("classifier_dropout_prob" if said is not None else "hidden_dropout_prob", 0.1)
    return replace(
        model,
        embedding_size=k.count("embedding_size", 128),
        kinds=(*(tied(EVERY),) * (model.layers - 1), EVERY),
        traits=replace(model.traits, projected_embeddings=True, label_dropout=drops),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = dropped(t, s, bert.attention(t, s, x, EVERY), "attention dropout")
    x = layer_norm(t, add(t, x, h, "residual"), D, "attention.LayerNorm")
    h = plain_mlp(t, x, s.traits.activation, True, ("ffn", "ffn_output"))
    return layer_norm(t, add(t, h, x, "residual"), D, "full_layer_layer_norm")


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head == MASKED:
        h = activation(t, linear(t, "dense", x, D, EMBED, bias=True), s.traits.activation)
        h = layer_norm(t, h, EMBED, "LayerNorm")
        return labelled_loss(t, bert.decoded(t, s, h, EMBED))
    if s.head not in (CLASSIFICATION, LABELLED):
        return bert.head(t, s, x)
    of_all = s.head == CLASSIFICATION
    h = bert.pooled(t, s, x) if of_all else x
    if s.traits.label_dropout:
        h = dropout(t, h, "classifier dropout")
    logits = linear(t, "classifier", h, D, CLASSES, bias=True)
    return classes_loss(t, s, logits) if of_all else labelled_loss(t, logits)


FAMILY = replace(
    encoder(_config, bert.embed, _layer, _head, bert.every_class("Albert")),
    checkpoints=False, shares=True, unsharded="its layers are one set of weights",
    note="Its code in transformers has no checkpointing: layers keep all that backward needs.",
)  # fmt: skip
