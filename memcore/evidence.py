"""Evidence: what others say of the same things, and how far our figures are from theirs.

The tables are in presets/evidence, each with its source. Nothing in the engine is tuned on them.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from memcore import catalog
from memcore.evaluate import evaluate, parameters
from memcore.families import FAMILIES
from memcore.ledger import SAVED_KINDS, Amounts
from memcore.memory import step_of, training_sizes
from memcore.plan import Plan
from memcore.report import Memory, Report
from memcore.tape import Tape

_ROOT = files("presets").joinpath("evidence")

COUNTED, AUTOGRAD, TRACKER, PUBLISHED = SOURCES = (
    "transformers parameter count",
    "PyTorch autograd",
    "PyTorch memory tracker",
    "published",
)
CHECK = "check"  # only compared with; no constant was fitted on it

# The reference's words for a framework, its precision and its ZeRO stage.
REGIMES: Mapping[str, Mapping[str, Any]] = {
    "pure-bf16": {"framework": "pytorch", "precision": "bf16-pure", "zero": 0},
    "autocast": {"framework": "pytorch", "precision": "bf16-autocast", "zero": 0},
    "fsdp2-reshard": {"framework": "fsdp2", "precision": "bf16-mixed", "zero": 3},
    "fsdp2-no-reshard": {"framework": "fsdp2", "precision": "bf16-mixed", "zero": 2},
}
# What temporaries of a byte mask or a sum in flight leave open: 0.11 % at most today.
PEAK_TOLERANCE = 0.002
# The reference's attention is not on the autocast list; a GPU's is (oracle/README.md).
PEAK_TOLERANCES = {"autocast": 0.03}

_KINDS = {
    "params": (COUNTED, "parameters"),
    "saved": (AUTOGRAD, "saved"),
    "peak": (TRACKER, "peak"),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of theirs beside ours. A word that does not apply is '', a number 0.

    what       'parameters', 'saved' (for backward), 'peak' (of forward and backward), 'figure'
    model      a model's name, or what a published figure is about
    unit       of theirs and ours
    layers     that the model was cut to; 0: all of them
    tolerance  what a test allows, relative; 0: equal
    """

    source: str
    model: str
    what: str
    theirs: float
    ours: float
    unit: str
    family: str = ""
    regime: str = ""
    attention: str = ""
    checkpointing: str = ""
    batch: int = 0
    seq_len: int = 0
    layers: int = 0
    gpus: int = 0
    tolerance: float = 0.0
    used_for: str = CHECK

    @property
    def error(self) -> float:
        """How much more ours is than theirs, relative; 0 means equal."""
        return relative(self.ours, self.theirs)


def relative(ours: float, theirs: float) -> float:
    """(ours - theirs) / theirs, exactly 0 where they are equal."""
    if ours == theirs:
        return 0.0
    return (ours - theirs) / theirs if theirs else math.inf


@functools.cache
def compare() -> tuple[Comparison, ...]:
    """Every figure there is beside ours. Takes about a second, once per process."""
    of_presets = []
    for name, theirs in preset_parameters().items():
        model = catalog.model(name)
        of_presets.append(_counted(name, model.family, theirs, parameters(model)))
    printed = [
        Comparison(PUBLISHED, p.what, "figure", p.theirs, p.ours, p.unit, tolerance=p.tolerance)
        for p in published()
    ]
    return (*of_presets, *(compared(row) for row in oracle()), *printed)


# --- what PyTorch says ---------------------------------------------------------------------------


def _text(*path: str) -> str:
    return _ROOT.joinpath(*path).read_text(encoding="utf-8")


@functools.cache
def _configs() -> dict[str, dict[str, Any]]:
    configs: dict[str, dict[str, Any]] = json.loads(_text("oracle", "configs.json"))
    return configs


@functools.cache
def oracle() -> tuple[Mapping[str, str], ...]:
    """The reference's rows, as its table has them, of every model whose family is known."""
    rows = csv.DictReader(_text("oracle", "figures.csv").splitlines())
    return tuple(r for r in rows if _configs()[r["model"]]["model_type"] in FAMILIES)


@functools.cache
def preset_parameters() -> dict[str, int]:
    """Parameters of each preset as transformers counts them."""
    rows = csv.DictReader(_text("oracle", "preset_parameters.csv").splitlines())
    return {r["preset"]: int(r["parameters"]) for r in rows}


