"""Ledger: rows as templates, groups of rows, and windows of time over a tape.

Nothing here knows a framework or a schedule. `Amounts` turns templates into bytes for one mapping
of sizes; a window's peak is a prefix sum over its rows' births and deaths.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from memcore.cache import cached, counted_apart
from memcore.tape.dims import (
    Extent,
    Extents,
    Factor,
    Number,
    Shape,
    elements,
    extent,
    maximum,
    minimum,
    real,
    whole,
)
from memcore.tape.kinds import Role
from memcore.tape.tape import ALWAYS, Storage, Tape
from memcore.words.training import LAYER, OPERATIONS, SAVED_PRODUCTS
from memcore.words.word import DTYPE_BYTES

AUTOGRAD = "PyTorch autograd: derivatives.yaml and the modelling code, equal to saved_tensors_hooks"


@dataclass(frozen=True, slots=True)
class Template:
    """A row before it has numbers. `copies`: a further factor, for identical tensors; role: as of
    a tape's storage."""

    name: str
    consumer: str
    shape: Shape
    dtype: str
    lifetime: str
    why: str
    source: str
    certainty: str = "exact"
    copies: int = 1
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """A sum of bytes: elements of which shapes, each times what."""

    shapes: tuple[Shape, ...]
    factors: tuple[float, ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[Shape, float]]) -> Terms:
        listed = tuple(terms)
        return cls(tuple(shape for shape, _ in listed), tuple(factor for _, factor in listed))


@counted_apart
@dataclass(frozen=True, eq=False)
class Group:
    """Rows that live and die together."""

    rows: tuple[Template, ...]

    @functools.cached_property
    def terms(self) -> Terms:
        return Terms.of((r.shape, DTYPE_BYTES[r.dtype] * r.copies) for r in self.rows)

    @functools.cached_property
    def by_consumer(self) -> dict[str, Group]:
        """The same rows by consumer."""
        found: dict[str, list[Template]] = {}
        for row in self.rows:
            found.setdefault(row.consumer, []).append(row)
        return {name: Group(tuple(rows)) for name, rows in found.items()}

    @classmethod
    def of(cls, rows: Iterable[Template]) -> Group:
        return cls(tuple(rows))


@dataclass(frozen=True, eq=False)
class Holding:
    """Groups that are alive together, equal ones as one, and how many of each: what a schedule
    says once for all sizes."""

    groups: tuple[Group, ...]
    times: tuple[int, ...]

    @classmethod
    def of(cls, alive: Iterable[tuple[Group, int]]) -> Holding:
        counted: dict[Group, int] = {}
        for group, times in alive:
            if times and group.rows:
                counted[group] = counted.get(group, 0) + times
        return cls(tuple(counted), tuple(counted.values()))

    @functools.cached_property
    def by_consumer(self) -> dict[str, Holding]:
        found: dict[str, list[tuple[Group, int]]] = {}
        for group, times in zip(self.groups, self.times, strict=True):
            for name, part in group.by_consumer.items():
                found.setdefault(name, []).append((part, times))
        return {name: Holding.of(parts) for name, parts in found.items()}


PLAIN = frozenset((int, float, bool))  # sizes that are no arrays


