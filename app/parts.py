"""Parts: what pages have in common. Notes, tables, charts and downloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from mimetypes import guess_type
from typing import Any, Literal

import plotly.graph_objects as go
import streamlit as st

from app import charts, given, grid, pins, state, tables, why
from app.controls import Take
from app.fields import field as plan_field
from app.fields import issue_text, titles
from app.text import plain as plain
from app.text import title_of_plan
from memcore.errors import Issue
from memcore.plan.link import query_text
from memcore.plan.plan import Plan, facts
from memcore.report import Memory, Report, Run, Time
from memcore.search.prices import own_price
from memcore.together.generation import Generation, step_text
from memcore.units import bytes_text, energy_text, hours_text, money_text, seconds_text
from memcore.words.training import COPIES

WORTH_SAYING = 0.01  # of host DRAM, where a loader's batches are less, or of a run's time


def listed(issues: Iterable[Issue]) -> str:
    """Issues as a list, each under its field's title."""
    return "\n".join(f"- {_issue(issue)}" for issue in issues)


def _issue(issue: Issue) -> str:
    title = titles().get(issue.field)
    name = f"{title} ({issue.field})" if title else issue.field
    text = plain(issue_text(issue))
    return f"**{plain(name)}**: {text}" if name else text


def pin_button() -> None:
    """Keep this plan to compare with, or let it go."""
    if state.pinned():
        if pins.can_pin():
            st.button(
                "Add to Compare",
                on_click=pins.pin,
                icon=":material/splitscreen_vertical_add:",
                key="add_button",
                help="Keep this plan too: it becomes a column of its own on Compare.",
            )
        st.button("Unpin", on_click=pins.unpin, icon=":material/keep_off:", key="pin_button")
    else:
        st.button(
            "Pin this plan",
            on_click=pins.pin,
            icon=":material/keep:",
            key="pin_button",
            help="Keep it to compare with: every figure shows its change against it.",
        )


def addressing(url: str) -> Callable[[], str]:
    """What makes the address of this page, as long as the plan is this one; also when no page is
    drawn."""
    content, page = state.session().now, url.partition("?")[0]
    slash = "" if page.count("/") > 2 else "/"
    return lambda: f"{page}{slash}?{query_text(content.query())}"


def title() -> str:
    """The plan's model and GPUs, for people; and in how many nodes, if not in one."""
    return title_of_plan(state.plan())


def save(
    label: str,
    made: Callable[[], str | bytes],
    name: str,
    key: str = "",
    icon: str = "download",
    help: str | None = None,
    of_plan: bool = True,
) -> None:
    """A button that makes a file when it is pressed, called after the plan where it is of one."""
    st.download_button(
        label,
        made,
        named(name) if of_plan else name,
        guess_type(name)[0],
        key=key or f"download_{name}",
        on_click="ignore",
        icon=f":material/{icon}:",
        help=help,
    )


def named(file: str) -> str:
    """A file's name with the plan's model and GPUs in it: memplan-llama-3-8b-8-h100-peak.csv."""
    plan = state.plan()
    words = f"{plan.architecture.label} {plan.cluster.gpus} {plan.accelerator.label}"
    slug = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:60]
    return file.replace("memplan-", f"memplan-{slug}-", 1)


def compute_dtype(plan: Plan) -> str:
    """The dtype in which the plan's matrix products run."""
    precision = COPIES.get((plan.train.framework, plan.train.precision))
    if precision and precision.eight_bit:
        return "fp8"
    return "bf16" if precision is None or precision.autocast else precision.compute


def absent(what: str) -> None:
    """Said where a part of the report was not computed; the note on top says why."""
    small(f"{what} is not computed for this plan: see the note above.")


MEASURE = 860  # pixels of a line of prose: about a hundred letters


# --- what views are made of ----------------------------------------------------------------------


def small(text: str, width: int | Literal["stretch", "content"] = "stretch") -> None:
    """A line of small print, in the full text colour: Streamlit's caption grey is too faint."""
    st.markdown(f":small[{text}]", width=width)


