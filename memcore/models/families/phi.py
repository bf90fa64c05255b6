"""Phi-1, 1.5 and 2: attention and MLP read one layer norm; half of each head is rotated."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import causal_lm_head, plain_mlp, token_embedding
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, llama_like
from memcore.models.model import Model
from memcore.tape.dims import D
from memcore.tape.primitives import add, dropout, layer_norm
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    k.refuse("qk_layernorm", False, None)
    model = llama_like(
        k,
        label,
        "phi",
        hidden=2048,
        intermediate=8192,
        layers=24,
        vocab=51_200,
        activation="gelu_new",
        attention_bias=True,
        mlp_bias=True,
        head_bias=True,
        rotary_partial=True,
        residual_dropout=k.dropout("resid_pdrop", 0.0),
        embedding_dropout=k.dropout("embd_pdrop", 0.0),
    )
    share = k.rope("partial_rotary_factor", 0.5)
    return replace(model, rotary_dim=int(model.head_dim * share))


def _embed(t: Tape, s: Structure) -> Tensor:
    x = token_embedding(t, s)
    return dropout(t, x, "embed_dropout") if s.traits.embedding_dropout else x


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "input_layernorm")
    attended = attention(t, s, h, kind, "dense")
    if s.traits.residual_dropout:
        attended = dropout(t, attended, "attention dropout")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    if s.traits.residual_dropout:
        h = dropout(t, h, "MLP dropout")
    return add(t, add(t, attended, h, "attention and MLP"), x, "residual")


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, layer_norm(t, x, D, "final_layernorm"))


FAMILY = Family(_config, _embed, _layer, _head, kernels=HF_ONLY, classes=decoder_classes("Phi"))
