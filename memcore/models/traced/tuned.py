"""Tuned: a model file as it runs where not all weights are trained, and with LoRA's adapters.

Backward runs what leads to a gradient that somebody wants, and nothing else. So forward keeps what
that reads: of a frozen linear layer nothing of its own, and of all before the first weight that is
trained nothing at all.

Times are operations of the whole run as it was traced. An adapter's operations stand at places
between them: (operation, -1 before it or 1 behind it, which one); what is gone before an operation
is gone at (operation, -2, 0).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from memcore.cache import cached
from memcore.errors import refusal, shown
from memcore.models.traced.expression import Sum
from memcore.models.traced.file import (
    BACKWARD,
    FORWARD,
    Block,
    ModelFile,
    Operation,
    Parameter,
    Storage,
    Uses,
    Variant,
)
from memcore.words.training import ALL_LINEAR

# What layers that make queries and values, or all three together, are called; and heads, which PEFT
# gives no adapter to (peft/tuners/tuners_utils.py: _maybe_include_all_linear_layers).
ATTENDING = ("q_proj", "v_proj", "query", "value", "to_q", "to_v", "q", "v", "qkv", "to_qkv",
             "qkv_proj", "c_attn", "query_key_value")  # fmt: skip
HEADS = ("lm_head", "score", "classifier")
PRODUCTS = ("mm", "addmm", "bmm")
CONVOLVED = "convolution_backward"
SAVER = "lora"  # what keeps what an adapter reads
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LowRank:
    """Adapters beside linear layers, as PEFT has them: the layers' paths, the width between the two
    matrices of each, their dtype, and whether dropout runs before them."""

    layers: tuple[str, ...]
    rank: int
    dtype: str
    dropout: bool


@cached
def linear_layers(file: ModelFile) -> tuple[str, ...]:
    """The paths of its linear layers that run once, in the order of their weights."""
    variant = file.several
    run = Counter(
        _absolute(op.module, unit)
        for block, unit in variant.order
        for op in variant.blocks[block].operations
        if op.phase == FORWARD and op.count and op.kernel in PRODUCTS
    )
    weights = [p.path for p in file.parameters if len(p.shape) == 2 and p.path not in file.tables]
    paths = (path.removesuffix(".weight") for path in weights if path.endswith(".weight"))
    return tuple(path for path in paths if run[path] == 1)


def suffixes(path: str) -> Iterator[str]:
    """The names by which a plan may call a layer: its path, and all ends of it."""
    parts = path.split(".")
    yield from (".".join(parts[i:]) for i in range(len(parts)))


def adapted(file: ModelFile, targets: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The linear layers of these names, or where there are none those that are the plan's targets
    (words.training.LORA_TARGETS)."""

    def chosen(path: str) -> bool:
        *outer, last = path.split(".")
        if names:
            return not set(names).isdisjoint(suffixes(path))
        if targets == ALL_LINEAR:
            return last not in HEADS
        attends = any("attn" in part or "attention" in part for part in outer)
        return attends if targets == "attention-all" else last in ATTENDING

    return tuple(filter(chosen, linear_layers(file)))


@cached
def tuned(file: ModelFile, frozen: tuple[str, ...], adapters: LowRank | None) -> ModelFile:
    """The file where the weights of some modules are frozen, or with adapters all but these.
    Raises PlanError where a layer cannot have an adapter."""
    parameters = [
        replace(p, trained=p.trained and not adapters and not within(p.path, frozen))
        for p in file.parameters
    ]
    run = _Run(file.several, frozenset(p.path for p in parameters if p.trained))
    shapes = {p.path: p.shape for p in file.parameters}
    for path in adapters.layers if adapters else ():
        assert adapters
        run.adapt(path, adapters)
        into, width = shapes[f"{path}.weight"]
        for name, shape in (("A", (adapters.rank, width)), ("B", (into, adapters.rank))):
            row = Parameter(f"{path}.lora_{name}.weight", shape, adapters.dtype, True, True)
            parameters.append(row)
    return replace(file, parameters=tuple(parameters), variants=(run.made_variant(),), checks=())


