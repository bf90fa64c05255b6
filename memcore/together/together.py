"""Together: training and serving on the same GPUs, as reinforcement learning and evaluation do."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from memcore.plan.plan import Plan
from memcore.quantity.interval import fitting, interval
from memcore.quantity.reading import Read, Values, ceil, largest, quantity, total
from memcore.report import Memory, Phase, TogetherMemory
from memcore.serving.serve import serve
from memcore.step.step import Step
from memcore.tape.ledger import Amounts
from memcore.together.scene import (
    PARTS,
    PHASES,
    TRAINERS,
    Parts,
    Scene,
    at_host,
    bytes_of,
    cast_of,
    engine_plan,
)
from memcore.training.overheads import counted, slack


def together(plan: Plan, step: Step, amounts: Amounts, memory: Memory) -> TogetherMemory | None:
    """Memory of a step that trains and serves on the same GPUs; None where it does one of both."""
    if plan.together.kind == "none":
        return None
    scene = Scene(plan, step, amounts, memory, serve(engine_plan(plan)))
    phases = tuple(_phase(scene, name, parts) for name, parts in cast_of(scene).items())
    given = SimpleNamespace(
        phases=phases,
        host={part: bytes_of(scene, [moment]) for part, moment in at_host(scene).items()},
        capacity_bytes=memory.capacity_bytes,
        dram_capacity_bytes=plan.node.dram_bytes,
    )
    values = Values(plan=plan, memory=memory, together=given)
    x = values.together
    return TogetherMemory(
        phases=phases,
        peak=max(phases, key=lambda p: p.device_bytes[1]).id,
        device_bytes=x.device_bytes,
        capacity_bytes=given.capacity_bytes,
        host=given.host,
        dram_bytes=x.dram_bytes,
        dram_capacity_bytes=given.dram_capacity_bytes,
        kv_capacity_tokens=scene.engine.kv_capacity_tokens,
        fits=x.fits,
        verdict=x.verdict,
    )


def _phase(scene: Scene, name: str, parts: Parts) -> Phase:
    sizes = {part: bytes_of(scene, parts[part]) for part in PARTS if part in parts}
    x = Values(plan=scene.plan, memory=scene.memory)
    device = phase_device(x, sizes, 0), phase_device(x, sizes, 1)
    return Phase(name, PHASES[name], sizes, sum(sizes.values()), device)


def phase_device(x: Any, parts: Mapping[str, Read], end: int) -> Read:
    """Device memory of one phase, at one end: the trainer's parts with the allocator's slack, the
    engine's, and what is outside."""
    trained = [n for part, n in parts.items() if part in TRAINERS]
    engine = [n for part, n in parts.items() if part not in TRAINERS]
    held = [ceil(total(trained) * slack(x, end))] if trained else []
    outside = [n for c in ("reserved", "device") for n in counted(x.memory.overheads, c, end)]
    return total([*held, *engine, *outside])


@interval("together.device_bytes", "Device memory", "bytes", "Of the fullest phase.")
def device_bytes(x: Any, end: int) -> Read:
    return largest(*(phase.device_bytes[end] for phase in x.together.phases))


@quantity("together.dram_bytes", "Kept in host DRAM", "bytes", "Per node, at its fullest.")
def dram_bytes(x: Any) -> Read:
    """Of every GPU in the node, and what the plan offloads anyway."""
    gpus = x.known("GPUs of a node", x.plan.gpus_in_node, source="the plan: cluster")
    return total([*(n * gpus for n in x.together.host.values()), x.memory.tiers["dram"]])


TO_FIT = "Whether every phase fits on one GPU, and what is on the host in its DRAM."


def _judged(x: Any) -> tuple[Read, Read]:
    t = x.together
    on_host = (t.dram_bytes, t.dram_capacity_bytes)
    return fitting(t.device_bytes, t.capacity_bytes, [on_host])


@quantity("together.fits", "Verdict", "", TO_FIT)
def fits(x: Any) -> Read:
    return _judged(x)[0]


@quantity("together.verdict", "Verdict", "", TO_FIT)
def verdict(x: Any) -> Read:
    return _judged(x)[1]
