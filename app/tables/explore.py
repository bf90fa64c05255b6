"""Tables of the page Explore."""

from __future__ import annotations

from app import exploring
from app.exploring import PART_NAMES, Booking, Sweep
from app.tables.base import PATH, Rows, felt
from memcore.units import bytes_text, count_text, money_text

VERDICTS = {"fits": "fits", "tight": "may fit", "over": "does not fit"}


def swept(found: Sweep) -> Rows:
    """Each value of a field, with what the number is there."""
    of = found.figure
    name = exploring.title(found.path)
    return [
        {
            name: exploring.text(found.path, s.value_at),
            "then": VERDICTS.get(s.verdict, "cannot be planned"),
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


SWEPT_COLUMNS = ("then", "memory", "largest part", "peak at", "remark")


def bookings(found: tuple[Booking, ...]) -> Rows:
    """A row for each accelerator that could serve."""
    return [
        {
            "GPU": exploring.text("cluster.gpu", b.name),
            "then": "fits" if b.fits else "does not fit",
            "GPUs a replica": b.gpus,
            "sequences": b.sequences,
            "tokens/s": None if b.tokens_per_second is None else round(b.tokens_per_second),
            "first token": felt(b.ttft),
            "per token": felt(b.tpot),
            "USD a million tokens": b.million,
            "USD a GPU-hour": b.price,
            "price of": b.source,
            "tokens_per_second": b.tokens_per_second,
            "ttft_seconds": b.ttft,
            "tpot_seconds": b.tpot,
            "preset": b.name,
            PATH: "serve.max_concurrency",
        }
        for b in found
    ]


BOOKING_COLUMNS = (
    *("GPU", "then", "USD a million tokens", "GPUs a replica", "sequences", "tokens/s"),
    *("first token", "per token", "USD a GPU-hour", "price of"),
)


def million_text(b: Booking) -> str:
    """What a replica costs and does, in words."""
    cost = f"{money_text(b.million)} a million output tokens" if b.million is not None else ""
    speed = f"{count_text(b.tokens_per_second)} tokens/s" if b.tokens_per_second else ""
    return ", ".join(filter(None, (cost, speed)))
