"""Searching on a page: of all ways to do the training, those that fit; a row or a point is a plan.

A search takes seconds, so somebody asks for it with a button. What it found stays on the page while
the plan goes through it; it says of which plan it was asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app import charts, parts, shared, state, tables, why
from app.text import plain
from memcore import PlanError
from memcore.plan.plan import Plan
from memcore.search.change import differences
from memcore.search.result import BY, Point, SearchResult
from memcore.search.search import search
from memcore.search.space import KEEPS
from memcore.training.training import not_planned
from memcore.units import seconds_text

KEEP_TITLES = {"training": "Nothing", "rounding": "Rounding", "anything": "Anything"}
BY_TITLES = {"time": "Time", "cost": "Cost", "energy": "Energy"}
SHOWN_EACH = 0.2  # seconds between two steps of the progress bar
ABOUT = (
    "Parallelism, ZeRO, framework, kernels, recomputation, offload and micro-batch. A change of "
    "the plan meanwhile stops it."
)
ONE = threading.Lock()  # a search takes a whole processor: of all sessions one at a time


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched: as an address has it, 'training.time.32'."""

    keep: str = "training"
    by: str = "time"
    gpus: int = 8

    def text(self) -> str:
        return f"{self.keep}.{self.by}.{self.gpus}"


def options(plan: Plan, text: str) -> Options:
    """Those of an address; what is none is as at first."""
    keep, by, gpus = (*text.split("."), *[""] * 3)[:3]
    whole = gpus.isascii() and gpus.isdecimal() and len(gpus) < 8 and int(gpus) > 0
    return Options(
        keep if keep in KEEPS else "training",
        by if by in BY else "time",
        int(gpus) if whole else plan.cluster.gpus,
    )


def draw(plan: Plan, text: str, look: Callable[[str], None]) -> None:
    """The choices, the button, and what was found last."""
    if not_planned(plan):
        parts.absent("A search for training")
        return
    now = options(plan, text)
    _choices(now, look)
    found = st.session_state.get("searched")
    asked = (plan, now)
    is_new = found is None or found[0] != asked
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(
            "Search", key="search_go", type="primary", disabled=not is_new, width="content"
        )
        parts.small(ABOUT if is_new else "This is what was found.", "content")
    bar = st.container()
    if pressed:
        with bar:
            found = _searched(plan, now)
        if found:
            st.session_state.searched = found
            st.rerun()
    if found:
        (start, given), answer = found
        if (start, given) != (plan, now):
            at = f"{start.architecture.label} on {start.cluster.gpus:,} × {start.accelerator.label}"
            parts.small(f"Found from {plain(at)}; the plan on the page has moved since.")
        _show(answer, plan)


def _choices(now: Options, look: Callable[[str], None]) -> None:
    def take(field: str) -> Callable[[Any], None]:
        def chosen(value: Any) -> None:
            if value is not None:
                values = {"keep": now.keep, "by": now.by, "gpus": now.gpus, field: value}
                look(Options(**values).text())

        return chosen

    with st.container(horizontal=True, vertical_alignment="top"):
        st.segmented_control(
            "What of the training may change",
            tuple(KEEPS),
            format_func=lambda k: KEEP_TITLES[k],
            key=state.control("search_keep", now.keep, take("keep")),
            help="\n".join(f"- **{KEEP_TITLES[k]}**: {text}" for k, text in KEEPS.items()),
        )
        st.segmented_control(
            "Best by",
            BY,
            format_func=lambda b: BY_TITLES[b],
            key=state.control("search_by", now.by, take("by")),
            help="The least time, cost or energy of the whole run.",
        )
        st.number_input(
            "GPUs at most",
            min_value=1,
            max_value=1_000_000,
            value=None,  # cleared, it shows again what it had
            key=state.control("search_gpus", now.gpus, take("gpus")),
            width=150,
        )


