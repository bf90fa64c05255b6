"""Tapes: a model file's segments as the engine's blocks: an embedding, layers, a head.

What runs before the first unit is the embedding, what runs behind the last is the head; each
segment between is a layer, and equal ones are of one kind. A tensor that one block makes and a
later one keeps belongs to the later one where that follows at once, as a layer's input does, else
to the block that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from memcore.cache import cached
from memcore.models.traced.again import checkpointed
from memcore.models.traced.expression import Sum
from memcore.models.traced.file import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    INPUT,
    ModelFile,
    Parameter,
    Storage,
    Variant,
)
from memcore.models.traced.tables import (
    BACKWARDS,
    LOOKUPS,
    Shared,
    add_exchange,
    add_parameter,
    shape_of,
)
from memcore.tape import tape
from memcore.tape.dims import Shape, reckoned
from memcore.tape.kinds import Module, Part
from memcore.tape.structure import Structure
from memcore.tape.tape import ALWAYS, Tape

_NEVER = 10**9
# Dtypes as the engine has them, whose rows have as many bytes.
_ALIKE = {"uint8": "int8", "complex64": "fp64"}
HELD = "held by the graph or by who calls the model"


def _weight(shape: tuple[int, ...]) -> Shape:
    """A weight's shape: its first dimension, which is cut, has a name."""
    first, *rest = shape or (1,)
    return reckoned(f"{first:,}", frozenset(), lambda _: first), *rest


@dataclass(frozen=True, slots=True)
class _Row:
    """A storage as one block's tape has it; `kind` and others as in tape.Storage; times as the tape
    counts them."""

    name: str
    made_by: str
    shape: tuple[Sum, ...]
    dtype: str
    kind: str
    birth: int
    death: int
    saved_by: str = ""
    gradient_of: str = ""


