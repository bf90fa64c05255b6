"""Counts: a model's weights, parameters, and those that one token uses."""

from __future__ import annotations

from collections.abc import Callable

from memcore.cache import cached
from memcore.layers.experts import active
from memcore.models.blocks import build, structure_of
from memcore.models.model import Model
from memcore.models.stack import layers_of
from memcore.tape.derived import derive
from memcore.tape.dims import Number, Shape
from memcore.tape.ledger import Amounts
from memcore.tape.tape import Tape


def weights(model: Model) -> tuple[Amounts, list[tuple[Tape, int]]]:
    """The tapes that own a model's weights, and how often the model has each."""
    sizes: dict[str, Number] = {**model.sizes, "B": 1, "S": 1, "TP": 1, "CP": 1}
    derive(sizes)
    kinds, layers = layers_of(model)
    blocks = build(structure_of(model), kinds)
    return Amounts(sizes), blocks.counted(layers.counts)


@cached
def parameters(model: Model) -> int:
    """Parameters of a model, counted from its operations' weights."""
    return _counted(model, lambda shape: shape)


@cached
def active_parameters(model: Model) -> int:
    """Parameters that one token meets: of a layer's experts only those that it is sent to."""
    return _counted(model, active)


def _counted(model: Model, of: Callable[[Shape], Shape]) -> int:
    amounts, tapes = weights(model)
    n: Number = 0
    for tape, times in tapes:
        n += times * sum(amounts.elements(of(p.shape)) for p in tape.parameters)
    return int(n)
