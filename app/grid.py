"""Tables: what st.dataframe shows of rows, and what a press on a cell of them does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app import tables
from app.text import times
from memcore.units import bytes_text, rate_text

HEAD, ROW = 37, 35  # pixels of a table's head, and of each row
TALL = 460  # pixels of a table, at most: of more rows some scroll
USE = "use"  # the column of a table whose rows can become the plan


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


def draw(
    rows: tables.Rows,
    key: str,
    alt: str,
    columns: Sequence[str] | None = None,
    take: Callable[[int, str], None] | None = None,
    use: Callable[[int], None] | None = None,
    usable: Sequence[bool] = (),
    height: int = TALL,
    by: Mapping[str, Column] | None = None,
) -> None:
    """The table on the page, of these columns or of all; the first names the rows. It is at most so
    many pixels high: more rows scroll.

    A press on a cell does what `take` says of its row and column. `use` is for a row that is to
    become the plan, which of them may if not all. `by`: of columns that other tables have not, how
    they are shown.
    """
    shown = [n for n in columns or (rows[0] if rows else ()) if n != tables.PATH]
    how = {name: (by or {}).get(name) or COLUMNS.get(name, PLAIN) for name in shown}
    may = [not usable or usable[i] for i in range(len(rows))]

    def pressed(row: int, column: str) -> None:
        if take and 0 <= row < len(rows) and rows[row].get(tables.PATH):
            take(row, column)

    def used() -> None:
        if use and (click := st.session_state[f"use_{key}"]):
            use(click["row"])

    config = {name: _config(name, column, not i) for i, (name, column) in enumerate(how.items())}
    if use:
        config[USE] = st.column_config.ButtonColumn(
            USE, on_click=used, key=f"use_{key}", pinned=True
        )
    presses = take and any(row.get(tables.PATH) for row in rows)
    st.dataframe(
        _styled(rows, how, may if use else None),
        key=key,
        alt=alt,
        hide_index=True,
        placeholder="",
        height=min(height, HEAD + ROW * len(rows)),
        column_config=config,
        on_select=(lambda: _take(key, pressed)) if presses else "ignore",
        selection_mode="single-cell",
    )


def _take(key: str, take: Callable[[int, str], None]) -> None:
    """Calls `take` with the row and the column of the cell that was pressed."""
    for row, column in st.session_state[key].selection.cells[:1]:
        take(int(row), str(column))


def _styled(rows: tables.Rows, how: Mapping[str, Column], may: Sequence[bool] | None) -> Any:
    """Rows as a data frame: numbers, by which it is sorted, shown in the words that stand for
    them."""
    columns: dict[str, list[Any]] = {}
    texts: dict[str, dict[Any, str]] = {}
    for name, column in how.items():
        values = _values(rows, name, column)
        words = [_text(row.get(name), column) for row in rows]
        if values is None:
            columns[name] = words
        elif column.share:
            columns[name] = values
        else:
            columns[name], texts[name] = _told_apart(values, words)
    if may is not None:
        columns[USE] = ["Use" if each else None for each in may]
    styler = pd.DataFrame(columns).style
    for name, of in texts.items():
        styler = styler.format(partial(_label, of), subset=[name])
    return styler


def _label(words: Mapping[Any, str], value: Any) -> str:
    return words.get(value, "")


def _told_apart(
    values: Sequence[float | None], words: Sequence[str]
) -> tuple[list[float | None], dict[Any, str]]:
    """Numbers with the words of each. Of two rows with one number and other words, the second's is
    larger by the last bit."""
    shown: list[float | None] = []
    texts: dict[Any, str] = {}
    for value, text in zip(values, words, strict=True):
        number = None if value is None else float(value)
        while number is not None and texts.get(number, text) != text:
            number = math.nextafter(number, math.inf)
        if number is not None:
            texts[number] = text
        shown.append(number)
    return shown, texts


def _config(name: str, column: Column, first: bool) -> Any:
    kind: Any = st.column_config.Column
    more: dict[str, Any] = {"pinned": True} if first else {}
    if column.share:
        kind, more = (
            st.column_config.ProgressColumn,
            {"format": "%.0f%%", "min_value": 0, "max_value": 100},
        )
    return kind(column.title or name, help=column.help or None, **more)


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
    match = SAID.fullmatch(value) if isinstance(value, str) else None
    return float(match[2].replace(",", "")) if match else value


def _text(value: Any, column: Column) -> str:
    if value is None or value == "":
        return ""
    if column.text and not isinstance(value, str):
        return column.text(value)
    return f"{value:,}" if isinstance(value, int) else times(str(value))
