"""Table of what a search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.tables.base import Rows
from memcore.plan.link import encode, query_text
from memcore.plan.plan import Plan, change_texts, title_of
from memcore.search.result import ZERO, Point
from memcore.units import bytes_text, count_text, money_text, seconds_text

FOUND_COLUMNS = (
    *("rank", "GPUs", "whole run", "cost", "step", "MFU", "to spare", "marked"),
    "changes",
)


def search_results(points: Sequence[tuple[Point, bool]], here: Plan) -> Rows:
    """The best, and what nothing beats. Each row has its own plan as a link's query."""
    rows: Rows = []
    for p, of_front in points:
        f = p.figures
        low, high = f["device_bytes"]
        marks = [*(["now"] if p.plan == here else []), *(["front"] if of_front else [])]
        rows.append(
            {
                "rank": p.rank,
                "GPUs": f["gpus"],
                "whole run": seconds_text(f["run_seconds"]),
                "cost": money_text(f["cost"]) if "cost" in f else "",
                "step": seconds_text(f["step_seconds"]),
                "tokens/s": count_text(f["tokens_per_second"]),
                "MFU": f"{f['mfu']:.1%}",
                "to spare": bytes_text(f["headroom_bytes"]),
                "marked": ", ".join(marks),
                "changes": changes(p.changes, p),
                "trains": p.trains,
                **{k: v for k, v in f.items() if k not in ("device_bytes", "gpus", "cost")},
                "cost_usd": f.get("cost"),
                "device_bytes_at_least": low,
                "device_bytes_at_most": high,
                "query": query_text(encode(p.plan)),
            }
        )
    return rows


def changes(found: Mapping[str, Any], point: Point) -> str:
    """Fields and what they become at a point, in words; whether the batch is another then, and with
    which ZeRO stages all is the same."""
    text = ", ".join(change_texts(found))
    text = (text or "nothing") + ("" if point.same_batch else " (another batch)")
    stages = " or ".join(map(str, point.also))
    return text + (f" (the same with {title_of(ZERO)} {stages})" if stages else "")
