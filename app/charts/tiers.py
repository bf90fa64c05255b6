"""The picture of tiers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import Mark, Series, Trace, bars, figure, literal, note, points
from app.tables.base import PATH
from memcore.report import Memory
from memcore.units import bytes_text

# From the fastest tier at the top to the slowest: which other its link leads to, and where its box
# begins: those beside the others a little to the right. l2 stands for all that is on the chip.
INSET = 0.2
ROWS = (
    ("l2", "", 0.0),
    ("hbm", "l2", 0.0),
    ("peers", "hbm", INSET),
    ("dram", "hbm", 0.0),
    ("network", "dram", INSET),
    ("nvme", "dram", 0.0),
)
EDGE = 0.1  # from a box's left end to its link
BOX, WORDS = 0.46, 0.18  # heights of a box and of a line of words, in heights of a row
LETTERS = 40  # that have room in a line of a box, on a phone
FULL = 0.01  # a box of which less than this share is used says in words what lives there
OVERHEAD = Series(*palette.OVERHEAD)
GREY = palette.OVERHEAD[1]


def tiers(
    rows: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]], memory: Memory | None
) -> go.Figure:
    """What lives in each tier, as a share of what it can hold, and what crosses each link in a
    step. `rows` of tables.tiers, `held` of tables.in_tiers."""
    by_name = {row[PATH].removeprefix("tiers."): row for row in rows}
    heights = {name: len(ROWS) - i for i, (name, _, _) in enumerate(ROWS)}
    overhead = memory.device_bytes[0] - memory.allocated_bytes if memory else 0
    shares = dict.fromkeys(heights, 0.0)
    shares["hbm"] = more = overhead / memory.capacity_bytes if memory else 0.0
    for h in held:
        shares[h["tier"]] += h["share"]
    # A box is as wide as what its tier can hold; of one that is too full, a line says how much.
    widths = {name: max(1.0, share) for name, share in shares.items()}
    marks = [
        Mark(
            heights[h["tier"]],
            Series(title, colour),
            h["share"] / widths[h["tier"]],
            f"{title}: {h['size']} ({h['share']:.1%})",
            h[PATH],
        )
        for name, (title, colour) in palette.CONSUMERS.items()
        for h in held
        if h["consumer"] == name
    ]
    text = f"{OVERHEAD.name} {bytes_text(overhead)}"
    share = more / widths["hbm"]
    marks.append(Mark(heights["hbm"], OVERHEAD, share, text, "memory.overhead_bytes.0"))
    shapes, notes, links = [], [], []
    for name, upper, left in ROWS:
        row, y = by_name["l1" if name == "l2" else name], heights[name]
        top, bottom = y + BOX / 2, y - BOX / 2
        shapes.append(_shape("rect", left, 1, bottom, top))
        title = _on_chip(row, by_name["l2"]) if name == "l2" else _tier_text(row)
        notes.append(note(title, left, top, "left", "bottom", align="left"))
        if shares[name] < FULL:
            lines = textwrap.wrap(row["what lives there"], LETTERS, max_lines=2, placeholder=" …")
            words = "<br>".join(map(literal, lines))
            notes.append(note(words, left + 0.012, y, "left", align="left"))
        if widths[name] > 1:
            end, low = 1 / widths[name], y - 0.6 * BOX
            shapes.append(_shape("line", end, end, low, top, palette.CAPACITY))
            font = {"color": palette.CAPACITY}
            notes.append(note("capacity", end, low, "center", "top", font=font))
        if upper:  # its link ends above the words on the box, which it would run through
            x = left + (2 if left else 1) * EDGE
            words_at = top + 2 * WORDS
            shapes.append(_shape("line", x, x, heights[upper] - BOX / 2, top + WORDS))
            notes.append(note(_crossing(row), x + 0.03, words_at, "left"))
            end_of = "traffic" if row["traffic_bytes"] else "bandwidth"
            links.append((x, words_at, _crossing(row), f"{row[PATH]}.{end_of}"))
    diamond = {"symbol": "diamond"}
    return figure(
        [*bars(marks, width=BOX), points("Traffic in a step", links, GREY, marker=diamond)],
        height=680,
        xaxis={"range": [-0.02, 1.02], "visible": False},
        yaxis={"range": [0.6, len(ROWS) + 0.55], "visible": False},
        shapes=shapes,
        annotations=notes,
    )


def _shape(kind: str, x0: float, x1: float, y0: float, y1: float, colour: str = GREY) -> Trace:
    line = {"color": colour, "width": 2}
    return {"type": kind, "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line}


def _on_chip(l1: dict[str, Any], l2: dict[str, Any]) -> str:
    return f"<b>On the chip</b>  L1 {l1['capacity']}, L2 {l2['capacity']} per GPU"


def _tier_text(row: dict[str, Any]) -> str:
    """A tier's name and what of it is used."""
    name = f"<b>{literal(row['tier'])}</b>"
    size, used = row["capacity_bytes"], row["used_bytes"]
    if not size:
        return name
    if not used:
        return f"{name}  {bytes_text(size)}"
    share = f"{used / size:.0%}" if used > size / 100 else "under 1%"
    text = f"{name}  {bytes_text(used)}, {share} of {bytes_text(size)} {row['per']}"
    return f"{text}, <b>too much</b>" if used > size else text


def _crossing(row: dict[str, Any]) -> str:
    """What crosses a link in a step, and how fast the link is."""
    traffic = row["traffic_bytes"]
    if not traffic:
        return f"idle, {row['bandwidth']}"
    return f"{bytes_text(traffic)} a step ({row['bandwidth']})"
