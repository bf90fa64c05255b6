"""Grid: a small table of text, whose cells say why.

Drawn by a component, which changes the words in place: Streamlit's table is a canvas that the
browser makes anew at every change, which takes about as long as all else on a page of figures. Its
words can be found, copied and read aloud; it has as few rows as one reads from top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from app import tables, why

_component = st.components.v2.component(
    "memplan_grid",
    html='<div class="memplan-grid" role="region" tabindex="0">'
    "<table><thead></thead><tbody></tbody></table></div>",
    css=Path(__file__).with_suffix(".css").read_text(encoding="utf-8"),
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


def draw(
    rows: tables.Rows,
    key: str,
    alt: str,
    columns: Sequence[str],
    take: Callable[[int, str], None] | None = None,
    mute: Sequence[str] = (),
) -> None:
    """The table on the page, of these columns; the first names the rows. A press on a cell of a row
    that has a path says why the number there is what it is, or does what `take` says of its row and
    column; cells of `mute` columns cannot be pressed."""

    def pressed() -> None:
        row, column = (st.session_state.get(key) or {}).get("cell") or (-1, 0)
        if not 0 <= row < len(rows):
            return
        if take:
            take(row, columns[column])
        else:
            why.of_row(rows[row][tables.PATH], columns[column])

    data = {
        "alt": alt,
        "columns": columns,
        "numbers": [bool(rows) and isinstance(rows[0].get(name), int) for name in columns],
        "presses": [i > 0 and name not in mute for i, name in enumerate(columns)],
        "rows": [[_text(row.get(name, "")) for name in columns] for row in rows],
        "takes": [bool(row.get(tables.PATH)) for row in rows],
    }
    _component(key=key, data=data, on_cell_change=pressed)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
