"""Llama 3.2 Vision's language model: Llama's layers, and among them layers whose queries read an
image. Text without images skips these (MllamaTextModel.forward): their weights are there, and
nothing of them runs."""

from __future__ import annotations

from dataclasses import replace

from memcore.errors import shown
from memcore.layers.ops import token_embedding
from memcore.models.config import Keys
from memcore.models.families import llama
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, KV, ONE, TP, TYPES, D, F, Q
from memcore.tape.kinds import FULL, SKIPPED
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

IMAGE_ROWS = 8  # of the embedding, beyond the vocabulary that the head scores: marks of images
WEIGHTS = (
    *((f"cross_attn.{name}_proj.weight", (Q / TP, D)) for name in "qo"),
    *((f"cross_attn.{name}_proj.weight", (KV / TP, D)) for name in "kv"),
    *((f"cross_attn.{name}_norm.weight", (HEAD_DIM,)) for name in "qk"),
    *((f"mlp.{name}_proj.weight", (F / TP, D)) for name in ("gate", "up", "down")),
    *((f"{name}_layernorm.weight", (D,)) for name in ("input", "post_attention")),
    *((f"cross_attn_{name}_gate", (ONE,)) for name in ("attn", "mlp")),
)


def _config(k: Keys) -> Model:
    model = llama_like(k, "mllama_text_model")
    given = k.config.get("cross_attention_layers")
    if given is None:
        given = list(range(3, 40, 5))
    if not isinstance(given, list) or any(type(i) is not int or i < 0 for i in given):
        message = f"must be a list of the numbers of layers, not {shown(given)}"
        k.fail("cross_attention_layers", message)
        given = []
    dropped = k.dropout("dropout", 0.0)
    return replace(
        model,
        kinds=tuple(SKIPPED if i in given else FULL for i in range(model.layers)),
        type_rows=IMAGE_ROWS,
        traits=replace(model.traits, attention_dropout=dropped),
    )


def _embed(t: Tape, s: Structure) -> Tensor:
    t.parameter("embed_tokens.images", (TYPES, D), idle=True)
    return token_embedding(t, s)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    if kind != SKIPPED:
        return llama.layer(t, s, x, kind)
    for name, shape in WEIGHTS:
        t.parameter(name, shape, idle=True)
    return x


FAMILY = family_of("mllama_text_model", _config, _embed, _layer, llama.head)  # fmt: skip
FAMILIES = {"mllama_text_model": FAMILY}
