"""Recorder: what one forward and backward allocate, compute and free, in order.

Times are counted in operations: a storage that operation `birth` made is alive up to before
operation `death` begins.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

FORWARD, BACKWARD = "forward", "backward"
LONGEST = 60  # seconds of a core that one run may take


@dataclass(slots=True)
class Operation:
    """One operation that is no view. `module`: where it runs; `segment`: of Recorder.segments;
    `product`: of a matrix product, what its FLOPs are: a count times these sizes, which end in
    those of tape.Cost; `traffic`: shape and dtype of what it reads and writes; sizes are numbers or
    torch's symbols."""

    name: str
    module: str
    phase: str
    segment: int
    product: tuple[int, tuple[Any, ...]] | None
    traffic: list[tuple[tuple[Any, ...], torch.dtype]]


@dataclass(slots=True)
class Storage:
    """One block of memory. `death`: None while it lives; `saved_by`: the operation that keeps it
    for backward, or ''; `gradient_of`: the parameter whose gradient it is, or ''; `read`: the last
    operation of forward that reads it; `savers`, `given`: segments that keep it for backward, and
    whose unit is called with it; `readers`, `writers`: operations of backward, and matrix products
    of forward, that read it, and operations of backward that write what is there already."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    bytes: Any
    birth: int
    module: str
    death: int | None = None
    saved_by: str = ""
    gradient_of: str = ""
    read: int = 0
    savers: dict[int, None] = field(default_factory=dict)
    given: dict[int, None] = field(default_factory=dict)
    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Segment:
    """A run of operations of one unit: its name, '' between units; `after`: how many nodes of
    autograd were made before it; `packed`: how many operations had run when it last kept something
    for backward, which is where a checkpoint of it ends when it runs again."""

    unit: str
    after: int
    packed: int = 0


# What reads rows of a table, its first argument; the second says which.
_LOOKUPS = ("embedding", "_embedding_bag")
_OPERANDS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}


def _convolved(out: torch.Size, weight: torch.Size) -> tuple[Any, ...]:
    """Rows, what is summed, and columns of a convolution: each place of its result is a row."""
    rows = [n for i, n in enumerate(out) if i != 1]
    summed = 1
    for n in weight[1:]:
        summed = summed * n
    return (*rows, summed, weight[0])


def plain(size: Any) -> Any:
    """A size as a number, or the expression behind torch's symbol."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