def prose(text: str) -> None:
    """Paragraphs, in lines no longer than eyes can follow."""
    st.markdown(text, width=MEASURE)


def folded(title: str, content: Callable[..., None], *given: Any, unfolded: bool = False) -> None:
    """A group under its title. What is in it is drawn while it is open: closed, it would cost
    server and browser as much at every change of the plan."""
    box = st.expander(title, expanded=unfolded, key=f"folded_{title}", on_change="rerun")
    if box.open:
        with box:
            content(*given)


def chart(
    figure: go.Figure,
    key: str,
    alt: str,
    of: Sequence[Plan] = (),
    take: Callable[[Any], None] | None = None,
) -> None:
    """A chart; a click on what has a number says why it is so, or calls `take` with what stands
    behind the mark. `of`: the plans that it is of, where it is not the page's."""
    name = f"chart_{key}"
    st.plotly_chart(
        figure,
        key=name,
        alt=alt,
        config={
            "displaylogo": False,
            "toImageButtonOptions": {
                "filename": named(f"memplan-{key}"),
                "format": st.session_state.get("image_format") or "png",
                "scale": 2,
            },
        },
        on_select=lambda: why.marked(name, take or (lambda path: why.of_mark(path, of))),
        selection_mode="points",
    )


def _passes(run: Run) -> str:
    """What saves and failures make of it."""
    return (
        f"{seconds_text(run.elapsed_seconds)} pass with a save every {run.save_every:,} steps and "
        f"{run.interruptions:,.2g} interruptions."
    )


def run_figures(run: Run) -> None:
    """What the whole run takes."""
    figures = [
        (
            "seconds",
            "Time to train",
            seconds_text(run.seconds),
            f"{run.steps:,} steps. {_passes(run)}",
        ),
        ("gpu_hours", "GPU-hours", hours_text(run.gpu_hours), "Of all GPUs."),
        ("energy_joules", "Energy", energy_text(run.energy_joules), "At the boards' power."),
        (
            "disk_bytes",
            "Disk for checkpoints",
            bytes_text(run.disk_bytes),
            f"{bytes_text(run.checkpoint_bytes)} each, weights {bytes_text(run.weights_bytes)}.",
        ),
    ]
    if run.cost is not None:
        figures.insert(2, ("cost", "Cost", money_text(run.cost), "At the plan's price."))
    columns = st.columns(5)
    for column, (field, label, text, about) in zip(columns, figures, strict=False):
        with column, why.figure(f"run.{field}", about):
            st.metric(label, text)
    if run.elapsed_seconds > (1 + WORTH_SAYING) * run.seconds:
        with columns[0]:
            small(f"{seconds_text(run.elapsed_seconds)} with saves and failures")
    price, whose = own_price(state.plan())
    if run.cost is None and price is not None:
        with columns[-1], st.container(gap=None):
            st.metric("Cost, at list prices", f"from {money_text(price * run.gpu_hours)}")
            small(plain(f"{money_text(price)} an hour for a GPU ({whose})"))
    elif run.cost is None:
        with columns[-1]:
            small("With a price, the cost is shown here.")


def rollouts(made: Generation | None, time: Time | None) -> None:
    """How long the rollouts of a step take to generate, and to train on."""
    if made and time:
        generated, trained = step_text(state.plan(), made, time.step_seconds)
        prose(f"**{generated}** {trained}")


def latency_targets() -> None:
    """What a request may feel at most, in the plan: seconds to the first token, and for each other,
    which are shown in milliseconds."""
    s = state.plan().serve
    with st.container(key="targets"):
        both = st.columns(2)
    for column, (key, label, path, unit, least, value) in zip(
        both,
        (
            ("ttft", "First token within (s)", "serve.target_ttft", 1.0, 0.001, s.target_ttft),
            ("tpot", "Each token within (ms)", "serve.target_tpot", 1e-3, 0.01, s.target_tpot),
        ),
        strict=True,
    ):
        with column:
            st.number_input(
                label,
                min_value=least,
                max_value=1e6 / unit,
                value=None,
                format="%g",
                placeholder=facts(path).zero,
                key=state.control(key, round(value / unit, 9) or None, _target(path, unit)),
                help=plan_field(path).help,
            )


