"""How a number comes about: every operation of one block, and the words of the Method page."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.evidence.comparison import text
from memcore.plan.plan import Plan
from memcore.tape.dims import DIMENSIONS, Extent, Extents
from memcore.tape.ledger import SAVED_KINDS, Amounts
from memcore.tape.tape import Tape
from memcore.training.steps import step_of, training_sizes


@functools.cache
def first_fixes() -> Sequence[Mapping[str, Any]]:
    """Plans that run out of memory, and what those who know would change first, with the reason."""
    found: Sequence[Mapping[str, Any]] = tomllib.loads(text("first_fixes.toml"))["plan"]
    return found


def sizes(plan: Plan) -> Mapping[str, int]:
    """The value of every dimension and axis under a plan; 0 of layers that its model has not."""
    return dict.fromkeys(DIMENSIONS, 0) | training_sizes(plan)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a block, all its runs of that name in the block together.

    block            'embedding', 'layer', 'head'; for layers of several kinds 'layer, sliding'
    blocks           how many such blocks the model has
    runs             how often it runs in one forward of the block
    formula          FLOPs of the forward; no product where it has no matrix product
    forward_flops, backward_flops, forward_hbm_bytes, backward_hbm_bytes    of one micro-batch
    saves            what it keeps for its backward
    saved_bytes      of that, what no earlier operation keeps already: they add up to the block's
    """

    block: str
    blocks: int
    name: str
    runs: int
    formula: Extents
    forward_flops: float
    backward_flops: float
    forward_hbm_bytes: float
    backward_hbm_bytes: float
    saves: str
    saved_bytes: int


def operations(plan: Plan) -> tuple[Operation, ...]:
    """Every operation of one block of each kind, on one GPU, in the order in which they run."""
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    kinds = step.blocks.kinds
    counts = step.layers.counts
    # A pipeline stage may have none of the last kinds.
    layers = [
        ("layer" if len(kinds) == 1 else f"layer, {kind.label}", tape, int(n))
        for kind, tape, n in zip(kinds, step.blocks.layers, counts, strict=False)
    ]
    found: list[Operation] = []
    for block, tape, n in (
        ("embedding", step.blocks.embed, 1),
        *layers,
        ("head", step.blocks.head, 1),
    ):
        found += _operations(block, n, tape, amounts)
    return tuple(found)


def _operations(block: str, blocks: int, tape: Tape, amounts: Amounts) -> list[Operation]:
    first: dict[str, int] = {}  # bytes by the operation that keeps them first
    keeps: dict[str, list[str]] = {}
    for kept in tape.storages:
        if kept.kind not in SAVED_KINDS:
            continue
        size = int(amounts.bytes(kept.shape, kept.dtype))
        text = f"{_local(kept.name)} ({amounts.extents(kept.shape)}, {kept.dtype})"
        for i, by in enumerate(dict.fromkeys(kept.saved_by)):
            first[by] = first.get(by, 0) + (0 if i else size)
            keeps.setdefault(by, []).append(text)
    sums: dict[str, list[float]] = {}
    formulas: dict[str, list[tuple[Extent, ...]]] = {}
    for w in tape.work:
        of = sums.setdefault(w.name, [0, 0.0, 0.0, 0.0, 0.0])
        back = int(w.phase == "backward")
        of[0] += 1 - back
        of[1 + back] += sum(n * amounts.elements(shape) for n, shape in w.flops)
        of[3 + back] += sum(amounts.bytes(shape, dtype) for shape, dtype in w.traffic)
        if not back:
            formulas.setdefault(w.name, []).extend(
                (Extent(int(n) if n == int(n) else n), *amounts.factors(shape))
                for n, shape in w.flops
            )
    return [
        Operation(
            block,
            blocks,
            _local(name),
            int(runs),
            Extents(tuple(formulas.get(name, []))),
            forward,
            backward,
            forward_bytes,
            backward_bytes,
            "; ".join(keeps.get(name, [])),
            first.get(name, 0),
        )
        for name, (runs, forward, backward, forward_bytes, backward_bytes) in sums.items()
    ]


def _local(name: str) -> str:
    """A name without its block's."""
    return name.partition(".")[2] or name