class Recorder(TorchDispatchMode):
    """Records what runs within it. `own`: tensors that are there before, and are not counted;
    `tables`: of them, by their names, those that rows are looked up in. `lookups`: of each how many
    rows a forward reads, how many it makes of them, and whether these are sums."""

    def __init__(
        self, names: dict[int, str], units: set[str], own: list[torch.Tensor],
        tables: dict[str, torch.Tensor],
    ):  # fmt: skip
        super().__init__()
        self.lookups: dict[str, Any] = {}
        self._deadline = time.process_time() + LONGEST
        self._paths = {t.untyped_storage()._cdata: name for name, t in tables.items()}
        self.operations: list[Operation] = []
        self.storages: list[Storage] = []
        self.segments: list[Segment] = [Segment("", 0)]
        self._names, self._units = names, units
        self._path: list[str] = []
        self._phase = FORWARD
        self._segment = 0
        self._own = {t.untyped_storage()._cdata for t in own}
        self._alive: dict[int, Storage] = {}
        self._refs: dict[int, weakref.ref[Any]] = {}

    # -- where it runs ------------------------------------------------------------------------

    def enter(self, module: torch.nn.Module, _: Any) -> None:
        """A hook before a module's forward."""
        name = self._names.get(id(module), "")
        self._path.append(name)
        if name in self._units and self._phase == FORWARD:
            self._begin(name)

    def called(self, _: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A hook before a unit's forward: what it is called with."""
        if self._phase == FORWARD:
            for row in self._rows(tree_iter((args, kwargs))):
                row.given[self._segment] = None

    def leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        """A hook after a module's forward."""
        if self._path and self._path.pop() in self._units and self._phase == FORWARD:
            self._begin(next((p for p in reversed(self._path) if p in self._units), ""))

    def _begin(self, unit: str) -> None:
        begun = Segment(unit, torch._C._autograd._get_sequence_nr())
        if self._segment and not any(op.segment == self._segment for op in self.operations[-1:]):
            begun.after = self.segments.pop().after  # nothing ran in the one before
        self.segments.append(begun)
        self._segment = len(self.segments) - 1

    @property
    def _module(self) -> str:
        return self._path[-1] if self._path else ""

    def begin_backward(self) -> None:
        """Forward is over. What it kept for a backward that nothing asks for is gone."""
        self._phase = BACKWARD
        for row in self.storages:
            if row.death is not None:
                row.saved_by = ""
                row.savers.clear()

    def _find_segment(self) -> None:
        """Backward goes back from segment to segment: that of the node of autograd that runs."""
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else 2**63
        while self._segment > 0 and number < self.segments[self._segment].after:
            self._segment -= 1

    # -- what runs ----------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if time.process_time() > self._deadline:
            raise TimeoutError(f"symbols for sizes take more than {LONGEST} seconds of a core")
        if self._phase == BACKWARD:
            self._find_segment()
        out = func(*args, **kwargs)
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_iter(out) if isinstance(t, torch.Tensor)]
        if not made:
            return out
        before = {t.untyped_storage()._cdata for t in given}
        if not func._schema.is_mutable and all(t.untyped_storage()._cdata in before for t in made):
            return out  # a view
        name = str(func._overloadpacket).split(".")[-1]
        product = self._product(name, args, made)
        if name in _LOOKUPS:
            self._looked_up(name, args[0], args[1], made[0], given[1:] + made)
        else:
            self._operation(name, product, [*given, *made])
        self._used(given, made)
        for t in made:
            self.born(t, name)
        return out

    def _product(
        self, name: str, args: Any, made: list[torch.Tensor]
    ) -> tuple[int, tuple[Any, ...]] | None:
        """What a matrix product or convolution computes: rows, what is summed, columns; in backward
        the last two the other way round, as the engine has them."""
        if name in _OPERANDS:
            first, second = (args[i].shape for i in _OPERANDS[name])
            before, rows, summed, columns = first[:-2], first[-2], first[-1], second[-1]
            inner = (summed, columns) if self._phase == FORWARD else (columns, summed)
            return 2, (*before, rows, *inner)
        if name == "convolution":
            return 2, _convolved(made[0].shape, args[1].shape)
        if name == "convolution_backward":
            return 2 * sum(args[-1][:2]), _convolved(args[0].shape, args[2].shape)
        return None

    def _looked_up(
        self, name: str, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor,
        others: list[torch.Tensor],
    ) -> None:  # fmt: skip
        """A lookup: of the table it reads the rows that the ids name."""
        rows = ((*map(plain, ids.shape), *map(plain, table.shape[1:])), table.dtype)
        self._operation(name, None, others)
        self.operations[-1].traffic.append(rows)
        path = self._paths.get(table.untyped_storage()._cdata)
        if path:
            read, made = self.lookups.get(path, (0, 0))[:2]
            rows = out.numel() // out.shape[-1]
            pooled = name != "embedding"
            self.lookups[path] = (read + plain(ids.numel()), made + plain(rows), pooled)

    def tell(
        self, name: str, product: tuple[int, tuple[Any, ...]] | None, tensors: tuple[Any, ...],
        given: tuple[Any, ...], made: tuple[Any, ...],
    ) -> None:  # fmt: skip
        """An operation that a stand-in runs, and that torch does not show: the tensors that are its
        traffic, and all that it is given and makes."""
        self._operation(name, product, [t for t in tensors if isinstance(t, torch.Tensor)])
        self._used(given, made)

    def _used(self, given: Iterable[Any], made: Iterable[Any]) -> None:
        """The last operation reads and writes the storages of these tensors."""
        last = len(self.operations) - 1
        backward = self._phase == BACKWARD
        written = {id(row): row for row in self._rows(made)} if backward else {}
        for row in written.values():
            row.writers.append(last)
        if backward or self.operations[last].product:
            for row in {id(row): row for row in self._rows(given)}.values():
                if id(row) not in written:
                    row.readers.append(last)

    def _operation(
        self, name: str, product: tuple[int, tuple[Any, ...]] | None, tensors: list[torch.Tensor]
    ) -> None:
        traffic = [(tuple(map(plain, t.shape)), t.dtype) for t in tensors]
        counted = product and (product[0], tuple(map(plain, product[1])))
        self.operations.append(
            Operation(name, self._module, self._phase, self._segment, counted, traffic)
        )
        if self._phase == FORWARD:
            for row in self._rows(tensors):
                row.read = len(self.operations) - 1

    def _rows(self, values: Iterable[Any]) -> Iterator[Storage]:
        """The storages, of those that count, of the tensors among these values."""
        for t in values:
            if isinstance(t, torch.Tensor):
                row = self._alive.get(t.untyped_storage()._cdata)
                if row:
                    yield row

    def born(self, t: torch.Tensor, name: str) -> None:
        """The storage of a tensor counts from now, if it does not yet."""
        storage = t.untyped_storage()
        key = storage._cdata
        if key in self._own or key in self._alive:
            return
        row = Storage(
            name, tuple(map(plain, t.shape)), t.dtype, plain(storage.nbytes()),
            max(len(self.operations) - 1, 0), self._module,
        )  # fmt: skip

        def died(_: Any) -> None:
            row.death = len(self.operations)
            self._alive.pop(key, None)
            self._refs.pop(key, None)

        self._alive[key], self._refs[key] = row, weakref.ref(storage, died)
        self.storages.append(row)

    def pack(self, t: torch.Tensor) -> torch.Tensor:
        """A hook for what autograd saves."""
        self.segments[self._segment].packed = len(self.operations)
        for row in self._rows([t]):
            row.savers[self._segment] = None
            if not row.saved_by:
                row.saved_by = self.operations[-1].name if self.operations else "input"
        return t

    def mark_gradients(self, parameters: dict[str, torch.Tensor]) -> None:
        """What is a parameter's gradient, once backward is over."""
        for name, p in parameters.items():
            row = self._alive.get(p.grad.untyped_storage()._cdata) if p.grad is not None else None
            if row:
                row.gradient_of = name

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Within it a model's modules and autograd tell this recorder what they do."""
        from torch.nn.modules import module

        hooks = [
            module.register_module_forward_pre_hook(self.enter),
            module.register_module_forward_hook(self.leave, always_call=True),
            *(
                m.register_forward_pre_hook(self.called, with_kwargs=True)
                for name, m in model.named_modules()
                if name in self._units
            ),
        ]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()
            self._refs.clear()