class Amounts:
    """Bytes of templates, groups and windows for one mapping of sizes."""

    def __init__(self, sizes: dict[str, Number]):
        self.sizes = sizes
        self.arrays = not PLAIN.issuperset(map(type, sizes.values()))
        # How formulas in tight loops say max, min, int and float: Python's own for one plan.
        self.most: Callable[..., Number] = maximum if self.arrays else max
        self.least: Callable[..., Number] = minimum if self.arrays else min
        self.whole: Callable[[Number], Number] = whole if self.arrays else int
        self.real: Callable[[Number], Number] = real if self.arrays else float
        self._elements: dict[Shape, Number] = {}
        self._extents: dict[Shape, Extents] = {}
        self._factors: dict[Factor, Extent] = {}
        self._groups: dict[Group, Number] = {}
        self._peaks: dict[Window, tuple[Number, int]] = {}
        self._highest: dict[Window, Number] = {}
        self.costs: dict[Any, Any] = {}  # of operations, as roofline finds them

    def elements(self, shape: Shape) -> Number:
        n = self._elements.get(shape)
        if n is None:
            n = self._elements[shape] = elements(shape, self.sizes)
        return n

    def bytes(self, shape: Shape, dtype: str) -> Number:
        n = self._elements.get(shape)
        return (self.elements(shape) if n is None else n) * DTYPE_BYTES[dtype]

    # No loops of Python's own below: these run for every instant and operation of a plan.

    def each(self, terms: Terms) -> list[Number]:
        """The terms of a sum, in order."""
        known = self._elements
        try:
            return list(map(mul, map(known.__getitem__, terms.shapes), terms.factors))
        except KeyError:  # the first time that some shape is asked for
            for shape in terms.shapes:
                if shape not in known:
                    known[shape] = elements(shape, self.sizes)
        return self.each(terms)

    def total(self, terms: Terms) -> Number:
        return sum(self.each(terms))

    def alive(self, groups: Iterable[tuple[Group, Number]]) -> Number:
        """Bytes of groups, each so many times over."""
        return self.held(Holding.of(groups))

    def held(self, holding: Holding) -> Number:
        """Bytes of a holding."""
        sizes = self._groups
        try:
            return sum(map(mul, map(sizes.__getitem__, holding.groups), holding.times))
        except KeyError:  # the first time that some group is asked for
            for group in holding.groups:
                if group not in sizes:
                    sizes[group] = self.total(group.terms)
        return self.held(holding)

    def peak(self, window: Window) -> tuple[Number, int]:
        """A window's peak; layers of a kind share their window, so it is found once."""
        found = self._peaks.get(window)
        if found is None:
            found = self._peaks[window] = window.peak(self)
        return found

    def group(self, group: Group) -> Number:
        """Bytes of a group."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self.total(group.terms)
        return found

    def highest(self, window: Window) -> Number:
        """As `peak`, of whole arrays at once."""
        found = self._highest.get(window)
        if found is None:
            shapes, levels = window.levels
            each = self.stacked([self.elements(shape) for shape in shapes])
            found = self._highest[window] = (levels @ each).max(axis=0, initial=0)
        return found

    def stacked(self, numbers: Sequence[Number]) -> Any:
        """Numbers of each plan as rows of a matrix with a column for each plan."""
        import numpy as np

        found = np.empty((len(numbers), self._width))
        for row, n in enumerate(numbers):
            found[row] = n
        return found

    @functools.cached_property
    def _width(self) -> int:
        """How many plans there are."""
        return max(getattr(n, "size", 1) for n in self.sizes.values())

    def extents(self, shape: Shape) -> Extents:
        """A shape with its values. Weights, gradients and states have the same ones, and all
        shapes the same few factors."""
        found = self._extents.get(shape)
        if found is None:
            found = self._extents[shape] = Extents.of(*self.factors(shape))
        return found

    def factors(self, shape: Shape) -> list[Extent]:
        """The factors of a shape with their values."""
        known = self._factors
        for f in shape:
            if f not in known:
                known[f] = extent(f, self.sizes)
        return [known[f] for f in shape]


@counted_apart
@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of one tape: its rows, and what is born and dies at each step.

    steps   (births, deaths) as indices into rows, in order of time; deaths come first
    alive   the rows alive after each step
    names   the row born at each step, with its phase
    """

    rows: tuple[Template, ...]
    steps: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    alive: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]

    @functools.cached_property
    def changes(self) -> tuple[Terms, tuple[int, ...]]:
        """Every birth and death in order, as bytes that come or go, and the step of each."""
        found = [
            (step, i, sign)
            for step, (births, deaths) in enumerate(self.steps)
            for sign, rows in ((-1, deaths), (1, births))
            for i in rows
        ]
        terms = ((self.rows[i].shape, s * DTYPE_BYTES[self.rows[i].dtype]) for _, i, s in found)
        return Terms.of(terms), tuple(step for step, _, _ in found)

    @functools.cached_property
    def levels(self) -> tuple[tuple[Shape, ...], Any]:
        """Shapes, and how many bytes for each element of them are alive at a time: at those where
        something was born last and something dies next, since no other has the most."""
        import numpy as np

        columns = {s: i for i, s in enumerate(dict.fromkeys(r.shape for r in self.rows))}
        found = []
        for (births, _), (_, next_deaths), alive in zip(
            self.steps, (*self.steps[1:], ((), (0,))), self.alive, strict=True
        ):
            if births and next_deaths:
                now = np.zeros(len(columns))
                for i in alive:
                    now[columns[self.rows[i].shape]] += DTYPE_BYTES[self.rows[i].dtype]
                found.append(now)
        return tuple(columns), np.array(found).reshape(len(found), len(columns))

    def peak(self, amounts: Amounts) -> tuple[Number, int]:
        """The most bytes alive at once, and after which step (plain numbers; 0 for arrays). As
        deaths come first, no sum within a step is more than those at its ends."""
        terms, steps = self.changes
        alive = list(accumulate(amounts.each(terms)))
        if amounts.arrays:
            return functools.reduce(maximum, alive, 0), 0
        best = max(alive, default=0)
        return (best, steps[alive.index(best)]) if best > 0 else (0, 0)


