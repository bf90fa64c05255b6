"""Parts: what pages have in common. The verdict header, notes, tables, charts and downloads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import plotly.graph_objects as go
import streamlit as st

from app import palette, state, tables, why
from app.controls import Take
from app.fields import field as plan_field
from app.fields import titles
from app.text import plain as plain
from memcore.errors import Issue
from memcore.plan.link import query_text
from memcore.plan.plan import title_of, value_text
from memcore.report import Memory, Report, Run, Serve, TogetherMemory
from memcore.search.solve import Answer
from memcore.serving.notes import serving_notes
from memcore.serving.serve import verdict
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    gib_text,
    money_text,
    seconds_text,
)

VERDICTS = {
    "fits": (st.success, "Training fits", ":material/check_circle:"),
    "tight": (st.warning, "Training is tight", ":material/error:"),
    "over": (st.error, "Training does not fit", ":material/cancel:"),
}


SERVING_VERDICTS = {
    True: (st.success, "Serving fits", ":material/check_circle:"),
    False: (st.error, "Serving does not fit", ":material/cancel:"),
}


def navigation(views: Sequence[Any]) -> None:
    """Links to the views. Each holds the plan, so that Back and a new tab keep it."""
    query = state.query()
    with st.container(horizontal=True, gap="small", key="navigation"):
        for view in views:
            st.page_link(view, query_params=query)


def header(serves: bool) -> None:
    """On top of every page: what of the input was not used, the verdict and the main figures. A
    page that `serves` is about the server alone."""
    _link_warnings()
    _problems()
    report, pinned = state.report(), state.pinned()
    with st.container(horizontal=True, vertical_alignment="center"):
        of = report.serve if serves else None
        st.markdown(f"#### {plain(_title(of))}", width="stretch")
        _pin_button()
        _share(report)
    if of:
        serving_header(of, pinned.serve if pinned else None)
        return
    if report.memory:
        _verdict(report.memory, pinned.memory if pinned else None)
    _figures(report, pinned)
    _small_print(report)
    if not _whole(report):
        for note in report.notes:
            st.info(plain(note), icon=":material/info:")


def _title(serve: Serve | None) -> str:
    plan = state.plan()
    if serve:
        n, gpus = serve.replicas, f"{serve.gpus_per_replica:,} × {plan.accelerator.label}"
        replicas = "one replica" if n == 1 else f"{n:,} replicas"
        return f"{plan.architecture.label}, served by {replicas} of {gpus}"
    return f"{plan.architecture.label} on {plan.cluster.gpus:,} × {plan.accelerator.label}"


def _link_warnings() -> None:
    issues = state.link_issues()
    if issues:
        st.warning(
            "**Part of this link could not be used; the rest of it is shown.**\n" + _listed(issues),
            icon=":material/link_off:",
        )


def _problems() -> None:
    """Why the widgets do not make a plan, and two ways out."""
    issues = state.problems()
    if state.adjusted():
        st.info(
            f"**The plan was fitted to {state.adjusted_to()}.**\n" + _listed(state.adjusted()),
            icon=":material/tune:",
        )
    if not issues:
        return
    if state.is_unchanged():
        st.error(
            "**That could not be used; the plan is as it was.**\n" + _listed(issues),
            icon=":material/block:",
        )
        return
    st.error(
        "**This combination cannot be run; the last valid plan is shown.**\n" + _listed(issues),
        icon=":material/block:",
    )
    plan, mended = state.repaired()
    with st.container(horizontal=True):
        st.button("Undo the change", key="undo", on_click=state.undo_draft, icon=":material/undo:")
        st.button(
            "Use the nearest valid plan",
            key="nearest",
            on_click=state.use_nearest,
            args=(plan, mended),
            help=_listed(mended),
            icon=":material/build:",
        )
        for i, remedy in enumerate(_remedies(issues)):
            st.button(
                f"Fix: {plain(_setting(remedy))}",
                key=f"fix_{i}",
                on_click=state.change,
                args=(remedy,),
                help="Changes this and nothing else.",
                icon=":material/healing:",
            )


MOST_FIXES = 4


def _remedies(issues: Sequence[Issue]) -> list[Mapping[str, Any]]:
    """What settles the first of these, but for taking back what was just asked for."""
    asked = state.asked()
    first = issues[0].remedies
    return [r for r in first if r.keys().isdisjoint(asked)][:MOST_FIXES]


def _setting(remedy: Mapping[str, Any]) -> str:
    return ", ".join(f"{title_of(p)} {value_text(p, v)}" for p, v in remedy.items())


def _listed(issues: Any) -> str:
    return "\n".join(f"- {_issue(issue)}" for issue in issues)


def _issue(issue: Issue) -> str:
    title = titles().get(issue.field)
    name = f"{title} ({issue.field})" if title else issue.field
    return f"**{plain(name)}**: {plain(issue.message)}" if name else plain(issue.message)


WORTH_SAYING = 0.01  # of host DRAM; a loader's batches are less


def _verdict(memory: Memory, pinned: Memory | None) -> None:
    show, word, icon = VERDICTS[memory.verdict]
    low, high = memory.device_bytes
    room_low, room_high = memory.capacity_bytes - high, memory.capacity_bytes - low
    if memory.verdict == "fits":
        how = f"at least {bytes_text(room_low)} to spare"
    elif memory.verdict == "tight":
        how = f"from {bytes_text(-room_low)} too much to {bytes_text(room_high)} to spare"
    elif room_high < 0:
        how = f"at least {bytes_text(-room_high)} too much"
    else:
        how = "the GPU would have room, its host has not"
    host = _host_verdict(memory)
    change = _change(high, pinned.device_bytes[1] if pinned else None, bytes_text)
    against = f" ({change})" if change else ""
    with why.figure("memory.room_bytes", "What is left of the GPU."):
        show(
            f"**{word}**: {how}. Device memory {gib_text(low)} to {gib_text(high)}{against} "
            f"of {gib_text(memory.capacity_bytes)} per GPU.{host}",
            icon=icon,
        )


HOST_TIERS = {"dram": "Host DRAM", "nvme": "NVMe"}


def _host_verdict(memory: Memory) -> str:
    """Where a plan keeps something on the host: how much of it, and whether it has the room."""
    kept = {"dram": memory.tiers["dram"] >= WORTH_SAYING * memory.tier_capacities["dram"]}
    kept["nvme"] = memory.tiers["nvme"] > 0
    said = ""
    for tier in (t for t, worth in kept.items() if worth and memory.tiers[t]):
        used, room = memory.tiers[tier], memory.tier_capacities[tier]
        over = f": **{bytes_text(used - room)} too much**" if used > room else ""
        said += f" {HOST_TIERS[tier]}: {bytes_text(used)} of {bytes_text(room)} per node{over}."
    return said


def _small_print(report: Report) -> None:
    """What a reader checks first: the parameters, the instant of the peak, what is reserved."""
    with st.container(horizontal=True, gap="small", key="small_print"):
        why.link(f"{report.parameters:,} parameters", "parameters")
        if report.memory:
            m = report.memory
            peak = next((i.label for i in m.timeline if i.id == m.peak.instant), m.peak.instant)
            if len(m.ranks) > 1:
                peak += f" (stage {m.peak.rank} of {len(m.ranks)})"
            low, high = m.reserved_bytes
            why.link(f"peak at: {plain(peak)}", "memory.peak.instant")
            why.link(
                f"PyTorch reserves {gib_text(low)} to {gib_text(high)} per GPU",
                "memory.reserved_bytes",
            )
        if _whole(report):  # else the notes say what is missing, and have a place of their own
            for note in _of_training(report):
                small(plain(note))


def _of_training(report: Report) -> list[str]:
    """Notes that are not about the server alone, which has a page of its own."""
    served = serving_notes(state.plan(), report.serve) if report.serve else []
    return [note for note in report.notes if note not in served]


def _whole(report: Report) -> bool:
    """Whether every part of the report was computed."""
    return None not in (report.memory, report.time, report.serve)


def _figures(report: Report, pinned: Report | None) -> None:
    """The main figures in one row, each with its change against the pinned plan."""
    if not (report.memory or report.time):
        return
    columns = st.columns([1.25, 1.0, 1.1, 1.05, 1.3])
    if report.memory:
        m, then = report.memory, pinned.memory if pinned else None
        _metric(
            columns[0],
            "memory.allocated_bytes",
            "Allocated at the peak",
            m.allocated_bytes,
            then.allocated_bytes if then else None,
            bytes_text,
            "What torch.cuda.max_memory_allocated shows: from shapes and dtypes alone.",
            less_is_better=True,
        )
    if report.time:
        t, before = report.time, pinned.time if pinned else None
        _metric(
            columns[1],
            "time.step_seconds",
            "Step time",
            t.step_seconds,
            before.step_seconds if before else None,
            seconds_text,
            "One optimizer step of all its micro-batches.",
            less_is_better=True,
        )
        _metric(
            columns[2],
            "time.tokens_per_second",
            "Tokens per second",
            t.tokens_per_second,
            before.tokens_per_second if before else None,
            count_text,
            "Of all GPUs together.",
        )
        _metric(
            columns[3],
            "time.mfu",
            "MFU",
            t.mfu,
            before.mfu if before else None,
            "{:.1%}".format,
            "Model FLOPs utilization: the model's own FLOPs, recompute not counted, over the peak.",
            change_text=lambda share: f"{100 * share:.1f} pts",
        )
        waits = "The resource for which the step waits longest."
        with columns[4], why.figure("time.bound_by", waits):
            st.metric(
                "Bound by",
                palette.resource(t.bound_by),
                f"pinned: {palette.resource(before.bound_by)}" if before else None,
                delta_color="off",
                delta_arrow="off",
            )


def _metric(
    place: Any,
    path: str,
    label: str,
    now: float,
    then: float | None,
    text: Callable[[float], str],
    help: str,
    less_is_better: bool = False,
    change_text: Callable[[float], str] | None = None,
) -> None:
    """A figure, its change against the pinned plan's `then`, and why it is so."""
    changed = then is not None and now != then
    with place, why.figure(path, help):
        st.metric(
            label,
            text(now),
            _change(now, then, change_text or text),
            delta_color=("inverse" if less_is_better else "normal") if changed else "off",
            delta_arrow="auto" if changed else "off",
        )


