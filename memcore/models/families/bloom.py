"""BLOOM: ALiBi instead of positions, a norm on the embedding, eager attention only."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    SCORES,
    TOKENS,
    core,
    head_behind,
    masked,
    token_embedding,
    weighted_values,
)
from memcore.models.config import Keys
from memcore.models.families.family import Family, decoder_classes
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, HEADS, QKV, TP, B, D, F, Q, S
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    composed,
    contiguous,
    dropout,
    heads_first,
    layer_norm,
    linear,
    matmul,
    split,
)
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    hidden = k.count("hidden_size", 64)
    heads = k.count("n_head", 8, 10**6)
    k.divides("hidden_size", hidden, "n_head", heads)
    k.refuse("slow_but_exact", False, None)
    return Model(
        family="bloom",
        label=label,
        layers=k.count("n_layer", 2, 100_000),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        vocab_size=k.count("vocab_size", 250_880),
        max_positions=k.count_or("seq_length", 2048),
        traits=Traits(
            activation="gelu",
            tied_embeddings=k.flag("tie_word_embeddings", True),
            attention_dropout=k.dropout("attention_dropout", 0.0),
            residual_dropout=k.dropout("hidden_dropout", 0.0),
            residual_after_norm=k.flag("apply_residual_connection_post_layernorm", False),
        ),
    )


def _embed(t: Tape, s: Structure) -> Tensor:
    x = token_embedding(t, s, "word_embeddings")
    return layer_norm(t, x, D, "word_embeddings_layernorm")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    after = s.traits.residual_after_norm

    def added(x: Tensor, residual: Tensor, name: str) -> Tensor:
        return add(t, residual, dropout(t, x, name) if s.traits.residual_dropout else x, "residual")

    h = layer_norm(t, x, D, "input_layernorm")
    x = added(_attention(t, s, h), h if after else x, "attention dropout")
    h = layer_norm(t, x, D, "post_attention_layernorm")
    residual = h if after else x
    with t.scope("mlp"):
        h = linear(t, "dense_h_to_4h", h, D, F / TP, bias=True)
        h = composed(t, h, "gelu", forward=4, backward=5)
        h = linear(t, "dense_4h_to_h", h, F / TP, D, bias=True)
    return added(h, residual, "MLP dropout")


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("self_attention", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias=True)
        parts = split(t, joint, [(*TOKENS, Q / TP)] * 3, sliced=True)
        q, k, v = (
            contiguous(t, heads_first(t, p, shape, False), shape, f"{name}, contiguous")
            for p, shape, name in zip(parts, (QUERIES, KEYS, KEYS), "qkv", strict=True)
        )
        t.use(t.shared("alibi", (B, HEADS / TP, 1, S), t.parameter_dtype))

        def run(heads: Sequence[Tensor]) -> Tensor:
            q, k, v = heads
            scores = matmul(t, q, k, SCORES, HEAD_DIM, "scores with alibi", product="baddbmm")
            return weighted_values(t, s, masked(t, scores), v, softmax_fp32=True)

        out = core(t, run, q, k, v)
        return linear(t, "dense", out, Q / TP, D, bias=True)


_head = head_behind(layer_norm, "ln_f", width=D)
FAMILY = Family(
    _config, _embed, _layer, _head, attentions=("eager",),
    aliases={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "n_embed": "hidden_size",  # renamed by its constructor, as Falcon's
    },
    classes=decoder_classes("Bloom"),
)  # fmt: skip