# Kinds of storage that count as saved by their block; a shared tensor is counted once, elsewhere.
SAVED_KINDS = ("input", "activation", "weight copy")
FORWARD, BACKWARD, RECOMPUTE, INFERENCE = ("forward", "backward", "recompute", "inference")


def kept_products(tape: Tape) -> list[Storage]:
    """Results that selective checkpointing by operation keeps of a layer's forward."""
    needed = _needed(tape) if tape.compiled else set()
    seen: dict[str, dict[str, int]] = {}
    kept = []
    for s in tape.storages:
        every = SAVED_PRODUCTS.get(s.product)
        if every is None or s.kind != "activation":
            continue
        runs = seen.setdefault(s.product, {})  # attention makes two tensors in one run
        if runs.setdefault(s.made_by, len(runs)) % every == 0:
            if tape.compiled and id(s) not in needed:
                continue  # a compiled graph keeps nothing that backward does not need
            kept.append(s)
    return kept


def _needed(tape: Tape) -> set[int]:
    """By id: what forward saves, and all that it is computed from."""
    needed: set[int] = set()
    left = [s for s in tape.storages if s.saved_by and s.birth <= tape.forward_end]
    while left:
        s = left.pop()
        if id(s) not in needed:
            needed.add(id(s))
            left += s.origins
    return needed


def _last_saved(tape: Tape) -> int:
    """When the last of what forward saves was made: there recomputation stops."""
    return max((s.birth for s in tape.storages if s.saved_by), default=0)


@cached
def window(
    tape: Tape,
    stretch: str,
    merge_gradients: bool = False,
    recompute: str = "",
    reduced: bool | None = None,
) -> Window:
    """One stretch of a tape as rows with lifetimes.

    stretch           'forward'; 'backward' (begins with what forward saved); 'recompute' (both
                      inside backward, as a checkpointed layer runs); 'inference' (forward alone,
                      nothing saved)
    merge_gradients   a gradient exists already: the new one is added to it and gone
    recompute         what of the layer is run again (words.training.Checkpointing)
    reduced           only before the gradients of its experts are reduced, or only after
    """
    kept = kept_products(tape) if recompute == OPERATIONS else ()
    reentrant = bool(tape.adapters and tape.adapters.reentrant)
    last_saved = _last_saved(tape)
    middle, end = tape.forward_end, tape.clock + 1
    first, last = {
        FORWARD: (0, middle),
        BACKWARD: (middle, end),
        RECOMPUTE: (0, end),
        INFERENCE: (0, middle),
    }[stretch]
    if reduced is not None:
        first, last = (tape.reduced, last) if reduced else (first, tape.reduced)
    rows: list[Template] = []
    births: dict[int, list[int]] = {}
    deaths: dict[int, list[int]] = {}
    for s in tape.storages:
        if s.kind == "shared" and not (stretch == RECOMPUTE and s.made_by):
            continue
        birth, death = s.birth, s.death
        if stretch == INFERENCE or (
            stretch == FORWARD
            and recompute in (OPERATIONS, LAYER)
            and s not in kept
            and (reentrant or not s.pinned)
        ):
            death = s.last_use
        if s in kept:
            birth, death = (0, death) if stretch == RECOMPUTE else (birth, last)
            # Recomputation stops when all that was saved is there again; what the policy kept of
            # later operations waits for the end of the layer's backward.
            if s.birth > last_saved:
                death = last
        if s.gradient_of and merge_gradients:
            death = min(death, s.merged)
        if stretch == RECOMPUTE:
            # The graph of what runs again is gone when it has run, or with its own backward.
            read = s.unpacked if s.unpacked != ALWAYS or not s.pinned else middle
            death = min(death, end if s.pinned and reentrant else read)
        if s.kind == "input" and stretch == RECOMPUTE:
            death = end  # the checkpoint holds it until the layer's backward is over
        if s.kind == "output gradient" and stretch == RECOMPUTE:
            birth = 0
        # The layer runs again when backward first reads something saved, and only until the last
        # of that is there: what backward has made by then waits for it, or is gone.
        if stretch == RECOMPUTE and recompute == LAYER and tape.first_unpacked:
            if middle <= birth <= tape.first_unpacked or s.kind == "output gradient":
                birth = 0 if death > tape.first_unpacked + 1 else death
            elif tape.last_packed < birth < middle:
                continue
        birth, death = max(birth, first), min(death, last)
        if birth >= death:
            continue
        births.setdefault(birth, []).append(len(rows))
        deaths.setdefault(death, []).append(len(rows))
        rows.append(_template(s, stretch, recomputed=stretch == RECOMPUTE and s not in kept))
    steps, alive, names = [], [], []
    now: set[int] = set()
    for t in sorted({*births, *deaths}) or [middle]:  # a block may do nothing here
        born, gone = births.get(t, []), deaths.get(t, [])
        now = (now - set(gone)) | set(born)
        steps.append((tuple(born), tuple(gone)))
        alive.append(tuple(sorted(now)))
        phase = "backward" if t >= middle else "forward"
        names.append(f"{rows[born[-1]].name} ({phase})" if born else "")
    return Window(tuple(rows), tuple(steps), tuple(alive), tuple(names))


