"""What somebody measured, which the plan on the page is compared with: a step or what a run had in
memory on the page Time, a server on the page Serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import streamlit as st

from app import elements, given, parts, places, state, tables
from app.line import Item
from app.text import plain
from memcore.errors import Issue
from memcore.formats.memory import ALLOCATED, GpuMemory
from memcore.plan.keys import BENCHED
from memcore.plan.measured import MOST_SECONDS, MOST_WAIT, Measured
from memcore.plan.plan import title_of
from memcore.report import Memory
from memcore.search.measured import LATENCIES, STEP, Calibrated
from memcore.units import GiB, bytes_text, seconds_text
from memcore.words.serving import CLOSED

TITLE = "Compare with what you measured"
LABELS = {STEP: "", **LATENCIES}  # what calibrated seconds are of, in the strip
# The fields of each form: its key, label, the most that it takes, and an example.
OF_STEP = (
    ("measured_seconds", "Seconds of one optimizer step", MOST_SECONDS, "e.g. 9.5"),
    ("measured_gib", "Peak memory, GiB (if known)", 1e6, "torch.cuda.max_memory_allocated()"),
)
OF_SERVER = (
    ("bench_token", "Milliseconds per token, after the first", 1e7, "e.g. 14"),
    ("bench_first", "Seconds to the first token (if known)", MOST_WAIT, "e.g. 0.9"),
)


def section(server: bool = False) -> None:
    """What was measured and what it comes to, or a place to say it."""
    dropped = given.not_read(BENCHED) if server else given.run() or given.not_read(given.RUN)
    parts.folded(TITLE, _content, server, unfolded=bool(given.measured(server) or dropped))


def as_predicted(what: str) -> None:
    """That something is as predicted, where a measured server might be taken to move it."""
    if given.predicted_server():
        parts.small(f"**{what} as predicted**, and not as your benchmark has them.")


def snapshot_dropped(data: bytes) -> None:
    """The page leads to what a run had in memory, by what somebody dropped."""
    given.use_snapshot(data)
    _lead("time")


def benchmark_given(text: str) -> None:
    """The page leads to what a benchmark printed, as somebody dropped or pasted it."""
    given.use_bench(text)
    _lead("serve")


def _lead(view: str) -> None:
    st.session_state[f"folded_{TITLE}"] = True
    places.lead(view)


def _calibrated(server: bool) -> Calibrated | None:
    return given.server() if server else given.step()


def _content(server: bool) -> None:
    if server and (issues := given.not_read(BENCHED)):
        _not_read("This benchmark is not read.", issues)
    elif not server:
        _snapshot()
    by = given.measured(server)
    if by is None:
        _ask(server)
        return
    here = by.plan == state.plan()
    st.markdown(_server_text(by, here) if server else _step_text(by, here))
    if calibrated := _calibrated(server):
        elements.table("calibrated", tables.calibrated(calibrated))
        parts.small(plain(calibrated.assumed))
    if refused := given.refused(server):
        st.warning(
            f"**It does not calibrate the plan on this page.**\n{parts.listed(refused)}",
            icon=":material/difference:",
        )
    key = "benched" if server else "measured"
    with st.container(horizontal=True):
        if not here:
            label = f"Open the {'server' if server else 'plan'} that ran"
            st.button(label, key=f"{key}_open", on_click=state.replace, args=(by.plan,))
        st.button(
            f"Forget the {'benchmark' if server else 'run'}",
            key=f"{key}_forget",
            on_click=given.forget,
            args=(server,),
            icon=":material/close:",
        )


def _step_text(by: Measured, here: bool) -> str:
    of, peak = by.plan, f", {bytes_text(by.bytes)} allocated" if by.bytes else ""
    whose = "This plan ran" if here else f"{plain(of.architecture.label)} ran"
    gpus = "" if here else f" on {of.cluster.gpus:,} × {plain(of.accelerator.label)}"
    return f"**{whose}{gpus}: {seconds_text(by.seconds)} a step{peak}.**"


def _server_text(by: Measured, here: bool) -> str:
    of, s = by.plan, by.plan.serve
    took = [f"{seconds_text(by.first)} to the first token"] if by.first else []
    took += [f"{seconds_text(by.token)} a token"] if by.token else []
    took += [f"{by.rate:,.0f} tokens/s"] if by.rate else []
    gpus = f"{of.serving_ranks:,} × {plain(of.accelerator.label)}"
    whose = "This server ran" if here else f"{plain(of.architecture.label)} ran on {gpus}"
    load = f"{s.concurrency:,} at once, {s.prompt_len:,} tokens in and {s.output_len:,} out"
    return f"**{whose}: {', '.join(took)}**, with {load}."


def _ask(server: bool) -> None:
    parts.prose(elements.text(f"measure_{'server' if server else 'step'}"))
    with st.form("measured_form", border=False):
        *columns, last = st.columns([2, 2, 1], vertical_alignment="bottom")
        for column, (key, label, most, example) in zip(
            columns, OF_SERVER if server else OF_STEP, strict=True
        ):
            column.number_input(
                label, min_value=0.0, max_value=most, value=None, format="%g", key=key,
                placeholder=example,
            )  # fmt: skip
        last.form_submit_button("Use it", on_click=_given, args=(server,))
    if st.session_state.get("measured_missing"):
        what = "token, or the first one," if server else "measured step"
        st.error(f"A {what} takes more than 0 seconds.", icon=":material/block:")


def _given(server: bool) -> None:
    s = st.session_state
    one, other = (s[key] or 0.0 for key, *_ in (OF_SERVER if server else OF_STEP))
    s.measured_missing = not (one or (server and other))
    if s.measured_missing:
        return
    if server:
        state.change({"serve.arrivals": CLOSED})
        given.measure(True, one / 1e3, other)
    else:
        given.measure(False, one, other * GiB)


def in_strip(server: bool = False) -> Iterator[Item]:
    """The calibrated seconds with the predicted ones, or why there are none."""
    if calibrated := _calibrated(server):
        for name, moved in calibrated.moved.items():
            yield Item(
                f" {LABELS[name]}, calibrated" if LABELS[name] else " calibrated",
                bold=seconds_text(moved.calibrated_seconds),
                help=f"{moved.ends}. {calibrated.assumed}",
            )
    elif issues := given.refused(server):
        differ = ", ".join(title_of(issue.field) for issue in issues)
        yield Item(f"not calibrated: your {'benchmark' if server else 'run'} differs in {differ}")


# --- what a run had in memory --------------------------------------------------------------------


def _not_read(what: str, issues: Sequence[Issue]) -> None:
    st.error(f"**{what}**\n{parts.listed(issues)}", icon=":material/block:")


def _snapshot() -> None:
    """What a run had in memory and what is planned; or why a file does not say it."""
    if issues := given.not_read(given.RUN):
        _not_read("This is not read.", issues)
    held, report = given.run(), state.report()
    if held is None or report.memory is None:
        return
    device = held.fullest
    if not device.ran_out:
        st.markdown(_peak(device))
    for failure in device.failures:
        st.warning(f"Memory ran out: {failure}.", icon=":material/memory:")
    if device.ran_out and device.most:
        parts.prose(_why_not(device.most[ALLOCATED], report.memory))
    rows = tables.memory_compared(device, report.memory)
    if rows:
        elements.table("held", rows)


def _peak(device: GpuMemory) -> str:
    had = ", ".join(f"{bytes_text(size)} {name}" for name, size in device.most.items())
    more = " `memplan snapshot` says where in the code each tensor was allocated."
    told = f"**{device.label} had {had} at its peak.** {' '.join(device.remarks)}"
    return told + (more if device.groups else "")


def _why_not(needed: int, memory: Memory) -> str:
    """What the plan on the page says of a run that ended so."""
    peak = f"This plan has {bytes_text(memory.allocated_bytes)} of tensors at its peak"
    if memory.allocated_bytes >= needed:
        return f"{peak}, as the run would have had: *Memory* says of what, and what makes it fit."
    return (
        f"{peak}, which is less, so that the run was not as this plan. Set the model, the "
        "micro-batch, the sequence length and all else as the run had it, or drop the job's files."
    )