def _change(now: float, then: float | None, text: Callable[[float], str]) -> str | None:
    """The difference in words, signed; None when nothing is pinned."""
    if then is None:
        return None
    if now == then:
        return "as pinned"
    return f"{'-' if now < then else '+'}{text(abs(now - then))}"


def _pin_button() -> None:
    if state.pinned():
        st.button("Unpin", on_click=state.unpin, icon=":material/keep_off:", key="pin_button")
    else:
        st.button(
            "Pin this plan",
            on_click=state.pin,
            icon=":material/keep:",
            key="pin_button",
            help="Keep it to compare with: every figure shows its change against it.",
        )


def _address() -> str:
    """The address of this page with every setting of the plan in it."""
    return _addressing(st.context.url or "")()


def _addressing(url: str) -> Callable[[], str]:
    """What makes that address, as long as the plan is this one; also when no page is drawn."""
    query, page = state.written(), url.partition("?")[0]
    slash = "" if page.count("/") > 2 else "/"
    return lambda: f"{page}{slash}?{query_text(query())}"


def _share(report: Report) -> None:
    plan = state.plan()
    with st.popover("Share", icon=":material/share:"):
        st.markdown("**Copy link**: every setting written out, so it means the same next year.")
        st.code(_address(), language=None, wrap_lines=True)
        st.download_button(
            "Plan (JSON)",
            lambda: json.dumps(plan.document(), indent=1),
            "plan.json",
            "application/json",
            key="plan_json",
            on_click="ignore",
            icon=":material/download:",
        )
        st.download_button(
            "Report (JSON)",
            lambda: json.dumps(report.to_dict(), indent=1),
            "report.json",
            "application/json",
            key="report_json",
            on_click="ignore",
            icon=":material/download:",
        )


