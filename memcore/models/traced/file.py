"""A model file as data: read, checked, and what it says at given sizes.

It may be a stranger's: nothing of it is run, and what is too large is refused before it is read
further. Raises PlanError, which names the place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models.traced.expression import Budget, ExpressionError, Sum, parse
from memcore.words.word import DTYPE_BYTES

MARK = "memplan_model_file"  # the key by which a model file is told from a config.json
VERSION = 1
BATCH = "batch"
MOST_ROWS = 400_000  # rows of all lists together
MOST_SEGMENTS = 20_000
MOST_EXPRESSIONS = 60_000  # different ones
MOST_WORK = 2_000_000  # storages of all blocks, each as often as it runs
LARGEST_SIZE = 2**31
FORWARD, BACKWARD = 0, 1
INPUT = "input"
ATTENTION = ("attention", "attention backward")
BYTES = {**DTYPE_BYTES, "fp64": 8, "complex64": 8, "int64": 8, "int32": 4, "bool": 1, "uint8": 1}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_COMPARED = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One weight: where it is in the model, its shape, dtype, and whether it is trained; `adapter`:
    it is one of an adapter's, which no file has."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    adapter: bool = False

    @property
    def elements(self) -> int:
        found = 1
        for n in self.shape:
            found *= n
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """A parameter that rows are looked up in: how many a forward reads, how many it makes of them,
    and whether these are sums of several."""

    read: Sum
    made: Sum
    pooled: bool


@dataclass(frozen=True, slots=True)
class Uses:
    """Who uses a storage, as segments further on: `read`, with the operation before which the last
    of forward has read it; `savers`, which keep it for backward; `given`, whose units are called
    with it."""

    read: tuple[int, int]
    savers: tuple[int, ...]
    given: tuple[int, ...]


Use = tuple[int, int, int]  # phase, segments further on, operation


@dataclass(frozen=True, slots=True)
class Users:
    """Which operations use a storage: those of backward, and matrix products of forward, that read
    it, and those of backward that write what is there already."""

    readers: tuple[Use, ...]
    writers: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory of a segment.

    made_by        the operation that makes it, or INPUT
    phase, birth   when it is made: FORWARD or BACKWARD, and by which operation of the segment's
    death          (phase, segments further on, operation) before which it is gone; None: never
    saved_by       the operation that keeps it for backward, or ''
    gradient_of    the parameter whose gradient it is, or ''; of its unit if it begins with a dot
    uses           of what forward makes and keeps or gives to a unit: who uses it
    users          which operations do, or None where the file does not say so
    """

    made_by: str
    module: str
    shape: tuple[Sum, ...]
    dtype: str
    phase: int
    birth: int
    death: tuple[int, int, int] | None
    saved_by: str
    gradient_of: str
    uses: Uses | None = None
    users: Users | None = None

    @property
    def bytes(self) -> Sum:
        found = Sum.number(BYTES[self.dtype])
        for n in self.shape:
            found = found * n
        return found


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: the kernel that runs, bytes read and written, and of a matrix product a count
    and the sizes that it is multiplied by for its FLOPs: ..., rows, what is summed, columns;
    `again`: backward runs it, as forward did; `wide`: it is in fp32 beside others in 16 bits."""

    kernel: str
    module: str
    phase: int
    count: int
    product: tuple[Sum, ...]
    traffic: Sum
    again: bool = False
    wide: bool = False

    def flops(self, sizes: Mapping[str, int]) -> int:
        found = self.count
        for n in self.product:
            found *= n.value(sizes)
        return found


@dataclass(frozen=True, slots=True)
class Block:
    """What one segment makes and runs; equal segments share it. `again`: how many operations of
    forward run once more where a checkpoint is around it; None: the file does not say so."""

    storages: tuple[Storage, ...]
    operations: tuple[Operation, ...]
    again: int | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """The model for some sizes: `batch` 1, or 0 for any above. `order`: of each segment its block
    and its unit, a module's name or '' between units."""

    batch: int
    guards: tuple[tuple[Sum, str, Sum], ...]
    blocks: tuple[Block, ...]
    order: tuple[tuple[int, str], ...]

    def broken(self, sizes: Mapping[str, int]) -> list[str]:
        """The guards that these sizes break, of those that they decide: what the trace was made
        under."""
        return [
            f"{a} {relation} {b}"
            for a, relation, b in self.guards
            if a.names | b.names <= sizes.keys()
            and not _COMPARED[relation](a.value(sizes), b.value(sizes))
        ]

    def saved_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes that one forward leaves for its backward."""
        each = [
            sum(s.bytes.value(sizes) for s in block.storages if s.saved_by) for block in self.blocks
        ]
        return int(sum(each[block] for block, _ in self.order))

    def flops(self, sizes: Mapping[str, int]) -> int:
        """FLOPs of one forward and backward."""
        each = [sum(op.flops(sizes) for op in block.operations) for block in self.blocks]
        return int(sum(each[block] for block, _ in self.order))

    def counts(self) -> list[tuple[int, ...]]:
        """Of each segment how many operations it runs forward and backward."""
        each = [
            tuple(sum(op.phase == phase for op in b.operations) for phase in (FORWARD, BACKWARD))
            for b in self.blocks
        ]
        return [each[block] for block, _ in self.order]

    def starts(self) -> dict[tuple[int, int], int]:
        """When each segment begins each phase, in operations of the whole run: backward runs from
        the last segment to the first."""
        counts, found, clock = self.counts(), dict[tuple[int, int], int](), 0
        for phase in (FORWARD, BACKWARD):
            for segment in range(len(counts))[:: 1 if phase == FORWARD else -1]:
                found[phase, segment] = clock
                clock += counts[segment][phase]
        return found

    def spans(self) -> Iterator[tuple[int, Storage, int, int | None]]:
        """Each storage of each segment: its segment, birth and death in the whole run; None: it
        never dies."""
        starts, last = self.starts(), len(self.order) - 1
        for segment, (block, _) in enumerate(self.order):
            for s in self.blocks[block].storages:
                death = None
                if s.death:
                    phase, further, at = s.death
                    death = starts[phase, min(max(segment + further, 0), last)] + at
                yield segment, s, starts[s.phase, segment] + s.birth, death

    def peak_bytes(self, sizes: Mapping[str, int]) -> int:
        """The most bytes that forward and backward hold at once, besides weights and buffers."""
        return self.peak(sizes)[0]

    def peak(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The most bytes that it holds at once, besides weights and buffers, and when that is."""
        sizes_of = {id(s): s.bytes.value(sizes) for block in self.blocks for s in block.storages}
        changes: dict[int, int] = {}
        for _, s, birth, death in self.spans():
            n = sizes_of[id(s)]
            changes[birth] = changes.get(birth, 0) + n
            if death is not None:
                changes[death] = changes.get(death, 0) - n
        alive, most = 0, (0, 0)
        for at in sorted(changes):
            alive += changes[at]
            if alive > most[0]:
                most = alive, at
        return most


