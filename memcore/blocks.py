"""Blocks: a model's embedding, its kinds of layer and its head, each run once on a tape."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from memcore import multi_token
from memcore.families import FAMILIES
from memcore.model import Model
from memcore.ops import HIDDEN
from memcore.policies import CORE, LOWER
from memcore.primitives import scatter
from memcore.structure import Adapters, Depths, LayerKind, Narrow, Structure
from memcore.tape import Tape, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Tapes, forward and backward. `layers` has one for each of `kinds`."""

    structure: Structure
    kinds: tuple[LayerKind, ...]
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
    served: bool = False,
    parallel: str = "",
    exchanges: bool = False,
    gathers: bool = False,
    adapters: Adapters | None = None,
    narrow: Narrow | None = None,
    depths: Depths | None = None,
    frozen: str = "",
    reached: bool = False,
    regathers: str = "",
) -> Structure:
    """What decides which tensors exist, of a model and the words of a plan."""
    words = (
        attention,
        kernels,
        cross_entropy,
        dtype,
        autocast,
        served,
        parallel,
        exchanges,
        gathers,
    )
    return Structure(
        model.family, model.traits, *words, adapters, narrow, depths, frozen, reached, regathers
    )


@functools.lru_cache(maxsize=512)
def build(s: Structure, kinds: tuple[LayerKind, ...]) -> Blocks:
    """The tapes of one structure with layers of these kinds."""
    embed, head = _ends(s)
    # Only a recomputed attention core changes a layer's tape; a layer that is run again whole, or
    # operation by operation, is the same tape, which the ledger reads in another way.
    tapes = (_layer(s, k.attention, k.recompute == CORE, k.leads, k.frozen) for k in kinds)
    return Blocks(s, kinds, embed, tuple(tapes), head)


def _tape(
    s: Structure,
    prefix: str,
    run: Callable[[Tape], Tensor],
    kernels: str,
    core: bool = False,
    frozen: bool = False,
) -> Tape:
    """One block, forward and backward. `core`: backward runs the attention core again; `frozen`:
    its own weights are not trained."""
    t = Tape(s.dtype, s.autocast, kernels, s.attention, core, s.parallel, s.adapters, s.narrow)
    t.frozen, t.frozen_tied = frozen, bool(s.frozen)
    t.reached = s.reached or bool(s.adapters and s.adapters.inputs)
    with t.scope(prefix):
        out = run(t)
        t.end_forward(out)
        if not out.needs_grad:
            return t
        grad = t.input("output grad", out.shape, out.dtype)
        grad.storage.birth = t.clock
        if out.node:
            t.backward(out, grad)
        else:  # a frozen embedding's result, of which PEFT wants a gradient
            grad.storage.kind, grad.storage.death = "output gradient", t.clock + 1
            t.clock += 1
    return t


@functools.lru_cache(maxsize=512)
def _ends(s: Structure) -> tuple[Tape, Tape]:
    """The embedding and the head."""
    family = FAMILIES[s.family]
    kernels = "hf" if s.kernels == "compile" else s.kernels  # each layer is compiled by itself

    def head(t: Tape) -> Tensor:
        x = t.input("input", HIDDEN, s.dtype, needs_grad=s.reached or s.frozen != LOWER)
        return multi_token.head(t, s, x, family.layer) if s.depths else family.head(t, s, x)

    return (
        _tape(s, "embed", lambda t: scatter(t, family.embed(t, s)), kernels, frozen=bool(s.frozen)),
        _tape(s, "head", head, kernels, bool(s.depths and s.depths.again == CORE)),
    )


@functools.lru_cache(maxsize=512)
def _layer(s: Structure, attention: str, core: bool, leads: bool, frozen: bool) -> Tape:
    def run(t: Tape) -> Tensor:
        x = t.input("input", HIDDEN, s.dtype, needs_grad=not leads)
        out = FAMILIES[s.family].layer(t, s, x, attention)
        t.use(x)  # the loop over layers holds it until the layer returns
        return out

    return _tape(s, "layers", run, s.kernels, core, frozen)