def absent(what: str) -> None:
    """Said where a part of the report was not computed; the note on top says why."""
    small(f"{what} is not computed for this plan: see the note above.")


MEASURE = 860  # pixels of a line of prose: about a hundred letters


# --- what views are made of ----------------------------------------------------------------------


def small(text: str, width: int | Literal["stretch"] = "stretch") -> None:
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


def chart(figure: go.Figure, key: str, alt: str) -> None:
    """A chart; a click on what has a number says why it is so."""
    st.plotly_chart(
        figure,
        key=key,
        alt=alt,
        config={"displaylogo": False},
        on_select=lambda: why.mark(key),
        selection_mode="points",
    )


TOGETHER_VERDICTS = {
    "fits": (st.success, "Both fit", ":material/check_circle:"),
    "tight": (st.warning, "Both together are tight", ":material/error:"),
    "over": (st.error, "Both together do not fit", ":material/cancel:"),
}


def together_verdict(found: TogetherMemory) -> None:
    """Whether every phase fits, which is the fullest, and what the host holds."""
    show, word, icon = TOGETHER_VERDICTS[found.verdict]
    low, high = found.device_bytes
    fullest = next(phase.label for phase in found.phases if phase.id == found.peak)
    host = ""
    if found.dram_bytes >= WORTH_SAYING * found.dram_capacity_bytes:
        room = bytes_text(found.dram_capacity_bytes)
        host = f" Host DRAM of a node: {bytes_text(found.dram_bytes)} of {room}."
    with why.figure("together.fits", "Whether every phase fits."):
        show(
            f"**{word}**: {gib_text(low)} to {gib_text(high)} of {gib_text(found.capacity_bytes)} "
            f"per GPU; the fullest phase is: {fullest}. An engine's cache holds "
            f"{found.kv_capacity_tokens:,} tokens.{host}",
            icon=icon,
        )


