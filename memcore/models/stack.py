"""Stack: which layers of which kind a model or a pipeline stage has."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from memcore.cache import cached
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.tape.kinds import FULL, SKIPPED
from memcore.tape.structure import BRIDGE, IDLE, TOWER, LayerKind


@dataclass(frozen=True)
class Layers:
    """A stack of layers: how many, and of which kind each is (indices into Blocks.layers)."""

    count: int
    kinds: tuple[int, ...]  # () if all are of kind 0

    def part(self, start: int, end: int) -> Layers:
        """Layers `start` to before `end`."""
        return Layers(end - start, self.kinds[start:end])

    def kind(self, i: int) -> int:
        return self.kinds[i] if self.kinds else 0

    def first(self, i: int) -> list[int]:
        """How many of the first `i` layers are of each kind."""
        if not self.kinds:
            return [i]
        return [self.kinds[:i].count(k) for k in range(self.different)]

    @functools.cached_property
    def counts(self) -> list[int]:
        """How many layers are of each kind."""
        return self.first(self.count)

    @functools.cached_property
    def different(self) -> int:
        return max(self.kinds, default=0) + 1

    def after(self, i: int) -> list[int]:
        """How many of the layers behind layer `i` are of each kind."""
        return [a - b for a, b in zip(self.counts, self.first(i + 1), strict=True)]

    @functools.cached_property
    def ends(self) -> list[tuple[str, str, int]]:
        """The layers at whose backward memory can peak: (id, label, index), last first."""
        last = self.count - 1
        found = [
            ("backward-last-layer", "Backward, last layer", last),
            ("backward-next-to-last-layer", "Backward, next to last layer", max(last - 1, 0)),
            ("backward-second-layer", "Backward, second layer", min(1, last)),
            ("backward-first-layer", "Backward, first layer", 0),
        ]
        kinds = (None, *self.kinds, None)
        around: dict[tuple[int | None, ...], list[int]] = {}
        for i in range(len(self.kinds)):
            around.setdefault(kinds[i : i + 3], []).append(i)
        for there in around.values():
            for i in (there[-1], there[0]):
                found.append((f"backward-layer-{i}", f"Backward, layer {i}", i))
        unique = {i: (name, label, i) for name, label, i in reversed(found)}
        return sorted(unique.values(), key=lambda end: -end[2])


@cached
def layers_of(
    model: Model,
    recompute: str = "",
    every: int = 1,
    leads: bool = False,
    held: int = 0,
    spared: frozenset[int] = frozenset(),
    still: bool = False,
    quiet: bool = False,
) -> tuple[tuple[LayerKind, ...], Layers]:
    """The kinds of layer that a model's stack has, and the stack with kinds as indices into them.
    Of every `every` layers the last is run again in backward. `leads`: the input of the first layer
    that is trained needs no gradient, behind `held` layers that are frozen. `spared`: of the main
    stack, layers that keep everything. `still`: the tower is not trained, nor what leads from it;
    `quiet`: and nothing of it needs a gradient.
    """
    carries = FAMILIES[model.family].carries

    def run(of: Model, place: str) -> list[LayerKind]:
        words = of.kinds or (FULL,) * of.layers
        read = len(words) - of.idle
        whole = frozenset() if place else spared
        return [
            LayerKind(
                attention,
                recompute
                if (i + 1) % every == 0
                and not (place and quiet)
                and (i >= held or not leads or place)
                and i not in whole
                and attention != SKIPPED
                else "",
                quiet if place else leads and i <= held,
                still if place else i < held,
                place if i < read else IDLE,
                carries and i == read - 1,
            )
            for i, attention in enumerate(words)
        ]

    tower = []
    if model.tower:
        bridge = LayerKind("", leads=quiet, frozen=still, place=BRIDGE)
        tower = [*run(model.tower, TOWER), bridge]
    stack = tower + run(model, "")
    kinds = tuple(dict.fromkeys(stack))
    if len(kinds) == 1:
        return kinds, Layers(len(stack), ())
    index = {kind: i for i, kind in enumerate(kinds)}
    return kinds, Layers(len(stack), tuple(index[kind] for kind in stack))
