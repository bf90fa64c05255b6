"""BioGPT: BART's layers with norms first, as a decoder by itself."""

from __future__ import annotations

from memcore.layers.ops import TOKENS, head_behind
from memcore.models.config import Keys
from memcore.models.families.bart import DROPPED, feed_forward, placed
from memcore.models.families.bart import self_attention as attention
from memcore.models.families.decoders import family_of, model_of
from memcore.models.model import Model
from memcore.tape.dims import TP, VOCAB, D
from memcore.tape.kinds import FULL
from memcore.tape.primitives import embedding, layer_norm, scale
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    k.flag("scale_embedding", True)  # multiplied by whatever the number is, 1.0 included
    if k.dropout("layerdrop", 0.0):
        k.notes.append(DROPPED)
    return model_of(k, "biogpt")


def _embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "embed_tokens", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    return placed(t, s, scale(t, x, "scaled"), "positions", every=False)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return feed_forward(t, s, attention(t, s, x, FULL))


_head = head_behind(layer_norm, "layer_norm", width=D)
FAMILY = family_of("biogpt", _config, _embed, _layer, _head)
