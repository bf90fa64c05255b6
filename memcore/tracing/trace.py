"""Trace: a target becomes a model file."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import itertools
import logging
import math
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from memcore.errors import PlanError
from memcore.models.traced.expression import ExpressionError, Sum
from memcore.models.traced.file import BATCH, MARK, VERSION, read
from memcore.tracing.folding import MissingError, shorten, unfold
from memcore.tracing.inputs import Input, Target, refuse
from memcore.tracing.recorder import BACKWARD, Recorder, Segment, Storage
from memcore.tracing.stand_ins import STAND_INS, stand_ins
from memcore.tracing.symbolic import as_with_numbers
from memcore.tracing.symbols import Symbols
from memcore.tracing.targets import without_values
from memcore.tracing.values import CHOSEN, Values

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WORDS = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int64: "int64", torch.int32: "int32", torch.bool: "bool", torch.uint8: "uint8",
    torch.complex64: "complex64",
}  # fmt: skip
EXAMPLES = {BATCH: 7, CHOSEN: 40, "height": 256, "width": 320, "tokens": 160, "text": 80}
EXAMPLE = 96  # of a dimension of another name
TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)  # modules that rows are looked up in
_RELATIONS = {"Eq": "==", "Unequality": "!=", "Equality": "==", "StrictLessThan": "<",
              "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">="}  # fmt: skip

Said = Callable[[str], None]


@dataclass
class _Run:
    """One run of a model: what was recorded, with sizes as symbols or numbers; `graph`: that as a
    file has it; `folded`: whether the symbols are those of a shorter model."""

    recorder: Recorder
    model: torch.nn.Module
    symbols: Symbols
    guards: list[Any]
    used: set[str]
    taken: dict[str, str]
    graph: dict[str, Any] = field(default_factory=dict)
    folded: bool = False


class HeldError(Exception):
    """A model's code asks for these dimensions as numbers, so that they are no symbols."""

    def __init__(self, names: Set[str]):
        super().__init__(f"its code takes no symbol for {', '.join(sorted(names))}")
        self.names = names


def names_of(inputs: Mapping[str, Input]) -> tuple[str, ...]:
    """The dimensions that inputs name, each once."""
    parts = (part for i in inputs.values() for dim in i.dims for part in dim.split("*"))
    return tuple(dict.fromkeys(part for part in parts if not part.isdigit()))


def _size(dim: str, sizes: Mapping[str, Any]) -> Any:
    """The size of a dimension as Input has it."""
    return math.prod(int(part) if part.isdigit() else sizes[part] for part in dim.split("*"))


def _placed(model: torch.nn.Module) -> None:
    """Tensors of the meta device become fake ones of the CPU, those that are shared once."""
    done: dict[int, Any] = {}

    def placed(t: Any) -> Any:
        if id(t) not in done:
            made = torch.empty(t.shape, dtype=t.dtype, device="cpu")
            if isinstance(t, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=t.requires_grad)
            done[id(t)] = (made, t)
        return done[id(t)][0]

    for m in model.modules():
        for tensors in (m._parameters, m._buffers, vars(m)):
            for name, t in list(tensors.items()):
                if isinstance(t, torch.Tensor):
                    tensors[name] = placed(t)


def _model(target: Target, dtype: torch.dtype) -> torch.nn.Module:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        model = without_values(target.build)
    finally:
        torch.set_default_dtype(before)
    assert isinstance(model, torch.nn.Module)
    return model.train()