def run_figures(run: Run) -> None:
    """What the whole run takes."""
    figures = [
        ("seconds", "Time to train", seconds_text(run.seconds), f"{run.steps:,} steps."),
        ("gpu_hours", "GPU-hours", f"{run.gpu_hours:,.0f}", "Of all GPUs."),
        ("energy_joules", "Energy", energy_text(run.energy_joules), "At the boards' power."),
        ("joules_per_token", "Energy per token", energy_text(run.joules_per_token), ""),
    ]
    if run.cost is not None:
        figures.insert(2, ("cost", "Cost", money_text(run.cost), "At the plan's price."))
    columns = st.columns(5)
    for column, (field, label, text, about) in zip(columns, figures, strict=False):
        with column, why.figure(f"run.{field}", about):
            st.metric(label, text)
    if run.cost is None:
        with columns[-1]:
            small("Set a price per GPU-hour in the sidebar, under *The whole run*, for the cost.")


def serving_header(serve: Serve, pinned: Serve | None) -> None:
    """On top of the Serve page: whether the sequences fit, what a user of the server feels, and
    what a reader should know of both."""
    plan = state.plan()
    show, word, icon = SERVING_VERDICTS[serve.fits]
    replica = f"{serve.gpus_per_replica:,} GPU" + "s" * (serve.gpus_per_replica > 1)
    with why.figure("serve.fits", "Whether the sequences fit."):
        said = plain(verdict(serve, plan.serve.concurrency))
        show(f"**{word}**: {said}. One replica is {replica}.", icon=icon)
    _serving_metrics(serve, pinned)
    with st.container(horizontal=True, gap="small", key="small_print"):
        why.link(f"{state.report().parameters:,} parameters", "parameters")
        for note in (*plan.architecture.notes, *serving_notes(plan, serve)):
            if said not in plain(note):  # what the verdict says already
                small(plain(note))


def _serving_metrics(serve: Serve, pinned: Serve | None) -> None:
    room = "That fit on a replica, each at its full prompt and output length."
    if serve.reserved_tokens:
        room = f"That fit on a replica, each with {serve.reserved_tokens:,} tokens reserved."
    of = f"Of {serve.running:,} that generate at once."
    before = ""
    if serve.tower_seconds:
        before = f" {seconds_text(serve.tower_seconds)} before the layers."
    figures: tuple[tuple[str, str, Callable[[float], str], str, bool], ...] = (
        ("max_concurrency", "Sequences", "{:,.0f}".format, room, False),
        ("kv_capacity_tokens", "Tokens", "{:,.0f}".format, "That the cache of a replica holds.",
         False),
        ("ttft_seconds", "Time to first token", seconds_text,
         f"{_bound_by(serve.prefill_bound_by)}{before} {of}", True),
        ("tpot_seconds", "Time per output token", seconds_text,
         f"Per output token and sequence. {_bound_by(serve.decode_bound_by)} {of}", True),
        ("tokens_per_second", "Output tokens per second", count_text,
         f"Of one replica; {serve.replicas:,} fit on the GPUs. {of}", False),
    )  # fmt: skip
    why_none = plain(verdict(serve, state.plan().serve.concurrency))
    columns = st.columns([1.0, 1.15, 1.2, 1.35, 1.45])
    for column, (field, label, text, about, less) in zip(columns, figures, strict=True):
        now, then = getattr(serve, field), getattr(pinned, field) if pinned else None
        if now is None:
            with column:
                st.metric(label, "not served", help=why_none)
        else:
            _metric(column, f"serve.{field}", label, now, then, text, about, less_is_better=less)


def _bound_by(resource: str | None) -> str:
    return f"Bound by {palette.resource(resource)}." if resource else ""


def latency_targets() -> None:
    """What a request may feel at most, in the plan: seconds to the first token, and for each other,
    which are shown in milliseconds."""
    s = state.plan().serve
    for column, (key, label, path, unit, least, value) in zip(
        st.columns(2),
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
                placeholder="any",
                key=state.control(key, round(value / unit, 9) or None, _target(path, unit)),
                help=plan_field(path).help,
            )


def _target(path: str, unit: float) -> Take:
    return lambda value: state.change({path: (value or 0.0) * unit})


