"""What a notebook shows of a Plan and of a Report: HTML without scripts, in the notebook's own text
colour and background, light or dark. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from memcore.units import bytes_text

# Okabe and Ito's colours, one a part in its order; they stay apart without colour vision.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00")
OVERHEAD = "#8A8F98"
VERDICTS = {"fits": "#0a6b3d", "tight": "#8a5200", "over": "#b3261e"}  # behind white letters
CELL = "padding:.1em 1em .1em 0;border:0;background:none;color:inherit"


def document(*blocks: str) -> str:
    inner = "".join(blocks)
    return f'<div style="font-family:system-ui,sans-serif;max-width:44em">{inner}</div>'


def heading(text: str) -> str:
    return f'<p style="margin:.4em 0;font-weight:600">{escape(text)}</p>'


def notes(texts: Iterable[str]) -> str:
    """Sentences that are shown when they are asked for."""
    items = "".join(f"<li>{escape(each)}</li>" for each in texts)
    return f"<details><summary>Notes</summary><ul>{items}</ul></details>" if items else ""


def table(rows: Iterable[tuple[str, ...]], keys: Iterable[str] = ()) -> str:
    """Rows of cells: words in the first to the left, all others to the right. `keys` are the
    colours that stand before the first of their rows."""
    lines = []
    colours = iter(keys)
    for first, *others in rows:
        colour = next(colours, "")
        square = f"width:.8em;height:.8em;margin-right:.5em;background:{colour}"
        key = f'<span style="display:inline-block;{square}"></span>' if colour else ""
        cells = [f'<td style="{CELL};text-align:left">{key}{escape(first)}</td>']
        cells += [f'<td style="{CELL};text-align:right">{escape(each)}</td>' for each in others]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    style = "border-collapse:collapse;color:inherit;margin:.4em 0"
    return f'<table style="{style}">{"".join(lines)}</table>'


def memory(
    what: str,
    verdict: str,
    parts: Mapping[str, int],
    device: tuple[int, int],
    capacity: int,
    figures: Mapping[str, str],
) -> str:
    """The memory of one GPU in bytes: its verdict, a bar of its parts against the capacity, and a
    table of them. `device` is what the GPU holds at least and at most; what is in no part is
    overhead. `figures` end the table."""
    held = {name.replace("_", " "): size for name, size in parts.items() if size}
    if (rest := device[0] - sum(held.values())) > 0:
        held["overhead, at least"] = rest
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(held))]
    if rest > 0:
        colours[-1] = OVERHEAD
    whole = max(capacity, device[1], 1)
    pieces = "".join(
        f'<div title="{escape(f"{name}: {bytes_text(size)}")}" '
        f'style="width:{size / whole:.2%};background:{colour}"></div>'
        for (name, size), colour in zip(held.items(), colours, strict=True)
    )
    spread = f"width:{max(0, device[1] - device[0]) / whole:.2%};background:#8a8f9880"
    line = f"left:{capacity / whole:.2%};border-left:2px dashed #e5484d"
    bar = (
        f'<div role="img" aria-label="{escape(f"{what}: memory of one GPU by its parts")}" style="'
        'position:relative;display:flex;height:1.4em;background:#8a8f9833">'
        f'{pieces}<div title="at most" style="{spread}"></div>'
        f'<div style="position:absolute;top:0;bottom:0;{line}"></div></div>'
    )
    sizes = dict.fromkeys(map(bytes_text, device))  # one where both are the same
    badge = f"background:{VERDICTS[verdict]};color:#fff;padding:.1em .5em;border-radius:.3em"
    says = f"{escape(' to '.join(sizes))} of {escape(bytes_text(capacity))} on each GPU"
    rows = [
        (name, bytes_text(size), f"{size / max(capacity, 1):.1%}") for name, size in held.items()
    ]
    rows += [(name, text, "") for name, text in figures.items()]
    return (
        f'<p style="margin:.4em 0">{escape(what)} '
        f'<b style="{badge}">{escape(verdict.upper())}</b> {says}</p>{bar}{table(rows, colours)}'
    )
