"""Blocks: a model's embedding, its kinds of layer and its head, each run once on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memcore.cache import cached, counted_apart
from memcore.layers import multi_token
from memcore.layers.ops import HIDDEN, residual
from memcore.models.families import FAMILIES, TOWERS
from memcore.models.families.family import ALL, MASK
from memcore.models.model import Model
from memcore.models.traced import tapes as traced
from memcore.tape.dims import APART, of_stack
from memcore.tape.kinds import Part, Role, is_apart, is_first, is_tied
from memcore.tape.primitives import scatter
from memcore.tape.structure import BRIDGE, IDLE, TOWER, LayerKind, Structure
from memcore.tape.tape import Tape, Tensor, in_stack
from memcore.words.training import LOWER, MODULES, SEEING

Results = Tensor | Sequence[Tensor]  # the next block's input, and what several blocks read


@counted_apart
@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Tapes, forward and backward. `layers` has one for each of `kinds`."""

    structure: Structure
    kinds: tuple[LayerKind, ...]
    embed: Tape
    layers: tuple[Tape, ...]
    head: Tape

    def counted(self, counts: Iterable[int]) -> list[tuple[Tape, int]]:
        """Every tape, and how often a model, or a stage that may lack the last kinds, has it."""
        return [(self.embed, 1), *zip(self.layers, counts, strict=False), (self.head, 1)]

    @property
    def carries(self) -> bool:
        return FAMILIES[self.structure.family].carries

    def given(self, name: str, role: Role | None) -> bool:
        """Whether layers take what they read together by position: what is made before them, and
        of the rest nothing, the mask or all."""
        words = FAMILIES[self.structure.family].arguments
        before = any(s.kind == "shared" and s.own_name == name for s in self.embed.storages)
        return words == ALL or before or (words == MASK and role is Role.CAUSAL_MASK)


def structure_of(model: Model, **words: Any) -> Structure:
    """What decides which tensors exist, of a model and the words of a plan: Structure's fields."""
    head, one_class = model.head, model.classes == 1
    own = Structure(
        model.family, model.traits, stack=model.stack, head=head, one_class=one_class,
        traced=model.traced, **words,
    )  # fmt: skip
    if model.tower is None:
        return own
    again = own.reached or bool(own.adapters and own.adapters.inputs)
    tower = replace(
        own,
        family=model.tower.family,
        traits=model.tower.traits,
        adapters=None,  # PEFT's are the language model's
        reached=again and model.tower.traits.patches_reached,
        stack=model.tower.stack,
    )
    return replace(own, tower=tower)


@cached
def build(s: Structure, kinds: tuple[LayerKind, ...]) -> Blocks:
    """The tapes of one structure with layers of these kinds."""
    if s.traced:
        again = any(k.recompute for k in kinds)  # the tapes themselves run layers again
        embed, layers, head = traced.tapes_of(s, s.traced, again)
        index = [int(k.attention.rpartition(" ")[2]) for k in kinds]
        return Blocks(s, kinds, embed, tuple(layers[i] for i in index), head)
    embed, head = _ends(s)
    # Only modules that run again change a layer's tape; a layer that is run again whole, or
    # operation by operation, is the same tape, which the ledger reads in another way.
    of = (k if k.recompute == MODULES else replace(k, recompute="") for k in kinds)
    return Blocks(s, kinds, embed, tuple(_layer(s, k) for k in of), head)


def _tape(
    s: Structure,
    prefix: str,
    run: Callable[[Tape], Results],
    kernels: str,
    again: bool = False,
    frozen: bool = False,
    kind: LayerKind | None = None,
) -> Tape:
    """One block, forward and backward. `again`: backward runs the structure's modules again;
    `frozen`: its own weights are not trained; kind: of a layer, or of what leads to the main
    stack."""
    t = Tape(s, kernels, s.modules if again else ())
    t.idle = kind is not None and kind.place == IDLE
    t.tied = kind is not None and is_tied(kind.attention)
    t.frozen, t.frozen_tied = frozen, s.frozen not in ("", SEEING)
    layer = kind is not None and kind.place != BRIDGE
    with t.scope(prefix, Part.LAYER if layer else None):
        found = run(t)
        outs = _listed(found)
        t.hold(*(Tensor(x, x.shape, x.dtype, False) for x in t.storages if x.kind == "input"))
        t.end_forward(*outs)
        wanted = [out for out in outs if out.needs_grad]
        grads = [t.input("output grad", out.shape, out.dtype) for out in wanted]
        for grad in grads:
            grad.storage.birth = t.clock
        begins = kind is None or kind.begins
        made = [(out, grad) for out, grad in zip(wanted, grads, strict=True) if out.node]
        leaves = [grad for out, grad in zip(wanted, grads, strict=True) if not out.node]
        if made:
            t.backward([out for out, _ in made], [grad for _, grad in made], begins)
        for grad in leaves:  # a frozen embedding's result, of which PEFT wants a gradient
            grad.storage.kind, grad.storage.death = "output gradient", t.clock + 1
        t.clock += bool(leaves and not made)
    t.forget_graph()
    return t


