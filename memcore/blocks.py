"""Blocks: a model's embedding, its kinds of layer and its head, each run once on a tape."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from memcore.families import FAMILIES
from memcore.model import FULL, Model
from memcore.ops import HIDDEN
from memcore.structure import Structure
from memcore.tape import Tape, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Tapes, forward and backward. `layers` has one for each of `structure.kinds`."""

    structure: Structure
    embed: Tape
    layers: tuple[Tape, ...]
    head: Tape

    @property
    def mask_is_argument(self) -> bool:
        return FAMILIES[self.structure.family].mask_is_argument


def structure_of(
    model: Model,
    attention: str = "flash",
    kernels: str = "hf",
    cross_entropy: str = "eager",
    dtype: str = "bf16",
    autocast: bool = False,
) -> Structure:
    """What decides which tensors exist, of a model and the words of a plan."""
    kinds = tuple(dict.fromkeys(model.kinds)) or (FULL,)
    return Structure(
        model.family, model.traits, kinds, attention, kernels, cross_entropy, dtype, autocast
    )


@functools.lru_cache(maxsize=512)
def build(s: Structure) -> Blocks:
    """The tapes of one structure."""
    family = FAMILIES[s.family]

    def tape(prefix: str, run: Callable[[Tape], Tensor]) -> Tape:
        t = Tape(s.dtype, s.autocast)
        with t.scope(prefix):
            out = run(t)
            t.end_forward()
            grad = t.input("output grad", out.shape, out.dtype)
            grad.storage.birth = t.clock
            t.backward(out, grad)
        return t

    def layer(kind: str) -> Callable[[Tape], Tensor]:
        def run(t: Tape) -> Tensor:
            x = t.input("input", HIDDEN, s.dtype)
            out = family.layer(t, s, x, kind)
            t.use(x)  # the loop over layers holds it until the layer returns
            return out

        return run

    return Blocks(
        structure=s,
        embed=tape("embed", lambda t: family.embed(t, s)),
        layers=tuple(tape("layers", layer(kind)) for kind in s.kinds),
        head=tape("head", lambda t: family.head(t, s, t.input("input", HIDDEN, s.dtype))),
    )
