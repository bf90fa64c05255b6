"""Tables of the page Compare: a row a field or a figure, a column a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.tables.base import PATH, Rows, breakdown, context
from app.tables.measured import moved_text
from app.text import VERDICTS
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.traced.file import MARK
from memcore.plan.models import dims_of, preset_of
from memcore.plan.plan import Plan, title_of, value_text
from memcore.report import Report
from memcore.search.compare import FIGURES, differing, figures_of
from memcore.search.measured import FIRST, LATENCIES, STEP, TOKEN, Calibrated, Moved
from memcore.search.prices import own_price
from memcore.units import relative_text
from memcore.units import value_text as figure_text


@dataclass(frozen=True, slots=True)
class Column:
    """A plan that is compared with others. `pin`: its number among the pinned, None of the page's;
    calibrated: by a measured step and by a measured server, where one says something of it."""

    name: str
    plan: Plan
    report: Report
    pin: int | None = None
    calibrated: tuple[Calibrated | None, ...] = ()

    @property
    def moved(self) -> dict[str, Moved]:
        """Its calibrated seconds."""
        return {name: one for of in self.calibrated if of for name, one in of.moved.items()}


FIELD, FIGURE = "field", "figure"  # the heads of the first column


def compared_fields(columns: Sequence[Column], alike: bool) -> Rows:
    """The fields in which plans differ, or all of them."""
    different = differing([c.plan for c in columns], alike)
    return [
        {
            FIELD: title_of(path),
            **{c.name: field_text(path, v) for c, v in zip(columns, of, strict=True)},
            "key": path,
        }
        for path, of in different.items()
        if path != "version"
    ]


def field_text(path: str, value: Any) -> str:
    """A field's value: the label of a word or of a preset; of a description the beginning."""
    if value is None:
        return "the usual"
    if path == "model":
        return model_text(value)
    if isinstance(value, str) and path == "cluster.gpu":
        return catalog.accelerator(value).label
    if isinstance(value, str) and path == "cluster.node":
        return catalog.node(value).label
    if isinstance(value, dict):
        return str(value.get("label") or json.dumps(value)[:60])
    return value_text(path, value)


def sizes_text(model: Any) -> list[str]:
    """The sizes of a traced model's dimensions: 'height 224'."""
    return [f"{name.replace('_', ' ')} {n:,}" for name, n in dims_of(model).items()]


def model_text(model: Any) -> str:
    if name := preset_of(model):
        return ", ".join((catalog.model_entry(name)["label"], *sizes_text(model)))
    if set(model) == {"size"}:
        return f"{model['size']}, a standard model"
    if MARK in model:
        return ", ".join((str(model.get("label", "a model file")), *sizes_text(model)))
    return f"a config.json ({model.get('model_type', 'unknown')})"


def compared_figures(
    columns: Sequence[Column], books: Sequence[Book], base: int, alike: bool
) -> Rows:
    """The figures side by side, each with its difference from the plan `base`: those in which the
    plans differ, or all."""
    different = []
    for path, of in figures_of([c.report for c in columns]).items():
        e = next((e for book in books if (e := book.explained(path))), None)
        if e is None or not (alike or any(v != of[0] for v in of)):
            continue
        row: dict[str, Any] = {FIGURE: _title(e.what, path)}
        for i, (c, value) in enumerate(zip(columns, of, strict=True)):
            row[c.name] = _figure(value, of[base], e.unit, i == base)
        different.append({**row, PATH: path})
    return different


def compared_listed(columns: Sequence[Column], base: int, alike: bool) -> Rows:
    """What the whole run costs at the least of the price list, of plans without a price."""
    costs = [_listed(c) for c in columns]
    if all(cost is None for cost in costs) or not (alike or any(c != costs[0] for c in costs)):
        return []
    cells = {
        c.name: _figure(cost, costs[base], "USD", i == base)
        for i, (c, cost) in enumerate(zip(columns, costs, strict=True))
    }
    return [{FIGURE: "Cost at list prices, from", **cells, PATH: ""}]


