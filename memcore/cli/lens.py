"""`memplan lens`: what is done with each tensor, and what else could be."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from memcore.cli.printing import answer, plan_title, table
from memcore.cli.reading import given_plan
from memcore.units import bytes_text, signed_bytes, signed_seconds

if TYPE_CHECKING:
    from memcore.search.lens import Alike


def run(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.search.lens import alike, lens

    plan = given_plan(args)
    rows = lens(plan)

    def text() -> str:
        report = evaluate(plan)
        notes = [] if rows else [f"Note: {note}" for note in report.notes]
        return "\n\n".join([plan_title(plan, report), *map(_block, alike(rows)), *notes])

    return answer(
        args,
        lambda: [seen.to_dict() for seen in rows],
        text,
        lambda: [seen.to_row() for seen in rows],
    )


def _block(group: Alike) -> str:
    """Rows of which the same is true, and what they could be."""
    from memcore.search.lens import STATES, way_text

    seen = group.first
    size = bytes_text(group.bytes)
    if group.stored_bytes > group.bytes:
        size += f" at the peak, {bytes_text(group.stored_bytes)} if stored"
    price = seen.price_seconds
    paid = f", {signed_seconds(price)} a step against stored" if price else ""
    lines = [f"{group.name}: {size}", f"{seen.state_text}{paid}"]
    rows = []
    for state in STATES:
        if state == seen.state:
            continue
        way = seen.best(state)
        peak, step = (
            (signed_bytes(-way.freed_bytes), signed_seconds(way.added_seconds)) if way else ("", "")
        )
        rows.append((f"  if {state}", way_text(seen, state), peak, step))
    return "\n".join([*lines, *table(("", "by", "peak", "step"), rows, left=2)])
