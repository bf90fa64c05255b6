"""A model of whatever kind that was traced: its tapes come from a model file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memcore.cache import cached
from memcore.errors import refusal, shown
from memcore.models.families.family import Family
from memcore.models.model import Model
from memcore.models.traced.file import LARGEST_SIZE, ModelFile, check_sizes, read
from memcore.models.traced.tapes import blocks_of
from memcore.models.traced.tuned import LowRank, tuned
from memcore.tape.dims import TRACED
from memcore.tape.structure import EMBEDDING, Traits

NAME = "traced"
MOST_DIMS = 40
NOTE = (
    "This model was traced: PyTorch's forward and backward, with the loss of its model file. It is "
    "planned by the graph of several samples, of which one alone may keep a little less."
)


def _never(*_: Any) -> Any:
    raise AssertionError("a traced model's tapes come from its file")


OF_A_FILE = Family(
    _never, _never, _never, _never, attentions=("sdpa", "flash"), losses=("eager",), decoder=False,
    alone=True, checkpoints=False, note=NOTE,
)  # fmt: skip


@cached
def _file(text: str) -> ModelFile:
    """The model file of a JSON text, one object for equal texts."""
    return read(json.loads(text), checked=False)


def model_of(document: Mapping[str, Any]) -> Model:
    """The Model that a model file describes, at the sizes of its `dims`. Raises PlanError."""
    sizes = _sizes(document.get("dims"))
    file = _file(json.dumps({**document, "dims": dict.fromkeys(sizes, 1)}, sort_keys=True))
    return model_at(file, sizes, file.label)


def model_at(file: ModelFile, sizes: Mapping[str, int], label: str) -> Model:
    """The Model of a model file at some sizes of its dimensions. Raises PlanError."""
    check_sizes(file, sizes)
    variant = file.several
    own = tuple((name, n) for name, n in sizes.items() if name not in TRACED)
    return Model(
        family=NAME, hidden_size=1, intermediate_size=1, heads=1, kv_heads=1,
        head_dim=1, vocab_size=1, max_positions=2**31, traits=Traits(), label=label,
        head=EMBEDDING, traced=file, traced_sizes=own,
        notes=tuple(_notes(variant.broken(dict(own)))), **_layers(file),
    )  # fmt: skip


def as_trained(model: Model, frozen: tuple[str, ...], adapters: LowRank | None) -> Model:
    """A traced model where the weights of some modules are frozen, or with adapters all but these.
    Raises PlanError."""
    assert model.traced
    file = tuned(model.traced, frozen, adapters)
    return replace(model, traced=file, **_layers(file))


def as_forward(model: Model) -> Model:
    """A traced model's forward alone, in eval mode under torch.no_grad."""
    assert model.traced
    assert model.traced.forward
    return replace(model, traced=_forward_of(model.traced), **_layers(_forward_of(model.traced)))


@cached
def _forward_of(file: ModelFile) -> ModelFile:
    assert file.forward
    return replace(file, variants=(file.forward,), checks=())


def _layers(file: ModelFile) -> dict[str, Any]:
    """How many layers a model has, and of which kinds, as Model has them."""
    kinds = blocks_of(file)[0].kinds
    return {"layers": len(kinds), "kinds": tuple(f"traced {kind}" for kind in kinds)}


def _notes(broken: list[str]) -> Iterator[str]:
    """What is said of sizes at which the trace does not hold."""
    if broken:
        yield f"The trace holds where {broken[0]}, which these sizes are not: trace it at them."


def _sizes(dims: Any) -> dict[str, int]:
    """Sizes of dimensions by their names. Raises PlanError."""
    if not isinstance(dims, dict) or len(dims) > MOST_DIMS:
        raise refusal("model.dims", f"must be an object of at most {MOST_DIMS} sizes")
    for name, n in dims.items():
        if type(n) is not int or not 1 <= n <= LARGEST_SIZE:
            wanted = f"must be a whole number of 1 to {LARGEST_SIZE:,}, not {shown(n)}"
            raise refusal(f"model.dims.{shown(name)[1:-1]}", wanted)
    return dims