def _target(path: str, unit: float) -> Take:
    return lambda value: state.change({path: (value or 0.0) * unit})


def stream_metrics(found: Sequence[tuple[str, str, str, str]]) -> None:
    """The main figures of a simulated stream, four in a row; no formula leads to them."""
    for first in range(0, len(found), 4):
        for column, (label, value, below, about) in zip(
            st.columns(4), found[first : first + 4], strict=False
        ):
            with column, st.container(gap=None):
                st.metric(label, value, help=about)
                small(plain(below))


def lengths_upload() -> None:
    """A CSV of lengths in place of the plan's own, and why it could not be used."""
    _, name = given.lengths()
    issues = given.not_read(given.LENGTHS)
    with st.expander("Lengths from a file", expanded=bool(name or issues)):
        st.file_uploader(
            "Drop a CSV with two columns, prompt and output tokens",
            key="lengths_file",
            on_change=_lengths_dropped,
            help="One request a row; pairs are drawn from it at random. It stays on this machine "
            "and is not part of the link.",
        )
        if issues:
            kept = f"Lengths of {plain(name)} are used." if name else "The plan's are used."
            st.error(
                f"**These lengths could not be used.** {kept}\n" + listed(issues),
                icon=":material/block:",
            )
        if name:
            st.button(
                "Back to the plan's lengths",
                key="drop_lengths",
                on_click=given.drop_lengths,
                icon=":material/undo:",
            )


def _lengths_dropped() -> None:
    file = st.session_state.lengths_file
    if file:
        given.use_lengths(file.getvalue(), file.name[:80])
    else:
        given.drop_lengths()


def ledger_total(report: Report) -> None:
    """The sum of the table below it, which is the allocated peak."""
    total = sum(row.bytes for row in report.ledger if row.tier == "hbm")
    with why.figure("memory.tiers.hbm", "The allocated peak."):
        st.markdown(
            f"{len(report.ledger):,} rows. Those in the GPU's memory add up to **{total:,} bytes** "
            f"({bytes_text(total)}): the allocated peak of one GPU."
        )


def table(rows: tables.Rows, key: str, alt: str, **more: Any) -> None:
    """A table of these rows, as grid.draw has it; a press on a number says why it is so."""
    more.setdefault("take", lambda row, column: why.of_row(rows[row][tables.PATH], column))
    grid.draw(rows, key, alt, **more)


def written(rows: tables.Rows, *columns: str) -> None:
    """A table of sentences, as tables.written has it."""
    st.html(tables.written(rows, columns))


def overheads(memory: Memory) -> None:
    """What no shape determines, with where each figure is from."""
    table(
        tables.overheads(memory),
        key="overheads",
        alt="Memory that no shape determines",
        columns=("overhead", "low", "high", "certainty", "source"),
    )


def instants(memory: Memory) -> None:
    """The instants at which memory can peak, as bars and as a table."""
    chart(
        charts.timeline(memory),
        key="timeline",
        alt="Memory alive at each instant of the step, by consumer",
    )
    table(
        tables.timeline(memory),
        key="instants",
        alt="Bytes alive at each instant, by consumer",
        columns=("instant", "size", "bytes", "at"),
    )


def download(
    label: str, rows: tables.Rows | Callable[[], tables.Rows], name: str, of_plan: bool = True
) -> None:
    """A button that builds the CSV when it is pressed; and its rows, where nothing else shows them.
    It says which plan the figures are of, or, where they are about Memplan itself, only which
    Memplan."""
    plan, address = state.plan() if of_plan else None, addressing(st.context.url or "")
    beside = (given.step(), given.server()) if of_plan else ()

    def made() -> bytes:
        context = tables.context(plan, address() if plan else "", *beside)
        return tables.csv(rows() if callable(rows) else rows, context)

    save(label, made, name, of_plan=of_plan)
