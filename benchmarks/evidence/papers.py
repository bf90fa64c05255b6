"""What papers and datasheets print (presets/evidence/published.toml)."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidence.planned import memory_of, time_of
from memcore.evaluate import evaluate
from memcore.evidence.comparison import PUBLISHED, Comparison, text
from memcore.plan.plan import Plan
from memcore.report import Memory, Report
from memcore.stream import Clock, Run, draw, run

STATE_CONSUMERS = ("parameters", "gradients", "optimizer_states")


@functools.cache
def published_table() -> tuple[Mapping[str, Any], ...]:
    """The published figures as their file has them."""
    return tuple(tomllib.loads(text("published.toml"))["figures"])


@functools.cache
def compared_published() -> tuple[Comparison, ...]:
    """Every published figure with ours; its tolerance is what its own rounding leaves open, or what
    the figure does not say."""
    return tuple(
        Comparison(
            PUBLISHED, f["what"], "figure", f["value"], _QUANTITIES[f["quantity"]](f), f["unit"],
            tolerance=f["tolerance"],
        )
        for f in published_table()
    )  # fmt: skip


Figure = Mapping[str, Any]
_QUANTITIES: dict[str, Callable[[Figure], float]] = {}


def _quantity(compute: Callable[[Figure], float]) -> Callable[[Figure], float]:
    """What a figure of the table may be, by the function's name."""
    _QUANTITIES[compute.__name__] = compute
    return compute


def _report(figure: Figure) -> Report:
    return evaluate(Plan.of(figure["plan"]))


@_quantity
def weights(figure: Figure) -> float:
    """Bytes of the weights as they are served, by an engine that pads no vocabulary."""
    serve = evaluate(Plan.of(figure["plan"]).changed("serve.kv_cache", "contiguous")).serve
    assert serve
    return serve.weights_bytes * serve.gpus_per_replica


@_quantity
def states(figure: Figure) -> float:
    """Bytes of states at the optimizer step: of some consumers, or of rows by their ending."""
    report = _report(figure)
    if "rows" in figure:
        return sum(r.bytes for r in report.ledger if r.name.endswith(tuple(figure["rows"])))
    assert report.memory
    return resident(report.memory, figure["consumers"])


def resident(memory: Memory, consumers: Sequence[str] = STATE_CONSUMERS) -> int:
    """Bytes of these consumers at the optimizer step: the states without what a forward adds."""
    step = next(m for m in memory.timeline if m.id == "optimizer-step")
    return sum(step.consumers[c] for c in consumers)


@_quantity
def saved(figure: Figure) -> float:
    """Bytes on disk of a checkpoint, or of its weights alone."""
    run = _report(figure).run
    assert run
    return float(getattr(run, figure["of"]))


@_quantity
def zero_3_share(figure: Figure) -> float:
    """How many times less states a rank keeps than one GPU alone would."""
    plan = Plan.of(figure["plan"])
    alone = resident(memory_of(plan.changed("cluster.gpus", 1)))
    return alone / resident(memory_of(plan))


@_quantity
def zero_states(figure: Figure) -> float:
    """Bytes of the states of one GPU at an instant, for so many parameters as the figure is of:
    a model of a size has nearly that many."""
    report = _report(figure)
    assert report.memory
    moment = next(m for m in report.memory.timeline if m.id == figure["instant"])
    each = sum(moment.consumers[c] for c in STATE_CONSUMERS) / report.parameters
    return each * float(figure["parameters"])


@_quantity
def tier_bytes(figure: Figure) -> float:
    """Bytes that a parameter's states have in some tiers."""
    report = _report(figure)
    states = [r for r in report.ledger if r.consumer in STATE_CONSUMERS]
    return sum(r.bytes for r in states if r.tier in figure["tiers"]) / report.parameters


@_quantity
def checkpointing_compute(figure: Figure) -> float:
    """FLOPs of a step with full checkpointing over those without."""
    plan = Plan.of(figure["plan"])
    full, none = (time_of(plan.changed("train.checkpointing", w)) for w in ("full", "none"))
    return full.hardware_flops / none.hardware_flops


def _work_and_bytes(figure: Figure) -> tuple[float, float]:
    """FLOPs of a step, and bytes of some of its transfers."""
    time = _report(figure).time
    assert time
    moved = [t.bytes for t in time.transfers if t.name in figure["transfers"]]
    assert len(moved) == len(figure["transfers"])
    return time.hardware_flops, sum(moved)


