"""SVG: the parts of a page that are no Plotly charts, as pictures for a file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from app.bar import Bar

WIDTH, LINE = 900, 22
FONT = "font-family='sans-serif' font-size='13'"
INK, TRACK, LIMIT = "#1b1c1e", "#e6e8eb", "#c62a2f"


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='{INK}' {FONT} {more}>{escape(words)}</text>"


def _box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' "
        f"fill='{fill}' {more}/>"
    )


def _file(height: float, parts: Sequence[str]) -> str:
    hatch = (
        "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='6' height='6' fill='#ffffff'/>"
        f"<rect width='2' height='6' fill='{INK}' fill-opacity='0.6'/></pattern></defs>"
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height:.0f}' "
        f"viewBox='0 0 {WIDTH} {height:.0f}'>{hatch}{_box(0, 0, WIDTH, height, '#ffffff')}"
        f"{''.join(parts)}</svg>"
    )


def memory_bar(bar: Bar, title: str) -> str:
    """The bar of a plan's memory, with its legend."""
    data, inner = bar.data(), WIDTH - 40
    drawn = [_text(20, 28, title, "font-weight='bold'"), _box(20, 42, inner, 28, TRACK)]
    at = 20.0
    for part in data["parts"]:
        width = inner * part["share"] / 100
        fill = "url(#hatch)" if part["hatched"] else part["colour"]
        drawn.append(_box(at, 42, width, 28, fill))
        at += width
    limit = 20 + inner * data["limit"] / 100
    drawn.append(
        f"<line x1='{limit:.1f}' x2='{limit:.1f}' y1='38' y2='74' stroke='{LIMIT}' "
        "stroke-width='2' stroke-dasharray='5 3'/>"
    )
    said = [
        *((f"{p['name']} {p['text']}", p["colour"], p["hatched"]) for p in data["parts"]),
        (data["limit_text"], LIMIT, False),
    ]
    x, y = 20.0, 96.0
    for words, colour, hatched in said:
        width = 30 + 7.4 * len(words)
        if x + width > WIDTH - 20:
            x, y = 20.0, y + LINE
        drawn.append(_box(x, y - 10, 12, 12, "url(#hatch)" if hatched else colour))
        drawn.append(_text(x + 18, y, words))
        x += width
    return _file(y + 18, drawn)


def heat_map(data: dict[str, Any], title: str) -> str:
    """The cells of a heat map, as its component has them."""
    columns, rows = data["columns"], data["rows"]
    left = 30 + 7.4 * max(map(len, (*rows, data["down"])))
    cell, top = (WIDTH - left - 20) / len(columns), 84.0
    drawn = [
        _text(20, 28, title, "font-weight='bold'"),
        _text(20, 50, f"{data['title']}; down: {data['down']}, across: {data['across']}"),
    ]
    middle = "text-anchor='middle'"
    drawn += [
        _text(left + cell * (i + 0.5), top - 8, words, middle) for i, words in enumerate(columns)
    ]
    for i, words in enumerate(rows):
        drawn.append(_text(20, top + LINE * (i + 0.7), words))
    for i, each in enumerate(data["cells"]):
        row, column = divmod(i, len(columns))
        x, y = left + cell * column, top + LINE * row
        own = "stroke='#000000' stroke-width='2'" if each["own"] else "stroke='#ffffff'"
        drawn.append(_box(x, y, cell, LINE, each["colour"] or TRACK, own))
        if each["verdict"] == "over":
            drawn.append(_box(x, y, cell, LINE, "url(#hatch)", "fill-opacity='0.35'"))
        ink = each["ink"] or INK
        drawn.append(
            f"<text x='{x + cell / 2:.1f}' y='{y + 15:.1f}' fill='{ink}' font-family='sans-serif' "
            f"font-size='11' {middle}>{escape(each['text'])}</text>"
        )
        for there, x2, y2, x1, y1 in (
            (each["right"], x + cell, y + LINE, x + cell, y),
            (each["below"], x + cell, y + LINE, x, y + LINE),
        ):
            if there:
                drawn.append(
                    f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' "
                    f"stroke='{LIMIT}' stroke-width='3'/>"
                )
    y = top + LINE * len(rows) + 24
    drawn.append(_text(20, y, "Hatched: does not fit. Red line: frontier of what fits."))
    return _file(y + 16, drawn)
