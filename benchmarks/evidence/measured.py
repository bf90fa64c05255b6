"""Figures measured on real GPUs by others (presets/evidence/measured.toml)."""

from __future__ import annotations

import copy
import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evidence import campaign
from evidence.planned import memory_of, of_run, of_training
from memcore.evidence.comparison import CHECK, OUT_OF_MEMORY, TUNED, Comparison, text
from memcore.hardware.constants import NATIVE_RULES
from memcore.plan.plan import Plan, put
from memcore.report import Memory
from memcore.training.overheads import plan_overheads, rules_of
from memcore.training.segments import reserved_by_rules
from memcore.training.training import Training

# What the issue of accuracy asks of runs of high confidence.
ALLOCATED_TOLERANCE = 0.05  # in the median
RESERVED_INSIDE = 0.9  # share of runs inside their interval
RESERVED_WIDTH = 0.15  # of the interval, over its lower end


@functools.cache
def measured_table() -> Mapping[str, Any]:
    """`runs` and what is `left_out`, as the file has them; those of a series among the runs."""
    table = tomllib.loads(text("measured.toml"))
    more = [run for series in table["series"] for run in _runs_of(series)]
    own = campaign.runs_of(*campaign.COUNTERS)
    return {"runs": [*table["runs"], *more, *own], "left_out": table["left_out"]}


def _runs_of(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The runs that a series lists: for each of its rows and each counter one."""
    shared = {key: series[key] for key in ("source", "where", "confidence")}
    remarks, figures = series.get("remarks", {}), series.get("figures", ())
    for i, row in enumerate(series["rows"], 1):
        plan: dict[str, Any] = copy.deepcopy(series["plan"])
        varied = dict(zip(series["varies"], row, strict=False))
        for path, value in varied.items():
            put(plan, path, value)
        words = ", ".join(
            "a model of its own" if isinstance(v, dict) else str(v) for v in varied.values()
        )
        values = row[len(series["varies"]) :]
        for counter, value in zip(series["counters"], values, strict=True):
            yield {
                "id": f"{series['id']}-{i}-{counter}",
                "run": f"{series['run']}: {words}",
                "counter": counter,
                "value": value,
                "plan": plan,
                "used_for": TUNED if counter in series["tuned_on"] else CHECK,
                "figures": list(figures[i - 1 : i]),
                "remark": remarks.get(str(i), ""),
                **shared,
            }


@functools.cache
def compared_runs() -> tuple[Comparison, ...]:
    """Every measured run beside ours."""
    return tuple(compared_run(run) for run in measured_table()["runs"])


@dataclass(frozen=True, slots=True)
class OverRules:
    """What a run reserved over what the native allocator's rules make of our tensors: with the most
    that cuBLAS may have of it, and with the least."""

    source: str
    low: float
    high: float


@functools.cache
def over_rules() -> tuple[OverRules, ...]:
    """Every run that the rules are followed for, with all on one stream."""
    found = []
    for run in measured_table()["runs"]:
        plan = Plan.of(run["plan"])
        if run["counter"] != "reserved" or rules_of(plan) is not NATIVE_RULES:
            continue
        training = Training.planned(plan, rows=False)
        rules = reserved_by_rules(training.step, training.amounts)
        least, most = (
            sum(getattr(o, end) for o in plan_overheads(plan, training.amounts)
                if o.counter == "reserved")
            for end in ("low", "high")
        )  # fmt: skip
        value = run["value"]
        found.append(OverRules(run["source"], (value - most) / rules, (value - least) / rules))
    return tuple(found)


def left_out_of_rules() -> dict[str, tuple[int, int, float, float]]:
    """Of each source its runs, those inside what nine in ten runs of the other sources alone lie
    between, and these ends."""
    found = {}
    for source in dict.fromkeys(r.source for r in over_rules()):
        others = sorted((r.low + r.high) / 2 for r in over_rules() if r.source != source)
        cut = len(others) // 20
        low, high = others[cut], others[-1 - cut]
        own = [r for r in over_rules() if r.source == source]
        found[source] = len(own), sum(r.low <= high and low <= r.high for r in own), low, high
    return found


def compared_run(run: Mapping[str, Any]) -> Comparison:
    """One run. For 'reserved', `ours` is the middle of an interval; for 'out of memory', the least
    that the plan needs of the device, beside what the device has."""
    plan = Plan.of(run["plan"])
    memory = memory_of(plan)
    low, high = _interval(run["counter"], memory)
    ends = {"low": low, "high": high} if low < high else {}
    return of_run(
        run, plan, run["counter"], run["value"], (low + high) // 2, "bytes",
        tolerance=ALLOCATED_TOLERANCE, **of_training(plan), **ends,
    )  # fmt: skip


def _interval(counter: str, memory: Memory) -> tuple[int, int]:
    """What we say of a counter, from and to."""
    if counter == "reserved":
        return memory.reserved_bytes
    if counter == "device":
        return memory.device_bytes
    if counter == "after start":
        return (memory.consumers["parameters"],) * 2
    if counter == "after a step":
        states = memory.timeline[-1].consumers
        return (sum(states[c] for c in ("parameters", "gradients", "optimizer_states")),) * 2
    if counter == OUT_OF_MEMORY:
        return (memory.device_bytes[0],) * 2
    assert counter == "allocated", counter
    return (memory.allocated_bytes,) * 2
