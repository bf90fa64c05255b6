"""Whisper: convolutions over a spectrogram and an encoder of as many positions as 30 seconds have,
and a decoder that reads the encoder's result in every layer (WhisperForConditionalGeneration)."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    core,
    dropped,
    labelled_loss,
    plain_mlp,
    weighted_values,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, with_encoder
from memcore.models.families.family import ALL, Family
from memcore.models.families.t5 import HEARD, LENGTH
from memcore.models.model import Model
from memcore.tape.dims import FRAMES, HEAD_DIM, HEADS, MELS, POSITIONS, TP, VOCAB, B, D, Q, S, Shape
from memcore.tape.kinds import EVERY, FULL, Part
from memcore.tape.primitives import (
    add,
    contiguous,
    convolution,
    embedding,
    flash_attention,
    heads_first,
    keeps_input,
    layer_norm,
    linear,
    matmul,
    scale,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Tape, Tensor

WINDOW = 3  # frames that a convolution sees
ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "num_key_value_heads": "encoder_attention_heads",
}


def _config(k: Keys) -> Model:
    return with_encoder(k, "whisper", "whisper_encoder", positions="max_source_positions")


def _embed(t: Tape, s: Structure) -> Tensor:
    """Two convolutions, the second of which keeps every other frame, and fixed positions."""
    frames = t.input("input_features", (B, MELS, FRAMES), t.parameter_dtype, needs_grad=False)
    x = convolution(t, "conv1", frames, (B, FRAMES, D), MELS, WINDOW)
    x = convolution(t, "conv2", keeps_input(t, x, "gelu"), (B, S, D), D, WINDOW)
    x = keeps_input(t, x, "gelu")
    with t.scope("embed_positions"):
        table = t.parameter("weight", (POSITIONS, D), idle=True)
        t.start("lookup", table)
        placed = t.new("positions", (S, D), table.dtype)
        t.finish("lookup", [table], placed, [], lambda g: [None])
    return dropped(t, s, add(t, x, placed, "with positions"), "dropout")


def _encoder_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return _mlp(t, s, _self_attention(t, s, x, EVERY))


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    heard = t.carry("encoder hidden states", HEARD, t.parameter_dtype)
    x = _self_attention(t, s, x, FULL)
    h = layer_norm(t, x, D, "encoder_attn_layer_norm")
    with t.scope("encoder_attn", Part.ATTENTION):
        q, k, v = _projected(t, s, h, heard, HEARD_HEADS)
        h = linear(t, "out_proj", across(t, s, q, k, v, "times one"), Q / TP, D, bias=True)
    x = add(t, x, dropped(t, s, h, "cross-attention dropout"), "residual")
    return _mlp(t, s, x)


def _self_attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "self_attn_layer_norm")
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = _projected(t, s, h, h, KEYS)
        out = attention_core(t, s, q, k, v, kind, softmax_fp32=False)
        h = linear(t, "out_proj", out, Q / TP, D, bias=True)
    return add(t, x, dropped(t, s, h, "attention dropout"), "residual")


HEARD_HEADS: Shape = (B, HEADS, LENGTH, HEAD_DIM)
_SCORES: Shape = (B, HEADS, S, LENGTH)


def _projected(
    t: Tape, s: Structure, x: Tensor, of: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of x, scaled; keys and values of `of`; each copied so that heads come first, which
    eager attention does itself."""
    q = scale(t, linear(t, "q_proj", x, D, Q / TP, bias=True), "q, scaled")
    k = linear(t, "k_proj", of, D, Q / TP, bias=False)
    v = linear(t, "v_proj", of, D, Q / TP, bias=True)
    found = []
    for name, each, heads in (("q", q, QUERIES), ("k", k, shape), ("v", v, shape)):
        by_heads = heads_first(t, each, heads, copies_grad=True)
        if s.attention != "eager" or shape is HEARD_HEADS:
            by_heads = contiguous(t, by_heads, heads, f"{name}, contiguous")
        found.append(by_heads)
    return found[0], found[1], found[2]


def across(
    t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, scaled: str, copied: bool = False
) -> Tensor:
    """Attention to all that was heard.

    scaled   what eager attention's scores are called once they are scaled
    copied   eager attention lays each out by heads first
    """

    def run(heads: Sequence[Tensor]) -> Tensor:
        q, k, v = heads
        if s.attention != "eager":
            product = (2, *_SCORES, HEAD_DIM)
            out = flash_attention(t, q, k, v, (B, HEADS, S), product, s.attention)
            return heads_first(t, out, (*TOKENS, Q / TP), copies_grad=False)
        if copied:
            q, k, v = (contiguous(t, x, x.shape, "by heads") for x in (q, k, v))
        scores = matmul(t, q, k, _SCORES, HEAD_DIM, "scores")
        return weighted_values(t, s, scale(t, scores, scaled), v, False, inner=LENGTH)

    return core(t, run, q, k, v)


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    h = layer_norm(t, x, D, "final_layer_norm")
    h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    return add(t, x, dropped(t, s, h, "MLP dropout"), "residual")


def _bridge(t: Tape, s: Structure, x: Tensor) -> Sequence[Tensor]:
    heard = layer_norm(t, x, D, "encoder.layer_norm")
    ids = t.new("decoder_input_ids", TOKENS, "int64")
    x = embedding(t, "decoder.embed_tokens", ids, VOCAB / TP, D, s.traits.tied_embeddings)
    with t.scope("decoder.embed_positions"):
        table = t.parameter("weight", (POSITIONS, D))
        index = t.new("position_ids", TOKENS, "int64")
        t.start("lookup", index)
        placed = t.new("positions", (*TOKENS, D), table.dtype)

        def backward(g: Gradients) -> Gradients:
            zeros = t.new("weight grad, zeros", table.shape, table.dtype)
            grad = t.new("weight grad", table.shape, table.dtype)
            t.free(zeros)
            return [grad]

        t.finish("lookup", [table], placed, [index], backward)
    x = add(t, x, placed, "with positions")
    return dropped(t, s, x, "decoder.dropout"), heard


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "decoder.layer_norm")
    tied = s.traits.tied_embeddings
    loss = labelled_loss(t, linear(t, "lm_head", x, D, VOCAB / TP, bias=False, tied=tied))
    t.use(x)  # the decoder's output holds it
    return loss


TOWER: Family = Family(_config, _embed, _encoder_layer, _head)
FAMILY = family_of(
    "whisper",
    _config,
    _embed,
    _layer,
    _head,
    losses=("eager",),
    bridge=_bridge,
    carries=True,
    arguments=ALL,
)