def _inputs(target: Target, sizes: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Fake inputs, those called a.b in a dict called a."""
    found: dict[str, Any] = {}
    for key, given in target.inputs.items():
        shape = [_size(dim, sizes) for dim in given.dims]
        t: Any
        if given.dtype == "as it is":
            t = given.value
        elif given.dtype == "size":
            t = shape[0]
        elif given.dtype == "float":
            t = torch.empty(shape, dtype=dtype)
        else:
            t = torch.zeros(shape, dtype=getattr(torch, given.dtype))
        outer, dot, inner = key.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = t
        else:
            found[key] = t
    return found


def _tensors(inputs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for t in inputs.values():
        if isinstance(t, dict):
            yield from _tensors(t)
        elif isinstance(t, torch.Tensor):
            yield t


def units_of(model: torch.nn.Module) -> set[str]:
    """The modules that are blocks: those of lists of one class that have most of the parameters of
    what they are in."""
    found: set[str] = set()

    tables = {id(m.weight) for m in model.modules() if isinstance(m, TABLES)}

    def size(m: torch.nn.Module) -> int:
        return sum(p.numel() for p in m.parameters() if id(p) not in tables)

    def within(m: torch.nn.Module, path: str) -> list[tuple[str, torch.nn.Module]]:
        """Elements of the outermost such lists in a module."""
        elements = []
        for name, child in m.named_children():
            at = f"{path}.{name}" if path else name
            children = list(child.children())
            alike = len({type(c) for c in children}) == 1 and len(children) > 1
            alike = alike and not isinstance(children[0], TABLES)
            if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and alike:
                elements += [(f"{at}.{i}", c) for i, c in child.named_children()]
            else:
                elements += within(child, at)
        return elements

    def descend(path: str, m: torch.nn.Module) -> None:
        inner = within(m, path)
        if sum(size(c) for _, c in inner) * 2 > size(m) > 0:
            for at, c in inner:
                descend(at, c)
        elif path:
            found.add(path)

    descend("", model)
    return found


def _run(
    target: Target, model: torch.nn.Module, dtype: torch.dtype, sizes: Mapping[str, int],
    fixed: Set[str], infers: bool = False,
) -> _Run:  # fmt: skip
    """Forward and backward on fake tensors, or where it `infers` forward alone, in eval mode under
    torch.no_grad; all sizes but the `fixed` ones are symbols, of which there are none where all are
    fixed: PyTorch itself then says each size."""
    symbolic = not sizes.keys() <= fixed
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(
        shape_env=env if symbolic else None, allow_non_fake_inputs=True, static_shapes=not symbolic
    )
    names = {id(m): name for name, m in model.named_modules()}
    known: dict[Any, Sum] = {}
    with mode:
        _placed(model)
    sized: dict[str, Any] = dict(sizes)
    for name in sizes:
        if name in fixed:
            continue
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
        example = torch.empty(sizes[name], device="meta")
        t = mode.from_tensor(example, symbolic_context=context, source=ConstantSource(name))
        sized[name] = t.shape[0]
        known[t.shape[0].node.expr] = Sum.name(name)
    own = [*model.parameters(), *model.buffers()]
    own += [t for m in model.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
    looked = {id(m.weight) for m in model.modules() if isinstance(m, TABLES)}
    tables = {name: p for name, p in model.named_parameters() if id(p) in looked}
    recorder = Recorder(names, units_of(model), own, tables)
    values = Values(sized.get(CHOSEN))
    dispatcher = enable_python_dispatcher() if symbolic else contextlib.nullcontext()
    with stand_ins(recorder.tell) as used, as_with_numbers(), mode, dispatcher, values:
        inputs = _inputs(target, sized, dtype)
        for t in _tensors(inputs):
            recorder.born(t, "input")
        with recorder.watching(model.train(not infers)), torch.set_grad_enabled(not infers):
            out = model(**inputs)
            if not infers:
                loss = target.loss(out, inputs)
                del out
                recorder.begin_backward()
                loss.backward()
                recorder.mark_gradients(dict(model.named_parameters()))
                del loss
        del inputs
    held = {str(name) for s, name in known.items() if getattr(env.replace(s), "is_Integer", False)}
    if held:
        raise HeldError(held)
    symbols = Symbols(known, env.replace)
    return _Run(recorder, model, symbols, list(env.guards), used, values.taken)


def _told(inputs: Mapping[str, Input]) -> str:
    return "; ".join(f"{name} ({', '.join(given.dims)})" for name, given in inputs.items())


def _settled(
    target: Target, dtype: torch.dtype, at: Mapping[str, int], say: Said
) -> tuple[Target, dict[str, int], bool]:
    """The target with those of its inputs that its model runs with, its sizes, and whether it runs
    with its lists of blocks shortened, too: code that counts on their lengths does not. Raises what
    the first of them failed with."""
    first: Exception | None = None
    every = (target.inputs, *target.others)
    for short, inputs in itertools.product((True, False), every):
        trial = dataclasses.replace(target, inputs=inputs)
        model = _model(target, dtype)
        if short:
            shorten(model)
        sizes = {
            name: at.get(name) or target.at.get(name) or EXAMPLES.get(name, EXAMPLE)
            for name in names_of(inputs)
        }
        values = Values(EXAMPLES[CHOSEN])
        try:
            with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
                _placed(model)
                with values:
                    given = _inputs(trial, sizes, dtype)
                    trial.loss(model(**given), given)
        except Exception as e:
            say(f"not with {_told(inputs)}: {type(e).__name__}: {str(e)[:100]}")
            first = first or e
            continue
        if "a choice by values" in values.taken.values():
            sizes[CHOSEN] = at.get(CHOSEN) or EXAMPLES[CHOSEN]
        return trial, sizes, short
    assert first
    raise first


def _recorded(
    target: Target, dtype: torch.dtype, sizes: Mapping[str, int], fixed: Set[str], fold: bool,
    infers: bool = False,
) -> _Run:  # fmt: skip
    """A run whose sizes are symbols. Of a model with many repeated blocks (`fold`) that is a run of
    the whole model with numbers, and one of a model of each block once, which says what the numbers
    are; it takes seconds where the other takes minutes."""
    fold = fold and not sizes.keys() <= fixed
    model = _model(target, dtype)
    if fold:
        shorten(model)
    run = _run(target, model, dtype, sizes, fixed, infers)
    if fold:
        found = _run(target, _model(target, dtype), dtype, sizes, sizes.keys(), infers)
        unfold(found.recorder, run.recorder, run.symbols, sizes)
        run = dataclasses.replace(found, symbols=run.symbols, guards=run.guards, folded=True)
    return dataclasses.replace(run, graph=_written(run))


def _held(
    target: Target, sizes: Mapping[str, int], free: Set[str]
) -> tuple[Target, dict[str, int]]:
    """A target whose dimensions but the `free` ones are numbers, those of the example."""

    def spelled(dim: str) -> str:
        if set(names_of({"": Input((dim,))})) <= free:
            return dim
        return str(_size(dim, sizes))

    inputs = {
        name: dataclasses.replace(given, dims=tuple(map(spelled, given.dims)))
        for name, given in target.inputs.items()
    }
    left = {*names_of(inputs), CHOSEN}
    return (
        dataclasses.replace(target, inputs=inputs),
        {name: n for name, n in sizes.items() if name in left},
    )


def _failed(e: Exception, target: Target) -> Exception:
    """Why a model cannot be traced: at which line of whose code, and what would help."""
    frames = traceback.extract_tb(e.__traceback__)
    theirs = [f for f in frames if "/torch/" not in f.filename and "/memcore/" not in f.filename]
    at = theirs[-1] if theirs else frames[-1]
    said = str(e).strip().splitlines()[0][:300] if str(e).strip() else type(e).__name__
    kind = type(e).__name__
    if "DataDependent" in kind or "item()" in said:
        why = "the code asks for a tensor's values, which decide its sizes there; "
        help_ = "replace that line by one whose sizes do not depend on values"
    elif isinstance(e, ExpressionError):
        why, help_ = "", "make that dimension a whole number in --dims"
    else:
        why, help_ = "", "give fitting sizes with --dims and --at, or write FILE.py:FUNCTION"
    place = "/".join(at.filename.split("/")[-2:])
    return refuse(
        f"{target.source} cannot be traced: {why}{place}, line {at.lineno} ({at.line}): "
        f"{kind}: {said}; {help_}"
    )


def trace(
    target: Target, dtype: str = "bf16", at: Mapping[str, int] | None = None,
    say: Said = lambda _: None, checks: int = 3,
) -> dict[str, Any]:  # fmt: skip
    """The model file of a target. `at`: sizes of the example; `say` hears what is being done;
    `checks`: how many points PyTorch's own totals are asked at."""
    began = time.monotonic()
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # told below
    try:
        say(f"building {target.label}")
        target, sizes, fold = _settled(target, DTYPES[dtype], at or {}, say)
        target, sizes, runs = _traced(target, DTYPES[dtype], sizes, say, fold)
        told = [
            totals(target, dtype, point)
            for point in _points(sizes, min(runs) if len(runs) < 2 else 1)[:checks]
            if not say(f"asking PyTorch at {point}")  # type: ignore[func-returns-value]
        ]
        found = _document(target, dtype, sizes, runs, told)
        if not _agrees(found) and any(run.folded for run in runs.values()):
            runs = _variants(target, DTYPES[dtype], sizes, say, fold=False)
            found = _document(target, dtype, sizes, runs, told)
        found |= _forward(target, DTYPES[dtype], sizes, say, fold)
    except PlanError:
        raise
    except Exception as e:
        raise _failed(e, target) from e
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _traced(
    target: Target, dtype: torch.dtype, sizes: Mapping[str, int], say: Said, fold: bool
) -> tuple[Target, dict[str, int], dict[int, _Run]]:
    """The runs of a target; where its code takes no symbols for sizes, or takes too long with them,
    with all but the batch held at the example's, and then with all."""
    first: Exception | None = None
    tries: list[Set[str]] = [set(sizes), {BATCH, CHOSEN}, set()]
    while tries:
        free = tries.pop(0)
        held, these = _held(target, sizes, free)
        try:
            return held, these, _variants(held, dtype, these, say, fold)
        except HeldError as e:
            tries = [free - e.names, *tries]
            say(f"again with fewer dimensions: {e}")
        except Exception as e:
            first = first or e
            say(f"again with fewer dimensions: {type(e).__name__}: {str(e)[:100]}")
    assert first
    raise first


def _forward(
    target: Target, dtype: torch.dtype, sizes: Mapping[str, int], say: Said, fold: bool
) -> dict[str, Any]:
    """The forward of any batch in eval mode under torch.no_grad; nothing where it does not run."""
    say(f"tracing the forward of {target.label}")
    for shorter in dict.fromkeys((fold, False)):
        try:
            return {"forward": _recorded(target, dtype, sizes, set(), shorter, infers=True).graph}
        except Exception as e:
            said = f"{type(e).__name__}: {str(e)[:100]}"
            say(f"its forward by itself is not traced{' with blocks once' * shorter}: {said}")
    return {}


def _variants(
    target: Target, dtype: torch.dtype, sizes: Mapping[str, int], say: Said, fold: bool
) -> dict[int, _Run]:
    """The run for any batch (0), and that for a batch of 1."""
    runs = {}
    for batch in (0, 1) if BATCH in sizes else (0,):
        say(f"tracing {target.label}" + (", of one sample" if batch else ""))
        these = {**sizes, BATCH: 1} if batch else sizes
        fixed = {BATCH} if batch else set[str]()
        try:
            runs[batch] = _recorded(target, dtype, these, fixed, fold)
        except (MissingError, ExpressionError) as e:
            if not fold:
                raise
            say(f"tracing all of {target.label}: {e}")
            runs[batch] = _recorded(target, dtype, these, fixed, fold=False)
        except (RuntimeError, ValueError):
            if not batch:
                raise
            say("no run of one sample, as batch norm has none")
    return runs


def _agrees(document: dict[str, Any]) -> bool:
    """Whether a file says as many saved bytes as PyTorch does, wherever that was asked."""
    file = read(document)
    return all(
        file.variant(check.sizes).saved_bytes(check.sizes) == check.saved_bytes
        for check in file.checks
    )


def _document(
    target: Target, dtype: str, sizes: Mapping[str, int], runs: Mapping[int, _Run],
    checks: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    run = runs[max(runs)]
    parameters = [
        [name, list(p.shape), WORDS[p.dtype], p.requires_grad]
        for name, p in run.model.named_parameters()
    ]
    used = {name: STAND_INS[name] for r in runs.values() for name in sorted(r.used)}
    taken = {where: what for r in runs.values() for where, what in r.taken.items()}
    return {
        MARK: VERSION,
        "label": target.label,
        "source": target.source,
        "dtype": dtype,
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", *target.packages)
        },
        "stand_ins": used | dict(list(taken.items())[:50]),
        "inputs": {name: list(given.dims) for name, given in target.inputs.items()},
        "dims": dict(sizes),
        "parameters": parameters,
        "tables": _lookups(runs[min(runs)]),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in run.model.buffers()),
        "variants": [{BATCH: batch, **r.graph} for batch, r in runs.items()],
        "checks": checks,
    }


