"""Tables of the page Time."""

from __future__ import annotations

import math

from app import palette
from app.tables.base import PATH, Rows
from memcore.plan.plan import Plan
from memcore.report import Run, Time
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    hours_text,
    money_text,
    rate_text,
    seconds_text,
)


def phases(time: Time) -> Rows:
    total = sum(time.phases.values()) or 1.0
    return [
        {
            "phase": palette.phase(name),
            "time": seconds_text(seconds),
            "seconds": seconds,
            "percent": 100 * seconds / total,
            PATH: f"time.phases.{name}",
        }
        for name, seconds in time.phases.items()
    ]


def resources(time: Time) -> Rows:
    return [
        {
            "resource": palette.resource(name),
            "busy": seconds_text(busy) if busy else "not used",
            "exposed": seconds_text(time.exposed.get(name, 0.0)) if busy else "",
            "busy_seconds": busy,
            "exposed_seconds": time.exposed.get(name, 0.0),
            PATH: f"time.resources.{name}",
        }
        for name, busy in time.resources.items()
    ]


def operations(time: Time) -> Rows:
    """Every operation of the step, slowest first."""
    return [
        {
            "operation": o.name,
            "phase": palette.phase(o.phase),
            "time": seconds_text(o.seconds),
            "bound_by": palette.resource(o.bound_by),
            "seconds": o.seconds,
            "compute_seconds": o.compute_seconds,
            "hbm_seconds": o.hbm_seconds,
            "flops": round(o.flops),
            "hbm_bytes": round(o.hbm_bytes),
            PATH: f"time.operations.{i}",
        }
        for i, o in sorted(enumerate(time.operations), key=lambda item: -item[1].seconds)
    ]


TRANSFER_COLUMNS = (
    "transfer",
    "link",
    "size",
    "time",
    "exposed",
    "hidden behind",
    "hides at",
    "or at micro-batch",
)


def micro_batch_text(n: float | None) -> str:
    """Whole sequences; nothing where no batch is large enough."""
    return f"{math.ceil(n):,}" if n is not None and math.isfinite(n) else ""


def transfers(time: Time) -> Rows:
    """What crosses each link in one step."""
    return [
        {
            "transfer": t.name,
            "link": palette.resource(t.link),
            "size": bytes_text(t.bytes),
            "time": seconds_text(t.seconds),
            "exposed": seconds_text(t.exposed_seconds),
            "hidden behind": t.hidden_by,
            "hides at": rate_text(t.hides_at_bandwidth, "B/s") if t.hides_at_bandwidth else "",
            "or at micro-batch": micro_batch_text(t.hides_at_micro_batch),
            "bytes": round(t.bytes),
            "seconds": t.seconds,
            "exposed_seconds": t.exposed_seconds,
            "hides_at_bandwidth": t.hides_at_bandwidth,
            "hides_at_micro_batch": t.hides_at_micro_batch,
            PATH: f"time.transfers.{i}",
        }
        for i, t in enumerate(time.transfers)
    ]


def answers(run: Run, plan: Plan) -> Rows:
    """What the whole run takes."""
    lines = (
        ("Tokens", count_text(plan.run.tokens), plan.run.tokens, "tokens", "plan.run.tokens"),
        ("Steps", f"{run.steps:,}", run.steps, "steps", "run.steps"),
        ("Time", seconds_text(run.seconds), run.seconds, "seconds", "run.seconds"),
        ("Time with saves and failures", seconds_text(run.elapsed_seconds), run.elapsed_seconds,
         "seconds", "run.elapsed_seconds"),
        ("Interruptions", f"{run.interruptions:,.2g}", run.interruptions, "",
         "run.interruptions"),
        ("GPU-hours", hours_text(run.gpu_hours), run.gpu_hours, "GPU-hours", "run.gpu_hours"),
        ("Cost", money_text(run.cost or 0), run.cost, "USD", "run.cost"),
        ("Power", rate_text(run.watts, "W"), run.watts, "W", "run.watts"),
        ("Energy", energy_text(run.energy_joules), run.energy_joules, "J", "run.energy_joules"),
        ("Energy per token", energy_text(run.joules_per_token), run.joules_per_token, "J",
         "run.joules_per_token"),
        ("Saved weights", bytes_text(run.weights_bytes), run.weights_bytes, "bytes",
         "run.weights_bytes"),
        ("Saved checkpoint", bytes_text(run.checkpoint_bytes), run.checkpoint_bytes, "bytes",
         "run.checkpoint_bytes"),
        ("Disk for checkpoints", bytes_text(run.disk_bytes), run.disk_bytes, "bytes",
         "run.disk_bytes"),
        ("Time of a save", seconds_text(run.save_seconds), run.save_seconds, "seconds",
         "run.save_seconds"),
        ("Steps from save to save", f"{run.save_every:,}", run.save_every, "steps",
         "run.save_every"),
    )  # fmt: skip
    return [
        {"of the run": name, "is": text, "value": value, "unit": unit, PATH: path}
        for name, text, value, unit, path in lines
        if value is not None
    ]
