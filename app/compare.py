"""Compare on a page: pinned plans become columns, beside the plan on the page."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from app import bar, charts, elements, given, grid, parts, pins, rest, shared, state, tables, why
from app.bar import Bar
from app.tables.compare import FIELD, FIGURE, Column
from app.text import VERDICTS, plain
from memcore.plan.link import MAX_NAME, encode, query_text
from memcore.plan.plan import Plan
from memcore.units import gib_text

THIS = "This plan"
BEST = 3  # changes that are compared with a plan at a press
TRAINS, SERVES = "Training", "Serving"


def columns() -> list[Column]:
    """The pinned plans, and the one on the page where it is none of them."""
    s = state.session()
    pinned, here = s.pins, s.plan
    every: list[tuple[str, Plan, int | None]] = [
        (p.name or f"Plan {string.ascii_uppercase[i]}", p.plan, i) for i, p in enumerate(pinned)
    ]
    if all(pin.plan != here for pin in pinned):
        every.append((s.name or THIS, here, None))
    names: list[str] = []
    for i, (name, _, _) in enumerate(every):  # two of a name are told apart by their letters
        taken = (*names, FIELD, FIGURE, "key", tables.PATH)
        names.append(f"{string.ascii_uppercase[i]}: {name}" if name in taken else name)
    return [
        Column(name, plan, shared.report(plan), pin, (given.step(plan), given.server(plan)))
        for name, (_, plan, pin) in zip(names, every, strict=True)
    ]


def side_by_side() -> Callable[[], tables.Rows]:
    """What makes one table of the page, for a file; also when no page is drawn. Of one plan alone
    there is none."""
    compared = columns() if state.session().pins else []
    if len(compared) < 2:
        return list
    books = [shared.book(c.plan) for c in compared]
    return lambda: tables.side_by_side(compared, books)


def draw() -> None:
    """The page."""
    compared = columns()
    if len(compared) < 2:
        _how()
        return
    _heads(compared)
    _bars(compared)
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    left.markdown("##### In what they differ")
    alike = right.toggle("Also what is alike", key="compare_alike")
    _fields(compared, alike)
    base = _figures(compared, alike)
    _times(compared)
    _file(compared)
    rest.later(
        lambda: parts.folded("What moved what", _waterfall, compared, base, unfolded=True),
        "What moved what comes",
    )


def _how() -> None:
    """Said while there is nothing to compare: what to do next."""
    if state.pinned():
        parts.prose(elements.text("compare_pinned"))
        return
    parts.prose(elements.text("compare_how"))
    with st.container(horizontal=True):
        st.button(
            "Pin this plan",
            key="compare_first",
            on_click=pins.pin,
            icon=":material/keep:",
            type="primary",
        )
        if state.report().memory:
            st.button(
                "Compare with its best changes",
                key="compare_best",
                on_click=pins.pin_levers,
                args=(BEST,),
                help=f"Up to {BEST} changes that fit, the best first, as Train has them.",
            )


# --- the plans -----------------------------------------------------------------------------------


def _heads(columns: Sequence[Column]) -> None:
    """A name that can be written, what it is of, and what can be done with it."""
    s = state.session()
    with st.container(key="compare_heads"):
        places = st.columns(max(2, len(columns)))
    whats = [f"{c.plan.architecture.label} on {_gpus(c.plan)}" for c in columns]
    alike = len(set(whats)) == 1  # what is said above already
    for i, (place, c) in enumerate(zip(places, columns, strict=False)):
        here = c.plan == state.plan()
        with place, st.container(gap="xsmall"):
            named = s.name if c.pin is None else s.pins[c.pin].name
            st.text_input(
                f"Name of plan {string.ascii_uppercase[i]}",
                key=state.control(f"compare_name_{i}", named, _named(c.pin)),
                placeholder=c.name,
                max_chars=MAX_NAME,
                label_visibility="collapsed",
            )
            lines = [] if alike else [plain(whats[i])]
            parts.small(", ".join([*lines, *(["**on the page**"] if here else [])]) or "&nbsp;")
            with st.container(horizontal=True, gap="small", key=f"compare_do_{i}"):
                if c.pin is None:
                    st.button(
                        "Keep",
                        key="compare_keep",
                        on_click=pins.pin,
                        disabled=not pins.can_pin(),
                        help="Pin it: it stays here as it is while the sidebar goes on.",
                    )
                    continue
                st.button(
                    "Open",
                    key=f"compare_take_{i}",
                    on_click=pins.take,
                    args=(c.pin,),
                    disabled=here,
                    help="It becomes the plan on the page; that one takes its place here.",
                )
                st.button("Remove", key=f"compare_drop_{i}", on_click=pins.unpin, args=(c.pin,))


def _gpus(plan: Plan) -> str:
    return f"{plan.cluster.gpus:,} × {plan.accelerator.label}"


def _named(pin: int | None) -> Callable[[Any], None]:
    return lambda text: pins.rename(pin, text or "")


def _bars(columns: Sequence[Column]) -> None:
    """Each plan's memory, on one axis."""
    kinds = [
        kind
        for kind, has in (
            (TRAINS, any(c.report.memory for c in columns)),
            (SERVES, any(c.report.serve for c in columns)),
        )
        if has
    ]
    if not kinds:
        parts.absent("Memory")
        return
    asked = state.looks()
    kind = asked if asked in kinds else kinds[0]
    st.segmented_control(
        "Memory of",
        kinds,
        key=state.control("compare_kind", kind, lambda k: state.look(k or kind)),
        label_visibility="collapsed",
    )
    drawn = [(c, of) for c in columns if (of := _bar(c, kind))]
    with st.container(gap=None, key="compare_bars"):
        for i, (c, (_, text, path)) in enumerate(drawn):
            st.button(
                f"**{plain(c.name)}** {plain(text)}",
                key=f"why_compare_{i}",
                on_click=why.opened,
                args=(path, c.plan),
                type="tertiary",
            )
    parts.chart(
        charts.strip([b for _, (b, _, _) in drawn], [c.name for c, _ in drawn]),
        key="compare_bars_chart",
        alt=f"{kind}: memory of one GPU in each plan, part by part, on one axis",
        of=[c.plan for c, _ in drawn],
    )
    for c in columns:
        if not _bar(c, kind):
            parts.small(f"{plain(c.name)}: {kind.lower()} is not computed for this plan.")