def _points(sizes: Mapping[str, int], least: int) -> list[dict[str, int]]:
    """Sizes that were not traced for: twice, half and one and a half times as large; a batch of
    1 (3 where there is no run of it: `least` is 0), 2 and 5."""
    factors = ((2, 1, 1 if least else 3), (1, 2, 2), (3, 2, 5))
    return [
        {name: batch if name == BATCH else max(1, n * up // down) for name, n in sizes.items()}
        for up, down, batch in factors
    ]


def totals(
    target: Target, dtype: str, sizes: Mapping[str, int], infers: bool = False
) -> dict[str, Any]:
    """PyTorch's own totals at some sizes: parameters, what its hooks say is saved for backward, and
    the peak that its MemTracker finds of forward and backward, or where it `infers` of forward
    alone, in eval mode under torch.no_grad."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Modules(contextlib.nullcontext[None]):
        """In place of MemTracker's record of each module, which takes many times as long as the
        peak of all, and cannot run where a loss takes gradients of its own."""

        is_bw = False
        parents: Set[str] = frozenset()

        def register_user_hooks(self, *_: Any) -> None: ...

        def clear_user_hooks(self) -> None: ...

    model = _model(target, DTYPES[dtype]).train(not infers)
    with (
        stand_ins(),
        torch.set_grad_enabled(not infers),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        _placed(model)
        own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        seen: dict[int, int] = {}
        died: list[Any] = []

        def pack(t: torch.Tensor) -> torch.Tensor:
            storage = t.untyped_storage()
            key = storage._cdata
            if key not in own and key not in seen:
                seen[key] = storage.nbytes()
                died.append(weakref.finalize(storage, seen.pop, key, None))
            return t

        inputs = _inputs(target, sizes, DTYPES[dtype])
        tracker = MemTracker()
        tracker._mod_tracker = Modules()
        tracker.track_external(model, *_tensors(inputs))
        with Values(sizes.get(CHOSEN)), tracker:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                out = model(**inputs)
                loss = None if infers else target.loss(out, inputs)
                del out
            saved = sum(seen.values())
            if loss is not None:
                loss.backward()
        ((_, snapshot),) = tracker.get_tracker_snapshot("peak").items()
        for end in died:
            end.detach()
    return {
        "dims": dict(sizes),
        "parameters": sum(p.numel() for p in model.parameters()),
        "saved_bytes": saved,
        "peak_bytes": max(int(v) for k, v in snapshot.items() if getattr(k, "value", k) == "Total"),
    }


# -- writing ----------------------------------------------------------------------------------


def _written(run: _Run) -> dict[str, Any]:
    """What one run recorded, equal blocks once."""
    recorder, symbols = run.recorder, run.symbols
    operations = recorder.operations
    group = [(int(op.phase == BACKWARD), op.segment) for op in operations]
    local, counts = [], dict[tuple[int, int], int]()
    for g in group:
        local.append(counts.get(g, 0))
        counts[g] = local[-1] + 1
    work: list[list[Any]] = [[] for _ in recorder.segments]
    for op, (phase, segment) in zip(operations, group, strict=True):
        moved = Sum()
        for shape, dtype in op.traffic:
            moved = moved + symbols.product(shape) * Sum.number(dtype.itemsize)
        module = _relative(op.module, recorder.segments[segment])
        count, sizes = op.product or (0, ())
        product = [count, *(str(symbols.sum(n)) for n in sizes)]
        work[segment].append([op.name, module, phase, product, str(moved)])
    kept: list[list[Any]] = [[] for _ in recorder.segments]
    for row in recorder.storages:
        phase, segment = group[row.birth]
        death = None
        if row.death is not None and row.death < len(operations):
            last = max(row.death - 1, row.birth)
            there, at = group[last]
            death = [there, at - segment, local[last] + 1]
        uses = None
        if phase == 0 and (row.savers or row.given):
            last = max(row.read, row.birth)
            read = [group[last][1] - segment, local[last] + 1]
            uses = [read, *([s - segment for s in of] for of in (row.savers, row.given))]
        users = [
            [[group[i][0], group[i][1] - segment, local[i]] for i in of]
            for of in (row.readers, row.writers)
        ]
        kept[segment].append(
            [
                row.name, _relative(row.module, recorder.segments[segment]),
                *_shape(row, symbols), WORDS[row.dtype], phase, local[row.birth], death,
                row.saved_by, _relative(row.gradient_of, recorder.segments[segment]), uses, *users,
            ]
        )  # fmt: skip
    blocks: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    order: list[list[Any]] = []
    again = [0] * len(work)
    for i, (phase, segment) in enumerate(group):
        again[segment] += phase == 0 and i < recorder.segments[segment].packed
    for of, storages, done, rerun in zip(recorder.segments, kept, work, again, strict=True):
        block = {"storages": storages, "operations": done, "again": rerun}
        key = repr((bool(of.unit), block))
        if key not in blocks:
            blocks[key] = len(found)
            found.append(block)
        order.append([blocks[key], of.unit])
    return {"guards": _guards(run), "blocks": found, "order": order}


def _lookups(run: _Run) -> dict[str, list[Any]]:
    """Of each table how many rows a forward reads, how many it makes of them, and whether these are
    sums."""
    return {
        name: [str(run.symbols.sum(read)), str(run.symbols.sum(made)), pooled]
        for name, (read, made, pooled) in run.recorder.lookups.items()
    }


def _relative(module: str, segment: Segment) -> str:
    """A module's name within its unit, which begins with a dot; else as it is."""
    if segment.unit and (module == segment.unit or module.startswith(segment.unit + ".")):
        return module[len(segment.unit) :] or "."
    return module


def _shape(row: Storage, symbols: Symbols) -> tuple[list[str]]:
    """The shape of a storage; its elements in a row where a view of it is saved."""
    size = row.dtype.itemsize
    whole = symbols.sum(row.bytes)
    if symbols.product(row.shape) * Sum.number(size) == whole:
        return ([str(symbols.sum(n)) for n in row.shape],)
    if all(n % size == 0 for _, n in whole.terms):
        return ([str(Sum.of({p: n // size for p, n in whole.terms}))],)
    return ([str(Sum.function("floor", whole, Sum.number(size)))],)


def _guards(run: _Run) -> list[list[str]]:
    """What must hold of the sizes, as far as it can be written: [a, relation, b]."""
    found: dict[tuple[str, ...], None] = {}
    for guard in run.guards:
        relation = _RELATIONS.get(type(guard.expr).__name__)
        if relation:
            with contextlib.suppress(ExpressionError):
                left, right = (str(run.symbols.sum(e)) for e in guard.expr.args)
                found[(left, relation, right)] = None
    return [list(guard) for guard in found][:200]
