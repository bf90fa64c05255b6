"""BioGPT: BART's layers with norms first, as a decoder by itself."""

from __future__ import annotations

from memcore.layers.ops import TOKENS, head_behind
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.bart import DROPPED, LEARNED, OFFSET, feed_forward, placed
from memcore.models.families.bart import self_attention as attention
from memcore.models.families.family import own_keys
from memcore.models.families.rows import family_of
from memcore.models.model import Model
from memcore.tape.dims import TP, VOCAB, D
from memcore.tape.kinds import FULL
from memcore.tape.primitives import embedding, layer_norm, scale
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    hidden = k.count("hidden_size", 1024)
    heads = k.count("num_attention_heads", 16, 10**6)
    k.divides("hidden_size", hidden, "num_attention_heads", heads)
    k.flag("scale_embedding", True)  # multiplied by whatever the number is, 1.0 included
    if k.dropout("layerdrop", 0.0):
        k.notes.append(DROPPED)
    positions = k.count("max_position_embeddings", 1024)
    return Model(
        family="biogpt",
        layers=k.count("num_hidden_layers", 24, 100_000),
        **own_keys(hidden, heads),
        intermediate_size=k.count("intermediate_size", 4096),
        vocab_size=k.count("vocab_size", 42_384),
        max_positions=positions,
        position_rows=positions + OFFSET,
        traits=Traits(
            activation=k.word("hidden_act", "gelu", ACTIVATIONS),
            tied_embeddings=k.flag("tie_word_embeddings", True),
            attention_dropout=k.dropout("attention_probs_dropout_prob", 0.1),
            residual_dropout=k.dropout("hidden_dropout_prob", 0.1),
            activation_dropout=k.dropout("activation_dropout", 0.0),
            positions=LEARNED,
        ),
    )


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "embed_tokens", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    return placed(t, s, scale(t, x, "scaled"), "positions", every=False)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return feed_forward(t, s, attention(t, s, x, FULL))


_head = head_behind(layer_norm, "layer_norm", width=D)
FAMILY = family_of("biogpt", _config, _embed, _layer, _head)
