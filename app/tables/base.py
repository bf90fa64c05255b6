"""Tables: pure functions from a Report to rows. Raw bytes and seconds, for people and for CSV."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from csv import DictWriter
from typing import Any

from app import palette
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.report import Memory
from memcore.search.measured import FIRST, STEP, TOKEN, Calibrated
from memcore.timing.communication import AXES
from memcore.units import bytes_text, seconds_text
from memcore.version import version

Rows = list[dict[str, Any]]

PATH = "path"  # the key of a row under which stands where its number is in the Report
FIELDS = {  # what a column shows of the number at a row's path
    "size": "bytes",
    "bytes": "bytes",
    "bytes_each": "bytes_each",
    "count": "count",
    "low": "low",
    "high": "high",
    "time": "seconds",
    "flops": "flops",
    "hbm_bytes": "hbm_bytes",
    "bound_by": "bound_by",
    "exposed": "exposed_seconds",
    "hidden behind": "cover",
    "hides at": "hides_at_bandwidth",
    "or at micro-batch": "hides_at_micro_batch",
    "capacity": "capacity",
    "bandwidth": "bandwidth",
    "holds": "holds",
    "traffic per step": "traffic",
    "step time": "added_seconds",
    "GPU time per token": "price",
}


def csv(rows: Rows, context: Mapping[str, Any] | None = None) -> bytes:
    """Rows as CSV in UTF-8, each with its context, with no cell that a spreadsheet would run as a
    formula. Whole numbers stay whole, also in a column where some rows have none."""
    safe = [{n: _safe(v) for n, v in {**row, **(context or {})}.items()} for row in rows]
    text = io.StringIO()
    columns = dict.fromkeys(name for row in safe for name in row)
    writer = DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(safe)
    return text.getvalue().encode()


HEADS = {  # of what was measured, in files
    STEP: "plan step seconds",
    FIRST: "plan seconds to the first token",
    TOKEN: "plan seconds a token",
}


def context(plan: Plan | None, link: str, *calibrated: Calibrated | None) -> dict[str, Any]:
    """What a file of figures says of itself: the plan that they are of, if they are of one, a link
    to it, its step and its server with measured ones, and which Memplan they are from."""
    of_plan = {
        "plan model": plan.architecture.label,
        "plan GPU": plan.accelerator.label,
        "plan GPUs": plan.cluster.gpus,
        "plan link": link,
    } if plan else {}  # fmt: skip
    for each in filter(None, calibrated):
        for name, moved in each.moved.items():
            of_plan[HEADS[name]] = moved.seconds
            of_plan[f"{HEADS[name]}, calibrated"] = moved.calibrated_seconds
        server = "server " if each.measured.of_server else ""
        of_plan[f"plan {server}calibration"] = each.assumed
    return {**of_plan, "Memplan version": version()}


def _safe(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return None if isinstance(value, float) and math.isnan(value) else value


def breakdown(memory: Memory) -> Rows:
    """From the consumers up to the capacity of a GPU, for a file: every row has the ends of its
    interval, and in `bytes` what is one number."""
    m = memory
    consumers = [
        (palette.consumer(name), "consumer", (size, size), f"consumers.{name}")
        for name, size in m.consumers.items()
    ]
    overheads = [
        (o.name, "overhead", (o.low, o.high), f"overheads.{i}") for i, o in enumerate(m.overheads)
    ]
    allocated, capacity = ((n, n) for n in (m.allocated_bytes, m.capacity_bytes))
    lines = [
        *consumers,
        ("Allocated at the peak", "total", allocated, "allocated_bytes"),
        *overheads,
        ("Reserved by PyTorch", "interval", m.reserved_bytes, "reserved_bytes"),
        ("Device memory", "interval", m.device_bytes, "device_bytes"),
        ("Capacity of one GPU", "capacity", capacity, "capacity_bytes"),
    ]
    return [
        {
            "part": part,
            "kind": kind,
            "size": " to ".join(dict.fromkeys(map(bytes_text, ends))),
            "bytes": ends[0] if ends[0] == ends[1] else None,
            "low_bytes": ends[0],
            "high_bytes": ends[1],
            "share_of_capacity": ends[1] / m.capacity_bytes,
            PATH: f"memory.{path}",
        }
        for part, kind, ends, path in lines
    ]


def figures(book: Book, paths: Sequence[str]) -> Rows:
    """Numbers as their explanations have them: those that the report has and that are not 0."""
    every = [e for e in map(book.explained, paths) if e is not None and e.value]
    return [
        {"what": e.what, "is": e.text, "value": e.value, "unit": e.unit, "meaning": e.meaning,
         PATH: e.path}
        for e in every
    ]  # fmt: skip


def axes(names: Sequence[str]) -> str:
    """Which kinds of parallelism talk there."""
    return f": {', '.join(AXES[name] for name in names)}" if names else ""


def latency_text(seconds: float | None) -> str:
    """Of a request; '' where none is served."""
    return "" if seconds is None else seconds_text(seconds)


def written(rows: Rows, columns: Sequence[str]) -> str:
    """Rows as a table that wraps its text, for sentences, in HTML. On a phone a row's cells stand
    below each other, each with its column's name."""
    named = [(name, html.escape(name)) for name in columns]
    heads = "".join(f"<th>{name}</th>" for _, name in named)
    lines = (
        "".join(f'<td data-head="{name}">{html.escape(f"{row[key]}")}</td>' for key, name in named)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="written"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
