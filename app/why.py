"""Why: one click on any number opens a drawer that takes it apart.

A figure, a cell of a table, a bar or a point of a chart all lead to `opened`, with the path of the
number in the Report. Explanations are made for what is opened; until then they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from app import grid, shared, state, tables
from app.text import counted, plain, times
from memcore.explain.book import Book
from memcore.plan.plan import Plan, change_texts
from memcore.quantity.quantity import Explanation
from memcore.search.change import differences
from memcore.units import exact_text

STYLE = Path(__file__).with_name("why.css")
COLOURS = {"exact": "green", "datasheet": "blue", "measured": "violet", "assumed": "orange"}
MOST = 320  # pixels of the table of parts


# --- what can be clicked -------------------------------------------------------------------------


def opened(path: str, of: Plan | None = None) -> None:
    """A callback: this run opens the drawer on the number at `path`, of the plan on the page or of
    another."""
    s = st.session_state
    s.why, s.why_opens, s.why_deeper, s.why_of = [path], True, False, of


def figure(path: str, help: str) -> Any:
    """A place whose whole surface is a button that explains the number in it."""
    place = st.container(key=f"figure_{path}", gap=None)
    place.button(
        "why?",
        key=f"why_figure_{path}",
        on_click=opened,
        args=(path,),
        type="tertiary",
        help=f"{help} Click to see why.",
        width="stretch",
    )
    return place


def link(
    label: str, path: str, width: int | Literal["content"] = "content", icon: str | None = None
) -> None:
    """A number in a line of small print that is its own button."""
    st.button(
        label,
        key=f"why_{path}",
        on_click=opened,
        args=(path,),
        type="tertiary",
        width=width,
        icon=icon,
    )


def of_row(path: str, column: str) -> None:
    """A callback: the number in this column of the row of `path`, or else that of the row."""
    of_cell = f"{path}.{tables.FIELDS.get(column, '')}"
    opened(of_cell if shared.book(state.plan()).explained(of_cell) else path)


def marked(key: str, take: Callable[[Any], None]) -> None:
    """A callback of a chart: calls `take` with what stands behind the mark that was clicked.

    A second click on a mark takes its selection away, and counts as another on it.
    """
    last = f"last_{key}"
    for point in st.session_state[key].selection.points[:1]:
        custom = point.get("customdata")
        st.session_state[last] = custom[1] if isinstance(custom, list) else ""
    if (value := st.session_state.get(last, "")) != "":
        take(value)


def of_mark(path: str, of: Sequence[Plan] = ()) -> None:
    """Open the number of a mark, of the plan on the page, or of one of these, whose number stands
    before the path."""
    number, _, path = path.rpartition("|")
    opened(path, of[int(number or 0)] if of else None)


# --- the drawer ----------------------------------------------------------------------------------


def style() -> None:
    """How what can be clicked looks. Call before anything of it, or it would jump."""
    st.html(STYLE)


def drawer() -> None:
    """The drawer, in the run that a click caused. Call once, after the page."""
    if st.session_state.pop("why_opens", False):
        _drawer()


@st.dialog("Why this number", width="medium", position="right", icon=":material/account_tree:")
def _drawer() -> None:
    stack: list[str] = st.session_state.why
    other: Plan | None = st.session_state.why_of
    book = shared.book(other or state.plan())
    if other and other != state.plan():
        st.markdown(f":small[{plain(_differs(state.plan(), other))}]")
    chain = book.chain(stack[-1])
    e = chain[0]
    if st.session_state.why_deeper:  # also when back at the first: the focus is on its crumb
        _crumbs(book, stack)
    _value(e)
    if e.formula is not None:
        text = times(f"{e.formula.words}\n= {e.formula.numbers}\n= {_result(e)}")
        st.code(text, None, wrap_lines=True)
    if e.parts:
        _parts(book, e)
    if len(chain) > 1:
        _descent(chain)
    _sources(book.sources(e.path))
    st.code(f"memplan explain plan.json {e.path}", "bash")


MOST_SAID = 4  # fields of another plan that are named


def _differs(here: Plan, other: Plan) -> str:
    """Which other plan this is about."""
    changes = {p: v for p, v in differences(here, other).items() if p != "model"}
    text = change_texts(changes)[:MOST_SAID]
    if other.architecture != here.architecture:
        text.insert(0, other.architecture.label)
    more = f" and {len(changes) - MOST_SAID} more" if len(changes) > MOST_SAID else ""
    return f"Of another plan than the one on the page: {', '.join(text)}{more}."


def _result(e: Explanation) -> str:
    exact, shown = exact_text(e.value, e.unit), e.text
    return exact if exact == shown else f"{exact} = {shown}"


def _crumbs(book: Book, stack: Sequence[str]) -> None:
    """The way from the number that was clicked to this one; each of them leads back."""
    with st.container(horizontal=True, gap="small", key="why_crumbs"):
        for depth, path in enumerate(stack):
            st.button(
                plain(book.explain(path).what),
                key=f"why_crumb_{depth}",
                on_click=_back,
                args=(depth,),
                icon=":material/chevron_right:" if depth else None,
                type="tertiary",
            )


def _back(depth: int) -> None:
    st.session_state.why = st.session_state.why[: depth + 1]


def _value(e: Explanation) -> None:
    pin, unit = state.session().pin, state.plan().architecture.unit
    then = shared.book(pin).explained(e.path) if pin else None
    title = counted(f"{e.what}: {e.text}", unit)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"### {plain(times(title))}", anchors=False, width="content")
        st.badge(e.certainty, color=COLOURS[e.certainty])  # type: ignore[arg-type]
    if e.meaning:
        st.markdown(plain(times(counted(e.meaning, unit))))
    if then:
        st.markdown(f"In the pinned plan: **{plain(then.text)}**")


def _parts(book: Book, e: Explanation) -> None:
    """What it is made of; a click on a part opens that."""
    rows = tables.parts(book, e)
    openable = any(t.path for t in e.parts)
    key = f"why_parts_{e.path}"

    def opens(row: int, _: str) -> None:
        st.session_state.why = [*st.session_state.why, e.parts[row].path]
        st.session_state.why_deeper = True

    st.markdown("**Made of**" + (" (click a value to open it)" if openable else ""))
    grid.draw(rows, key, f"Parts of {e.what}", take=opens, height=MOST)


def _descent(chain: Sequence[Explanation]) -> None:
    """From the number down its largest parts to what cannot be taken apart."""
    st.markdown("**Its largest part, down to the factors**")
    lines = []
    for depth, e in enumerate(chain[1:]):
        words = [f"{e.what}: {e.text} ({e.certainty})"]
        words += (
            [f"  = {text}" for text in (e.formula.words, e.formula.numbers)]
            if e.formula is not None
            else []
        )
        lines += [f"{'  ' * depth}{text}" for text in words]
    st.code(times("\n".join(lines)), None, wrap_lines=True)


def _sources(every: Sequence[str]) -> None:
    st.markdown("**Sources**\n" + "\n".join(f"- {plain(source)}" for source in every))
