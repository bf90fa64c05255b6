"""Tables of the lens: what is done with each tensor, and what else could be."""

from __future__ import annotations

from collections.abc import Sequence

from app.tables.base import Rows
from app.text import VERDICTS
from memcore.search.lens import STATES, Alike, LensRow, way_text
from memcore.units import bytes_text, signed_bytes, signed_seconds


def lens_groups(groups: Sequence[Alike]) -> Rows:
    """Tensors of which the same is true, as one row: what each state would change."""
    return [
        {
            "tensors": of.name,
            "at the peak": bytes_text(of.bytes),
            **{state: _moved(of.first, state) for state in STATES},
        }
        for of in groups
    ]


def _moved(seen: LensRow, state: str) -> str:
    """What the allocated peak and the step change by; of the state that it has, where it is."""
    if state == seen.state:
        return f"now, {seen.where}" if seen.where else "now"
    way = seen.best(state)
    return f"{signed_bytes(-way.freed_bytes)}, {signed_seconds(way.added_seconds)}" if way else "–"


def lens_ways(seen: LensRow) -> Rows:
    """What a tensor could be, by which change, or why not."""
    rows: Rows = []
    for state in STATES:
        if state == seen.state:
            continue
        way = seen.best(state)
        found = {
            "peak": signed_bytes(-way.freed_bytes),
            "step": signed_seconds(way.added_seconds),
            "plan": VERDICTS[way.verdict],
        } if way else dict.fromkeys(("peak", "step", "plan"), "")  # fmt: skip
        rows.append({"could be": state, **found, "by": way_text(seen, state)})
    return rows


def lens(seen: Sequence[LensRow]) -> Rows:
    """All tensors, for a file."""
    return [s.to_row() for s in seen]
