"""Trace: a target becomes a model file."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from memcore.models.traced.expression import ExpressionError, Sum
from memcore.models.traced.file import BATCH, MARK, VERSION
from memcore.tracing.recorder import BACKWARD, Recorder, Segment, Storage
from memcore.tracing.stand_ins import STAND_INS, stand_ins
from memcore.tracing.symbols import Symbols
from memcore.tracing.targets import Input, Target, refuse

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WORDS = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int64: "int64", torch.int32: "int32", torch.bool: "bool", torch.uint8: "uint8",
    torch.complex64: "complex64",
}  # fmt: skip
EXAMPLES = {BATCH: 3, "height": 256, "width": 320, "tokens": 160, "text": 80}
EXAMPLE = 96  # of a dimension of another name
TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)  # modules that rows are looked up in
_RELATIONS = {"Eq": "==", "Unequality": "!=", "Equality": "==", "StrictLessThan": "<",
              "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">="}  # fmt: skip

Said = Callable[[str], None]


@dataclass
class _Run:
    """One run of a model: what was recorded, with sizes as symbols or numbers."""

    recorder: Recorder
    model: torch.nn.Module
    symbols: Symbols
    guards: list[Any]
    used: set[str]


def names_of(inputs: Mapping[str, Input]) -> tuple[str, ...]:
    """The dimensions that inputs name, each once."""
    found: dict[str, None] = {}
    for given in inputs.values():
        for dim in given.dims:
            name = dim.partition("*")[2] or dim
            if not name.isdigit():
                found[name] = None
    return tuple(found)


def _size(dim: str, sizes: Mapping[str, Any]) -> Any:
    """The size of a dimension as Input has it."""
    factor, star, name = dim.partition("*")
    if star:
        return int(factor) * sizes[name]
    return int(dim) if dim.isdigit() else sizes[dim]


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
        with torch.device("meta"):
            model = target.build()
    finally:
        torch.set_default_dtype(before)
    assert isinstance(model, torch.nn.Module)
    return model.train()


def _inputs(target: Target, sizes: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Fake inputs, those called a.b in a dict called a."""
    found: dict[str, Any] = {}
    for key, given in target.inputs.items():
        shape = [_size(dim, sizes) for dim in given.dims]
        if given.dtype == "float":
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
        else:
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


def _run(target: Target, dtype: torch.dtype, sizes: Mapping[str, int], fixed: set[str]) -> _Run:
    """Forward and backward on fake tensors; all sizes but the `fixed` ones are symbols."""
    env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True, static_shapes=False)
    model = _model(target, dtype)
    names = {id(m): name for name, m in model.named_modules()}
    known: dict[Any, Sum] = {}
    with mode:
        _placed(model)
    whole: dict[str, Any] = dict(sizes)
    for name in sizes:
        if name in fixed:
            continue
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
        example = torch.empty(sizes[name], device="meta")
        t = mode.from_tensor(example, symbolic_context=context, source=ConstantSource(name))
        whole[name] = t.shape[0]
        known[t.shape[0].node.expr] = Sum.name(name)
    own = [*model.parameters(), *model.buffers()]
    own += [t for m in model.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
    tables = {f"{name}.weight": m.weight for name, m in model.named_modules()
              if isinstance(m, TABLES)}  # fmt: skip
    recorder = Recorder(names, units_of(model), own, tables)
    with stand_ins(recorder.tell) as used, mode, enable_python_dispatcher():
        inputs = _inputs(target, whole, dtype)
        for t in _tensors(inputs):
            recorder.born(t, "input")
        with recorder.watching(model):
            out = model(**inputs)
            loss = target.loss(out, inputs)
            del out
            recorder.begin_backward()
            loss.backward()
            recorder.mark_gradients(dict(model.named_parameters()))
        del loss, inputs
    return _Run(recorder, model, Symbols(known, env.replace), list(env.guards), used)


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
    names = names_of(target.inputs)
    sizes = {name: (at or {}).get(name) or EXAMPLES.get(name, EXAMPLE) for name in names}
    began = time.monotonic()
    variants, used, lookups = [], set[str](), dict[str, list[Any]]()
    run: _Run | None = None
    for batch in (0, 1) if BATCH in names else (0,):
        say(f"tracing {target.label}" + (", of one sample" if batch else ""))
        fixed = {BATCH} if batch else set[str]()
        these = {**sizes, BATCH: 1} if batch else sizes
        try:
            run = _run(target, DTYPES[dtype], these, fixed)
            variants.append({BATCH: batch, **_written(run)})
            lookups = lookups or _lookups(run)
        except Exception as e:
            raise _failed(e, target) from e
        used |= run.used
    assert run
    parameters = [
        [name, list(p.shape), WORDS[p.dtype], p.requires_grad]
        for name, p in run.model.named_parameters()
    ]
    packages = ("torch", *target.packages)
    return {
        MARK: VERSION,
        "label": target.label,
        "source": target.source,
        "dtype": dtype,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "stand_ins": {name: STAND_INS[name] for name in sorted(used)},
        "inputs": {name: list(given.dims) for name, given in target.inputs.items()},
        "dims": {name: sizes[name] for name in names},
        "parameters": parameters,
        "tables": lookups,
        "buffer_bytes": sum(b.numel() * b.element_size() for b in run.model.buffers()),
        "variants": variants,
        "checks": [
            totals(target, dtype, point)
            for point in _points(sizes)[:checks]
            if not say(f"asking PyTorch at {point}")  # type: ignore[func-returns-value]
        ],
        "seconds": round(time.monotonic() - began, 1),
    }


def _points(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes that were not traced for: twice, half and one and a half times as large; a batch of
    1, 2 and 5."""
    factors = ((2, 1, 1), (1, 2, 2), (3, 2, 5))
    return [
        {name: batch if name == BATCH else max(1, n * up // down) for name, n in sizes.items()}
        for up, down, batch in factors
    ]


def totals(target: Target, dtype: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """PyTorch's own totals at some sizes: parameters, what its hooks say is saved for backward, and
    the peak that its MemTracker finds of forward and backward."""
    from torch.distributed._tools.mem_tracker import MemTracker

    model = _model(target, DTYPES[dtype])
    with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
        _placed(model)
        own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        seen: dict[int, tuple[int, torch.Tensor]] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            storage = t.untyped_storage()
            if storage._cdata not in own:
                seen.setdefault(storage._cdata, (storage.nbytes(), t))
            return t

        inputs = _inputs(target, sizes, DTYPES[dtype])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            target.loss(model(**inputs), inputs)
        saved = sum(n for n, _ in seen.values())
        seen.clear()
        tracker = MemTracker()
        tracker.track_external(model, *_tensors(inputs))
        with tracker:
            target.loss(model(**inputs), inputs).backward()
        ((_, snapshot),) = tracker.get_tracker_snapshot("peak").items()
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
        uses = []
        if phase == 0 and (row.savers or row.given):
            last = max(row.read, row.birth)
            read = [group[last][1] - segment, local[last] + 1]
            uses = [[read, *([s - segment for s in of] for of in (row.savers, row.given))]]
        kept[segment].append(
            [
                row.name, _relative(row.module, recorder.segments[segment]),
                *_shape(row, symbols), WORDS[row.dtype], phase, local[row.birth], death,
                row.saved_by, _relative(row.gradient_of, recorder.segments[segment]), *uses,
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