@dataclass(frozen=True, slots=True)
class Check:
    """PyTorch's own totals at sizes that were not traced."""

    sizes: Mapping[str, int]
    parameters: int
    saved_bytes: int
    peak_bytes: int


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A whole file. `dims`: its dimensions, each with the size it was traced at; `tables`: those
    parameters that rows are looked up in; `forward`: forward alone, in eval mode
    under torch.no_grad, if the file has it. Equal only to itself: what is kept of it is found by
    it."""

    label: str
    source: str
    dtype: str
    versions: Mapping[str, str]
    stand_ins: tuple[str, ...]
    dims: Mapping[str, int]
    parameters: tuple[Parameter, ...]
    tables: Mapping[str, Table]
    buffer_bytes: int
    variants: tuple[Variant, ...]
    checks: tuple[Check, ...]
    forward: Variant | None = None

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """The variant for these sizes."""
        one = [v for v in self.variants if v.batch == 1 and sizes.get(BATCH) == 1]
        return (one or [v for v in self.variants if v.batch != 1] or [*self.variants])[0]

    @property
    def checkpoints(self) -> bool:
        """Whether it has units, and says what of them a checkpoint runs again."""
        return any(unit for _, unit in self.variants[0].order) and all(
            b.again is not None for v in self.variants for b in v.blocks
        )

    @property
    def several(self) -> Variant:
        """The variant of several samples, which the engine plans."""
        return next((v for v in self.variants if v.batch != 1), self.variants[0])

    @property
    def tells_users(self) -> bool:
        """Whether it says which operations use each storage, so that weights may be frozen."""
        return all(s.users for v in self.variants for b in v.blocks for s in b.storages)

    @property
    def elements(self) -> int:
        """Parameters, in all."""
        return sum(p.elements for p in self.parameters)

    @property
    def recommends(self) -> bool:
        """Whether it is a recommender: most of its parameters are tables, of which rows are
        summed."""
        of = {p.path: p.elements for p in self.parameters}
        summed = any(table.pooled for table in self.tables.values())
        return summed and 2 * sum(of[name] for name in self.tables) > self.elements

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters and buffers as they were traced."""
        return int(sum(p.elements * BYTES[p.dtype] for p in self.parameters)) + self.buffer_bytes

    def peak_bytes(self, sizes: Mapping[str, int]) -> int:
        """The peak of forward and backward on one GPU, weights and gradients in the trace's dtype,
        without optimizer states."""
        return self.weight_bytes + self.variant(sizes).peak_bytes(sizes)