@cached
def saved(tape: Tape) -> Group:
    """What this block's forward leaves for its backward."""
    return Group.of(
        _template(s, FORWARD, recomputed=False)
        for s in tape.storages
        if s.saved_by and s.kind in SAVED_KINDS
    )


@cached
def held(tape: Tape) -> Group:
    """A batch of images as it was loaded, which who calls the model holds until forward is over.
    (Token ids are saved, and counted there.)"""
    return Group.of(
        Template(
            s.name, "activations", s.shape, s.dtype, "forward",
            "the batch, as the training loop has it", AUTOGRAD,
        )
        for s in tape.storages
        if s.kind == "input" and s.dtype != "int64" and not s.saved_by
    )  # fmt: skip


@cached
def outputs(tape: Tape) -> Group:
    """What the training loop has of the model besides its loss."""
    return Group.of(
        Template(
            s.name, "activations", s.shape, s.dtype, "forward to optimizer step",
            "the loop keeps the model's outputs (train.outputs)", AUTOGRAD,
        )
        for s in tape.results
    )  # fmt: skip


@cached
def carried_gradients(tape: Tape) -> Group:
    """Gradients of the block's other inputs, which exist once it has run backward."""
    return Group.of(
        Template(
            f"{x.storage.name} grad", "workspace", x.shape, x.dtype, "backward",
            "waits until all that read it have run backward", AUTOGRAD,
        )
        for x in tape.carried
        if x.needs_grad
    )  # fmt: skip


@cached
def leaves(tape: Tape) -> Group:
    """Tensors without a history that this block makes and wants a gradient of, with that gradient:
    the graph refers to them as to weights, until all of backward is over."""
    return Group.of(
        Template(
            name, "workspace", x.shape, x.dtype, "backward", "a leaf of the graph, no weight",
            AUTOGRAD,
        )
        for x in tape.carried
        if x.storage.made_by
        for name in (x.storage.name, f"{x.storage.name} grad")
    )  # fmt: skip


@cached
def history(tape: Tape) -> Group:
    """What a layer that ran again saved on the way to what others read of it: who called it has
    that with its graph, until all of backward is over."""
    return Group.of(
        _template(s, RECOMPUTE, recomputed=True) for s in tape.history if s.kind in SAVED_KINDS
    )


@cached
def checkpoint(tape: Tape, recompute: str) -> Group:
    """What a layer keeps that is run again: its input, and the products that its policy keeps."""
    kept = kept_products(tape) if recompute == OPERATIONS else []
    why = "checkpoint: the layer is run again from here"
    again = Group.of(
        Template(
            s.name,
            "activations",
            s.shape,
            s.dtype,
            "its forward to its backward",
            f"kept by the checkpointing policy, made by {s.made_by}" if s.made_by else why,
            AUTOGRAD,
        )
        for s in (tape.storages[0], *kept)
    )
    return Group((*again.rows, *pinned(tape, recompute).rows))


