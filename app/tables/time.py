"""Tables of the page Time."""

from __future__ import annotations

import math

from app import palette
from app.tables.base import PATH, Rows
from memcore.report import Time
from memcore.units import bytes_text, rate_text, seconds_text


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
        if seconds
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