def within(path: str, modules: Iterable[str]) -> bool:
    """Whether a parameter is in one of these modules."""
    return any(path == module or path.startswith(f"{module}.") for module in modules)


def _absolute(module: str, unit: str) -> str:
    """A module's path, of one that may be within its unit."""
    return f"{unit}{module}".rstrip(".") if module.startswith(".") else module


@dataclass(slots=True, eq=False)
class _Row:
    """A storage of the run: its segment, where it is made, which operations of forward and of
    backward read it, and which of backward write it; `needed`: a gradient that somebody wants
    depends on it; `keepers`: the segments that keep it for backward; `until`: when an adapter lets
    go of it, if one keeps it; `gone`: when it is gone, where an adapter decides that."""

    segment: int
    storage: Storage
    birth: Place
    read: list[int]
    read_back: list[int]
    written: list[int]
    needed: bool = False
    keepers: tuple[int, ...] = ()
    until: Place | None = None
    gone: Place | None = None


@dataclass(frozen=True, slots=True)
class _New:
    """A storage that an adapter makes: from where to before where, in which phase that is."""

    storage: Storage
    birth: Place
    phase: int
    death: Place | None


class _Run:
    """A variant in the making."""

    def __init__(self, variant: Variant, trained: frozenset[str]):
        self.variant, self.starts = variant, variant.starts()
        self.operations: list[tuple[int, Operation]] = []
        order = range(len(variant.order))
        for phase, way in ((FORWARD, order), (BACKWARD, reversed(order))):
            for i in way:
                block = variant.blocks[variant.order[i][0]]
                self.operations += [(i, op) for op in block.operations if op.phase == phase]
        self.rows = [self._row(i, s, birth) for i, s, birth, _ in variant.spans()]
        self.made, self.changed = dict[int, list[_Row]](), dict[int, list[_Row]]()
        self.readers = dict[int, list[_Row]]()
        self.gradients: dict[str, _Row] = {}
        for row in self.rows:
            self.made.setdefault(row.birth[0], []).append(row)
            for at in row.written:
                self.changed.setdefault(at, []).append(row)
            for at in (*row.read, *row.read_back):
                self.readers.setdefault(at, []).append(row)
            if row.storage.gradient_of:
                path = _absolute(row.storage.gradient_of, variant.order[row.segment][1])
                self.gradients[path] = row
                row.needed = path in trained
        self.of_module: dict[str, list[int]] = {}
        for at, (i, op) in enumerate(self.operations):
            if op.phase == FORWARD:
                path = _absolute(op.module, variant.order[i][1])
                self.of_module.setdefault(path, []).append(at)
        self.layers: list[tuple[_Layer, LowRank]] = []
        self.more: dict[tuple[int, int], list[tuple[Place, Operation]]] = defaultdict(list)
        self.new: dict[int, list[_New]] = defaultdict(list)
        self.packed: dict[int, Place] = {}

    def _row(self, segment: int, s: Storage, birth: int) -> _Row:
        assert s.users
        last = len(self.variant.order) - 1

        def at(uses: Iterable[tuple[int, int, int]], phase: int) -> list[int]:
            return [
                self.starts[phase, min(max(segment + further, 0), last)] + op
                for where, further, op in uses
                if where == phase
            ]

        read, written = s.users.readers, s.users.writers
        place = birth, 0, 0
        return _Row(segment, s, place, at(read, FORWARD), at(read, BACKWARD), at(written, BACKWARD))

    def adapt(self, path: str, adapters: LowRank) -> None:
        """A layer has an adapter, which wants the gradient of its result."""
        layer = self._layer(path)
        if layer is None:
            why = f"adapters of {shown(path)} are not planned: it does not run as one product"
            raise refusal("train.lora_modules", why)
        layer.dy.needed = True
        self.layers.append((layer, adapters))

    def _layer(self, path: str) -> _Layer | None:
        """A linear layer, or None where it does not run as one product."""
        run = self.of_module.get(path, [])
        products = [at for at in run if self.operations[at][1].kernel in PRODUCTS]
        grad = self.gradients.get(f"{path}.weight")
        if len(products) != 1 or grad is None:
            return None
        weight, inputs = grad.birth[0], self.readers.get(products[0], [])
        results = [r for r in self.made.get(run[-1], []) if r.storage.phase == FORWARD]
        given = [r for r in self.readers.get(weight, []) if r not in inputs]
        if self._kernel(weight) not in PRODUCTS or not (inputs and results and given):
            return None
        near = [at for at in (weight - 1, weight + 1) if self._kernel(at) in PRODUCTS]
        back = next((at for at in near if given[0] in self.readers.get(at, [])), -1)
        begins = min(weight, back) if back >= 0 else weight
        if self._kernel(begins - 1) == "sum" and given[0] in self.readers.get(begins - 1, []):
            begins -= 1
        dx = next(iter(self.made.get(back, [])), None)
        between = [r for at in run[:-1] for r in self.made.get(at, []) if r is not inputs[0]]
        copies = inputs[0].birth[0] in run
        return _Layer(path, products[0], run[-1], weight, begins, back, inputs[0], results[0],
                      given[0], dx, tuple(between), copies)  # fmt: skip

    def _kernel(self, at: int) -> str:
        return self.operations[at][1].kernel if 0 <= at < len(self.operations) else ""

    # -- what runs ----------------------------------------------------------------------------

    def settle(self) -> None:
        """What backward runs, what of forward it keeps, and what adapters add."""
        middle = sum(op.phase == FORWARD for _, op in self.operations)
        self.lives = [True] * len(self.operations)
        for at in range(len(self.lives) - 1, middle - 1, -1):
            made = (*self.made.get(at, []), *self.changed.get(at, []))
            self.lives[at] = any(row.needed for row in made)
            for row in self.readers.get(at, []) if self.lives[at] else ():
                row.needed = True
        back = {i for at, (i, _) in enumerate(self.operations) if at >= middle and self.lives[at]}
        for row in self.rows:
            row.keepers = self._keepers(row, back)
        for layer, adapters in self.layers:
            _Adapter(self, layer, adapters).add()

    def _keepers(self, row: _Row, back: set[int]) -> tuple[int, ...]:
        """The segments that keep a storage of forward for what backward runs of them."""
        s = row.storage
        if s.phase == BACKWARD or not s.saved_by:
            return ()
        if row.read_back:
            return tuple({self.operations[at][0]: 0 for at in row.read_back if self.lives[at]})
        further = s.uses.savers if s.uses else (0,)
        return tuple(row.segment + n for n in further if row.segment + n in back)

    def made_variant(self) -> Variant:
        """The variant as it runs."""
        self.settle()
        work: dict[tuple[int, int], list[tuple[Place, Operation]]] = defaultdict(list)
        for at, (i, op) in enumerate(self.operations):
            if self.lives[at]:
                work[op.phase, i].append(((at, 0, 0), self._less(at, op)))
        for key, added in self.more.items():
            work[key] = sorted([*work[key], *added], key=lambda row: row[0])
        self.places = {key: [place for place, _ in rows] for key, rows in work.items()}
        storages: dict[int, list[Storage]] = defaultdict(list)
        for row in self.rows:
            storages[row.segment] += self._as_runs(row)
        blocks: dict[Block, int] = {}
        order = []
        for i, (index, unit) in enumerate(self.variant.order):
            new = (
                replace(n.storage, birth=self._index(n.storage.phase, i, n.birth),
                        death=n.death and (n.phase, 0, self._index(n.phase, i, n.death)))
                for n in self.new[i]
            )  # fmt: skip
            every = (*storages[i], *new)
            again = self.variant.blocks[index].again
            if again is not None:
                born = (s.birth + 1 for s in every if s.phase == FORWARD and s.saved_by)
                packed = self._index(FORWARD, i, self.packed[i]) if i in self.packed else 0
                again = max((*born, packed))
            operations = tuple(op for phase in (FORWARD, BACKWARD) for _, op in work[phase, i])
            order.append((blocks.setdefault(Block(every, operations, again), len(blocks)), unit))
        return replace(self.variant, blocks=tuple(blocks), order=tuple(order))

    def _index(self, phase: int, segment: int, place: Place) -> int:
        """How many operations of a segment run before a place."""
        return bisect_left(self.places.get((phase, segment), []), place)

    def _less(self, at: int, op: Operation) -> Operation:
        """An operation of backward without the products that nobody needs: a convolution's
        gradients are of one operation."""
        made = [r for r in self.made.get(at, []) if len(r.storage.shape) > 1]
        needed = sum(r.needed for r in made)
        if op.kernel != CONVOLVED or needed == len(made):
            return op
        return replace(op, count=op.count * needed // len(made))

    def _as_runs(self, row: _Row) -> Iterator[Storage]:
        """A storage as it is made and kept now, if it is made at all."""
        s, i = row.storage, row.segment
        if s.phase == BACKWARD:
            unused = not row.needed and (row.read_back or s.gradient_of)
            if unused or not self.lives[row.birth[0]]:
                return
        birth = self._index(s.phase, i, row.birth)
        uses = s.uses
        if uses:
            further, at = uses.read
            read = self._boundary(FORWARD, i + further, at)
            uses = Uses((further, read), tuple(k - i for k in row.keepers), uses.given)
        name = (s.saved_by or SAVER) if row.keepers else ""
        death = self._death(row)
        yield replace(s, birth=birth, death=death, saved_by=name, uses=uses, users=None)

    def _death(self, row: _Row) -> tuple[int, int, int] | None:
        s, i = row.storage, row.segment
        if s.death is None:
            return None
        phase, further, at = s.death
        living = [at for at in row.read_back if self.lives[at]]
        if s.phase == FORWARD and s.saved_by and phase == BACKWARD:
            if not living and (not row.keepers or row.until):
                assert s.uses
                phase, (further, at) = FORWARD, s.uses.read
            elif living and max(living) < max(row.read_back):
                further = self.operations[max(living)][0] - i
                at = max(living) + 1 - self.starts[BACKWARD, i + further]
        segment = min(max(i + further, 0), len(self.variant.order) - 1)
        place = self.starts[phase, segment] + at, -2, 0
        later = row.until if row.until and row.until > place else None
        if other := row.gone or later:
            place = other
            segment, phase = self.operations[place[0]][0], self.operations[place[0]][1].phase
        return phase, segment - i, self._index(phase, segment, place)

    def _boundary(self, phase: int, segment: int, at: int) -> int:
        """An index before which something is gone, of a segment as it was traced, as it is now."""
        segment = min(max(segment, 0), len(self.variant.order) - 1)
        return self._index(phase, segment, (self.starts[phase, segment] + at, -2, 0))


@dataclass(frozen=True, slots=True)
class _Layer:
    """A linear layer in the run: its product and its last operation forward, the product of its
    weight's gradient, where its backward begins, and the product of its input's gradient; the
    storages of its input, its result, the result's gradient and the input's; what it makes on the
    way, and whether it copies its input first, into rows."""

    path: str
    product: int
    last: int
    weight: int
    begins: int
    back: int
    x: _Row
    y: _Row
    dy: _Row
    dx: _Row | None
    between: tuple[_Row, ...]
    copies: bool


class _Adapter:
    """base + scaling * B(A(dropout(x))), as peft/tuners/lora/layer.py (Linear.forward) has it: the
    input is cast to the adapter's dtype, and the sum back to the layer's."""

    def __init__(self, run: _Run, layer: _Layer, how: LowRank):
        self.run, self.layer, self.how = run, layer, how
        self.segment, op = run.operations[layer.product]
        *rows, self.width, self.into = op.product
        self.rows = tuple(rows)
        unit = run.variant.order[self.segment][1]
        inside = unit and within(layer.path, (unit,))
        self.module = layer.path[len(unit) :] if inside else layer.path
        self.base = layer.y.storage.dtype
        self.wide = how.dtype != self.base
        self.rank = Sum.number(how.rank)
        self.steps: dict[tuple[int, int], int] = defaultdict(int)

    def step(self, phase: int, at: int, side: int, kernel: str, *moved: Storage,
             product: tuple[Sum, ...] = ()) -> Place:  # fmt: skip
        """One operation more at a place, which moves these storages; where it is."""
        self.steps[at, side] += 1
        place = at, side, self.steps[at, side]
        traffic = Sum.number(0)
        for s in moved:
            traffic = traffic + s.bytes
        op = Operation(kernel, f"{self.module}.lora", phase, 2 if product else 0, product, traffic,
                       wide=bool(product) and self.wide)  # fmt: skip
        self.run.more[phase, self.segment].append((place, op))
        return place

    def of(self, kernel: str, phase: int, last: Sum, dtype: str, saved: bool = False) -> Storage:
        """A storage with one row for each of the layer's."""
        shape, name = (*self.rows, last), SAVER if saved else ""
        return Storage(kernel, f"{self.module}.lora", shape, dtype, phase, 0, None, name, "",
                       Uses((0, 0), (0,), ()) if saved else None)  # fmt: skip

    def put(self, s: Storage, birth: Place, phase: int, death: Place | None) -> None:
        self.run.new[self.segment].append(_New(s, birth, phase, death))

    def gradient(self, name: str, shape: tuple[Sum, Sum], birth: Place) -> None:
        path = f"{self.module}.lora_{name}.weight"
        s = Storage("mm", f"{self.module}.lora", shape, self.how.dtype, BACKWARD, 0, None, "", path)
        self.put(s, birth, BACKWARD, None)

    def add(self) -> None:
        """Put its operations and storages into the run."""
        layer, how, dtype = self.layer, self.how, self.how.dtype
        begins, last = layer.begins, layer.last
        through = layer.back >= 0 and self.run.lives[layer.back]  # a gradient of x is wanted
        after = last, 1, 99  # behind all of its forward
        x = self.of("_to_copy", FORWARD, self.width, dtype, saved=not how.dropout)
        h = self.of("mm", FORWARD, self.rank, dtype, saved=True)
        b, scaled = (self.of(k, FORWARD, self.into, dtype) for k in ("mm", "mul"))
        y, both = layer.y.storage, self.of("add", FORWARD, self.into, dtype)
        kept: list[tuple[Storage, Place]] = []
        if self.wide:
            at = self.step(FORWARD, last, 1, "_to_copy", layer.x.storage, x)
            if how.dropout:
                self.put(x, at, FORWARD, after)
            else:
                kept.append((x, at))
        if how.dropout:
            at = self.step(FORWARD, last, 1, "native_dropout", x, x)
            mask = self.of("native_dropout", FORWARD, self.width, "bool", saved=through)
            dropped = self.of("native_dropout", FORWARD, self.width, dtype, saved=True)
            kept.append((dropped, at))
        if kept and layer.copies:  # A makes rows of it, as the layer does
            strided, at = kept.pop()
            self.put(replace(strided, saved_by="", uses=None), at, FORWARD, after)
            x = self.of("clone", FORWARD, self.width, dtype, saved=True)
            kept.append((x, self.step(FORWARD, last, 1, "clone", strided, x)))
        first = self.step(FORWARD, last, 1, "mm", x, h, product=(*self.rows, self.width, self.rank))
        second = self.step(FORWARD, last, 1, "mm", h, b, product=(*self.rows, self.rank, self.into))
        self.run.packed[self.segment] = max(second, self.run.packed.get(self.segment, second))
        times = self.step(FORWARD, last, 1, "mul", b, scaled)
        self.put(b, second, FORWARD, self._behind(times))
        plus = self.step(FORWARD, last, 1, "add", y, scaled, both)
        self.put(scaled, times, FORWARD, self._behind(plus))
        made = self.step(FORWARD, last, 1, "_to_copy", both, y) if self.wide else plus
        if self.wide:
            self.put(both, plus, FORWARD, self._behind(made))
        plain = replace(y, saved_by="", uses=None, users=None)
        self.put(plain, layer.y.birth, FORWARD, self._behind(plus))
        layer.y.birth = made
        for row in layer.between:
            row.gone = last, 1, 0
        # Backward: of the sum, of B, of A, and of what was done to the input.
        g, gs = (self.of(k, BACKWARD, self.into, dtype) for k in ("_to_copy", "mul"))
        dy, begun = layer.dy.storage, None
        if self.wide:
            begun = self.step(BACKWARD, begins, -1, "_to_copy", dy, g)
            if through:
                narrow = self.of("_to_copy", BACKWARD, self.into, self.base)
                at = self.step(BACKWARD, begins, -1, "_to_copy", g, narrow)
                self.put(narrow, at, BACKWARD, (layer.back, 1, 0))
        own = range(begins, max(layer.weight, layer.back) + 2)
        if all(at in own for at in layer.dy.read_back) and (begun or through):
            layer.dy.gone = self._behind(begun) if begun else (layer.back, 1, 0)
        back = self.step(BACKWARD, begins, -1, "mul", g, gs)
        if begun:
            self.put(g, begun, BACKWARD, self._behind(back))
        db = self.step(
            BACKWARD, begins, -1, "mm", h, gs, product=(*self.rows, self.into, self.rank)
        )
        self.gradient("B", (self.into, self.rank), db)
        dh = self.of("mm", BACKWARD, self.rank, dtype)
        at = self.step(
            BACKWARD, begins, -1, "mm", gs, dh, product=(*self.rows, self.rank, self.into)
        )
        self.put(gs, back, BACKWARD, self._behind(at))
        da = self.step(
            BACKWARD, begins, -1, "mm", x, dh, product=(*self.rows, self.rank, self.width)
        )
        self.gradient("A", (self.rank, self.width), da)
        self.put(h, first, BACKWARD, self._behind(at))
        end = self._behind(da)
        if through:
            end = self._input_gradient(at := da, x)
        self.put(dh, self._before(da), BACKWARD, self._behind(da))
        for s, place in kept:
            self.put(s, place, BACKWARD, self._behind(da))
        if how.dropout:
            of = (BACKWARD, end) if through else (FORWARD, self._behind(kept[-1][1]))
            self.put(mask, kept[-1][1], *of)
        if not kept:
            layer.x.keepers = tuple({**dict.fromkeys(layer.x.keepers), self.segment: None})
            layer.x.until = self._behind(da)

    def _input_gradient(self, at: Place, x: Storage) -> Place:
        """The input's gradient through the adapter, which is added to that through the layer; when
        the last of its own operations is over."""
        layer, begins, how = self.layer, self.layer.begins, self.how
        dx = self.of("mm", BACKWARD, self.width, how.dtype)
        at = self.step(BACKWARD, begins, -1, "mm", dx, product=(*self.rows, self.width, self.rank))
        for kernel, dtype in (
            *([("native_dropout_backward", how.dtype)] if how.dropout else []),
            *([("_to_copy", self.base)] if self.wide else []),
        ):
            following = self.of(kernel, BACKWARD, self.width, dtype)
            then = self.step(BACKWARD, begins, -1, kernel, dx, following)
            self.put(dx, at, BACKWARD, self._behind(then))
            dx, at = following, then
        assert layer.dx
        plus = self.step(BACKWARD, layer.back, 1, "add", dx, dx, dx)
        self.put(dx, at, BACKWARD, self._behind(plus))
        plain = replace(layer.dx.storage, users=None)
        self.put(plain, layer.dx.birth, BACKWARD, self._behind(plus))
        layer.dx.birth = plus
        return self._behind(at)

    def _behind(self, place: Place) -> Place:
        """Before what follows a place."""
        return place[0], place[1], place[2] + 1

    def _before(self, place: Place) -> Place:
        return place[0], place[1], place[2] - 1