@cached
def pinned(tape: Tape, recompute: str) -> Group:
    """What the graph of a layer refers to by itself, so that it stays until all of backward is
    over. Without a graph, as a reentrant checkpoint runs it first, that is nothing."""
    if recompute and tape.adapters and tape.adapters.reentrant:
        return Group(())
    ours = (s for s in tape.storages if s.pinned and not (recompute and s is tape.storages[0]))
    return Group.of(
        Template(
            s.name, "activations", s.shape, s.dtype, "its forward to the end of backward",
            f"held by {', '.join(s.saved_by)}", AUTOGRAD,
        )
        for s in ours
    )  # fmt: skip


@cached
def shared(tapes: tuple[Tape, ...], checkpointed: bool) -> tuple[Group, Group]:
    """Tensors that every layer reads and the model makes once: (until backward, forward only).

    Without checkpointing they stay if an operation saved them; with it, the layers' arguments stay.
    """
    every = [s for tape in tapes for s in tape.storages if s.kind == "shared"]
    once = {_own_name(s): s for s in every}
    needed = {_own_name(s) for s in every if s.saved_by}
    kept = [s for name, s in once.items() if name in needed or checkpointed]
    brief = [s for s in once.values() if s not in kept]
    return tuple(  # type: ignore[return-value]
        Group.of(
            Template(
                _own_name(s), "activations", s.shape, s.dtype,
                lifetime, "made once, read by every layer", AUTOGRAD, role=s.role,
            )
            for s in storages
        )
        for storages, lifetime in ((kept, "forward to backward"), (brief, "forward"))
    )  # fmt: skip


@cached
def besides(group: Group, tape: Tape) -> Group:
    """Of what blocks read together, what this one has not made. When it runs again, nobody else
    reads what it made, and it makes its own anew."""
    leaf = [x.storage for x in tape.carried]
    made = {
        _own_name(s) for s in tape.storages if s.kind == "shared" and s.made_by and s not in leaf
    }
    return Group.of(row for row in group.rows if row.name not in made)


def _own_name(s: Storage) -> str:
    """A shared tensor's name without the layer that reads it."""
    return s.own_name


@cached
def gradients(tape: Tape) -> Group:
    """Whole gradients that this block's backward makes."""
    return Group.of(
        _template(s, BACKWARD, recomputed=False) for s in tape.storages if s.gradient_of
    )


@cached
def tied_gradient(tape: Tape) -> Group:
    """The head's gradient of a tied weight, which waits until the embedding's arrives."""
    return Group.of(
        _template(s, BACKWARD, recomputed=False)
        for s in tape.storages
        if s.gradient_of and s.merged == ALWAYS
    )


@cached
def weight_copies(tape: Tape) -> Group:
    """Autocast's cached bf16 weights, which live until autocast ends."""
    return Group.of(
        _template(s, FORWARD, recomputed=False) for s in tape.storages if s.kind == "weight copy"
    )


def _template(s: Storage, stretch: str, recomputed: bool) -> Template:
    consumer, lifetime = "workspace", "a few operations"
    phase = "the backward of " if s.kind == "temporary" else ""
    recomputed = recomputed or s.kind == "temporary"
    why = f"made by {phase}{s.made_by}" if s.made_by else "gradients that meet, added"
    if s.gradient_of and stretch != FORWARD:
        consumer, lifetime = "gradients", "backward to reduction or optimizer step"
        why = "gradient of a weight, as backward makes it"
    elif s.kind == "weight copy":
        lifetime = "forward to backward" if s.saved_by else "forward"
        why = "autocast's copy of a weight"
    elif s.kind == "output gradient":
        lifetime, why = "backward", "gradient of the block's output"
    elif s.saved_by:
        consumer = "workspace" if recomputed else "activations"
        lifetime = "recompute to backward" if recomputed else "its forward to its backward"
        why = f"saved by {', '.join(s.saved_by)}"
    elif s.kind == "input":
        consumer = "activations" if recomputed else "workspace"
        lifetime, why = "its layer's forward", "input of the block"
    role = s.role if s.role is Role.KERNEL else None
    return Template(s.name, consumer, s.shape, s.dtype, lifetime, why, AUTOGRAD, role=role)