@_quantity
def offload_intensity(figure: Figure) -> float:
    """FLOPs of a step for each byte that some offload moves in it."""
    flops, moved = _work_and_bytes(figure)
    return flops / moved


@_quantity
def offload_efficiency(figure: Figure) -> float:
    """Share of its peak that a GPU reaches if nothing hides what an offload moves."""
    flops, moved = _work_and_bytes(figure)
    compute = flops / float(figure["peak"])
    return compute / (compute + moved / float(figure["bandwidth"]))


@_quantity
def kv_cache(figure: Figure) -> float:
    """Bytes of the KV cache of every sequence at its full length."""
    plan, serve = Plan.of(figure["plan"]), _report(figure).serve
    assert serve
    tokens = plan.serve.concurrency * (plan.serve.prompt_len + plan.serve.output_len)
    return serve.kv_bytes_per_token * tokens * serve.gpus_per_replica


@_quantity
def kv_per_token(figure: Figure) -> float:
    """Bytes that one token adds to the KV cache."""
    serve = _report(figure).serve
    assert serve
    return serve.kv_bytes_per_token


@_quantity
def parameters(figure: Figure) -> float:
    """All parameters of a model."""
    return _report(figure).parameters


@_quantity
def active_parameters(figure: Figure) -> float:
    """Parameters that one token meets."""
    return _report(figure).active_parameters


@_quantity
def accelerator(figure: Figure) -> float:
    """A figure of the hardware table."""
    gpu = Plan.of(figure["plan"]).accelerator
    field = figure["field"]
    if field == "l1_bytes":
        return gpu.l1_bytes_per_sm * gpu.sms
    return float(gpu.flops[field] if field in gpu.flops else getattr(gpu, field))


@_quantity
def quadratic_bytes(figure: Figure) -> float:
    """Second difference of what forward saves, over equal steps of the sequence: a linear term
    vanishes in it, a quadratic one does not."""
    plan = Plan.of(figure["plan"])
    a, b, c = (
        memory_of(plan.changed("train.seq_len", n)).saved_for_backward_bytes
        for n in (2048, 4096, 6144)
    )
    return c - 2 * b + a


def _with_layers(plan: Plan, layers: int) -> Memory:
    model = plan.model
    assert isinstance(model, dict)
    return memory_of(plan.changed("model", model | {"n_layer": layers}))


@_quantity
def saved_per_layer(figure: Figure) -> float:
    """Bytes that one more layer leaves for its backward."""
    return _saved_per_layer(Plan.of(figure["plan"]))


def _saved_per_layer(plan: Plan) -> float:
    one, two = (_with_layers(plan, n).saved_for_backward_bytes for n in (1, 2))
    return two - one


@_quantity
def saved_in_flight(figure: Figure) -> float:
    """Bytes that all micro-batches in flight have left on the first stage, per layer of it."""
    plan = Plan.of(figure["plan"])
    p = plan.parallel
    each = p.pp * p.virtual_stages
    less, more = (
        _with_layers(plan, plan.architecture.layers + n).ranks[0].consumers["activations"]
        for n in (0, each)
    )
    return (more - less) / p.virtual_stages


@_quantity
def saved_share(figure: Figure) -> float:
    """Percent of what a layer leaves for its backward with tensor parallelism alone."""
    plan = Plan.of(figure["plan"])
    alone = plan.changed("train.checkpointing", "none")
    alone = alone.changed("parallel.sequence_parallel", False)
    return 100 * _saved_per_layer(plan) / _saved_per_layer(alone)


@_quantity
def cache_share(figure: Figure) -> float:
    """A kind's share of the KV cache while requests wait for room."""
    found = _streamed(json.dumps(figure["plan"]), figure["slots"], figure["strategy"])
    return found.memory[figure["kind"]] / (1 - found.memory["free"])


@_quantity
def batched_requests(figure: Figure) -> float:
    """Sequences that run at once, on average."""
    found = _streamed(json.dumps(figure["plan"]), figure["slots"], figure["strategy"])
    return found.concurrency_mean


@functools.cache
def _streamed(document: str, slots: int, strategy: str) -> Run:
    plan = Plan.of(json.loads(document))
    return run(plan, strategy, draw(plan), Clock.of(plan), slots)