class _Reader:
    """Reads one file; `at` says where in it something is wrong."""

    def __init__(self) -> None:
        self.rows = 0
        self.expressions: dict[Any, Sum] = {}
        self.budget = Budget()
        self.dims: Mapping[str, int] = {}

    def fail(self, at: str, why: str) -> PlanError:
        return PlanError([Issue(f"model.{at}" if at else "model", why)])

    def text(self, value: Any, at: str) -> str:
        if not isinstance(value, str) or len(value) > 500:
            raise self.fail(at, f"must be a text of at most 500 characters, not {shown(value)}")
        return value

    def count(self, value: Any, at: str, least: int = 0, most: int = 2**60) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self.fail(
                at, f"must be a whole number of {least:,} to {most:,}, not {shown(value)}"
            )
        return value

    def list(self, value: Any, at: str, length: int = 0) -> list[Any]:
        if not isinstance(value, list) or (length and len(value) != length):
            of = f" of {length}" if length else ""
            raise self.fail(at, f"must be a list{of}")
        self.rows += len(value) if not length else 0
        if self.rows > MOST_ROWS:
            raise self.fail(at, f"the file has more than {MOST_ROWS:,} rows")
        return value

    def object(self, value: Any, at: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > 100:
            raise self.fail(at, "must be an object of at most 100 keys")
        return value

    def dtype(self, value: Any, at: str) -> str:
        if not isinstance(value, str) or value not in BYTES:
            raise self.fail(at, f"must be a dtype ({', '.join(BYTES)}), not {shown(value)}")
        return value

    def sum(self, value: Any, at: str) -> Sum:
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise self.fail(at, f"must be an expression, not {shown(value)}")
        found = self.expressions.get(value)
        if found is None:
            if len(self.expressions) >= MOST_EXPRESSIONS:
                raise self.fail(at, f"the file has more than {MOST_EXPRESSIONS:,} expressions")
            try:
                found = parse(value, self.budget)
            except ExpressionError as e:
                raise self.fail(at, f"{e}: {shown(value)}") from None
            strange = found.names - self.dims.keys()
            if strange:
                raise self.fail(at, f"{shown(min(strange))} is none of its dims: {shown(value)}")
            self.expressions[value] = found
        return found


def read(document: Any, checked: bool = True) -> ModelFile:
    """The model file of a parsed JSON document, `checked` at the sizes of its dims. Raises
    PlanError naming what is wrong where."""
    r = _Reader()
    top = r.object(document, "")
    if top.get(MARK) != VERSION or type(top.get(MARK)) is not int:
        raise r.fail(
            MARK, f"must be {VERSION}, which this Memplan reads, not {shown(top.get(MARK))}"
        )
    dims = {}
    for dim, n in r.object(top.get("dims"), "dims").items():
        if not _NAME.fullmatch(dim):
            raise r.fail("dims", f"{shown(dim)} is no name: small letters, digits and _ make one")
        dims[dim] = r.count(n, f"dims.{dim}", 1, LARGEST_SIZE)
    r.dims = dims
    parameters = []
    for i, row in enumerate(r.list(top.get("parameters"), "parameters")):
        at = f"parameters.{i}"
        name, shape, dtype, trained = r.list(row, at, 4)
        if type(trained) is not bool:
            raise r.fail(at, "its fourth must be true or false: whether it is trained")
        sizes = tuple(r.count(n, at, 0, LARGEST_SIZE) for n in r.list(shape, at)[:16])
        parameters.append(Parameter(r.text(name, at), sizes, r.dtype(dtype, at), trained))
    variants = [
        _variant(r, v, f"variants.{i}")
        for i, v in enumerate(r.list(top.get("variants"), "variants")[:4])
    ]
    if not variants:
        raise r.fail("variants", "must have one at least")
    checks = tuple(
        _check(r, c, f"checks.{i}")
        for i, c in enumerate(r.list(top.get("checks", []), "checks")[:20])
    )
    versions = {
        r.text(k, "versions"): r.text(v, "versions")
        for k, v in r.object(top.get("versions", {}), "versions").items()
    }
    stand_ins = tuple(
        r.text(k, "stand_ins") for k in r.object(top.get("stand_ins", {}), "stand_ins")
    )
    found = ModelFile(
        r.text(top.get("label"), "label"), r.text(top.get("source"), "source"),
        r.dtype(top.get("dtype"), "dtype"), versions, stand_ins, dims, tuple(parameters),
        _tables(r, top.get("tables", {}), parameters),
        r.count(top.get("buffer_bytes"), "buffer_bytes"), tuple(variants), checks,
        _variant(r, r.object(top["forward"], "forward"), "forward") if "forward" in top else None,
    )  # fmt: skip
    if checked:
        check_sizes(found, dims)
    return found


def check_sizes(found: ModelFile, sizes: Mapping[str, int]) -> None:
    """Refuse sizes at which a tensor would have less than no bytes, or more than can be counted."""
    forward = [found.forward] if found.forward else []
    for i, variant in enumerate((*found.variants, *forward)):
        given = {**sizes, BATCH: 1} if variant.batch else sizes
        for j, block in enumerate(variant.blocks):
            for k, s in enumerate(block.storages):
                try:
                    n = s.bytes.value(given)
                    why = "" if 0 <= n < 2**62 else f"has {n:,} bytes"
                except ExpressionError as e:
                    why = str(e)
                if why:
                    at = f"variants.{i}.blocks.{j}.storages.{k}"
                    said = ", ".join(f"{name} {n:,}" for name, n in sizes.items())
                    raise PlanError([Issue("model.dims", f"at {said} {at} {why}")])


def _tables(r: _Reader, value: Any, parameters: list[Parameter]) -> dict[str, Table]:
    if not isinstance(value, dict):
        raise r.fail("tables", "must be an object")
    two = {p.path for p in parameters if len(p.shape) == 2}
    for name in value:
        if name not in two:
            raise r.fail("tables", f"{shown(name)} is no parameter of two dimensions")
    found = {}
    for name, row in value.items():
        at = f"tables.{shown(name)[1:-1]}"
        read, made, pooled = r.list(row, at, 3)
        found[name] = Table(r.sum(read, at), r.sum(made, at), pooled is True)
    return found


def _check(r: _Reader, value: Any, at: str) -> Check:
    of = r.object(value, at)
    sizes = {
        name: r.count(n, f"{at}.dims", 1, LARGEST_SIZE)
        for name, n in r.object(of.get("dims"), f"{at}.dims").items()
        if name in r.dims
    }
    if len(sizes) < len(r.dims):
        raise r.fail(f"{at}.dims", f"must have a size of each of {', '.join(r.dims)}")
    totals = (r.count(of.get(k), f"{at}.{k}") for k in ("parameters", "saved_bytes", "peak_bytes"))
    return Check(sizes, *totals)


def _variant(r: _Reader, value: Any, at: str) -> Variant:
    of = r.object(value, at)
    blocks = tuple(
        _block(r, r.object(b, f"{at}.blocks.{i}"), f"{at}.blocks.{i}")
        for i, b in enumerate(r.list(of.get("blocks"), f"{at}.blocks"))
    )
    order = []
    for i, row in enumerate(r.list(of.get("order"), f"{at}.order")):
        block, unit = r.list(row, f"{at}.order.{i}", 2)
        if type(block) is not int or not 0 <= block < len(blocks):
            raise r.fail(f"{at}.order.{i}", f"must begin with one of {len(blocks):,} blocks")
        order.append((block, r.text(unit, f"{at}.order.{i}")))
    if not 1 <= len(order) <= MOST_SEGMENTS:
        raise r.fail(f"{at}.order", f"must have 1 to {MOST_SEGMENTS:,} segments")
    if sum(len(blocks[b].storages) for b, _ in order) > MOST_WORK:
        raise r.fail(f"{at}.order", f"runs blocks with more than {MOST_WORK:,} storages in all")
    guards = []
    for i, row in enumerate(r.list(of.get("guards", []), f"{at}.guards")):
        a, relation, b = r.list(row, f"{at}.guards.{i}", 3)
        if not isinstance(relation, str) or relation not in _COMPARED:
            raise r.fail(f"{at}.guards.{i}", f"must compare by one of {' '.join(_COMPARED)}")
        guards.append((r.sum(a, f"{at}.guards.{i}"), relation, r.sum(b, f"{at}.guards.{i}")))
    batch = r.count(of.get(BATCH, 0), f"{at}.{BATCH}", 0, 1)
    return Variant(batch, tuple(guards), blocks, tuple(order))


def _block(r: _Reader, of: dict[str, Any], at: str) -> Block:
    operations = []
    for i, row in enumerate(r.list(of.get("operations"), f"{at}.operations")):
        there = f"{at}.operations.{i}"
        name, module, phase, flops, traffic = r.list(row, there, 5)
        count, *product = r.list(flops, there)[:10] or [0]
        operations.append(
            Operation(
                r.text(name, there), r.text(module, there), r.count(phase, there, 0, 1),
                r.count(count, there, 0, 1000), tuple(r.sum(n, there) for n in product),
                r.sum(traffic, there),
            )
        )  # fmt: skip
    storages = []
    for i, row in enumerate(r.list(of.get("storages"), f"{at}.storages")):
        there = f"{at}.storages.{i}"
        length = len(row) if isinstance(row, list) and len(row) in (10, 12) else 9
        name, module, shape, dtype, phase, birth, death, saved_by, gradient, *more = r.list(
            row, there, length
        )
        uses, *users = more or [None]
        gone = None if death is None else _use(r, death, there)
        factors = tuple(r.sum(n, there) for n in r.list(shape, there)[:16])
        storages.append(
            Storage(
                r.text(name, there), r.text(module, there), factors, r.dtype(dtype, there),
                r.count(phase, there, 0, 1), r.count(birth, there, 0, MOST_ROWS), gone,
                r.text(saved_by, there), r.text(gradient, there),
                None if uses is None else _uses(r, uses, there),
                Users(*(tuple(_use(r, u, there) for u in r.list(of, there)) for of in users))
                if users
                else None,
            )
        )  # fmt: skip
        try:
            _ = storages[-1].bytes
        except ExpressionError as e:
            raise r.fail(there, str(e)) from None
    run = sum(op.phase == FORWARD for op in operations)
    again = r.count(of["again"], f"{at}.again", 0, run) if "again" in of else None
    return Block(tuple(storages), tuple(operations), again)


def _use(r: _Reader, value: Any, at: str) -> Use:
    phase, further, operation = r.list(value, at, 3)
    return (
        r.count(phase, at, 0, 1),
        r.count(further, at, -MOST_SEGMENTS, MOST_SEGMENTS),
        r.count(operation, at, 0, MOST_ROWS),
    )


def _uses(r: _Reader, value: Any, at: str) -> Uses:
    def further(n: Any) -> int:
        return r.count(n, at, -MOST_SEGMENTS, MOST_SEGMENTS)

    read, savers, given = r.list(value, at, 3)
    segment, operation = r.list(read, at, 2)
    return Uses(
        (further(segment), r.count(operation, at, 0, MOST_ROWS)),
        tuple(further(n) for n in r.list(savers, at)),
        tuple(further(n) for n in r.list(given, at)),
    )
