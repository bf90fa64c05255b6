"""Measured: a step that somebody ran, which the plan on the page is read beside."""

from __future__ import annotations

from collections.abc import Iterator

import streamlit as st

from app import parts, places, state, tables
from app.line import Item
from app.tables.time import calibrated_ends
from app.text import plain
from memcore.formats.snapshot import Device
from memcore.formats.totals import Totals
from memcore.plan.measured import MOST_SECONDS
from memcore.plan.plan import title_of
from memcore.report import Memory
from memcore.units import GiB, bytes_text, seconds_text

TITLE = "Read it beside a run of yours"


def section() -> None:
    """What was measured and what it comes to, or a place to say it."""
    dropped = state.held() or state.held_issues()
    parts.folded(TITLE, _content, unfolded=bool(state.measured() or dropped))


def held(data: bytes) -> None:
    """What is done with what a run held, as somebody drops it: the page leads to what it says."""
    state.use_snapshot(data)
    st.session_state[f"folded_{TITLE}"] = True
    places.lead("time")


def _snapshot() -> None:
    """What a run held, beside the plan; or why a file does not say it."""
    if issues := state.held_issues():
        st.error("**This is not read.**\n" + parts.listed(issues), icon=":material/block:")
    found, report = state.held(), state.report()
    if found is None or report.memory is None:
        return
    device = found.fullest
    st.markdown(_totals(device) if isinstance(device, Totals) else _peak(device))
    if isinstance(device, Totals) and device.ran_out:
        parts.prose(_why_not(device.peak["allocated"], report.memory))
    for failure in device.failures:
        st.warning(f"Memory ran out: {failure}.", icon=":material/memory_alert:")
    rows = tables.held(device, report.memory)
    parts.table(rows, key="held", alt="The plan's peak beside what a run held")


def _peak(device: Device) -> str:
    free = device.peak.reserved - device.peak.allocated
    return (
        f"**GPU {device.index} held {bytes_text(device.peak.allocated)} at its peak**, of "
        f"{bytes_text(device.reserved_bytes)} reserved; {bytes_text(free)} were reserved and had "
        f"no tensor. `memplan snapshot` says where in the code each of them was allocated."
    )


def _totals(device: Totals) -> str:
    if device.ran_out:
        return f"**Memory ran out: {device.ran_out}.**"
    said = ", ".join(f"{bytes_text(size)} {name}" for name, size in device.peak.items())
    return f"**GPU {device.index} had {said} at its peak.** {' '.join(device.remarks())}"


def _why_not(needed: int, memory: Memory) -> str:
    """What the plan on the page says of a run that ended so."""
    peak = f"This plan has {bytes_text(memory.allocated_bytes)} of tensors at its peak"
    if memory.allocated_bytes >= needed:
        return f"{peak}, as the run would have had: *Memory* says of what, and what makes it fit."
    return (
        f"{peak}, which is less, so that the run was not as this plan. Set the model, the "
        "micro-batch, the sequence length and all else as the run had it, or drop the job's files."
    )


def _content() -> None:
    _snapshot()
    measured = state.measured()
    if measured is None:
        _ask()
        return
    took = seconds_text(measured.seconds)
    peak = f", {bytes_text(measured.bytes)} allocated" if measured.bytes else ""
    of = measured.plan
    here = of == state.plan()
    whose = "This plan ran" if here else f"{plain(of.architecture.label)} ran"
    gpus = "" if here else f" on {of.cluster.gpus:,} × {plain(of.accelerator.label)}"
    st.markdown(f"**{whose}{gpus}: {took} a step{peak}.**")
    found = state.calibrated()
    if found:
        parts.table(
            tables.calibrated(found, state.report()),
            key="calibrated",
            alt="Figures as predicted, and calibrated by the measured step",
        )
        parts.small(plain(found.assumed))
    ways = ("Open the plan that ran", "Forget the run")
    parts.ran(
        state.refused_measured(), None if here else of, "measured", ways, state.forget_measured
    )


def _ask() -> None:
    parts.prose(
        "Did this plan run? Say what one optimizer step took. Every plan with its framework, "
        "kernels, attention, adapter and GPU is then shown twice: as predicted, and as your run "
        "has it. The link carries it."
    )
    with st.form("measured_form", border=False):
        left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
        left.number_input(
            "Seconds of one optimizer step", min_value=0.0, max_value=MOST_SECONDS, value=None,
            format="%g", key="measured_seconds", placeholder="e.g. 9.5",
        )  # fmt: skip
        middle.number_input(
            "Peak memory, GiB (if known)", min_value=0.0, max_value=1e6, value=None, format="%g",
            key="measured_gib", placeholder="torch.cuda.max_memory_allocated()",
        )  # fmt: skip
        right.form_submit_button("Use this run", on_click=_given)
    if st.session_state.get("measured_missing"):
        st.error("A measured step takes more than 0 seconds.", icon=":material/block:")


def _given() -> None:
    s = st.session_state
    seconds, gib = s.measured_seconds or 0.0, s.measured_gib or 0.0
    s.measured_missing = seconds <= 0
    if seconds > 0:
        state.measure(seconds, round(gib * GiB))


def in_strip() -> Iterator[Item]:
    """The calibrated step beside the predicted one, or why there is none."""
    if found := state.calibrated():
        yield Item(
            " calibrated",
            bold=seconds_text(found.calibrated_seconds),
            help=f"{calibrated_ends(found)}. {found.assumed}",
        )
    elif issues := state.refused_measured():
        differ = ", ".join(title_of(issue.field) for issue in issues)
        yield Item(f"not calibrated: your run differs in {differ}")
