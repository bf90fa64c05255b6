"""Warm: what is done once per process, so that no visitor waits for it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

# Objects more than before until cycles are looked for among them, and how many times that is done
# until it is done among those that stayed, and then among all, which stops every session for some
# 200 ms. A run leaves cycles of some hundred objects; as Python has it, looking for them is an
# eighth of a change's processor.
COLLECTED = 20_000, 10, 20
# Seconds for which a thread has the processor while others wait for it. The server's own thread has
# a little to do many times in each run; as Python has it, it waits 5 ms each time for every run
# beside it.
SWITCHED = 0.001
M_ARENA_MAX = -8  # of glibc's mallopt


_bound = threading.Event()


@contextlib.asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Says that the server has its port; it starts to answer now."""
    _bound.set()
    yield


def port() -> int:
    """The port that this server has; waits until it has one."""
    _bound.wait()
    return int(st.get_option("server.port"))


def one_heap() -> None:
    """Let all threads take memory from one heap, where the C library is glibc. It gives each thread
    one of some, and each run is a thread: what one leaves free in its heap no other can use, and a
    process grew by 6 MiB a minute under a crowd. Call it before there are threads.

    Nobody waits for the heap: whoever takes memory has Python's own lock."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(M_ARENA_MAX, 1)


@st.cache_resource(show_spinner=False)
def once() -> int:
    """Run what is slow the first time; then keep all of it out of every later garbage collection.

    Without the freeze each full collection walks the modules' million objects, which costs more
    than the rest of an interaction.
    """
    go.Figure(go.Bar(x=[1], y=[1])).to_json()
    evaluate(Plan())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED)
    sys.setswitchinterval(SWITCHED)
    return gc.get_freeze_count()
