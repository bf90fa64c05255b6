"""The picture of tiers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts.base import Trace, bar, figure, scatter
from app.charts.time import literal
from app.tables.base import PATH
from memcore.report import Memory
from memcore.units import bytes_text

# The picture of the hierarchy: from the fastest tier at the top to the slowest at the bottom, those
# beside a little to the right. Each box is as wide as what its tier can hold.
BOXES = ("l2", "hbm", "dram", "nvme")  # l2 stands for all that is on the chip
BESIDE = {"peers": "hbm", "network": "dram"}
BETWEEN = (("l2", "hbm", "hbm"), ("hbm", "dram", "dram"), ("dram", "nvme", "nvme"))
COLUMN = ("l2", "hbm", "peers", "dram", "network", "nvme")
WORDS = 0.18  # height of a line of words, in heights of a row
INSET, EDGE = 0.2, 0.1  # left ends of the boxes beside, and of the links, in widths of a box
BOX = 0.46  # height of a box
LETTERS = 40  # that have room in a line of a box, on a phone
FULL = 0.01  # a box of which less than this share is used says in words what lives there


def tiers(
    rows: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]], memory: Memory | None
) -> go.Figure:
    """What lives in each tier, as a share of what it can hold, and what crosses each link in a
    step. `rows` of tables.tiers, `held` of tables.in_tiers."""
    by_name = {row[PATH].removeprefix("tiers."): row for row in rows}
    heights = {name: len(COLUMN) - i for i, name in enumerate(COLUMN)}
    traces, shapes, notes = _boxes(by_name, held, memory, heights)
    links = []
    for name in BESIDE:
        shapes.append(_box(INSET, 1, heights[name]))
        notes.append(_inside(by_name[name], INSET, heights[name]))
        notes.append(
            _note(_tier_text(by_name[name]), INSET, heights[name] + BOX / 2, "left", "bottom")
        )
    near = [(upper, lower, of, EDGE) for upper, lower, of in BETWEEN]
    near += [(upper, name, name, 2 * INSET) for name, upper in BESIDE.items()]
    for upper, lower, of, x in near:
        # It ends above the words on top of the lower box, which it would run through.
        top, bottom = heights[upper] - BOX / 2, heights[lower] + BOX / 2 + WORDS
        shapes.append(_line(x, x, top, bottom))
        beside = lower in BESIDE
        at = heights[upper if beside or heights[upper] - heights[lower] == 1 else lower]
        y = at - BOX / 2 - 0.14 if at == heights[upper] else at + BOX / 2 + 0.4
        notes.append(_note(_crossing(by_name[of]), x + 0.03, y, "left", "middle"))
        links.append((x, y, by_name[of]))
    return figure(
        [*traces, _links(links)],
        height=680,
        xaxis={"range": [-0.02, 1.02], "visible": False},
        yaxis={"range": [0.6, len(COLUMN) + 0.55], "visible": False},
        shapes=shapes,
        annotations=notes,
    )


def _boxes(
    by_name: Mapping[str, dict[str, Any]],
    held: Sequence[dict[str, Any]],
    memory: Memory | None,
    heights: Mapping[str, int],
) -> tuple[list[Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The tiers that hold something, at their heights, with what is in each: traces, outlines and
    words."""
    full: dict[str, float] = dict.fromkeys(("hbm", "dram", "nvme"), 0.0)
    for h in held:
        full[h["tier"]] += h["share"]
    overhead = memory.device_bytes[0] - memory.allocated_bytes if memory else 0
    more = overhead / memory.capacity_bytes if memory else 0.0
    full["hbm"] += more
    # A box is as wide as what its tier can hold; of one that is too full, a line says how much.
    widths = {name: max(1.0, share) for name, share in full.items()}
    traces: list[Any] = [
        bar(
            title,
            colour,
            [h["share"] / widths[h["tier"]] for h in mine],
            [heights[h["tier"]] for h in mine],  # type: ignore[misc]
            [f"{title}: {h['size']} ({h['share']:.1%})" for h in mine],
            [h[PATH] for h in mine],
            width=BOX,
        )
        for name, (title, colour) in palette.CONSUMERS.items()
        if (mine := [h for h in held if h["consumer"] == name])
    ]
    if memory:
        title, colour = palette.OVERHEAD
        text = f"{title} {bytes_text(overhead)}"
        at = [heights["hbm"]]
        more_path = ["memory.overhead_bytes.0"]
        traces.append(bar(title, colour, [more / widths["hbm"]], at, [text], more_path, width=BOX))  # type: ignore[arg-type]
    shapes, notes = [], []
    for name in BOXES:
        y = heights[name]
        shapes.append(_box(0, 1, y))
        if widths.get(name, 1.0) > 1:
            end = 1 / widths[name]
            shapes.append(_line(end, end, y - 0.6 * BOX, y + BOX / 2, palette.CAPACITY))
            notes.append(_note("capacity", end, y - 0.6 * BOX, "center", "top", palette.CAPACITY))
        text = _on_chip(by_name) if name == "l2" else _tier_text(by_name[name])
        notes.append(_note(text, 0, y + BOX / 2, "left", "bottom"))
        if full.get(name, 0.0) < FULL:
            row = by_name["l1" if name == "l2" else name]
            notes.append(_inside(row, 0, y))
    return traces, shapes, notes


def _links(links: Sequence[tuple[float, float, dict[str, Any]]]) -> Trace:
    """A mark on each link, which a click explains: its traffic, or its rate where nothing goes."""
    ends = [f"{r[PATH]}.{'traffic' if r['traffic_bytes'] else 'bandwidth'}" for *_, r in links]
    return scatter(
        name="Traffic in a step",
        x=[x for x, *_ in links],
        y=[y for _, y, _ in links],
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": palette.OVERHEAD[1], "opacity": 1},
        customdata=list(zip([_crossing(r) for *_, r in links], ends, strict=True)),
        hovertemplate="%{customdata[0]}<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )


def _box(x0: float, x1: float, y: float) -> dict[str, Any]:
    """The outline of a tier."""
    line = {"color": palette.OVERHEAD[1], "width": 1.5}
    return {"type": "rect", "line": line, "x0": x0, "x1": x1, "y0": y - BOX / 2, "y1": y + BOX / 2}


def _line(
    x0: float, x1: float, y0: float, y1: float, colour: str = palette.OVERHEAD[1]
) -> dict[str, Any]:
    line = {"color": colour, "width": 2}
    return {"type": "line", "x0": x0, "x1": x1, "y0": y0, "y1": y1, "line": line}


def _note(
    text: str, x: float, y: float, xanchor: str, yanchor: str, colour: str = ""
) -> dict[str, Any]:
    place = {"x": x, "y": y, "xanchor": xanchor, "yanchor": yanchor}
    font = {"size": 13, **({"color": colour} if colour else {})}
    return {"text": text, "showarrow": False, "align": "left", "font": font, **place}


def _inside(row: dict[str, Any], x: float, y: float) -> dict[str, Any]:
    """What lives in a box, in words, on two lines at most."""
    lines = textwrap.wrap(row["what lives there"], LETTERS, max_lines=2, placeholder=" …")
    return _note("<br>".join(map(literal, lines)), x + 0.012, y, "left", "middle")


def _on_chip(rows: Mapping[str, dict[str, Any]]) -> str:
    return f"<b>On the chip</b>  L1 {rows['l1']['capacity']}, L2 {rows['l2']['capacity']} per GPU"


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