def _bar(c: Column, kind: str) -> tuple[Bar, str, str] | None:
    memory, serve = c.report.memory, c.report.serve
    if kind == TRAINS and memory:
        low, high = map(gib_text, memory.device_bytes)
        return (
            bar.of_training(memory),
            f"{VERDICTS[memory.verdict]}: {low} to {high} of {gib_text(memory.capacity_bytes)}",
            "memory.room_bytes",
        )
    if kind == SERVES and serve:
        word = VERDICTS["fits" if serve.fits else "over"]
        asked = f"{c.plan.serve.concurrency:,} sequences asked for"
        text = f"{word}: {asked}, {serve.max_concurrency:,} fit"
        return bar.of_serving(serve, c.plan.serve.concurrency), text, "serve.fits"
    return None


# --- tables --------------------------------------------------------------------------------------


def _fields(columns: Sequence[Column], alike: bool) -> None:
    rows = tables.compared_fields(columns, alike)
    if not rows:
        parts.small("In no field: they are the same plan under two names.")
        return
    names = [c.name for c in columns]
    alt = "Fields of the plans, side by side"
    by = dict.fromkeys(names, grid.Column(words=True))  # as the figures below, one left edge
    grid.draw(rows, "compare_fields", alt, (FIELD, *names), by=by)


def _figures(columns: Sequence[Column], alike: bool) -> int:
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    left.markdown("##### Figures")
    names = [c.name for c in columns]
    base = right.selectbox(
        "Differences from", range(len(columns)), format_func=lambda i: names[i], key="compare_base"
    )
    base = min(base or 0, len(columns) - 1)
    books = [shared.book(c.plan) for c in columns]
    rows = tables.compared_figures(columns, books, base, alike)
    rows += tables.compared_listed(columns, base, alike)
    rows += tables.compared_calibrated(columns)
    paths = [row[tables.PATH] for row in rows]

    def clicked(row: int, column: str) -> None:
        if column in names:
            of = columns[names.index(column)]
            if shared.book(of.plan).explained(paths[row]):
                why.opened(paths[row], of.plan)

    alt = "Figures of the plans, side by side"
    grid.draw(rows, "compare_figures", alt, (FIGURE, *names), clicked)
    elements.caption("compare_figures")
    return base


def _times(columns: Sequence[Column]) -> None:
    timed = [c for c in columns if c.report.time]
    times = [(c.name, c.report.time) for c in timed if c.report.time]
    if len(times) > 1:
        st.markdown("##### Seconds of a step, by phase")
        drawn = charts.compared_phases(times)
        elements.chart("compare_phases", drawn, of=[c.plan for c in timed])


def _waterfall(columns: Sequence[Column], base: int) -> None:
    """Between any two: which change moved how many bytes and seconds."""
    trained = [i for i, c in enumerate(columns) if c.report.memory and c.report.time]
    if len(trained) < 2:
        parts.absent("The training of two of these plans")
        return
    names = [c.name for c in columns]
    left, right = st.columns(2)
    first = left.selectbox(
        "From",
        trained,
        index=trained.index(base) if base in trained else 0,
        format_func=lambda i: names[i],
        key="compare_from",
    )
    others = [i for i in trained if i != first]
    second = right.selectbox(
        "To", others, index=len(others) - 1, format_func=lambda i: names[i], key="compare_to"
    )
    one, other = columns[first], columns[second]
    changes = shared.waterfall(one.plan, other.plan.model_dump_json())
    if not changes:
        return
    ends, of = (one.name, other.name), [other.plan]
    for column, name, figure in (
        (left, "waterfall_bytes", charts.waterfall_bytes(changes, one.report, other.report, ends)),
        (right, "waterfall_seconds",
         charts.waterfall_seconds(changes, one.report, other.report, ends)),
    ):  # fmt: skip
        with column:
            elements.chart(name, figure, of=of)
    rows = [{"from": one.name, "to": other.name, **row} for row in tables.waterfall(changes)]
    elements.table("waterfall", rows)
    elements.caption("waterfall")


def _file(columns: Sequence[Column]) -> None:
    """All of it, one value a row; found when the button is pressed."""
    here, content = (st.context.url or "").partition("?")[0], state.session().now

    def file() -> bytes:
        links = [f"{here}?{query_text(encode(c.plan, short=True))}" for c in columns]
        rows = tables.tidy(columns, links, f"{here}?{query_text(content.query())}")
        return tables.csv(rows, tables.context(None, ""))

    parts.save("Comparison (CSV)", file, "memplan-compare.csv", of_plan=False)
