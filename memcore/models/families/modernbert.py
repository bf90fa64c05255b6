"""ModernBERT, trained on masked tokens: norms first, rotary positions, and two layers of three see
a window on both sides. Its decoder (Ettin) sees what came before, and has three products for
queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    JOINT,
    KEYS,
    TOKENS,
    activation,
    attended,
    by_heads,
    classes_loss,
    dropped,
    first_token,
    labelled_loss,
    logits_loss,
    query_key_value,
    rotary_tables,
    slides,
    spans_loss,
    value_heads,
    widened_rotary,
)
from memcore.models.config import Keys
from memcore.models.families.bert import every_class
from memcore.models.families.decoders import family_of, model_of
from memcore.models.families.family import encoder, layer_kinds
from memcore.models.families.llama import turning
from memcore.models.model import Model
from memcore.tape.dims import CLASSES, FUSED, QKV, TP, VOCAB, D, F
from memcore.tape.kinds import EVERY, FULL, SLIDING_EVERY, Part, first, is_first
from memcore.tape.primitives import (
    add,
    dropout,
    embedding,
    heads_first,
    layer_norm,
    linear,
    multiply,
    split,
)
from memcore.tape.structure import (
    CLASSIFICATION,
    EMBEDDING,
    LABELLED,
    MASKED,
    SPANS,
    Structure,
)
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = _read(k, "modernbert")
    kinds = [SLIDING_EVERY if slides(kind) else EVERY for kind in model.kinds]
    kinds[0] = first(kinds[0])
    return replace(model, kinds=tuple(kinds))


def _decoder(k: Keys) -> Model:
    model = _read(k, "modernbert-decoder")
    if k.config.get("local_attention", 128) is None:
        k.fail("local_attention", "must be a whole number: these models have sliding layers")
    kinds, traits = (first(model.kinds[0]), *model.kinds[1:]), model.traits
    return replace(model, kinds=kinds, traits=replace(traits, rotary_own=True))


def _read(k: Keys, family: str) -> Model:
    for key in ("classifier_pooling", "global_rope_theta", "local_rope_theta"):
        k.config.get(key)  # of no tensor's size, but where the first is read below
    if k.head == CLASSIFICATION:
        k.refuse("classifier_pooling", "cls")
    if k.head not in (MASKED, EMBEDDING):
        k.refuse("classifier_dropout", 0.0, 0)
    every = k.count("global_attn_every_n_layers", 3)
    model = model_of(k, family)
    kinds = layer_kinds(k, model.layers, lambda i: i % every != 0) or (FULL,) * model.layers
    return replace(model, kinds=kinds)


def _norm(t: Tape, x: Tensor, name: str) -> Tensor:
    return layer_norm(t, x, D, name, bias=False)


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    with t.scope("embeddings"):
        x = embedding(t, "tok_embeddings", ids, VOCAB / TP, D, s.traits.tied_embeddings)
        x = _norm(t, x, "norm")
        return dropout(t, x, "drop") if s.traits.embedding_dropout else x


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = x if is_first(kind) else _norm(t, x, "attn_norm")  # the embedding's norm stands before it
    attended = _attention(t, s, h, kind.removesuffix("-first"))
    t.hold(h)
    x = add(t, x, attended, "residual")
    return add(t, x, _mlp(t, s, _norm(t, x, "mlp_norm")), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("attn", Part.ATTENTION):
        if joint := s.family == "modernbert":
            q, k, v = split(t, linear(t, "Wqkv", x, D, QKV / TP, bias), JOINT)
        else:
            q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=not joint)
        v = heads_first(t, v, KEYS, copies_grad=False) if joint else value_heads(t, s, v)
        which = " (sliding)" if slides(kind) else " (full)"
        tables = rotary_tables(t, which, sequences=turning(s))
        q, k = widened_rotary(t, q, k, tables)
        out = attended(t, s, q, k, v, kind, "Wo", bias, joint_v=joint)
        return dropout(t, out, "out_drop") if s.traits.attention_dropout else out


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    bias = s.traits.mlp_bias
    with t.scope("mlp"):
        joint = linear(t, "Wi", x, D, FUSED / TP, bias)
        given, gate = split(t, joint, [(*TOKENS, F / TP)] * 2)
        h = multiply(t, activation(t, given, s.traits.activation), gate, "act x gate")
        h = dropped(t, s, h, "drop")
        out = linear(t, "Wo", h, F / TP, D, bias)
        t.hold(x)
        return out


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = _norm(t, x, "final_norm")
    if s.head == EMBEDDING:
        return x
    if s.head == CLASSIFICATION:
        x = first_token(t, x)
    with t.scope("head"):
        x = activation(t, linear(t, "dense", x, D, D, bias=False), "gelu")
        x = _norm(t, x, "norm")
    if s.head == SPANS:
        return spans_loss(t, linear(t, "classifier", x, D, CLASSES, bias=True))
    if s.head == LABELLED:
        return labelled_loss(t, linear(t, "classifier", x, D, CLASSES, bias=True))
    if s.head == CLASSIFICATION:
        return classes_loss(t, s, linear(t, "classifier", x, D, CLASSES, bias=True))
    tied = s.traits.tied_embeddings
    logits = linear(t, "decoder", x, D, VOCAB / TP, s.traits.head_bias, tied=tied)
    return labelled_loss(t, logits, widened=True) if s.head == MASKED else logits_loss(t, s, logits)


FAMILIES = {
    "modernbert": encoder(_config, _embed, _layer, _head, every_class("ModernBert")),
    "modernbert-decoder": family_of(
        "modernbert-decoder", _decoder, _embed, _layer, _head, losses=("eager", "fused")
    ),
}