def _searched(plan: Plan, now: Options) -> Any:
    """What is found, with a bar that shows how far it is; None where it cannot be searched."""
    shown = st.progress(0.0, "Searching")
    last = [0.0]

    def progress(done: int, of: int) -> None:
        if time.monotonic() - last[0] > SHOWN_EACH:
            last[0] = time.monotonic()
            shown.progress(done / max(of, 1), f"Searching: {done:,} of {of:,} groups of plans")

    while not ONE.acquire(timeout=SHOWN_EACH):
        shown.progress(0.0, "Somebody else searches; this one is next")
    try:
        answer = search(plan, gpus_at_most=now.gpus, keep=now.keep, by=now.by, progress=progress)
    except PlanError as e:
        st.error(plain(e.issues[0].message), icon=":material/block:")
        return None
    finally:
        ONE.release()
        shown.empty()
    return (plan, now), answer


# --- what was found ------------------------------------------------------------------------------


def _show(results: SearchResult, plan: Plan) -> None:
    st.markdown(
        f"**{results.fits:,} of {results.evaluated:,} combinations fit and may be the best.**"
    )
    if not results.best:
        _excluded(results)
        parts.small(
            "Stopped before anything was found that fits."
            if results.stopped
            else "Nothing fits. More GPUs, another GPU, or more that may change, might."
        )
        return
    every = results.points
    rows = tables.search_results(every, plan)
    first = rows[0]
    gpus = f"{first['GPUs']:,} GPU{'s' * (first['GPUs'] > 1)}"
    here = shared.report(plan).time
    now = f" ({seconds_text(here.step_seconds)} now)" if here else ""
    best = every[0][0].plan
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**The best: {first['step']} a step{now} on {gpus}, {first['to spare']} to spare.** "
            f"It changes: {plain(first['changes'])}."
        )
        if best != state.plan():
            st.button("Use the best", key="use_best", on_click=state.replace, args=(best,))
    parts.chart(
        charts.search_results(results, plan),
        key="search_front",
        alt="Time of the whole run against GPUs of what was found, with what nothing beats",
        take=lambda i: state.replace(every[i][0].plan),
    )
    _table(_against_best(rows, every), every)
    apart = results.apart
    told = f"Of one rank are those that differ by less than {apart.words}. " if apart else ""
    parts.small(
        "Rows marked *front* are beaten by nothing in GPUs, time and cost. "
        f"{told}*Use* or a click on a point makes it the plan; click a number to see why."
    )
    parts.download("Search (CSV)", rows, "memplan-search.csv")
    if results.why:
        parts.folded("Why the best one wins", _wins, results)
    if results.excluded:
        parts.folded("Why the others do not", _excluded, results)


def _against_best(rows: tables.Rows, every: list[tuple[Point, bool]]) -> tables.Rows:
    """The rows as the page shows them: what is nearly the best says in what it differs from it."""
    best = every[0][0].plan
    shown = []
    for row, (point, _) in zip(rows, every, strict=True):
        apart = differences(best, point.plan)
        text = row["changes"]
        if point.plan == best and point.changes:
            text = "as said above"
        elif len(apart) < len(point.changes):
            text = f"as the best, but {tables.changes(apart, point)}"
        shown.append(row | {"changes": text})
    return shown


def _excluded(results: SearchResult) -> None:
    """What is not among them, by the reason."""
    parts.table(
        [
            {"reason": f"{reason[:1].upper()}{reason[1:]}", "combinations": n}
            for reason, n in sorted(results.excluded.items(), key=lambda each: -each[1])
        ],
        key="search_excluded",
        alt="How many combinations were excluded, by the reason",
        take=None,
    )


def _wins(results: SearchResult) -> None:
    rows = tables.waterfall(results.why)
    parts.table(
        rows,
        key="search_why",
        alt="What the best plan changed, one by one, with what each moved",
        columns=("change", "memory", "device memory", "step time", "time per token"),
    )


PATHS = {
    "step": "time.step_seconds",
    "whole run": "run.seconds",
    "to spare": "memory.room_bytes",
    "MFU": "time.mfu",
}


def _table(rows: tables.Rows, points: list[tuple[Point, bool]]) -> None:
    def clicked(row: int, column: str) -> None:
        if column in PATHS:
            why.opened(PATHS[column], points[row][0].plan)

    parts.table(
        rows,
        key="search_table",
        alt="What was found, the best first",
        height=460,
        columns=tables.FOUND_COLUMNS,
        take=clicked,
        use=lambda row: state.replace(points[row][0].plan),
    )