@cached
def _ends(s: Structure) -> tuple[Tape, Tape]:
    """The embedding and the head."""
    family = FAMILIES[s.family]
    kernels = "hf" if s.kernels == "compile" else s.kernels  # each layer is compiled by itself

    def head(t: Tape) -> Tensor:
        dtype = "fp32" if s.traits.residual_fp32 and not s.served else s.dtype
        x = t.input("input", residual(s), dtype, needs_grad=s.reached or s.frozen != LOWER)
        return multi_token.head(t, s, x, _one(family.layer)) if s.depths else family.head(t, s, x)

    return (
        _embed(s, kernels),
        _tape(s, "head", head, kernels, bool(s.depths and s.depths.again == MODULES)),
    )


def _one(
    layer: Callable[[Tape, Structure, Tensor, str], Results],
) -> Callable[[Tape, Structure, Tensor, str], Tensor]:
    """A layer with one result."""

    return lambda t, s, x, kind: _listed(layer(t, s, x, kind))[0]


def _listed(found: Results) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def _embed(s: Structure, kernels: str) -> Tape:
    """What comes before the first layer: of the tower, where there is one."""
    if not s.tower:
        frozen = bool(s.frozen)
        read = FAMILIES[s.family].embed

        def scattered(t: Tape) -> Results:
            x, *more = _listed(read(t, s))
            return (scatter(t, x), *more)

        return _tape(s, "embed", scattered, kernels, frozen=frozen)
    tower = s.tower
    before = FAMILIES[s.family].before

    def run(t: Tape) -> Results:
        beside = [before(t, s)] if before else []
        t.frozen = _still(s)
        return [*_listed(TOWERS[tower.family].embed(t, tower)), *beside]

    return in_stack(_tape(s, f"{tower.stack}.embed", run, kernels), tower.stack)


def _still(s: Structure) -> bool:
    """Whether a tower of images is not trained."""
    return s.frozen == SEEING or s.adapters is not None


def _made(tower: Structure) -> str:
    """The dtype of a tower's residual stream."""
    return "bf16" if tower.autocast and tower.traits.residual_16 else tower.dtype


@cached
def _layer(s: Structure, kind: LayerKind) -> Tape:
    """One layer, or what leads from the tower to the main stack."""
    bridge = FAMILIES[s.family].bridge

    def main(t: Tape) -> Results:
        wide = s.traits.residual_fp32 and not s.served and not is_first(kind.attention)
        dtype = "fp32" if wide else s.dtype
        x = t.input("input", residual(s), dtype, needs_grad=not kind.leads)
        out = FAMILIES[s.family].layer(t, s, x, kind.attention)
        t.use(x)  # the loop over layers holds it until the layer returns
        return out

    def tower(t: Tape) -> Results:
        assert s.tower
        x = t.input("input", HIDDEN, _made(s.tower), not (t.idle or kind.leads))
        out = TOWERS[s.tower.family].layer(t, s.tower, x, kind.attention)
        t.use(x)
        return out

    def between(t: Tape) -> Results:
        assert s.tower
        assert bridge
        shape = tuple(of_stack(s.tower.stack, factor) for factor in HIDDEN)
        t.untold = s.untold
        return bridge(t, s, t.input("input", shape, _made(s.tower), not kind.leads))

    again = kind.recompute == MODULES
    if kind.place == BRIDGE:
        of = replace(s, adapters=None, reached=s.tower is not None and s.tower.reached)
        return _tape(of, "bridge", between, s.kernels, again, kind.frozen, kind)
    if kind.place in (TOWER, IDLE):
        assert s.tower
        prefix = f"{s.tower.stack}.layers"
        return in_stack(
            _tape(s.tower, prefix, tower, s.kernels, again, kind.frozen, kind), s.tower.stack
        )
    tape = _tape(s, "layers", main, s.kernels, again, kind.frozen, kind)
    return in_stack(tape, APART) if is_apart(kind.attention) else tape
