"""Tables of the page Explore."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app import exploring
from app.exploring import PART_NAMES, Map, Sweep
from app.tables.base import PATH, Rows, latency_text
from app.tables.measured import CALIBRATED, moved_text
from app.text import VERDICTS
from memcore.plan.measured import Measured
from memcore.search.bookings import Booking
from memcore.search.choices import Choice
from memcore.search.measured import FIRST, TOKEN, mover
from memcore.timing.certainty import apart_serving, ranked
from memcore.units import bytes_text, money_text, rent_text, seconds_text


def swept(found: Sweep) -> Rows:
    """Each value of a field, with what the number is there."""
    of = found.figure
    name = exploring.title(found.path)
    return [
        {
            name: exploring.text(found.path, s.value_at),
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
            "field": found.path,
            "to": s.value_at,
            "value": s.value,
            "unit": "bytes" if of.unit == "GiB" else of.unit,
            "low_bytes": s.low if s.plan else None,
            "high_bytes": s.high if s.plan else None,
            "limit_bytes": s.limit if s.plan else None,
            **{f"{part}_bytes": n for part, n in s.parts.items()},
            PATH: of.path if s.plan and s.value is not None else "",
        }
        for s in found.spots
    ]  # fmt: skip


SWEPT_COLUMNS = ("verdict", "memory", "largest part", "peak at", "remark")


def bookings(found: tuple[Choice, ...], by: Measured | None = None) -> Rows:
    """A row for each accelerator that serves. Those of one rank cannot be told apart by cost. `by`:
    a measured server, with which they have calibrated seconds where it says something of them."""
    move = mover(by) if by else None
    moved = [move(c.plan, {FIRST: c.first, TOKEN: c.each}) if move else {} for c in found]
    costs = [math.inf if c.cost_out is None else c.cost_out for c in found]
    ranks = ranked([c.plan for c in found], costs, apart_serving)
    return [
        {
            "rank": rank,
            "GPU": exploring.text("cluster.gpu", c.gpu),
            "GPUs": c.gpus,
            "tensor parallel": c.tp,
            "replicas": c.replicas,
            "users of one": c.users,
            "tokens/s of one": round(c.users / c.each),
            "first token": latency_text(c.first),
            "per token": latency_text(c.each),
            "USD a million tokens": c.cost_out,
            "USD an hour": None if c.price is None else c.price * c.gpus,
            "price of": c.source,
            "ttft_seconds": c.first,
            "tpot_seconds": c.each,
            "ttft_at_least": c.first_range[0],
            "ttft_at_most": c.first_range[1],
            "tpot_at_least": c.each_range[0],
            "tpot_at_most": c.each_range[1],
            "USD a million tokens read": c.cost_in,
            "USD a GPU-hour": c.price,
            "preset": c.gpu,
            PATH: "serve.max_concurrency",
        }
        | ({head: moved_text(of.get(name)) for name, head in CALIBRATED.items()} if by else {})
        for rank, c, of in zip(ranks, found, moved, strict=True)
    ]


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


TRAINER_COLUMNS = (
    *("rank", "GPU", "GPUs", "whole run", "cost", "USD an hour", "step", "to spare", "price of"),
)
BOOKING_COLUMNS = (
    *("rank", "GPU", "GPUs", "USD a million tokens", "USD an hour", "first token", "per token"),
    *CALIBRATED.values(),
    *("tensor parallel", "replicas", "users of one", "tokens/s of one", "price of"),
)


def booking_text(c: Choice) -> str:
    """What is booked, costs and does, in words."""
    what = f"{c.gpus:,} × {exploring.text('cluster.gpu', c.gpu)}"
    rent = rent_text(c.price * c.gpus) if c.price is not None else ""
    cost = f"{money_text(c.cost_out)} a million output tokens" if c.cost_out is not None else ""
    first, each = (" to ".join(map(seconds_text, r)) for r in (c.first_range, c.each_range))
    return ", ".join(
        filter(None, (what, rent, cost, f"{first} to the first token", f"{each} a token"))
    )


def mapped(found: Map) -> Rows:
    """The cells of a map of two fields."""
    return [
        {
            exploring.title(found.down): exploring.text(found.down, y),
            exploring.title(found.across): exploring.text(found.across, x),
            "verdict": VERDICTS.get(s.verdict, f"cannot be planned: {s.why_not}"),
            "number": found.figure.title,
            "value": s.value,
            "unit": "bytes" if found.figure.unit == "GiB" else found.figure.unit,
            "low_bytes": s.low if s.plan else None,
            "high_bytes": s.high if s.plan else None,
            "limit_bytes": s.limit if s.plan else None,
        }
        for y, line in zip(found.rows, found.spots, strict=True)
        for x, s in zip(found.columns, line, strict=True)
    ]
