"""Tables of memory: consumers, instants, rows."""

from __future__ import annotations

from collections.abc import Sequence

from app import palette
from app.tables.base import PATH, Rows
from memcore.report import LedgerRow, Memory
from memcore.training.over_time import Course
from memcore.training.over_time import rows as slots_of
from memcore.units import bytes_text


def consumers(memory: Memory) -> Rows:
    """Memory at the peak by consumer; the bytes add up to what is allocated."""
    total = memory.allocated_bytes
    return [
        {
            "consumer": palette.consumer(name),
            "size": bytes_text(size),
            "bytes": size,
            "percent": 100 * size / total if total else 0.0,
            PATH: f"memory.consumers.{name}",
        }
        for name, size in memory.consumers.items()
    ]


def overheads(memory: Memory) -> Rows:
    """What no shape determines, as intervals."""
    return [
        {
            "overhead": o.name,
            "low": bytes_text(o.low),
            "high": bytes_text(o.high),
            "low_bytes": o.low,
            "high_bytes": o.high,
            "certainty": o.certainty,
            "source": o.source,
            PATH: f"memory.overheads.{i}",
        }
        for i, o in enumerate(memory.overheads)
    ]


def timeline(memory: Memory) -> Rows:
    """Bytes alive at each instant, by consumer."""
    return [
        {
            "instant": i.label,
            "rank": i.rank,
            "size": bytes_text(i.bytes),
            "bytes": i.bytes,
            **{name: i.consumers.get(name, 0) for name in palette.CONSUMERS},
            "at": i.at,
            PATH: f"memory.timeline.{n}",
        }
        for n, i in enumerate(memory.timeline)
    ]


def over_time(courses: Sequence[Course]) -> Rows:
    """Memory over a step, stage by stage."""
    return list(slots_of(courses))


def ledger(rows: Sequence[LedgerRow]) -> Rows:
    """Every row, largest first."""
    return [
        {
            "name": r.name,
            "consumer": palette.consumer(r.consumer),
            "size": bytes_text(r.bytes),
            "bytes": r.bytes,
            "count": r.count,
            "bytes_each": r.bytes_each,
            "shape": str(r.shape),
            "dtype": r.dtype,
            "tier": r.tier,
            "lifetime": r.lifetime,
            "certainty": r.certainty,
            "why": r.why,
            "source": r.source,
            PATH: f"ledger.{i}",
        }
        for i, r in sorted(enumerate(rows), key=lambda item: -item[1].bytes)
    ]


def largest(rows: Sequence[LedgerRow], most: int = 10) -> Rows:
    """The rows of GPU memory that matter most."""
    return [row for row in ledger(rows) if row["tier"] == "hbm"][:most]
