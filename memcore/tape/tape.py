"""Tape: autograd, with names instead of numbers.

Operations are run once on symbolic tensors (named dimensions, no values). Forward records which
tensors each operation saves; backward walks the graph in PyTorch's order and frees what PyTorch
frees. What is left is flat data: for every storage its shape, dtype, birth and death. Nothing here
depends on a size, so a tape is built once per choice of words and evaluated for any numbers.

Time on a tape is counted in allocations: a storage is alive after allocation `t` if
birth <= t < death.

Follows torch/csrc/autograd/engine.cpp: nodes run in reverse order of creation as soon as all their
gradients have arrived; a node's saved tensors and incoming gradients are released when it returns.
Gradients that meet are added into a new tensor, as the reference (fake tensors) does; on a GPU the
engine may add in place, which saves at most that one tensor at such an instant.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from memcore.cache import counted_apart
from memcore.tape.dims import Axis, Shape, of_stack
from memcore.tape.kinds import Module, Part, Role
from memcore.tape.structure import Narrow, Structure

WEIGHTS = ("parameter", "tied")
ALWAYS = 10**9  # a death that never comes within the tape


@dataclass(slots=True, eq=False)
class Storage:
    """One block of memory.

    kind      'input' (the block's own input), 'shared' (made by another block), 'parameter', 'tied'
              (another block's parameter), 'activation' (made in forward), 'weight copy'
              (autocast), 'temporary' (made in backward), 'gradient' (of a parameter), 'output
              gradient' (where the block's backward begins)
    saved_by  operations that keep it for their backward
    made_by   the operation that allocated it
    merged    for a gradient: when it would be gone, had it been added to an existing one
    unpacked  for a saved tensor that a checkpoint recomputed: it goes when the operation has
              computed, before its results are cast and summed to fit
    last_use  death if nothing were saved, as in inference
    gradient_of   the parameter whose whole gradient it is or becomes, or ''
    joined    a parameter that gets a second gradient from another block, where it is 'tied'
    product   'mm', 'addmm', 'bmm' or 'attention' if such an operation made it, else ''
    origins   what it was computed from; random numbers from nothing
    sources   the same, where a compiler can do so again without a kernel of its own, else None
    stands    a kernel that is not fused reads it, so that it must exist in memory
    trained   of a parameter: the optimizer updates it
    own       of a parameter: every copy of it has its dtype
    quantized of a parameter: how it is kept (words.training.QUANTIZED), or ''
    narrow    of a parameter: what of it is in 8 bits
    gathered  of a parameter: the dtype that FSDP2 gathers it in, where it has one of its own
    table     of a parameter: the gradient that it has as a table of rows, or the word of what
              updates it as backward comes to its rows
    cached    of such a table that rests on the host: the part that the GPU caches, and the rows
              that a step reads which it lacks
    parts     of a parameter: as Cost.parts
    role      what it is for
    pinned    the graph itself refers to it, so that it stays until all of backward is over
    remade    backward makes it again once forward has dropped it
    dropped   forward has
    own_name  its name in its scope; what all layers read has the same in each of them
    path      of a parameter: where the model's checkpoint has it, which quantizers ask for, as
              'layers.self_attn.q_proj.weight'
    """

    name: str
    shape: Shape
    dtype: str
    kind: str
    birth: int
    death: int = -1
    holders: int = 0
    saved_by: list[str] = field(default_factory=list)
    made_by: str = ""
    merged: int = ALWAYS
    last_use: int = -1
    unpacked: int = ALWAYS
    gradient_of: str = ""
    joined: bool = False
    product: str = ""
    origins: tuple[Storage, ...] = ()
    sources: tuple[Storage, ...] | None = None
    stands: bool = False
    trained: bool = True
    own: bool = False
    quantized: str = ""
    narrow: Narrow | None = None
    gathered: str = ""
    table: str = "dense"
    cached: tuple[Shape, Shape] | None = None
    parts: tuple[Part, ...] = ()
    role: Role | None = None
    pinned: bool = False
    remade: bool = False
    dropped: bool = False
    own_name: str = ""
    path: str = ""


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage, with the node that made it."""

    storage: Storage
    shape: Shape
    dtype: str
    needs_grad: bool
    node: Node | None = None
    index: int = 0


Gradients = Sequence["Tensor | None"]
Product = tuple[float, Shape]  # (count, shape): its FLOPs
GRADIENTS_OF_TOKENS = "gradients of tokens"
Run = Callable[..., "Tensor"]  # of tensors
Runs = Callable[..., Sequence["Tensor"]]


@dataclass(slots=True, eq=False)
class Node:
    """One operation as autograd sees it."""

    order: int
    name: str
    inputs: Sequence[Tensor]
    saved: list[Storage]
    backward: Callable[[Gradients], Gradients]
    outputs: int = 1
    fusible: bool = False
    unpacks: bool = False  # its backward reads something saved, if only a weight
    before: list[Callable[[], None]] = field(default_factory=list)  # once its gradient is there


@dataclass(slots=True)
class Cost:
    """What one operation costs in one direction: FLOPs and the tensors it reads and writes.

    phase     'forward', 'backward', or 'recompute' for what backward runs again by itself
    product   as Storage.product
    fusible   a compiler makes it part of a neighbour's kernel
    touched   the storages behind `traffic`, in its order
    started   operations that the host starts for it: none where a compiler fused it into another
    sources   what its results can be computed from
    parts     what it is part of, the widest first
    module    whose kernel it is, where that matters
    stack     of a tower: whose dimensions it has (dims.STACKS)
    """

    name: str
    phase: str
    flops: list[tuple[float, Shape]]
    traffic: list[tuple[Shape, str]]
    product: str = ""
    fusible: bool = False
    started: int = 1
    touched: list[Storage] = field(default_factory=list)
    sources: list[Storage] = field(default_factory=list)
    parts: tuple[Part, ...] = ()
    module: Module | None = None
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """One collective inside a block, declared by the operation that waits for it.

    what     what is sent: 'tokens', 'rows of experts'
    kind     'all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all'
    axis     the name of the ranks that take part: 'TP', 'CP', 'EP'
    shape    what the ranks have together; of an all-to-all, what one of them has
    phase    as Cost.phase
    behind   the product that runs meanwhile; attention: it is attention
    beside   the products that read or make what is sent, whose pieces run behind pieces of it where
             both are cut (tp_comm_overlap, async_tp)
    """

    what: str
    kind: str
    axis: str
    shape: Shape
    dtype: str
    phase: str
    behind: Product | None = None
    attention: bool = False
    beside: tuple[Product, ...] = ()


def _saved_before(outs: Sequence[Tensor]) -> list[Storage]:
    """What the operations saved that led to these."""
    found: dict[Storage, None] = {}
    nodes, seen = [out.node for out in outs], set[int]()
    while nodes:
        node = nodes.pop()
        if node and node.order not in seen:
            seen.add(node.order)
            found.update(dict.fromkeys(node.saved))
            nodes += [x.node for x in node.inputs]
    return list(found)


@counted_apart
class Tape:
    """Records one block (an embedding, a layer, a head): forward first, then `backward`.

    What it has of a structure is as in structure.Structure; parameter_dtype: its dtype.

    kernels    whose kernels run (words.training.KERNELS)
    modules    those that backward runs again (words.training.RECOMPUTE_MODULES)
    third      both gradients of a joined weight are added into a third tensor: autograd adds to the
               first in place unless that is a view, as a linear layer's is
               (torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace)
    frozen     its own weights are not trained; `frozen_tied`: nor those it shares with another
    """

    def __init__(self, s: Structure, kernels: str, modules: tuple[str, ...] = ()):
        self.parameter_dtype, self.autocast = s.dtype, s.autocast
        self.kernels, self.attention, self.modules = kernels, s.attention, modules
        self.parallel, self.adapters, self.narrow = s.parallel, s.adapters, s.narrow
        self.table, self.keeps, self.unfused = s.table, s.keeps, s.unfused
        self.float8, self.main_grad, self.infers = s.float8, s.main_grad, s.infers
        self.reached = s.reached or bool(s.adapters and s.adapters.inputs)
        self.third = s.cross_entropy != "chunked"  # whose kernel makes the head's gradient itself
        self.idle = False  # what runs here is read by nobody, and trained by nothing
        self.untold = False  # nothing before what is carried is trained: nobody wants its gradient
        self.tied = False  # all its weights are another block's, whose gradients these are added to
        self.carried: list[Tensor] = []  # read by several blocks, with one gradient for all
        self.frozen = self.frozen_tied = False
        self.handed_on: Storage | None = None  # what the next block begins with
        self.history: list[Storage] = []  # what operations saved that led to its other results
        self.results: list[Storage] = []  # of that, all but the loss
        self.named: list[Storage] = []  # what the model has a name for until it returns
        self.whole: dict[int, Tensor] = {}  # by id: tensors gathered from all ranks' tokens
        self.sent_whole: dict[int, int] = {}  # by id: the place in `sends` of that
        self.storages: list[Storage] = []
        self.parameters: list[Storage] = []
        self.buffers: list[Storage] = []
        self.work: list[Cost] = []
        self.sends: list[Send] = []
        self.sent_at: list[int] = []  # of each, how many operations had begun
        self.clock = 0
        self.forward_end = 0
        self.last_packed = 0  # when forward began the last operation that saves something
        self.run_again = 0  # operations that forward has run by then: what a checkpoint runs again
        self.first_unpacked = 0  # when backward began the first that reads something saved
        self.gathered_again: list[Storage] = []  # weights of experts, in backward
        self.reduced = 0  # when the gradients of experts, a group of their own, are reduced
        self._begun = 0
        self._prefix: list[str] = []
        self._parts: tuple[Part, ...] = ()
        self._nodes = 0
        self._current: Cost | None = None
        self._computed: int | None = None
        self._no_grad = False
        self._graph: list[Node] = []

    # -- naming -------------------------------------------------------------------------------

    def scope(self, name: str, part: Part | None = None) -> _Scope:
        """What is recorded within has this before its name, and is of this part."""
        return _Scope(self, name, part)

    def _named(self, name: str) -> str:
        return ".".join((*self._prefix, name))

    def within(self, part: Part) -> bool:
        """Whether a scope of this part is open."""
        return part in self._parts

    # -- tensors ------------------------------------------------------------------------------

    def input(self, name: str, shape: Shape, dtype: str, needs_grad: bool = True) -> Tensor:
        """The block's input. It belongs to this block if one of its operations saves it."""
        return self._tensor(name, shape, dtype, "input", needs_grad)

    def shared(self, name: str, shape: Shape, dtype: str, role: Role | None = None) -> Tensor:
        """A tensor that another block made and counts, read here: rotary tables, masks."""
        tensor = self._tensor(name, shape, dtype, "shared", needs_grad=False)
        tensor.storage.role = role
        return tensor

    def carry(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """The same, of which a gradient is wanted: each block that reads it adds to it."""
        wanted = not (self.idle or self.untold)
        tensor = self._tensor(name, shape, dtype, "shared", needs_grad=wanted)
        self.carried.append(tensor)
        return tensor

    def parameter(
        self,
        name: str,
        shape: Shape,
        tied: bool = False,
        joined: bool = False,
        adapter: bool = False,
        quantized: str = "",
        narrow: Narrow | None = None,
        idle: bool = False,
        role: Role | None = None,
        gathered: str = "",
    ) -> Tensor:
        """A weight. A `tied` one belongs to another block: it is neither counted here nor does its
        gradient reach the parameter before that block has run backward: there the parameter is
        `joined`, and both gradients are added (`third`)."""
        tied, joined = tied or self.tied, joined or self.tied
        kind = "tied" if tied else "parameter"
        held = self.frozen_tied if tied else self.frozen
        frozen = self.adapters is not None or held or idle or self.idle
        trained = adapter or not frozen
        dtype = self.adapters.dtype if adapter and self.adapters else self.parameter_dtype
        tensor = self._tensor(name, shape, dtype, kind, needs_grad=trained)
        tensor.storage.joined = joined
        tensor.storage.trained, tensor.storage.quantized = trained, quantized
        tensor.storage.narrow, tensor.storage.parts = narrow, self._parts
        tensor.storage.role, tensor.storage.path = role, ".".join((*self._prefix, name))
        tensor.storage.gathered = gathered
        tensor.storage.own = adapter and bool(self.adapters and self.adapters.own)
        if not tied:
            self.parameters.append(tensor.storage)
        return tensor

    def cached(self, w: Tensor, dtype: str) -> Tensor:
        """Autocast's copy of another block's weight, which that block counts."""
        tensor = self._tensor("weight, cached", w.shape, dtype, "tied", w.needs_grad)
        tensor.storage.joined = True
        return tensor

    def made_elsewhere(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """What another block makes, and keeps for its own backward, read here: that block counts
        it, and the gradient of it that begins here."""
        return self._tensor(name, shape, dtype, "tied", needs_grad=False)

    def buffer(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """A table that a module keeps for good and nothing trains (torch's register_buffer)."""
        tensor = self._tensor(name, shape, dtype, "tied", needs_grad=False)
        self.buffers.append(tensor.storage)
        return tensor

    def _tensor(self, name: str, shape: Shape, dtype: str, kind: str, needs_grad: bool) -> Tensor:
        storage = Storage(self._named(name), shape, dtype, kind, birth=0, own_name=name)
        if kind not in WEIGHTS:
            self.storages.append(storage)
        return Tensor(storage, shape, dtype, needs_grad)

    def new(self, name: str, shape: Shape, dtype: str, fixed: bool = False) -> Tensor:
        """Allocate. `fixed`: a fused operation's result that cannot be computed again for nothing,
        a reduction or random numbers."""
        self.clock += 1
        kind = "temporary" if self.forward_end else "activation"
        storage = Storage(self._named(name), shape, dtype, kind, self.clock, own_name=name)
        storage.death = self.clock + 1
        self.storages.append(storage)
        if self._current is not None:
            storage.made_by = self._current.name
            storage.product = self._current.product
            self._touch(storage, shape, dtype)
            if dtype != "bool":
                storage.origins = tuple(self._current.sources)
            if self._current.fusible:
                if fixed:
                    self._current.sources.append(storage)
                else:
                    storage.sources = tuple(self._current.sources)
        return Tensor(storage, shape, dtype, needs_grad=False)

    def grads(self, name: str, *of: Tensor) -> Callable[[Gradients], Gradients]:
        """A backward that makes a gradient of this name for each of these tensors."""
        return lambda g: [self.new(name, x.shape, x.dtype) for x in of]

    def grad(self, name: str, x: Tensor) -> Tensor | None:
        """Backward: a gradient of x, of this name, if anybody wants one."""
        return self.new(name, x.shape, x.dtype) if x.needs_grad else None

    def use(self, *tensors: Tensor) -> None:
        """Forward: these are read now, so they live at least until now."""
        for t in tensors:
            if not t.storage.dropped:
                t.storage.death = max(t.storage.death, self.clock + 1)
            if self._current is not None:
                self._touch(t.storage, t.shape, t.dtype)

    def hold(self, *tensors: Tensor) -> None:
        """Forward alone: who calls a module holds what it gave until that returns, here. (In
        training the graph does.)"""
        if self.infers:
            self.use(*tensors)

    def _touch(self, storage: Storage, shape: Shape, dtype: str) -> None:
        assert self._current is not None
        self._current.traffic.append((shape, dtype))
        self._current.touched.append(storage)

    def operation(self, name: str, started: int = 1) -> _Operation:
        """What is recorded within is an operation of its own, in the midst of another or between
        two: its kernels run before those of what comes."""
        return _Operation(self, name, started)

    def reads(self, storage: Storage, *pieces: tuple[Shape, str]) -> None:
        """The operation reads these pieces, which the storage consists of, or all of it."""
        for shape, dtype in pieces or ((storage.shape, storage.dtype),):
            self._touch(storage, shape, dtype)

    def read_and_write(self, storage: Storage, shape: Shape, dtype: str) -> None:
        """Backward: a kernel adds to memory that the block does not own (Megatron's main_grad)."""
        if self._current is not None:
            for _ in range(2):
                self._touch(storage, shape, dtype)

    # -- communication --------------------------------------------------------------------------

    def send(
        self,
        what: str,
        kind: str,
        axis: Axis,
        shape: Shape,
        dtype: str,
        backward: bool = False,
        behind: Product | None = None,
        attention: bool = False,
        beside: tuple[Product, ...] = (),
    ) -> None:
        """A collective that forward waits for here, or `backward` will. What no rank shares costs
        nothing: the axis of one rank."""
        if backward and self._no_grad:
            return
        phase = "backward" if backward else "recompute" if self.forward_end else "forward"
        made = Send(what, kind, axis.name, shape, dtype, phase, behind, attention, beside)
        self.sends.append(made)
        self.sent_at.append(len(self.work))

    def in_pieces(self, tokens: int, product: Product) -> None:
        """Another product reads what is sent at that place, in pieces. So long as no other does,
        the gradient is in pieces too, which is sent at the next place if there is one."""
        sent, gradient = self.sends[tokens], tokens + 1
        self.sends[tokens] = replace(sent, beside=(*sent.beside, product))
        if gradient < len(self.sends) and self.sends[gradient].what == GRADIENTS_OF_TOKENS:
            made = () if sent.beside else (product,)
            self.sends[gradient] = replace(self.sends[gradient], beside=made)

    # -- recording operations -------------------------------------------------------------------

    def start(
        self,
        name: str,
        *inputs: Tensor,
        flops: Sequence[tuple[float, Shape]] = (),
        product: str = "",
        module: Module | None = None,
        started: int = 1,
    ) -> None:
        """Begin an operation: what is allocated until `finish` is its own traffic.

        What has FLOPs is a matrix product or attention, and has a kernel of its own; a compiler
        makes everything else part of a neighbour's kernel.
        """
        fusible = not flops
        self._begun = self.clock
        phase = "recompute" if self.forward_end else "forward"
        self._current = Cost(self._named(name), phase, list(flops), [], product, fusible, started)
        self._current.parts, self._current.module = self._parts, module
        self._current.sources += [x.storage for x in inputs]
        self.use(*inputs)
        for x in inputs:
            x.storage.stands |= not fusible
        self.work.append(self._current)

    def then(
        self,
        name: str,
        *inputs: Tensor,
        flops: Sequence[tuple[float, Shape]] = (),
        product: str = "",
        module: Module | None = None,
        started: int = 1,
    ) -> None:
        """A further kernel of the operation that runs, forward or backward, with a cost of its own:
        one function of autograd's may start many."""
        before = self._current
        assert before is not None
        cost = Cost(self._named(name), before.phase, list(flops), [], product, started=started)
        cost.parts, cost.module, cost.sources = before.parts, module, before.sources
        self._current = cost
        if cost.phase == "backward":
            for x in inputs:
                self._touch(x.storage, x.shape, x.dtype)
        else:
            self.use(*inputs)
        self.work.append(cost)

    def finish(
        self,
        name: str,
        inputs: Sequence[Tensor],
        out: Tensor | Sequence[Tensor],
        saved: Sequence[Tensor],
        backward: Callable[[Gradients], Gradients],
        flops: Sequence[tuple[float, Shape]] = (),
        packs_last: bool = False,
        held: Sequence[Tensor] = (),
    ) -> None:
        """End an operation: connect its outputs to the graph and keep what it saves.

        packs_last    it saves its inputs too once it has computed, as torch.autograd.Function does
        held          is kept until its backward too, which does not read it
        """
        # What has no kernel of its own is a view, which a compiler fuses too.
        fusible = self._current is None or self._current.fusible
        module = self._current.module if self._current else None
        running = int(self._current is not None)
        self._current = None  # `start` counted what is read; from here on only lifetimes matter
        self.use(*inputs)
        outputs = [out] if isinstance(out, Tensor) else list(out)
        if self._no_grad or not any(t.needs_grad for t in inputs):
            return
        full = self._named(name)
        if saved and not self.forward_end:
            self.last_packed = max(self._begun, *(t.storage.birth for t in saved))
            # Inputs are packed before the operation computes, and nothing is run again after them.
            computed = packs_last or self.last_packed > self._begun
            self.last_packed = self.clock if packs_last else self.last_packed
            self.run_again = len(self.work) - (0 if computed else running)
        storages: list[Storage] = []
        for t in (*saved, *held):
            if t.storage.kind not in WEIGHTS and t.storage not in storages:
                storages.append(t.storage)
        for s in storages:
            s.holders += 1
            if not s.dropped:
                s.saved_by.append(full)
        read = (*saved, *outputs)

        scope, parts = list(self._prefix), self._parts

        def run(grads: Gradients) -> Gradients:
            self._current = Cost(full, "backward", list(flops), [], fusible=fusible)
            self._current.parts, self._current.module = parts, module
            for t in read:
                self._touch(t.storage, t.shape, t.dtype)
            self.work.append(self._current)
            outside = self._prefix, self._parts
            self._prefix, self._parts = list(scope), parts
            result = backward(grads)
            (self._prefix, self._parts), self._current = outside, None
            return result

        self._nodes += 1
        node = Node(self._nodes, full, inputs, storages, run, len(outputs), fusible, bool(saved))
        self._graph.append(node)
        for i, t in enumerate(outputs):
            t.node, t.index, t.needs_grad = node, i, True

    @contextmanager
    def without_grad(self) -> Iterator[None]:
        """What is recorded within runs under torch.no_grad, and its weights are not trained."""
        outside, self._no_grad, self.idle = (self._no_grad, self.idle), True, True
        yield
        self._no_grad, self.idle = outside

    def pin(self, x: Tensor) -> None:
        """Forward: the operation that has just ended refers to x from its node of the graph, not as
        something saved, which neither its backward nor a checkpoint lets go of."""
        if self._no_grad or not x.needs_grad or x.storage.pinned:
            return
        x.storage.pinned = True
        x.storage.holders += 1
        x.storage.saved_by.append(self._graph[-1].name)

    def free(self, *tensors: Tensor) -> None:
        """Backward: a temporary inside an operation is done with."""
        for t in tensors:
            t.storage.death = self.clock + 1

    def again(self, module: str, run: Run, *inputs: Tensor) -> Tensor:
        """`run`, under a checkpoint where a plan says that this module is run again."""
        return self.checkpoint(run, inputs) if module in self.modules else run(*inputs)

    def checkpoint(self, run: Run, inputs: Sequence[Tensor]) -> Tensor:
        """`run` under torch.utils.checkpoint: only its inputs are kept, shared masks among them;
        backward runs it again before it runs its backward."""
        outs, kept = self._without_graph(lambda *given: [run(*given)], inputs)

        def backward(grads: Gradients) -> Gradients:
            self._current = None
            leaves, again = self._once_more(lambda *given: [run(*given)], inputs)
            found = self._run_backward(again, [grad for grad in grads if grad])
            return [found.get(id(leaf)) for leaf in leaves]

        self.finish("checkpoint", inputs, outs, kept, backward)
        return outs[0]

    def remake(self, module: str, run: Runs, *inputs: Tensor) -> Remade:
        """`run`, whose results are dropped when all of forward that reads them has (Remade.drop),
        where a plan says that this module is run again: backward makes them anew just before it
        wants them (megatron/core/tensor_parallel/random.py: CheckpointWithoutOutput)."""
        if module not in self.modules:
            return Remade(self, run(*inputs))
        outs, kept = self._without_graph(run, inputs)
        scope, parts = list(self._prefix), self._parts
        made: list[Sequence[Tensor]] = []

        def again() -> None:
            outside = self._prefix, self._parts
            self._prefix, self._parts = list(scope), parts
            leaves, found = self._once_more(run, inputs)
            self._prefix, self._parts = outside
            for out in found:
                out.storage.holders += 1
                out.storage.death = ALWAYS
            made[:] = leaves, found

        def backward(grads: Gradients) -> Gradients:
            self._current = None
            leaves, found = made
            pairs = zip(found, grads, strict=True)
            wanted = [(out, grad) for out, grad in pairs if grad and out.node]
            gradients = self._run_backward([o for o, _ in wanted], [g for _, g in wanted])
            for out in found:
                self._release(out.storage)
            return [gradients.get(id(leaf)) for leaf in leaves]

        self.finish("checkpoint", inputs, outs, kept, backward)
        for out in outs:
            out.storage.remade = bool(out.node)
        return Remade(self, outs, again if outs[0].node else None)

    def _without_graph(
        self, run: Runs, inputs: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], list[Tensor]]:
        """What `run` makes where nothing is kept for a backward, and what a checkpoint of it keeps:
        its inputs, and the masks that it reads."""
        before, outside = len(self.storages), self._no_grad
        self._no_grad = True
        outs = run(*(Tensor(x.storage, x.shape, x.dtype, False) for x in inputs))
        self._no_grad = outside
        masks = [
            Tensor(s, s.shape, s.dtype, False) for s in self.storages[before:] if s.kind == "shared"
        ]
        return outs, [*inputs, *masks]

    def _once_more(
        self, run: Runs, inputs: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Backward: `run` again from leaves that stand for its inputs, with a graph of its own."""
        leaves = [Tensor(x.storage, x.shape, x.dtype, x.needs_grad) for x in inputs]
        weights = len(self.parameters)
        outs = run(*leaves)
        del self.parameters[weights:]  # forward declared them
        return leaves, outs

    def returns(self, x: Tensor) -> None:
        """Forward: this is what the model returns besides its loss."""
        if not self.keeps:
            return
        x.storage.holders += 1
        self.results.append(x.storage)

    def computed(self) -> None:
        """Backward: an operation has its results; the engine casts and sums them from here on."""
        self._computed = self.clock

    # -- backward -------------------------------------------------------------------------------

    def end_forward(self, *outs: Tensor) -> None:
        """Forward is over: what nobody saved is gone, what is saved stays until released.

        The first result is the next block's input; further ones are read by several.
        """
        self.handed_on, self.history = outs[0].storage, _saved_before(outs[1:])
        for out in outs:
            out.storage.stands = True
        for out in outs[1:]:
            out.storage.kind = "shared"
        if self.compiled:
            self._partition()
        self.clock += 1
        self.forward_end = self.clock
        for s in self.storages:
            s.last_use = s.death
            if s.holders and not s.dropped:
                s.death = ALWAYS

    def backward(
        self, outs: Sequence[Tensor], grads: Sequence[Tensor], begins: bool = True
    ) -> Tensor | None:
        """Run backward from `outs`; returns the gradient of the block's input, if it has one.

        begins   of what is carried no other block has made a gradient yet
        """
        for grad in grads:
            grad.storage.kind, grad.storage.death = "output gradient", ALWAYS
        before: dict[int, list[Tensor | None]] = {}
        if not begins:
            for x in self.carried:
                there = self._tensor("grad so far", x.shape, x.dtype, "input", False)
                there.storage.name = f"{x.storage.name} grad, so far"
                there.storage.kind, there.storage.death = "output gradient", ALWAYS
                there.storage.birth, there.storage.holders = self.clock, 1
                before[id(x)] = [there]
        found = self._run_backward(outs, grads, before)
        self.clock += 1
        for x in self.carried:
            found.pop(id(x), None)
        assert len(found) <= 1, "a block has one input that needs a gradient"
        result = next(iter(found.values()), None)
        if result is not None:
            result.storage.stands = True
        if self.compiled:
            self._fuse()
        return result

    def forget_graph(self) -> None:
        """All has run: only the flat data stays. The graph is a thousand objects that refer to one
        another and to the tape; with it, a tape that nobody has any more would stay until somebody
        looks for cycles, and a server with many people has a hundred MiB of them by then."""
        for node in self._graph:
            node.backward, node.inputs = _run_already, ()
            node.before.clear()
        self._graph.clear()
        self.whole.clear()
        self.sent_whole.clear()

    # -- what torch.compile makes of it -----------------------------------------------------------

    @property
    def compiled(self) -> bool:
        return self.kernels == "compile"

    def _partition(self) -> None:
        """Which tensors the compiled forward hands to the compiled backward.

        The rule of torch/_functorch/partitioners.py with its defaults in 2.13: what a kernel that
        is not fused needs in backward is kept as it is (ban_recompute_materialized_backward); of
        the rest, what reductions, random numbers and products made is kept, and everything between
        is computed again as part of a backward kernel.
        """
        for s in self.storages:
            s.holders, s.saved_by = 0, []
        pinned = {id(s) for node in self._graph if not node.fusible for s in node.saved}

        def found(s: Storage) -> list[Storage]:
            if id(s) in pinned or s.sources is None:
                return [s]
            return [origin for source in s.sources for origin in found(source)]

        for node in self._graph:
            if node.fusible:
                origins = (origin for s in node.saved for origin in found(s))
                node.saved = list({id(s): s for s in origins if s.kind not in WEIGHTS}.values())
            for s in node.saved:
                s.holders += 1
                s.saved_by.append(node.name)

    def _fuse(self) -> None:
        """Drop what never exists in memory: made by a fused operation and read by fused ones. A
        fused operation that makes nothing else has no kernel."""

        def exists(s: Storage) -> bool:
            return s.sources is None or s.stands or bool(s.saved_by or s.gradient_of)

        self.storages = [s for s in self.storages if exists(s)]
        for w in self.work:
            pairs = zip(w.traffic, w.touched, strict=True)
            w.traffic = [moved for moved, s in pairs if exists(s)]
            later = w.phase == "backward"
            made = [s for s in w.touched if s.made_by == w.name and exists(s)]
            makes = any((s.kind in ("temporary", "gradient")) == later for s in made)
            w.started = int(makes or not w.fusible)

    def _run_backward(
        self,
        outs: Sequence[Tensor],
        grads: Sequence[Tensor],
        before: dict[int, list[Tensor | None]] | None = None,
    ) -> dict[int, Tensor]:
        """Gradients of the leaves that are no weights, by the leaf's id(), added to what was
        there before."""
        pending: dict[int, int] = {}  # node order -> consumers that have not run yet
        stack, seen = [out.node for out in outs], set()
        while stack:
            node = stack.pop()
            if node is None or node.order in seen:
                continue
            seen.add(node.order)
            for t in node.inputs:
                if t.needs_grad and t.node is not None:
                    pending[t.node.order] = pending.get(t.node.order, 0) + 1
                    stack.append(t.node)
        buffers: dict[int, list[Tensor | None]] = {}
        ready: list[tuple[int, Node]] = []

        def arrive(buffer: list[Tensor | None], index: int, new: Tensor) -> None:
            old = buffer[index]
            buffer[index] = new if old is None else self._summed(old, new)

        for out, grad in zip(outs, grads, strict=True):
            assert out.node is not None
            grad.storage.holders += 1
            first = out.node.order not in buffers  # of its results
            buffers.setdefault(out.node.order, [None] * out.node.outputs)[out.index] = grad
            if first and not pending.get(out.node.order):
                heapq.heappush(ready, (-out.node.order, out.node))
        leaves: dict[int, list[Tensor | None]] = before or {}
        while ready:
            _, node = heapq.heappop(ready)
            incoming = buffers.pop(node.order)
            for g in incoming:
                if g is not None:
                    g.storage.stands |= not node.fusible
            self._computed = None
            for remake in node.before:
                remake()
            if node.unpacks and not self.first_unpacked:
                self.first_unpacked = self.clock
            produced = node.backward(incoming)
            computed = self.clock if self._computed is None else self._computed
            for grown in produced:
                if grown is not None:
                    grown.storage.holders += 1
                    grown.storage.death = ALWAYS
            for s in node.saved:
                self._release(s)
                s.unpacked = computed + 1
            for g in incoming:
                if g is not None:
                    self._release(g.storage)
            for t, g in zip(node.inputs, produced, strict=True):
                if g is None:
                    continue
                if not t.needs_grad:  # a kernel made it with the others; nobody wants it
                    self._release(g.storage)
                elif t.storage.joined:  # what stays is the head's gradient, counted there
                    if self.third:
                        self.new("weight grad, joined", g.shape, g.dtype)
                    self._release(g.storage)
                elif t.node is not None:
                    buffer = buffers.setdefault(t.node.order, [None] * t.node.outputs)
                    arrive(buffer, t.index, g)
                elif t.storage.kind in WEIGHTS:
                    g.storage.gradient_of = t.storage.name
                    # Forward made the others, and counts them; rows are the gradient that came.
                    if g.storage.kind in ("temporary", "output gradient"):
                        g.storage.kind, g.storage.name = "gradient", f"{t.storage.name}.grad"
                    g.storage.merged = ALWAYS if t.storage.kind == "tied" else self.clock + 1
                else:
                    arrive(leaves.setdefault(id(t), [None]), 0, g)
            for t in node.inputs:
                if t.needs_grad and t.node is not None:
                    pending[t.node.order] -= 1
                    if pending[t.node.order] == 0:
                        heapq.heappush(ready, (-t.node.order, t.node))
        return {leaf: g for leaf, (g,) in leaves.items() if g is not None}

    def _summed(self, old: Tensor, new: Tensor) -> Tensor:
        """Two gradients of one tensor, added into a third."""
        total = self.new("gradient sum", new.shape, new.dtype)
        total.storage.sources = (old.storage, new.storage)
        total.storage.holders, total.storage.death = 1, ALWAYS
        self._release(old.storage)
        self._release(new.storage)
        return total

    def _release(self, storage: Storage) -> None:
        storage.holders -= 1
        if storage.holders <= 0:
            storage.death = self.clock + 1


def _run_already(_: Gradients) -> Gradients:
    raise AssertionError("backward has run")


@dataclass(frozen=True, slots=True)
class Remade:
    """Results that may be dropped in forward and made again in backward.

    again   makes them, where they are dropped
    """

    tape: Tape
    results: Sequence[Tensor]
    again: Callable[[], None] | None = None

    def drop(self, behind: Tensor) -> None:
        """Forward: all that reads them has run, `behind` last, whose gradient comes first."""
        if self.again is None or behind.node is None:
            return
        behind.node.before.append(self.again)
        for x in self.results:
            x.storage.holders += 1  # which nothing releases: those that read it give it back
            x.storage.dropped, x.storage.saved_by = True, []


def in_stack(tape: Tape, stack: str) -> Tape:
    """The tape with its dimensions replaced by those of another stack, in place."""

    def renamed(shape: Shape) -> Shape:
        return tuple(of_stack(stack, factor) for factor in shape)

    for s in {id(s): s for s in (*tape.storages, *tape.parameters)}.values():
        same, s.shape = s.shape, renamed(s.shape)
        if s.kind == "shared" and s.shape != same:
            s.name, s.own_name = f"{s.name} ({stack})", f"{s.own_name} ({stack})"
    for w in tape.work:
        w.flops = [(n, renamed(shape)) for n, shape in w.flops]
        w.traffic = [(renamed(shape), dtype) for shape, dtype in w.traffic]
        w.stack = stack
    return tape


class _Operation:
    def __init__(self, tape: Tape, name: str, started: int):
        self.tape, self.outside = tape, tape._current
        phase = "recompute" if tape.forward_end else "forward"
        if self.outside is not None:
            phase = self.outside.phase
        self.cost = Cost(tape._named(name), phase, [], [], fusible=True, started=started)
        self.cost.parts = tape._parts

    def __enter__(self) -> None:
        self.tape.work.append(self.cost)
        self.tape._current = self.cost

    def __exit__(self, *_: object) -> None:
        self.tape._current = self.outside


class _Scope:
    def __init__(self, tape: Tape, name: str, part: Part | None):
        self.tape, self.name, self.part = tape, name, part
        self.outside = tape._parts

    def __enter__(self) -> None:
        self.tape._prefix.append(self.name)
        if self.part:
            self.tape._parts = (*self.outside, self.part)

    def __exit__(self, *_: object) -> None:
        self.tape._prefix.pop()
        self.tape._parts = self.outside
