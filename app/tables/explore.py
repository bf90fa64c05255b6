"""Tables of the page Explore."""

from __future__ import annotations

from collections.abc import Sequence

from app import exploring
from app.exploring import PART_NAMES
from app.tables.base import PATH, Rows, latency_text
from app.tables.measured import CALIBRATED
from app.text import VERDICTS
from memcore.search.bookings import Booking
from memcore.search.explore import Map, Sweep
from memcore.search.measured import FIGURES
from memcore.search.result import Point
from memcore.units import bytes_text, money_text, rent_text, seconds_or_dash, seconds_text


def swept(sweep: Sweep) -> Rows:
    """Each value of a field, with what the number is there."""
    of = sweep.figure
    name = exploring.title(sweep.path)
    return [
        {
            name: exploring.text(sweep.path, s.value_at),
            "verdict": VERDICTS.get(s.verdict, "cannot be planned"),
            of.title: "" if s.value is None else of.text(s.value),
            "memory": " to ".join(dict.fromkeys(map(bytes_text, (s.low, s.high))))
            if s.plan
            else "",
            "largest part": PART_NAMES.get(s.largest, ""),
            "peak at": s.instant,
            "remark": s.why_not
            or ", ".join(f"with {exploring.title(p)} {exploring.text(p, v)}"
                         for p, v in s.with_.items()),
            "field": sweep.path,
            "to": s.value_at,
            "value": s.value,
            "unit": "bytes" if of.unit == "GiB" else of.unit,
            "low_bytes": s.low if s.plan else None,
            "high_bytes": s.high if s.plan else None,
            "limit_bytes": s.limit if s.plan else None,
            **{f"{part}_bytes": n for part, n in s.parts.items()},
            PATH: of.path if s.plan and s.value is not None else "",
        }
        for s in sweep.spots
    ]  # fmt: skip


SWEPT_COLUMNS = ("verdict", "memory", "largest part", "peak at", "remark")


def servers(found: Sequence[Point], calibrated: bool = False) -> Rows:
    """A row for each accelerator that serves. Those of one rank differ by less than a percent of
    rent. `calibrated`: with the seconds that a measured server says."""
    return [
        {
            "rank": p.rank,
            "GPU": exploring.text("cluster.gpu", f["gpu"]),
            "GPUs": f["gpus"],
            "tensor parallel": f["tp"],
            "replicas": f["replicas"],
            "users of one": f["concurrency"],
            "tokens/s of one": round(f["tokens_per_second"] / f["replicas"]),
            "first token": latency_text(f["ttft_seconds"]),
            "per token": latency_text(f["tpot_seconds"]),
            "USD a million tokens": f.get("cost_per_million_out"),
            "USD an hour": f.get("cost_per_hour"),
            "price of": f.get("price_source", ""),
            "ttft_seconds": f["ttft_seconds"],
            "tpot_seconds": f["tpot_seconds"],
            "ttft_at_least": f["ttft_range"][0],
            "ttft_at_most": f["ttft_range"][1],
            "tpot_at_least": f["tpot_range"][0],
            "tpot_at_most": f["tpot_range"][1],
            "USD a million tokens read": f.get("cost_per_million_in"),
            "USD a GPU-hour": f.get("price_per_gpu_hour"),
            "preset": f["gpu"],
            PATH: "serve.max_concurrency",
        }
        | (
            {
                head: seconds_or_dash(f.get(f"calibrated_{FIGURES[name][1]}seconds"))
                for name, head in CALIBRATED.items()
            }
            if calibrated
            else {}
        )
        for p in found
        for f in (p.figures,)
    ]


def server_text_of(point: Point) -> str:
    """What is booked, costs and does, in words."""
    f = point.figures
    facts = [f"{f['gpus']:,} × {exploring.text('cluster.gpu', f['gpu'])}"]
    if "cost_per_hour" in f:
        facts += [rent_text(f["cost_per_hour"])]
        facts += [f"{money_text(f['cost_per_million_out'])} a million output tokens"]
    first, each = (" to ".join(map(seconds_text, f[f"{n}_range"])) for n in ("ttft", "tpot"))
    return ", ".join([*facts, f"{first} to the first token", f"{each} a token"])


def trainers(found: Sequence[Booking]) -> Rows:
    """A row for each accelerator that trains. Those of one rank cannot be told apart by cost."""
    return [
        {
            "rank": b.rank,
            "GPU": exploring.text("cluster.gpu", b.gpu),
            "GPUs": b.gpus,
            "whole run": seconds_text(b.seconds),
            "cost": "" if b.cost is None else money_text(b.cost),
            "USD an hour": None if b.price is None else b.price * b.gpus,
            "step": seconds_text(b.step_seconds),
            "to spare": bytes_text(b.headroom_bytes),
            "price of": b.source,
            "run_seconds": b.seconds,
            "cost_usd": b.cost,
            "step_seconds": b.step_seconds,
            "step_at_least": b.step_interval[0],
            "step_at_most": b.step_interval[1],
            "headroom_bytes": b.headroom_bytes,
            "USD a GPU-hour": b.price,
            "preset": b.gpu,
            PATH: "",
        }
        for b in found
    ]


def mapped(cells: Map) -> Rows:
    """The cells of a map of two fields."""
    return [
        {
            exploring.title(cells.down): exploring.text(cells.down, y),
            exploring.title(cells.across): exploring.text(cells.across, x),
            "verdict": VERDICTS.get(s.verdict, f"cannot be planned: {s.why_not}"),
            "number": cells.figure.title,
            "value": s.value,
            "unit": "bytes" if cells.figure.unit == "GiB" else cells.figure.unit,
            "low_bytes": s.low if s.plan else None,
            "high_bytes": s.high if s.plan else None,
            "limit_bytes": s.limit if s.plan else None,
        }
        for y, line in zip(cells.rows, cells.spots, strict=True)
        for x, s in zip(cells.columns, line, strict=True)
    ]