def plan_of(row: Mapping[str, str]) -> Plan:
    """The plan that a row of the reference is about."""
    config = dict(_configs()[row["model"]])
    if row["layers"]:
        key = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
        config[key] = int(row["layers"])
    train: dict[str, Any] = {"seq_len": 64}
    if row["batch"]:
        train = {
            "micro_batch": int(row["batch"]),
            "seq_len": int(row["seq"]),
            "attention": row["attn"],
            "checkpointing": row["ckpt"],
            **REGIMES[row["regime"] or "pure-bf16"],
        }
    cluster = {"gpus": int(row["world"] or 1), "gpus_per_node": 8}
    return Plan.of({"model": config, "train": train, "cluster": cluster})


def compared(row: Mapping[str, str]) -> Comparison:
    """One row of the reference beside ours."""
    source, what = _KINDS[row["kind"]]
    plan, theirs = plan_of(row), int(row["value"])
    family = plan.architecture.family
    report = evaluate(plan)
    if what == "parameters":
        return _counted(row["model"], family, theirs, report.parameters)
    memory = report.memory
    assert memory, "every row of the reference is about plans whose training is computed"
    regime = row["regime"] or "pure-bf16"
    saved_bytes = what == "saved"
    return Comparison(
        source,
        row["model"],
        what,
        theirs,
        memory.saved_for_backward_bytes if saved_bytes else _peak_before_step(memory),
        "bytes",
        family,
        regime,
        row["attn"],
        row["ckpt"],
        int(row["batch"]),
        int(row["seq"]),
        int(row["layers"]),
        int(row["world"] or 1),
        0.0 if saved_bytes else PEAK_TOLERANCES.get(regime, PEAK_TOLERANCE),
    )


def _counted(model: str, family: str, theirs: int, ours: int) -> Comparison:
    return Comparison(COUNTED, model, "parameters", theirs, ours, "parameters", family)


def _peak_before_step(memory: Memory) -> int:
    """The peak of forward and backward: the reference leaves out the optimizer step."""
    return max(m.bytes for m in memory.timeline if m.id != "optimizer-step")


# --- what papers and datasheets say --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """A published figure beside ours; `tolerance` is what its own rounding leaves open."""

    what: str
    theirs: float
    ours: float
    unit: str
    tolerance: float
    source: str
    remark: str

    @property
    def error(self) -> float:
        return relative(self.ours, self.theirs)


@functools.cache
def published_table() -> tuple[Mapping[str, Any], ...]:
    """The published figures as their file has them."""
    return tuple(tomllib.loads(_text("published.toml"))["figures"])


@functools.cache
def published() -> tuple[Published, ...]:
    """Every published figure beside ours."""
    return tuple(
        Published(
            f["what"],
            f["value"],
            _QUANTITIES[f["quantity"]](f),
            f["unit"],
            f["tolerance"],
            f["source"],
            f.get("remark", ""),
        )
        for f in published_table()
    )


Figure = Mapping[str, Any]


def _report(figure: Figure) -> Report:
    return evaluate(Plan.of(figure["plan"]))


def _memory(plan: Plan) -> Memory:
    memory = evaluate(plan).memory
    assert memory
    return memory


def weights(figure: Figure) -> float:
    """Bytes of the weights as they are served."""
    serve = _report(figure).serve
    assert serve
    return serve.weights_bytes * serve.gpus_per_replica


def states(figure: Figure) -> float:
    """Bytes of states at the optimizer step: of some consumers, or of rows by their ending."""
    report = _report(figure)
    if "rows" in figure:
        return sum(r.bytes for r in report.ledger if r.name.endswith(tuple(figure["rows"])))
    assert report.memory
    return _states(report.memory, figure["consumers"])


def _states(memory: Memory, consumers: tuple[str, ...]) -> int:
    step = next(m for m in memory.timeline if m.id == "optimizer-step")
    return sum(step.consumers[c] for c in consumers)


def zero_3_share(figure: Figure) -> float:
    """How many times less states a rank keeps than one GPU alone would."""
    plan = Plan.of(figure["plan"])
    every = ("parameters", "gradients", "optimizer_states")
    alone = _states(_memory(plan.changed("cluster.gpus", 1)), every)
    return alone / _states(_memory(plan), every)


