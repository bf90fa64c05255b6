"""Given: what somebody gave with the plan, beside which it is shown: a step and a server that were
measured, what a run had in memory, and the lengths of a stream of requests.

The link carries what was measured; the rest is the session's.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app import places, shared
from app.state import plan, replace, session
from memcore import PlanError
from memcore.errors import Issue
from memcore.formats.benches import bench_of, closed
from memcore.formats.memory import RunMemory
from memcore.formats.snapshot import read_memory
from memcore.plan.keys import BENCHED, MEASURED
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan
from memcore.search.measured import Calibrated, calibrated
from memcore.stream import read_lengths
from memcore.stream.lengths import Lengths
from memcore.units import GiB, bytes_text

# Files that the link does not carry; no widget has such a key, as a table "run" has.
RUN, LENGTHS = "given_run", "given_lengths"


def measured(server: bool = False) -> Measured | None:
    """The step that somebody measured, or the server."""
    return session().measured.get(BENCHED if server else MEASURED)


def step(of: Plan | None = None) -> Calibrated | None:
    """The plan on the page, or another, as the measured step has it; None without one, or where
    that says nothing of the plan."""
    return _read(of, False)[0]


def server(of: Plan | None = None) -> Calibrated | None:
    """The server of the plan on the page, or of another, as the measured one has it; None without
    one, or where that says nothing of the plan's."""
    return _read(of, True)[0]


def refused(server: bool) -> Sequence[Issue]:
    """Why the measured step, or server, says nothing of the plan on the page."""
    return _read(None, server)[1]


def _read(of: Plan | None, server: bool) -> tuple[Calibrated | None, Sequence[Issue]]:
    by, now = measured(server), of or plan()
    if by is None:
        return None, ()
    try:
        return calibrated(now, by, shared.report(now), shared.report(by.plan)), ()
    except PlanError as e:
        return None, e.issues


def predicted_server() -> Measured | None:
    """The measured server, where something is predicted of it, so that it can move others."""
    by = measured(server=True)
    serve = shared.report(by.plan).serve if by else None
    return by if serve and serve.tpot_seconds else None


def measure(server: bool, one: float, other: float) -> None:
    """Keep what the plan on the page took: seconds of a step and bytes at its peak, or seconds per
    token and to the first one; of the second 0: not known."""
    s = session()
    if server:
        s.measured[BENCHED] = Measured(closed(s.plan), token=one, first=other)
        _not_read(BENCHED)
    else:
        s.measured[MEASURED] = Measured(s.plan, one, round(other))


def forget(server: bool) -> None:
    """Back to predictions alone."""
    session().measured.pop(BENCHED if server else MEASURED, None)


def use_bench(text: str) -> None:
    """Keep what a benchmark says of the server of the plan on the page, whose load becomes that of
    the benchmark; where it says nothing, or of another server, why."""
    s = session()
    try:
        of_plan, told = bench_of(text.encode()).of(s.plan)
    except PlanError as e:
        _not_read(BENCHED, e.issues)
        return
    _not_read(BENCHED)
    replace(of_plan.plan, "the benchmark" if told else "", told)
    s.measured[BENCHED] = of_plan


def use_snapshot(data: bytes) -> None:
    """Keep what a memory snapshot or a text says that a run had; of what is none, why not."""
    s = st.session_state
    try:
        if len(data) > places.MOST_HELD:
            raise PlanError([Issue("", f"it has more than {bytes_text(places.MOST_HELD)}")])
        s[RUN] = read_memory(data)
    except PlanError as e:
        s[RUN] = None
        _not_read(RUN, e.issues)
        return
    _not_read(RUN)
    device = s[RUN].fullest
    s.measured_gib = device.allocated_bytes / GiB or None
    s.measured_seconds = device.step_seconds or None


def run() -> RunMemory | None:
    """What a run had in memory, by what was dropped last that says it."""
    memory: RunMemory | None = st.session_state.get(RUN)
    return memory


def use_lengths(data: bytes, name: str) -> None:
    """Take the stream's lengths from a file; one that has none leaves them as they are."""
    try:
        st.session_state[LENGTHS] = read_lengths(data), name
    except PlanError as e:
        _not_read(LENGTHS, e.issues)
        return
    _not_read(LENGTHS)


def drop_lengths() -> None:
    """Back to the plan's own lengths."""
    st.session_state[LENGTHS] = None, ""
    _not_read(LENGTHS)


def lengths() -> tuple[Lengths | None, str]:
    """Lengths of the stream's requests from a file, and its name; None and '': the plan's own."""
    pairs: tuple[Lengths | None, str] = st.session_state.get(LENGTHS, (None, ""))
    return pairs


def _not_read(what: str, issues: Sequence[Issue] = ()) -> None:
    st.session_state[f"not_read_{what}"] = issues


def not_read(what: str) -> Sequence[Issue]:
    """Why what was given last of this kind is not read."""
    issues: Sequence[Issue] = st.session_state.get(f"not_read_{what}", ())
    return issues