def use_answers(rows: tables.Rows, found: Sequence[Answer]) -> None:
    """A button for each answer that the plan is not yet."""
    with st.container(horizontal=True):
        for row, answer in zip(rows, found, strict=True):
            if answer.value and answer.plan != state.plan():
                st.button(
                    f"{row['question']}: use {row['answer']}",
                    key=f"use_{answer.question}",
                    on_click=state.replace,
                    args=(answer.plan,),
                )


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
    name = state.lengths_file()
    with st.expander("Lengths from a file", expanded=bool(name or state.lengths_issues())):
        st.file_uploader(
            "Drop a CSV with two columns, prompt and output tokens",
            key="lengths_file",
            on_change=_lengths_dropped,
            help="One request a row; pairs are drawn from it at random. It stays on this machine "
            "and is not part of the link.",
        )
        if state.lengths_issues():
            kept = f"Lengths of {plain(name)} are used." if name else "The plan's are used."
            st.error(
                f"**These lengths could not be used.** {kept}\n" + _listed(state.lengths_issues()),
                icon=":material/block:",
            )
        if name:
            st.button(
                "Back to the plan's lengths",
                key="drop_lengths",
                on_click=state.drop_lengths,
                icon=":material/undo:",
            )


def _lengths_dropped() -> None:
    file = st.session_state.lengths_file
    if file:
        state.use_lengths(file.getvalue(), file.name[:80])
    else:
        state.drop_lengths()


def ledger_total(report: Report) -> None:
    """The sum of the table below it, which is the allocated peak."""
    total = sum(row.bytes for row in report.ledger if row.tier == "hbm")
    with why.figure("memory.tiers.hbm", "The allocated peak."):
        st.markdown(
            f"{len(report.ledger):,} rows. Those of tier hbm add up to **{total:,} bytes** "
            f"({bytes_text(total)}): the allocated peak of one GPU."
        )


def table(
    rows: tables.Rows,
    key: str,
    alt: str,
    height: int | None = None,
    columns: Sequence[str] | None = None,
    widths: Mapping[str, int] | None = None,
) -> None:
    """A sortable, searchable table; its columns are the rows' keys, or those of them named. It is
    at most so high: more rows scroll.

    A click on a cell of a row that has a path says why the number there is what it is.
    """
    paths = [row.get(tables.PATH, "") for row in rows]
    shown = list(dict.fromkeys([*(columns or ()), *(rows[0] if rows else ())]))
    wide = {name: st.column_config.TextColumn(width=w) for name, w in (widths or {}).items()}
    st.dataframe(
        tables.displayed(rows),
        column_order=columns,
        key=key,
        alt=alt,
        hide_index=True,
        height=min(height, why.height(len(rows))) if height else "auto",
        column_config=COLUMNS | wide,
        on_select=(lambda: why.cell(key, paths, shown)) if any(paths) else "ignore",
        selection_mode="single-cell",
    )


def overheads(memory: Memory) -> None:
    """What no shape determines, with where each figure is from."""
    table(
        tables.overheads(memory),
        key="overheads",
        alt="Memory that no shape determines",
        columns=("overhead", "low", "high", "certainty", "source"),
    )


def download(label: str, rows: tables.Rows, name: str, of_plan: bool = True) -> None:
    """A button that builds the CSV when it is pressed. It says which plan the figures are of, or,
    where they are about Memplan itself, only which Memplan."""
    plan, address = state.plan() if of_plan else None, _addressing(st.context.url or "")
    st.download_button(
        label,
        lambda: tables.csv(rows, tables.context(plan, address() if plan else "")),
        name,
        "text/csv",
        key=f"download_{name}",
        on_click="ignore",
        icon=":material/download:",
    )


COLUMNS: dict[str, Any] = {
    **{name: name.replace("_", " ") for name in ("bound_by", "optimizer_states", "bytes_each")},
    "holds": st.column_config.TextColumn("holds", width=90),
    "percent": st.column_config.ProgressColumn("share", format="%d%%", min_value=0, max_value=100),
    "at once": st.column_config.NumberColumn(format="%.1f"),
    "put to use": st.column_config.NumberColumn(format="%.1f %%"),
    "flops": st.column_config.NumberColumn("FLOPs", format="localized"),
    "hbm_bytes": st.column_config.NumberColumn("HBM bytes", format="localized"),
    "tokens/s": st.column_config.NumberColumn(format="localized"),
    **{
        name: st.column_config.NumberColumn(title, format="localized")
        for name, title in (("bytes", "bytes"), ("bytes_each", "bytes each"), ("count", "count"))
    },
}