def checkpointing_compute(figure: Figure) -> float:
    """FLOPs of a step with full checkpointing over those without."""
    plan = Plan.of(figure["plan"])
    full, none = (
        evaluate(plan.changed("train.checkpointing", word)).time for word in ("full", "none")
    )
    assert full
    assert none
    return full.hardware_flops / none.hardware_flops


def kv_cache(figure: Figure) -> float:
    """Bytes of the KV cache of every sequence at its full length."""
    plan, serve = Plan.of(figure["plan"]), _report(figure).serve
    assert serve
    tokens = plan.serve.concurrency * (plan.serve.prompt_len + plan.serve.output_len)
    return serve.kv_bytes_per_token * tokens * serve.gpus_per_replica


def accelerator(figure: Figure) -> float:
    """A figure of the hardware table."""
    gpu = Plan.of(figure["plan"]).accelerator
    field = figure["field"]
    if field == "l1_bytes":
        return gpu.l1_bytes_per_sm * gpu.sms
    return float(gpu.flops[field] if field in gpu.flops else getattr(gpu, field))


def quadratic_bytes(figure: Figure) -> float:
    """Second difference of what forward saves, over equal steps of the sequence: a linear term
    vanishes in it, a quadratic one does not."""
    plan = Plan.of(figure["plan"])
    a, b, c = (
        _memory(plan.changed("train.seq_len", n)).saved_for_backward_bytes
        for n in (2048, 4096, 6144)
    )
    return c - 2 * b + a


_QUANTITIES: dict[str, Callable[[Figure], float]] = {
    f.__name__: f
    for f in (
        weights,
        states,
        zero_3_share,
        checkpointing_compute,
        kv_cache,
        accelerator,
        quadratic_bytes,
    )
}


# --- how a number comes about --------------------------------------------------------------------


@functools.cache
def method() -> Mapping[str, Any]:
    """The words of the Method page: terms, axes, dimensions, left_out."""
    return tomllib.loads(_text("method.toml"))


def sizes(plan: Plan) -> Mapping[str, int]:
    """The value of every dimension and axis under a plan."""
    return training_sizes(plan)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a block, all its runs of that name in the block together.

    block            'embedding', 'layer', 'head'; for layers of several kinds 'layer, sliding'
    blocks           how many such blocks the model has
    runs             how often it runs in one forward of the block
    formula          FLOPs of the forward in named dimensions; '' where it has no matrix product
    forward_flops, backward_flops, forward_hbm_bytes, backward_hbm_bytes    of one micro-batch
    saves            what it keeps for its backward
    saved_bytes      of that, what no earlier operation keeps already: they add up to the block's
    """

    block: str
    blocks: int
    name: str
    runs: int
    formula: str
    forward_flops: float
    backward_flops: float
    forward_hbm_bytes: float
    backward_hbm_bytes: float
    saves: str
    saved_bytes: int


def operations(plan: Plan) -> tuple[Operation, ...]:
    """Every operation of one block of each kind, on one GPU, in the order in which they run."""
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    kinds = step.blocks.structure.kinds
    counts = step.layers.counts
    layers = [
        ("layer" if len(kinds) == 1 else f"layer, {kind}", tape, int(n))
        for kind, tape, n in zip(kinds, step.blocks.layers, counts, strict=True)
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
        text = f"{_local(kept.name)} ({amounts.text(kept.shape)}, {kept.dtype})"
        for i, by in enumerate(dict.fromkeys(kept.saved_by)):
            first[by] = first.get(by, 0) + (0 if i else size)
            keeps.setdefault(by, []).append(text)
    sums: dict[str, list[float]] = {}
    formulas: dict[str, list[str]] = {}
    for w in tape.work:
        of = sums.setdefault(w.name, [0, 0.0, 0.0, 0.0, 0.0])
        back = int(w.phase == "backward")
        of[0] += 1 - back
        of[1 + back] += sum(n * amounts.elements(shape) for n, shape in w.flops)
        of[3 + back] += sum(amounts.bytes(shape, dtype) for shape, dtype in w.traffic)
        if not back:
            formulas.setdefault(w.name, []).extend(
                f"{n:g} x {amounts.text(shape)}" for n, shape in w.flops
            )
    return [
        Operation(
            block,
            blocks,
            _local(name),
            int(runs),
            " + ".join(formulas.get(name, [])),
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
