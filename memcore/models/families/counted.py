"""Counted: architectures whose parameters are known to the last one, and nothing else of them, as
presets/families/counted.toml lists them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from memcore.layers.ops import TOKENS
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family
from memcore.models.families.rows import Row, Sizes, classes_of, rows, spelled_out
from memcore.models.model import Model
from memcore.tape.dims import COUNTED, D
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor

NAME = "counted"


def _config(k: Keys) -> Model:
    raise NotImplementedError("a counted architecture has a config of its own")


def _embed(t: Tape, s: Structure) -> Tensor:
    t.parameter("weights", (COUNTED,), idle=True)
    return t.input("hidden states", (*TOKENS, D), s.dtype, needs_grad=False)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return x


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return x


# What all of them are built as: all their weights in one piece.
WHOLE = Family(_config, _embed, _layer, _head, kernels=HF_ONLY, decoder=False)


def of_parameters(number: int, label: str = "") -> Model:
    """A model of which nothing but its parameters is known."""
    return Model(
        family=NAME, label=label, layers=1, hidden_size=1, intermediate_size=1, heads=1,
        kv_heads=1, head_dim=1, vocab_size=1, max_positions=1, traits=Traits(),
        counted=max(1, number),
    )  # fmt: skip


def _family(row: Row) -> Family:
    row = spelled_out(row)
    return Family(
        lambda k: of_parameters(Sizes(row, k)["parameters"]), _embed, _layer, _head,
        kernels=HF_ONLY, decoder=row.get("decoder", False),
        classes=classes_of(row),
    )  # fmt: skip


@functools.cache
def every() -> Mapping[str, Family]:
    """All of them, by model_type."""
    return {kind: _family(row) for kind, row in rows("counted").items() if "stem" in row}
