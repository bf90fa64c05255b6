"""Grid: a table of text that can be sorted and searched, whose numbers say why.

Drawn by a component, which changes the words in place: Streamlit's table is a canvas that the
browser makes anew at every change, which takes about as long as all else on a page of figures. Its
words can be found, copied and read aloud. Of a long table the browser makes the first rows, and
more as somebody scrolls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from app import tables
from app.text import times
from memcore.units import bytes_text, rate_text

_component = st.components.v2.component(
    "memplan_grid",
    html='<div class="memplan-grid"><div class="tools" hidden><input type="search">'
    '<span role="status"></span></div><div class="rows" role="region">'
    "<table><thead></thead><tbody></tbody></table></div></div>",
    css=Path(__file__).with_suffix(".css").read_text(encoding="utf-8"),
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is shown.

    by     under which key a row has the number that its words stand for, by which it is sorted
    text   a number in words
    share  whether its numbers are percents of a whole, which a bar shows too
    words  whether numbers in it are read as the words beside them are
    """

    title: str = ""
    help: str = ""
    by: tuple[str, ...] = ()
    text: Callable[[Any], str] | None = None
    share: bool = False
    words: bool = False


def _by(*keys: str, title: str = "", help: str = "") -> Column:
    return Column(title, help, keys)


COLUMNS: dict[str, Column] = {
    "size": _by("bytes"),
    "memory": _by("low_bytes", "bytes"),
    "device memory": _by("device_bytes"),
    "low": _by("low_bytes"),
    "high": _by("high_bytes"),
    "capacity": _by("capacity_bytes"),
    "bandwidth": _by("bandwidth_bytes_per_second"),
    "holds": _by("used_bytes"),
    "traffic per step": _by("traffic_bytes"),
    "time": _by("seconds"),
    "exposed": _by("exposed_seconds"),
    "it": Column("the training", "Whether it stays the same training."),
    "hides at": _by(
        "hides_at_bandwidth",
        title="hidden from",
        help="The bandwidth of the link from which on it is hidden.",
    ),
    "or at micro-batch": _by(
        "hides_at_micro_batch",
        title="or from micro-batch",
        help="The micro-batch from which on it is hidden.",
    ),
    "saves": _by("saved_bytes"),
    "step time": _by("added_seconds", "seconds"),
    "time per token": _by("seconds_per_token"),
    "GPU time per token": _by("price"),
    "whole run": _by("run_seconds"),
    "cost": _by("cost_usd"),
    "step": _by("step_seconds"),
    "tokens/s": _by("tokens_per_second"),
    "MFU": _by("mfu"),
    "to spare": _by("headroom_bytes"),
    "answers": Column("the answers", "Whether they stay as they are."),
    "room for": Column(help="Sequences at once, on one replica."),
    "first token": _by("ttft_seconds", "first_token_seconds"),
    "per token": _by("tpot_seconds"),
    "a token": _by("seconds_per_token"),
    "GPU time of a request": _by("gpu_seconds_per_request"),
    "against now": _by("price"),
    "FLOPs, forward": _by("forward_flops"),
    "HBM, forward": _by("forward_hbm_bytes"),
    "HBM, backward": _by("backward_hbm_bytes"),
    "adds to saved": _by("saved_bytes"),
    "theirs": _by("their_value"),
    "ours": _by("our_value"),
    "says": _by("their_bytes"),
    "Memplan": _by("our_bytes"),
    "against Memplan": _by("more than Memplan %"),
    "PyTorch's tracker": _by("tracker_bytes"),
    "bound_by": Column("bound by"),
    "bytes_each": Column("bytes each"),
    "flops": Column("FLOPs", text=lambda n: rate_text(n, "FLOP")),
    "hbm_bytes": Column("HBM traffic", text=bytes_text),
    "percent": Column("share", text="{:.0f}%".format, share=True),
    "share": Column(text="{:.0f}%".format, share=True),
    "at once": Column(text="{:.1f}".format),
    "put to use": Column(text="{:.1f}%".format),
    "error %": Column(text=lambda n: f"{n:+.1f}" if n else "0"),
    "USD a million tokens": Column("$ / M tokens", text="${:,.3f}".format),
    "USD an hour": Column("$ / hour", text="${:,.2f}".format),
    "tensor parallel": Column("TP", "Tensor parallelism: ranks that share each layer."),
    "users of one": Column("users each"),
    "tokens/s of one": Column("tokens/s each"),
}
PLAIN = Column()
ASKED = {  # columns whose words lead to the number at a row's path itself
    *("percent", "is", "here", "error %", "theirs", "ours", "says", "Memplan", "against Memplan"),
    *("FLOPs, forward", "share"),
}


def draw(
    rows: tables.Rows,
    key: str,
    alt: str,
    columns: Sequence[str] | None = None,
    take: Callable[[int, str], None] | None = None,
    use: Callable[[int], None] | None = None,
    usable: Sequence[bool] = (),
    height: int | None = None,
    press: Collection[str] = (),
    by: Mapping[str, Column] | None = None,
) -> None:
    """The table on the page, of these columns or of all; the first names the rows. It is at most so
    high: more rows scroll.

    A press on a number of a row that has a path does what `take` says of its row and column, also
    on what is in the columns of `press`. `use` is for a row that is to become the plan, which of
    them may if not all. `by`: of columns that other tables have not, how they are shown.
    """
    shown = [n for n in columns or (rows[0] if rows else ()) if n != tables.PATH]
    how = [(by or {}).get(name) or COLUMNS.get(name, PLAIN) for name in shown]
    found = [_values(rows, name, column) for name, column in zip(shown, how, strict=True)]

    def pressed() -> None:
        row, column = (st.session_state.get(key) or {}).get("cell") or (-1, 0)
        if take and 0 <= row < len(rows):
            take(row, shown[column])

    def used() -> None:
        row = (st.session_state.get(key) or {}).get("row")
        if use and row is not None and 0 <= row < len(rows):
            use(row)

    data = {
        "alt": alt,
        "columns": [c.title or name for name, c in zip(shown, how, strict=True)],
        "helps": [c.help for c in how],
        "values": found,
        "shares": [c.share for c in how],
        "presses": [
            i > 0 and (name in press or name in tables.FIELDS or name in ASKED)
            for i, name in enumerate(shown)
        ],
        "rows": [
            [_text(row.get(name), c) for name, c in zip(shown, how, strict=True)] for row in rows
        ],
        "takes": [bool(take and row.get(tables.PATH)) for row in rows],
        "uses": [bool(use) and (not usable or usable[i]) for i in range(len(rows))],
        "height": height,
    }
    _component(key=key, data=data, on_cell_change=pressed, on_row_change=used)


SAID = re.compile(r"(about )?([+-]?[\d,]+(\.\d+)?)( ?%)?")


def _values(rows: tables.Rows, name: str, column: Column) -> list[Any] | None:
    """The numbers of a column, or None where it has only words."""
    if column.words:
        return None
    for key in (*column.by, name):
        values = [_number(row.get(key)) for row in rows]
        known = [v for v in values if v not in (None, "")]
        if known and all(isinstance(v, int | float) for v in known):
            return [v if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
    return None


def _number(value: Any) -> Any:
    """What a word stands for that is a number, or percents."""
    said = SAID.fullmatch(value) if isinstance(value, str) else None
    return float(said[2].replace(",", "")) if said else value


def _text(value: Any, column: Column) -> str:
    if value is None or value == "":
        return ""
    if column.text and not isinstance(value, str):
        return column.text(value)
    return f"{value:,}" if isinstance(value, int) else times(str(value))