def side_by_side(columns: Sequence[Column], books: Sequence[Book]) -> Rows:
    """What differs, of fields and of figures, in one table: under '' what it is, then of each plan
    its own."""
    names = [c.name for c in columns]
    differ = [(row[FIELD], row) for row in compared_fields(columns, False)]
    measured = [*compared_figures(columns, books, 0, False), *compared_listed(columns, 0, False)]
    every = [*differ, *((row[FIGURE], row) for row in measured)]
    return [{"": what, **{name: row[name] for name in names}} for what, row in every]


def _listed(c: Column) -> float | None:
    price, _ = own_price(c.plan)
    run = c.report.run
    return price * run.gpu_hours if run and run.cost is None and price is not None else None


def compared_calibrated(columns: Sequence[Column]) -> Rows:
    """The steps as a measured one has them, and what requests feel as a measured server has it,
    where it says something of any."""
    rows: Rows = []
    for name in (STEP, FIRST, TOKEN):
        if any(name in c.moved for c in columns):
            what = f"Seconds {LATENCIES[name]}" if name in LATENCIES else "Step"
            texts = {c.name: moved_text(c.moved.get(name)) for c in columns}
            rows.append({FIGURE: f"{what}, calibrated by your run", **texts, PATH: ""})
    return rows


def _title(what: str, path: str) -> str:
    """An interval has a row for each of its ends; consumers are parts of the peak."""
    if path.startswith("memory.consumers."):
        return f"At the peak: {what[0].lower()}{what[1:]}"
    if path == "trainable_parameters":
        return "Trained parameters"
    end = {"0": ", at least", "1": ", at most"}.get(path.rpartition(".")[2], "")
    return what if "least" in what or "most" in what else f"{what}{end}"


MOST_TIMES = 100  # a number so many times another is not said as a multiple of it


def _figure(value: Any, base: Any, unit: str, is_base: bool) -> str:
    if value is None:
        return "–"
    text = figure_text(value, "" if unit == "parameters" else unit)
    if isinstance(value, str):
        text = VERDICTS.get(value, text)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, base))
    if is_base or not numbers or not base or value == base:
        return text
    change = value / base - 1
    return f"{text} ({relative_text(change)})" if 5e-4 <= abs(change) < MOST_TIMES else text


PATHS = {STEP: "time.step_seconds", FIRST: "serve.ttft_seconds", TOKEN: "serve.tpot_seconds"}


def tidy(columns: Sequence[Column], links: Sequence[str], together: str) -> Rows:
    """One value a row, of every plan: its fields that differ, its figures, and its memory from the
    consumers up to the capacity. Each row has its plan's own link; `together` is that of all."""
    plans = [c.plan for c in columns]
    rows: Rows = []
    for kind, table in (
        ("field", differing(plans)),
        ("figure", figures_of([c.report for c in columns])),
    ):
        for path, of in table.items():
            for i, value in enumerate(of):
                plain = json.dumps(value) if isinstance(value, dict) else value
                rows.append(_tidy(i, kind, path, plain, FIGURES.get(path, "")))
    for i, c in enumerate(columns):
        for name, path in PATHS.items():
            if moved := c.moved.get(name):
                row = _tidy(i, "calibrated", path, moved.calibrated_seconds, "seconds")
                low, high = moved.interval
                rows.append(row | {"low": low, "high": high})
        memory = c.report.memory
        for part in breakdown(memory) if memory else []:
            row = _tidy(i, "memory", part["part"], part["bytes"], "bytes")
            rows.append(
                row | {"low": part["low_bytes"], "high": part["high_bytes"], "part": part["kind"]}
            )
    heads = [
        {"plan": c.name} | context(c.plan, link, *c.calibrated) | {"comparison link": together}
        for c, link in zip(columns, links, strict=True)
    ]
    return [{**heads[row.pop("i")], **row} for row in rows]


def _tidy(i: int, kind: str, name: str, value: Any, unit: str) -> dict[str, Any]:
    ends = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return {
        "i": i,
        "kind": kind,
        "name": name,
        "value": value,
        "low": ends,
        "high": ends,
        "unit": unit,
        "part": "",
    }
