"""What every test shares: which examples hypothesis draws.

A run draws the same examples as every other, on every machine: what fails in one fails in all.
MEMPLAN_EXPLORE=1 draws new ones instead, with a seed that is printed at the end, and
MEMPLAN_EXPLORE=SEED draws those of that seed again.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import pytest
from explored import EXAMPLES, EXPLORE, TIMES
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

# Hypothesis also draws constants of the modules that happen to be imported. Which those are depends
# on the tests that ran before in the same worker: a seed would not draw the same examples again.
providers.is_local_module_file = lambda path: False  # type: ignore[assignment]

# One machine is slower or busier than another; no test is wrong for it. Nothing is kept from one
# run to the next, and nothing is written into the checkout.
os.environ.pop("COLUMNS", None)  # which workers have: it would cut tables as a terminal does
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir(), "memplan")))
settings.register_profile(
    "same",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    deadline=None,
    database=None,
    max_examples=EXAMPLES * TIMES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("explore" if EXPLORE else "same")


OBJECTS = 20_000  # more than before until cycles are looked for; a search takes more still


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While tests are collected no cycles are looked for, and what is there then, modules and tests
    that stay, is left out of every later search. To walk it again and again takes half of the time
    of collecting. At the end, on a busy machine, it takes so long that a worker which was told to
    end is interrupted in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(OBJECTS)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What hypothesis draws can be explored (`-m explore`)."""
    for item in items:
        if getattr(getattr(item, "obj", None), "hypothesis", None):
            item.add_marker(pytest.mark.explore)


APART = ("test_app.py",)  # its tests share nothing, and are many seconds
SERVERS = ("test_server.py", "test_hosting.py")  # they look for free ports
CHROMIUMS = 4  # at most: a worker that gets tests of the browser starts one, and a server


class Scheduling(LoadScopeScheduling):
    """The tests of a file run in one worker, which computes once what they share."""

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        if path.parent.name == "browser":
            return f"browser {crc32(nodeid.encode()) % CHROMIUMS}"
        if path.name in APART:
            return nodeid
        if path.parent.name == "evidence":  # what is compared with it is compared once
            return "evidence"
        return "servers" if path.name in SERVERS else str(path)


HANGS = 600  # seconds; generous: no test is wrong because a machine is busy


def _late(number: int, frame: object) -> None:
    pytest.fail(f"not done after {HANGS} s: it waits for what does not come")


@pytest.hookimpl(wrapper=True)
def _bounded(item: pytest.Item) -> Generator[None, None, None]:
    """Whatever waits in Python is broken off, so that the test fails and the others run; what
    waits elsewhere is left to pytest's faulthandler_timeout, which ends the process."""
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(0 if item.config.option.usepdb else HANGS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if hasattr(signal, "SIGALRM"):  # Windows has none
    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _bounded


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker for each core where all tests are asked for, none where a few are: to start the
    workers takes as long as a file's tests."""
    few = any(Path(part.partition("::")[0]).is_file() for part in config.args)
    return 0 if few or config.option.keyword or config.option.usepdb else os.cpu_count() or 1


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads the seed
def pytest_configure(config: pytest.Config) -> None:
    if EXPLORE and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.getrandbits(32) if EXPLORE == "1" else EXPLORE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if EXPLORE:
        seed = terminalreporter.config.option.hypothesis_seed
        terminalreporter.write_line(f"MEMPLAN_EXPLORE={seed} draws these examples again")
