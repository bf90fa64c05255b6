"""DeBERTa v2 and v3: BERT's layers, whose scores have two terms more: of a token's content with the
distance of another, and of distances with that one's content (He et al., arXiv 2006.03654).

Distances fall into buckets, each with an embedding, which all layers read and project as they do
their tokens. DebertaV2ForMaskedLM has the head that its file calls legacy.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import scattered
from memcore.layers.ops import (
    HIDDEN,
    SCORES,
    TOKENS,
    activation,
    classes_loss,
    dropped,
    first_token,
    labelled_loss,
)
from memcore.models.config import Keys
from memcore.models.families import bert
from memcore.models.families.family import MASK, encoder
from memcore.models.model import Model
from memcore.tape.dims import BUCKETS, CLASSES, CP, HEAD_DIM, HEADS, TP, VOCAB, B, D, Q, S, Shape
from memcore.tape.kinds import Part, Role
from memcore.tape.primitives import (
    Reused,
    add,
    added,
    cast,
    contiguous,
    dropout,
    embedding,
    heads_first,
    layer_norm,
    layer_normed,
    linear,
    masked_fill,
    matmul,
    multiply,
    reused_linear,
    shift,
    softmax,
)
from memcore.tape.structure import CLASSIFICATION, Structure
from memcore.tape.tape import Tape, Tensor

EMBEDDINGS = "embeddings of distances"
KEYS = (B, HEADS / TP, S / CP, HEAD_DIM)
DISTANCES = (B, HEADS / TP, BUCKETS, HEAD_DIM)


def _config(k: Keys) -> Model:
    for key, planned in (("relative_attention", True), ("position_biased_input", False),
                         ("share_att_key", True), ("legacy", True)):  # fmt: skip
        if k.flag(key, key in ("position_biased_input", "legacy")) != planned:
            k.fail(key, f"only {str(planned).lower()} is planned, as DeBERTa v3 has it")
    k.refuse("conv_kernel_size", 0, None)
    if k.config.get("norm_rel_ebd", "none") != "layer_norm":
        k.fail("norm_rel_ebd", "only layer_norm is planned, as DeBERTa v3 has it")
    terms = k.config.get("pos_att_type")
    listed = terms.split("|") if isinstance(terms, str) else terms
    if not isinstance(listed, list) or sorted(map(str, listed)) != ["c2p", "p2c"]:
        k.fail("pos_att_type", "must name p2c and c2p, and no other")
    k.refuse("type_vocab_size", 0)
    k.config = {**k.config, "type_vocab_size": 1}
    model = bert.encoder_config(k, "deberta-v2")
    k.refuse("embedding_size", model.hidden_size, None)
    k.refuse("pooler_hidden_size", model.hidden_size, None)
    k.refuse("attention_head_size", model.head_dim, None)
    if k.head == CLASSIFICATION:
        k.refuse("pooler_dropout", 0, 0.0, None)
        k.refuse("pooler_hidden_act", "gelu")
        k.refuse("problem_type", None)
        k.refuse("cls_dropout", None)
    buckets = k.count("position_buckets", 256)
    k.config.get("max_relative_positions")  # of buckets that none is in
    return replace(model, type_rows=0, position_rows=0, buckets=2 * buckets)


def _embed(t: Tape, s: Structure) -> tuple[Tensor, Tensor]:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "word_embeddings", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    x = layer_norm(t, x, D, "LayerNorm")
    x = multiply(t, x, t.new("mask of tokens", (*TOKENS, 1), x.dtype), "masked")
    x = dropped(t, s, x, "dropout")
    with t.scope("encoder"):
        table = t.parameter("rel_embeddings.weight", (BUCKETS, D))
        with t.scope("LayerNorm"):
            return x, layer_normed(t, table, [t.parameter(n, (D,)) for n in ("weight", "bias")])


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    mask = t.shared("mask", (B, 1, S / CP, S), "fp32", Role.CAUSAL_MASK)
    t.shared("distances", (1, S / CP, S), "int64")
    distances = t.carry(EMBEDDINGS, (BUCKETS, D), t.parameter_dtype)
    with t.scope("attention", Part.ATTENTION):
        query, key, value = (reused_linear(t, f"{n}_proj", D, Q / TP)
                             for n in ("query", "key", "value"))  # fmt: skip
        q, k, v = (_by_heads(t, project(x), KEYS) for project in (query, key, value))
        with t.scope("core", Part.CORE):
            scores = matmul(t, q, _divided(t, k), SCORES, HEAD_DIM, "scores")
            scores = add(t, scores, _of_distances(t, s, distances, q, k, query, key), "all terms")
            # What may not be seen, made anew by each layer.
            t.use(t.new("mask (bool)", mask.shape, "bool"))
            hidden = t.new("not seen", mask.shape, "bool")
            scores = masked_fill(t, scores, hidden, "scores, masked")
            if t.autocast:
                scores = cast(t, scores, "fp32", "scores (fp32)")
            weights = softmax(t, scores, "softmax")
            if s.traits.attention_dropout:
                weights = dropout(t, weights, "dropout")
            out = matmul(t, weights, v, KEYS, S, "weighted values")
            out = contiguous(t, out, HIDDEN, "joined heads")
        return linear(t, "output.dense", out, Q / TP, D, bias=True)


def _by_heads(t: Tape, x: Tensor, shape: Shape) -> Tensor:
    return contiguous(t, heads_first(t, x, shape, copies_grad=True), shape, "by heads")


def _divided(t: Tape, x: Tensor) -> Tensor:
    """x by a number that is a tensor, which is kept."""
    return multiply(t, x, t.new("divisor", (), x.dtype), "divided")


def _of_distances(
    t: Tape, s: Structure, distances: Tensor, q: Tensor, k: Tensor, query: Reused, key: Reused
) -> Tensor:
    """Both terms: each is a product with all buckets, of which every pair takes its own."""
    read = dropped(t, s, distances, "pos_dropout")

    def projected(by: Reused, name: str) -> Tensor:
        one = (HEADS / TP, BUCKETS, HEAD_DIM)
        return contiguous(t, _by_heads(t, by(read), one), DISTANCES, f"{name}, repeated")

    of_q, of_k = projected(query, "distances as queries"), projected(key, "distances as keys")
    pairs = (1, 1, S / CP, S)
    terms = []
    for x, other, name in ((q, of_k, "content to distance"), (k, of_q, "distance to content")):
        every = matmul(t, x, other, (*SCORES[:-1], BUCKETS), HEAD_DIM, name)
        where = t.new(f"{name}, buckets", pairs, "int64")
        terms.append(_divided(t, _gathered(t, every, where, SCORES, name)))
        if len(terms) == 1:
            terms[0] = shift(t, terms[0], "nought and the first term")
    content, distance = terms
    return added(t, content, distance, "both terms")


def _gathered(t: Tape, x: Tensor, index: Tensor, shape: Shape, name: str) -> Tensor:
    """torch.gather. Saves x too, whose gradient is as large."""
    t.start(f"{name}, gathered", x, index)
    out = t.new(f"{name}, gathered", shape, x.dtype)
    t.finish(f"{name}, gathered", [x], out, [x, index], lambda g: [scattered(t, x, name)])
    return out


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head != CLASSIFICATION:
        return bert.head(t, s, x)
    first = first_token(t, x)
    h = activation(t, linear(t, "pooler.dense", first, D, D, bias=True), "gelu")
    h = dropped(t, s, h, "dropout")
    logits = linear(t, "classifier", h, D, CLASSES, bias=True)
    if s.one_class:
        return classes_loss(t, s, logits)
    places = t.new("sequences with a label", (B, 1), "int64")
    chosen = _gathered(t, logits, places, (B, CLASSES), "labelled")
    return labelled_loss(t, chosen, widened=True)


FAMILY = encoder(
    _config, _embed, bert.layer_around(_attention), _head, bert.every_class("DebertaV2"),
    attentions=("eager",), carries=True, arguments=MASK,
)  # fmt: skip
FAMILIES = {"deberta-v2": FAMILY}
