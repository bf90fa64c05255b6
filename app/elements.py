"""Elements: charts, tables and captions on a page, as presets/pages.toml declares them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from app import parts, tables
from memcore.explain.book import Book
from memcore.shipped import PRESETS

PAGES = tomllib.loads(PRESETS.joinpath("pages.toml").read_text(encoding="utf-8"))


def text(name: str, **words: Any) -> str:
    """A text of the pages, with words of this plan in it."""
    shown: str = PAGES["texts"][name]
    return shown.format(**words) if words else shown


def caption(name: str, **words: Any) -> None:
    """A text of the pages as small print."""
    parts.small(text(name, **words))


def chart(name: str, figure: go.Figure, **more: Any) -> None:
    """A chart with the words that stand for it where it is not seen."""
    parts.chart(figure, key=name, alt=PAGES["charts"][name], **more)


def table(name: str, rows: tables.Rows, **more: Any) -> None:
    """A table with its columns, and below it its rows as a file, where it has one."""
    of = PAGES["tables"][name]
    shown = {"key": name, "alt": of["alt"], "columns": columns(name, rows)}
    shown |= {"height": of["height"]} if "height" in of else {}
    parts.table(rows, **shown | more)
    if "file" in of:
        file(name, rows)


def columns(name: str, rows: tables.Rows) -> list[str] | None:
    """A table's columns, without those that no row has."""
    every: list[str] | None = PAGES["tables"][name].get("columns")
    return every and [column for column in every if any(column in row for row in rows)]


def figures(book: Book, name: str) -> tables.Rows:
    """The numbers of a list, as their explanations have them."""
    return tables.figures(book, PAGES["figures"][name])


def file(name: str, rows: tables.Rows | Callable[[], tables.Rows]) -> None:
    """Rows as a file; where they are about Memplan itself, they are of no plan."""
    of = PAGES["tables"][name]
    parts.download(f"{of['label']} (CSV)", rows, of["file"], of.get("of_plan", True))
