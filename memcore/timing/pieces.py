"""Pieces: what data-parallel ranks send each other, made of the states that a GPU has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memcore.quantity.reading import Read, total
from memcore.step.step import apart, optimizer_states, owned, root

if TYPE_CHECKING:
    from memcore.step.step import Alive, Step
    from memcore.tape.ledger import Amounts
    from memcore.timing.communication import Beside

# The states of one GPU that transfers move: what each is called, and the tensors that it is.
STATES: dict[str, tuple[str, Callable[[Step], Alive]]] = {
    "trained": ("Trained weights on one GPU", lambda s: s.every("trained")),
    "updated": ("Weights that one GPU updates", lambda s: s.every("updated")),
    "optimizer": (
        "Optimizer states of one GPU's weights",
        lambda s: [*optimizer_states(s), *s.every("paged")],
    ),
    "gradients": ("Gradients on one GPU", lambda s: s.every("gradients")),
    "buckets": ("Gradients in DDP's buckets", lambda s: s.every("buckets")),
    "layer-weights": (
        "Whole weights of all layers", lambda s: s.of_layers("gathered", s.grouped)
    ),
    "layer-gradients": (
        "Whole gradients of all layers", lambda s: s.of_layers("reduction", s.grouped)
    ),
    "root-weights": ("Whole weights of embedding and head", lambda s: root(s, "gathered")),
    "root-gradients": ("Whole gradients of embedding and head", lambda s: root(s, "reduction")),
    "unit-weights": (
        "Whole weights of all layers, but experts'",
        lambda s: apart(s.of_layers("gathered", s.grouped), False),
    ),
    "unit-gradients": (
        "Whole gradients of all layers, but experts'",
        lambda s: apart(s.of_layers("reduction", s.grouped), False),
    ),
    "unit-experts": (
        "Whole experts of all layers", lambda s: apart(s.of_layers("gathered", s.grouped), True)
    ),
    "unit-expert-gradients": (
        "Whole gradients of all layers' experts",
        lambda s: apart(s.of_layers("reduction", s.grouped), True),
    ),
    "rank-gradients": (
        "Gradients on one GPU, but experts'", lambda s: owned(s, "gradients", False)
    ),
    "rank-weights": (
        "Weights on one GPU, but experts'", lambda s: owned(s, _gathered(s), False)
    ),
    "expert-gradients": (
        "Gradients of experts on one GPU", lambda s: owned(s, "gradients", True)
    ),
    "expert-weights": ("Experts' weights on one GPU", lambda s: owned(s, _gathered(s), True)),
}  # fmt: skip
# The states that a piece consists of, and of which a layer's share is taken: of those that `Beside`
# counts under this word.
WHOLE, OF_LAYER, OF_REACHED = "", "layers", "reached"
PIECES = {
    "weights of a layer": {"layer-weights": OF_LAYER},
    "gradients of a layer": {"layer-gradients": OF_REACHED},
    "weights of a unit": {"unit-weights": OF_LAYER},
    "gradients of a unit": {"unit-gradients": OF_REACHED},
    "experts of a unit": {"unit-experts": OF_LAYER},
    "gradients of a unit's experts": {"unit-expert-gradients": OF_REACHED},
    "weights of the root": {"root-weights": WHOLE},
    "weights of the root and of a layer": {"root-weights": WHOLE, "layer-weights": OF_LAYER},
    "gradients of the root and of a layer": {
        "root-gradients": WHOLE, "layer-gradients": OF_REACHED,
    },
    "gradients of the layers": {"layer-gradients": WHOLE},
    "gradients of the root": {"root-gradients": WHOLE},
    "gradients in buckets": {"buckets": WHOLE},
    "updated weights": {"trained": WHOLE},
    "gradients of all weights": {"rank-gradients": WHOLE},
    "weights of this rank": {"rank-weights": WHOLE},
    "gradients of all experts": {"expert-gradients": WHOLE},
    "experts of this rank": {"expert-weights": WHOLE},
}  # fmt: skip


def _gathered(step: Step) -> str:
    """The state that ranks gather once updated: all weights of a stage, or adapters alone."""
    return "trained" if step.blocks.structure.adapters else "resident"


def moved(beside: Beside, amounts: Amounts, *names: str) -> dict[str, Read]:
    """Bytes of each of these, each time it is moved."""

    def bytes_of(state: str, share: str) -> Read:
        n = amounts.held(beside.step.holding(state, STATES[state][1]))
        every = beside.x.at(f"time.states.{state}", amounts.real(n))
        return every / getattr(beside, share) if share else every

    return {name: total(bytes_of(*of) for of in PIECES[name].items()) for name in names}
