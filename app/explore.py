"""Explore on a page: what is asked stands in the address, and a click on a point is that plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app import (
    charts,
    elements,
    exploring,
    given,
    grid,
    parts,
    searching,
    shared,
    state,
    tables,
    why,
)
from app.grid import Column
from app.text import counted, plain
from memcore.plan.plan import Plan
from memcore.search import explore as engine
from memcore.search.explore import FIGURES
from memcore.search.measured import with_calibrated
from memcore.search.solve import ANY, Targets
from memcore.serving.serve import servable
from memcore.training.training import not_planned
from memcore.words.jobs import SERVE

SWEEP, MAP, SEARCH, GPUS = "sweep", "map", "search", "gpus"
PARTS = {SWEEP: "One field", MAP: "Two fields", SEARCH: "Search", GPUS: "On which GPUs"}
WITHOUT_FIELDS = (SEARCH, GPUS)


@dataclass(frozen=True, slots=True)
class Question:
    """What the page shows: a part of it, a number, the field across and the field down."""

    part: str
    figure: str
    across: str
    down: str
    every: bool = False  # accelerators, or those with a list price
    search: str = ""  # searching.Options

    def text(self) -> str:
        """As the address has it."""
        shown = (self.part, self.figure, self.across, self.down, "all" * self.every, self.search)
        return "~".join(shown).rstrip("~")


def question(plan: Plan, look: str) -> Question:
    """What the address asks for; what of it this plan has not, is as it is at first."""
    part, figure, across, down, every, search = (*look.split("~"), *[""] * 6)[:6]
    figures = engine.figures(plan)
    part = part if part in parts_of(plan) else SWEEP
    if figure not in figures:
        figure = next(iter(figures))
        if part == MAP and "tokens" in figures:
            figure = "tokens"
    fields = engine.swept_fields(plan, FIGURES[figure].serves)
    first = ("serve.prompt_len", "serve.concurrency")
    asked_first = first if FIGURES[figure].serves else ("train.seq_len", "train.micro_batch")
    usual = list(dict.fromkeys(p for p in (*asked_first, *fields) if p in fields))
    across = across if across in fields else usual[0]
    down = down if down in fields and down != across else next(p for p in usual if p != across)
    return Question(part, figure, across, down, every == "all", search)


def parts_of(plan: Plan) -> tuple[str, ...]:
    """The parts of the page that a plan has."""
    has = {SEARCH: not not_planned(plan), GPUS: servable(plan.architecture)}
    return tuple(part for part in PARTS if has.get(part, True))


def about(place: str) -> str:
    """What stands above and beside a page is about: Train, Serve or RL. Of Explore and Compare
    what they show decides."""
    plan = state.plan()
    if place == "Compare":
        return "Serve" if plan.about == SERVE else "Train"
    if place != "Explore":
        return place
    if not engine.figures(plan):
        return "Train"
    now = question(plan, state.looks())
    of_server = now.part == GPUS or (now.part in (SWEEP, MAP) and FIGURES[now.figure].serves)
    return "Serve" if of_server else "Train"


def draw() -> None:
    """The page."""
    plan = state.plan()
    if not engine.figures(plan):
        parts.absent("Neither training nor serving")
        return
    if why_not := not_planned(plan):
        st.info(f"Training is not computed: {plain(why_not)}", icon=":material/info:")
    now = question(plan, state.looks())
    _choices(plan, now)
    {SWEEP: _sweep, MAP: _map, SEARCH: _search, GPUS: _gpus}[now.part](plan, now)


# --- what is chosen ------------------------------------------------------------------------------


def _set(now: Question, field: str) -> Callable[[Any], None]:
    def take(value: Any) -> None:
        if value is not None:
            state.look(replace(now, **{field: value}).text())

    return take


def _choices(plan: Plan, now: Question) -> None:
    """The part of the page, the number and the fields."""
    st.segmented_control(
        "Explore",
        parts_of(plan),
        format_func=lambda p: PARTS[p],
        key=state.control("explore_part", now.part, _part(plan, now)),
        label_visibility="collapsed",
    )
    if now.part in WITHOUT_FIELDS:
        return
    fields = engine.swept_fields(plan, FIGURES[now.figure].serves)
    columns = st.columns(3 if now.part == MAP else 2)
    with columns[0]:
        _choose("Number", list(engine.figures(plan)), "figure", now, _figure_title)
    with columns[1]:
        _choose("Against" if now.part == SWEEP else "Across", fields, "across", now,
                exploring.title)  # fmt: skip
    if now.part == MAP:
        with columns[2]:
            _choose("Down", [p for p in fields if p != now.across], "down", now, exploring.title)


def _part(plan: Plan, now: Question) -> Callable[[Any], None]:
    """Another part; a map begins with speed, since memory alone says less than what it buys."""

    def take(part: Any) -> None:
        if part is None:
            return
        figure = now.figure
        if part == MAP and figure == "device" and "tokens" in engine.figures(plan):
            figure = "tokens"
        state.look(replace(now, part=part, figure=figure).text())

    return take


def _choose(
    label: str, options: Sequence[str], field: str, now: Question, text: Callable[[str], str]
) -> None:
    st.selectbox(
        label,
        options,
        format_func=text,
        key=state.control(f"explore_{field}", getattr(now, field), _set(now, field)),
    )


def _figure_title(key: str) -> str:
    f = FIGURES[key]
    return f"{f.title} ({'serving' if f.serves else 'training'})"


def go(wanted: dict[str, Any]) -> None:
    """Make a point the plan, as any other change does, with what has to follow."""
    state.change(state.with_followers(wanted))


# --- one field -----------------------------------------------------------------------------------


def _sweep(plan: Plan, now: Question) -> None:
    swept = shared.swept(plan, now.across, now.figure)
    own = engine.here(plan, now.across)
    name = exploring.title(now.across)
    unit = plan.architecture.unit
    words = [counted(text, unit) for text in exploring.says(swept)]
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.markdown(" ".join([f"**{plain(words[0])}**", *map(plain, words[1:])]))
    if engine.is_number(now.across):
        edge = swept.edge if swept.edge is not None else own
        right.button(
            counted(f"Use {exploring.named(now.across, edge)}", unit),
            key="explore_use",
            on_click=go,
            args=(engine.changes(plan, now.across, edge),),
            help=f"The {'most' if swept.rises else 'least'} that fits becomes the plan.",
            disabled=swept.edge is None or edge == own,
            width="stretch",
        )

    def take(value: Any) -> None:
        if value != own:
            go(engine.changes(plan, now.across, value))

    if any(s.plan and s.value is not None for s in swept.spots):
        parts.chart(
            charts.swept(swept, own),
            key="explore_swept",
            alt=f"{swept.figure.title} against {name}. {' '.join(words)}",
            take=take,
        )
        elements.caption("swept")
    rows = tables.swept(swept)

    columns = [name, *([] if swept.figure.parts else [swept.figure.title]), *tables.SWEPT_COLUMNS]
    if not any(row["remark"] for row in rows):
        columns.remove("remark")
    if swept.figure.serves:
        columns.remove("peak at")
    _table(
        rows,
        columns,
        "explore_table",
        f"{swept.figure.title} for each value of {name}",
        plans=[s.plan for s in swept.spots],
        use=lambda row: take(swept.spots[row].value_at),
        by={name: Column(by=("to",)), swept.figure.title: Column(by=("value",))},
    )
    elements.file("swept", rows)


def _table(
    rows: tables.Rows,
    columns: Sequence[str],
    key: str,
    alt: str,
    plans: Sequence[Plan | None],
    use: Callable[[int], None],
    height: int = 420,
    by: Mapping[str, Column] | None = None,
) -> None:
    """Rows that can be made the plan, with numbers that explain themselves."""

    def clicked(row: int, column: str) -> None:
        path, of = rows[row][tables.PATH], plans[row]
        if of:
            why.opened(_path(column, path, of), of)

    usable = [plan is not None for plan in plans]
    grid.draw(rows, key, alt, columns, clicked, use, usable, height, by)


OF_COLUMN = {  # which number a column of these tables shows, beside the one that was asked for
    "verdict": "memory.fits",
    "memory": "memory.device_bytes",
    "peak at": "memory.peak.instant",
    "replicas": "serve.replicas",
    "users of one": "serve.running",
    "tokens/s of one": "serve.tokens_per_second",
    "first token": "serve.ttft_seconds",
    "per token": "serve.tpot_seconds",
}


def _path(column: str, path: str, of: Plan) -> str:
    """Where the number in a cell is in the Report of its plan."""
    found = OF_COLUMN.get(column, path)
    if path.startswith("serve."):
        found = {"verdict": "serve.fits", "memory": "serve.asked_bytes"}.get(column, found)
    return found if shared.book(of).explained(found) else path


# --- two fields ----------------------------------------------------------------------------------


def _map(plan: Plan, now: Question) -> None:
    cells = shared.mapped(plan, now.across, now.down, now.figure)
    own = (engine.here(plan, now.across), engine.here(plan, now.down))

    def take(cell: int) -> None:
        row, column = divmod(cell, len(cells.columns))
        if 0 <= row < len(cells.rows):
            go(
                engine.changes(plan, now.down, cells.rows[row])
                | engine.changes(plan, now.across, cells.columns[column])
            )

    parts.chart(
        charts.mapped(cells, own),
        key="explore_map",
        alt=f"{cells.figure.title} by {exploring.title(cells.down)} and "
        f"{exploring.title(cells.across)}, with the frontier of what fits",
        take=take,
    )
    elements.caption("mapped")
    elements.file("mapped", lambda: tables.mapped(cells))


# --- search --------------------------------------------------------------------------------------


def _search(plan: Plan, now: Question) -> None:
    searching.draw(plan, now.search, lambda text: state.look(replace(now, search=text).text()))


# --- on which GPUs -------------------------------------------------------------------------------


def _gpus(plan: Plan, now: Question) -> None:
    parts.latency_targets()
    st.segmented_control(
        "Accelerators",
        (False, True),
        format_func=lambda every: "All" if every else "With a list price",
        key=state.control("explore_every", now.every, _set(now, "every")),
        label_visibility="collapsed",
    )
    answer, by = shared.servers(plan, now.every), given.predicted_server()
    best, s = (with_calibrated(answer, by) if by else answer).best, plan.serve
    lengths = f"{s.prompt_len:,} prompt and {s.output_len:,} output tokens"
    text = f"{s.concurrency:,} users at once of {lengths}"
    if best:
        tried = len(exploring.accelerators(now.every))
        first = "Cheapest" if "cost_per_hour" in best[0].figures else "First"
        st.markdown(
            f"**{plain(text)}: {len(best)} of {tried} accelerators serve them.** "
            f"{first}: {plain(tables.server_text_of(best[0]))}. Of the others no node has the "
            f"memory{', or they miss the latency targets' if Targets.of(plan) != ANY else ''}: "
            "*Pipeline parallel, serving* spreads a replica over several."
        )
    else:
        st.markdown(f"**{plain(text)}: nothing with up to 64 ranks in one node serves them.**")
        if answer.nearest:
            point, misses = answer.nearest
            parts.small(f"The nearest: {plain(tables.server_text_of(point))}. There {misses}.")
    rows = tables.servers(best, bool(by))
    if by:
        elements.caption("ranks_predicted")
    _table(
        rows,
        elements.columns("servers", rows) or (),
        "explore_gpus",
        "What serves the plan, accelerator by accelerator",
        plans=[p.plan for p in best],
        use=lambda row: state.replace(best[row].plan),
        height=620,
    )
    elements.caption("gpus")
    elements.file("servers", rows)