@dataclass
class _Block:
    """One block in the making: which segments it runs, its weights, and the rows of its tape."""

    first: int
    last: int
    weights: tuple[tuple[str, Parameter], ...] = ()
    rows: list[_Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A variant as blocks: the embedding, each kind of layer once, the head; and of each layer the
    kind."""

    variant: Variant
    kinds: tuple[int, ...]
    blocks: tuple[_Block, ...]


@cached
def blocks_of(file: ModelFile) -> tuple[Blocks, Blocks]:
    """The blocks of a file as it was traced, and with a checkpoint around each unit: where the file
    does not say what that is, the same. Layers are of one kind only if they are so in both."""
    variant = file.several
    plain = _blocks(file, variant)
    both = [plain, _blocks(file, checkpointed(variant)) if file.checkpoints else plain]
    kinds: dict[Any, int] = {}
    layers = range(1, len(plain[1]) - 1)
    of = [
        tuple((v.order[blocks[i].first][0], blocks[i].weights, tuple(blocks[i].rows))
              for v, blocks in both)
        for i in layers
    ]  # fmt: skip
    each = tuple(kinds.setdefault(key, len(kinds)) for key in of)
    first = [each.index(kind) + 1 for kind in range(len(kinds))]
    return tuple(  # type: ignore[return-value]
        Blocks(v, each, (blocks[0], *(blocks[i] for i in first), blocks[-1])) for v, blocks in both
    )


def _blocks(file: ModelFile, variant: Variant) -> tuple[Variant, list[_Block]]:
    """The embedding, every layer, and the head."""
    order = variant.order
    units = [i for i, (_, unit) in enumerate(order) if unit]
    # Of a model without units all is between embedding and head: a stage has a layer.
    first, last = (units[0], units[-1]) if units else (0, len(order) - 1)
    blocks = [
        _Block(0, first - 1),
        *(_Block(i, i) for i in range(first, last + 1)),
        _Block(last + 1, len(order) - 1),
    ]
    _Clock(variant, blocks).fill()
    _own(file, variant, blocks)
    return variant, blocks


def _own(file: ModelFile, variant: Variant, blocks: list[_Block]) -> None:
    """Each weight goes to the first block that runs its unit; others to the block that makes their
    gradient, or to the embedding."""
    of_unit: dict[str, int] = {}
    of_gradient: dict[str, int] = {}
    for b, block in enumerate(blocks):
        for i in range(block.first, block.last + 1):
            index, unit = variant.order[i]
            if unit:
                of_unit.setdefault(unit, b)
            for s in variant.blocks[index].storages:
                if s.gradient_of and not s.gradient_of.startswith("."):
                    of_gradient[s.gradient_of] = b
    ends = (0, len(blocks) - 1)
    weights: list[list[tuple[str, Parameter]]] = [[] for _ in blocks]
    for p in file.parameters:
        parts = p.path.split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        unit = next((u for u in prefixes if u in of_unit), "")
        b = of_unit[unit] if unit else of_gradient.get(p.path, 0)
        name = p.path[len(unit) :] if unit else p.path
        if not unit and b not in ends:
            b = 0  # the model's own, as FSDP's root has it
        weights[b].append((name, replace(p, path=name)))
    for block, of in zip(blocks, weights, strict=True):
        block.weights = tuple(of)


class _Clock:
    """Times of the whole run, and of each block's tape."""

    def __init__(self, variant: Variant, blocks: list[_Block]):
        self.variant, self.blocks = variant, blocks
        self.segments = range(len(variant.order))
        self.count, self.start = variant.counts(), variant.starts()
        self.end = sum(map(sum, self.count))
        self.middle = sum(forward for forward, _ in self.count)

    def range(self, block: _Block, phase: int) -> tuple[int, int]:
        """When a block begins and ends one direction, in the whole run."""
        if block.last < block.first:
            at = self.start[FORWARD, block.first] if block.first < len(self.segments) else self.end
            return (at, at)
        ends = (block.first, block.last) if phase == FORWARD else (block.last, block.first)
        return self.start[phase, ends[0]], self.start[phase, ends[1]] + self.count[ends[1]][phase]

    def fill(self) -> None:
        """The rows of every block's tape."""
        place = {i: b for b, of in enumerate(self.blocks) for i in range(of.first, of.last + 1)}
        ranges = [[self.range(b, phase) for phase in (FORWARD, BACKWARD)] for b in self.blocks]
        for i, s, birth, death in self.variant.spans():
            self._place(place[i], s, birth, _NEVER if death is None else death, ranges)

    def _place(
        self, b: int, s: Storage, birth: int, death: int, ranges: list[list[tuple[int, int]]]
    ) -> None:
        lasts = s.phase == FORWARD and death > self.middle
        ends = self._block_at(death, ranges) if lasts and death != _NEVER else -1
        keeper = ends if ends == b + 1 else b  # who counts it from forward to backward
        for at, (forward, backward) in enumerate(ranges):
            block = self.blocks[at]
            if block.last < block.first:
                continue
            half = forward[1] - forward[0] + 1
            rest = backward[1] - backward[0]
            own = at == keeper and lasts
            if s.phase == FORWARD and (at == b or own):
                born = birth - forward[0] + 1 if at == b else 0
                if own:
                    dies = self._in_backward(death, backward, half)
                else:
                    dies = min(death - forward[0] + 1, half)
                if own or dies > born:
                    kind = "activation" if at == b else "input"
                    # What the last block holds besides is gone before another one runs; an input
                    # that nothing saves is the caller's.
                    besides = at == len(ranges) - 1 or s.made_by == INPUT
                    name = s.saved_by or ("" if besides else HELD)
                    name = name if own else ""
                    block.rows.append(_row(s, kind, born, dies, name))
            elif s.phase == FORWARD and not lasts:
                if birth < forward[0] < death:  # passes through, or ends here
                    dies = min(death - forward[0] + 1, half)
                    block.rows.append(_row(s, "temporary", 0, dies))
            elif s.phase == BACKWARD and at == b:
                gone = ALWAYS if s.gradient_of else min(death - backward[0], rest) + half
                kind = "gradient" if s.gradient_of else "temporary"
                block.rows.append(
                    _row(s, kind, birth - backward[0] + half, gone, gradient=s.gradient_of)
                )
            elif s.phase == BACKWARD and not s.gradient_of and birth < backward[0] < death:
                dies = min(death - backward[0], rest) + half
                block.rows.append(_row(s, "output gradient", half, dies))

    def _block_at(self, time: int, ranges: list[list[tuple[int, int]]]) -> int:
        """Whose backward runs just before a time."""
        return next((b for b, (_, (start, end)) in enumerate(ranges) if start < time <= end), -1)

    def _in_backward(self, death: int, backward: tuple[int, int], half: int) -> int:
        """A death in a block's backward; what is gone before it is gone as it begins."""
        return half + min(max(death - backward[0], 0), backward[1] - backward[0] + 1)


def _row(
    s: Storage, kind: str, birth: int, death: int, saved_by: str = "", gradient: str = ""
) -> _Row:
    name = s.module if s.made_by == INPUT else f"{s.module} {s.made_by}"
    return _Row(name.strip(" .") or s.made_by, s.made_by, s.shape, s.dtype, kind, birth, death,
                saved_by, gradient)  # fmt: skip


@cached
def inputs_of(file: ModelFile) -> list[tuple[str, Shape, str]]:
    """What the model is given: name, shape and dtype of each input."""
    variant = blocks_of(file)[0].variant
    given = [s for _, s, _, _ in variant.spans() if s.made_by == INPUT]
    return [
        (f"input {i}", shape_of(s.shape), _ALIKE.get(s.dtype, s.dtype))
        for i, s in enumerate(given, 1)
    ]


def tapes_of(s: Structure, file: ModelFile, again: bool) -> tuple[Tape, tuple[Tape, ...], Tape]:
    """The embedding's tape, one of each kind of layer, and the head's; `again`: backward runs every
    layer again."""
    of = blocks_of(file)[again]
    blocks, variant = of.blocks, of.variant
    shared = Shared(file, s.tables) if s.tables else None
    embed, *layers, head = (_tape(s, block, variant, i, shared) for i, block in enumerate(blocks))
    if file.buffer_bytes:
        embed.buffer("model.buffers", _weight((file.buffer_bytes,)), "int8")
    return embed, tuple(layers), head


def _tape(s: Structure, block: _Block, variant: Variant, place: int, shared: Shared | None) -> Tape:
    """`shared`: the tables that ranks share out, if there are any; then no gradient of them
    exists."""
    t = Tape(s, "hf")
    tables = {table.name for table in shared.tables} if shared else set[str]()
    layer = place > 0
    with t.scope("layers" if layer else "model", Part.LAYER if layer else None):
        for name, p in block.weights:
            if shared and name in tables:
                add_parameter(t, shared, name)
            else:
                shape = _weight(p.shape)
                t.parameter(name.lstrip("."), shape, idle=not p.trained, adapter=p.adapter)
        for row in block.rows:
            if row.gradient_of in tables:
                continue
            made = tape.Storage(
                t._named(row.name), shape_of(row.shape), _ALIKE.get(row.dtype, row.dtype),
                row.kind, row.birth, row.death,
                made_by=row.made_by, own_name=row.name,
            )  # fmt: skip
            made.last_use = row.death
            made.saved_by = [row.saved_by] if row.saved_by else []
            made.gradient_of = t._named(row.gradient_of.lstrip(".")) if row.gradient_of else ""
            made.merged = row.birth + 1 if row.gradient_of else ALWAYS
            t.storages.append(made)
        for i in range(block.first, block.last + 1):
            _work(t, variant, variant.order[i][0], bool(shared))
    forward = sum(w.phase == "forward" for w in t.work)
    counts = forward, len(t.work) - forward
    if shared and any(name in tables for name, _ in block.weights):
        with t.scope("tables"):
            add_exchange(t, shared, *_when(block, variant))
    t.forward_end = counts[0] + 1
    t.clock = t.forward_end + counts[1]
    t.forget_graph()
    return t


def _when(block: _Block, variant: Variant) -> list[tuple[int, int]]:
    """When a block's lookups and their backwards begin and are over, in its tape's clock."""
    found: list[tuple[int, int, int]] = []
    for phase, kernels in ((FORWARD, LOOKUPS), (BACKWARD, BACKWARDS)):
        order = range(block.first, block.last + 1)
        operations = [
            op
            for i in (order if phase == FORWARD else reversed(order))
            for op in variant.blocks[variant.order[i][0]].operations
            if op.phase == phase
        ]
        before = 1 + (found[0][2] if found else 0)
        places = [n for n, op in enumerate(operations) if op.kernel in kernels] or [0]
        found.append((before + places[0], before + places[-1] + 1, len(operations)))
    return [(begins, ends) for begins, ends, _ in found]


def _work(t: Tape, variant: Variant, index: int, shared: bool) -> None:
    """`shared`: lookups are not run as the trace has them."""
    for op in variant.blocks[index].operations:
        traffic = Sum.number(0) if shared and op.kernel in (*LOOKUPS, *BACKWARDS) else op.traffic
        attention = op.kernel in ATTENTION
        phase = "forward" if op.phase == FORWARD else "recompute" if op.again else "backward"
        flops = [(float(op.count), shape_of(op.product))] if op.count else []
        moved = [(shape_of((traffic,)), "int8")]
        if op.wide:  # whose bytes are those of a matrix in fp32
            four = Sum.function("floor", traffic, Sum.number(4))
            moved = [(shape_of((Sum.number(1), four)), "fp32")]
        cost = tape.Cost(
            t._named(f"{op.module} {op.kernel}".strip(" .")), phase, flops, moved,
            module=Module.ATTENTION if attention else None,
        )  # fmt: skip
        cost.parts = t._parts
        t.work.append(cost)
