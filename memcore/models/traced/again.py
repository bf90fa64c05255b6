"""Again: a variant as it runs where each unit has torch.utils.checkpoint around it.

A unit keeps what it is called with until its backward is over, and none of what it saves; before
its backward it runs again, up to where it saved the last of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memcore.models.traced.file import BACKWARD, FORWARD, INPUT, Block, Storage, Variant

CHECKPOINT = "checkpoint"  # what keeps what a unit is called with


def checkpointed(variant: Variant) -> Variant:
    """The variant where backward runs each unit again."""
    run = _Checkpointed(variant)
    blocks: dict[Block, int] = {}
    order = []
    for i, (_, unit) in enumerate(variant.order):
        order.append((blocks.setdefault(run.block(i), len(blocks)), unit))
    return replace(variant, blocks=tuple(blocks), order=tuple(order))


class _Checkpointed:
    """Its segments, one after the other."""

    def __init__(self, variant: Variant):
        self.variant = variant
        self.again = [
            (variant.blocks[block].again or 0) if unit else 0 for block, unit in variant.order
        ]
        self.counts = variant.counts()

    def block(self, i: int) -> Block:
        """Segment `i`, which backward runs again if it is a unit."""
        block, again = self.variant.blocks[self.variant.order[i][0]], self.again[i]
        forward = [op for op in block.operations if op.phase == FORWARD]
        once_more = [replace(op, phase=BACKWARD, again=True) for op in forward[:again]]
        storages = [
            made
            for s in block.storages
            for made in (self._forward(i, s) if s.phase == FORWARD else [self._backward(i, s)])
        ]
        return Block(
            tuple(storages),
            (*forward, *once_more, *(op for op in block.operations if op.phase == BACKWARD)),
            block.again,
        )

    def _backward(self, i: int, s: Storage) -> Storage:
        """What backward makes is made later by what runs again before it."""
        return replace(s, birth=s.birth + self.again[i], death=self._later(i, s.death))

    def _later(self, i: int, death: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        if death is None or death[0] == FORWARD:
            return death
        _, further, at = death
        return BACKWARD, further, at + self.again[self._segment(i + further)]

    def _segment(self, i: int) -> int:
        return min(max(i, 0), len(self.again) - 1)

    def _forward(self, i: int, s: Storage) -> Iterator[Storage]:
        """A storage of forward, and, if its unit runs again that far, the same once more. An input
        of the model is made once, also where the first thing that runs is a unit."""
        unit = bool(self.variant.order[i][1])
        uses = s.uses
        if uses is None:
            yield replace(s, death=self._later(i, s.death))
        else:
            held = self._held(i, s)
            gone = held[0] if held else (FORWARD, *uses.read)
            keeps = (s.saved_by or CHECKPOINT) if held else ""
            yield replace(s, death=s.death and gone, saved_by=keeps)
        if not unit or s.made_by == INPUT or s.birth >= self.again[i]:
            return
        end = self.again[i]
        if uses and 0 in uses.savers:
            death = self._later(i, s.death)
        else:
            here, at = uses.read if uses else s.death[1:] if s.death else (1, 0)
            death = (BACKWARD, 0, min(at, end) if here == 0 else end)
        yield replace(s, phase=BACKWARD, death=death, saved_by="", uses=None)

    def _held(self, i: int, s: Storage) -> list[tuple[int, int, int]]:
        """When what holds a storage of forward for backward lets go of it, the last first: a unit
        at the end of its own backward, what runs between units as the trace has it."""
        assert s.uses
        found = []
        for further in sorted({*s.uses.savers, *s.uses.given}):
            at = self._segment(i + further)
            unit = bool(self.variant.order[at][1])
            if unit and not further and s.made_by != INPUT:
                continue  # makes it again
            if not unit and further not in s.uses.savers:
                continue
            traced = not unit and s.death and s.death[:2] == (BACKWARD, further)
            end = s.death[2] if traced and s.death else self.again[at] + self.counts[at][BACKWARD]
            found.append((BACKWARD, further, end))
        return found
