"""The server: whom it lets in, and what it says when Memplan itself goes wrong."""

from __future__ import annotations

import contextlib
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import served

from app import turns
from memcore.cli import app
from memcore.pausing import pause, pausing

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
BROKEN = """
import sys
import memcore.evaluate

module = sys.modules["memcore.evaluate"]
evaluate = module.evaluate

def broken(plan, *known):
    if plan.train.micro_batch == 13:
        raise ZeroDivisionError("13 <b>on</b> purpose")
    return evaluate(plan, *known)

module.evaluate = broken
"""


@pytest.fixture(scope="module", params=[served.STREAMLIT, served.MEMPLAN], ids=["streamlit", "cli"])
def command(request: pytest.FixtureRequest) -> Sequence[str]:
    """Both ways to start it."""
    found: Sequence[str] = request.param
    return found


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[bytes]]]:
    with served.ear() as found:
        yield found


@pytest.fixture(scope="module")
def server(
    command: Sequence[str],
    heard: tuple[str, list[bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[served.Server]:
    """Whatever it asks of the internet goes through `heard`, and `memcore.evaluate` fails at 13."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    through = dict.fromkeys(PROXIES, heard[0]) | {"PYTHONPATH": str(folder)}
    with served.serving(folder / "log.txt", command, cwd=folder, **through) as found:
        yield found


def test_a_foreign_page_is_refused_and_nobody_is_asked(
    server: served.Server, heard: tuple[str, list[bytes]]
) -> None:
    """Before anybody has opened the app, and after."""
    for _ in range(2):
        assert not server.accepts(origin="http://evil.example")
        assert not server.accepts(origin=f"http://evil.example:{server.port}")
        assert not server.accepts(origin="null")
        assert server.accepts()
    assert heard[1] == []


def test_a_rebound_name_is_refused(server: served.Server) -> None:
    """Host and Origin are both the name that was made to lead here; nothing can be read under it.
    A person who comes under another name reads what to do."""
    name = f"evil.example:{server.port}"
    assert not server.accepts(host=name, origin=f"http://{name}")
    status, text = server.get("/", host=name)
    assert status == 403
    assert "--allow" in text
    for own in ("localhost", "127.0.0.1", "[::1]"):
        assert server.get("/_stcore/health", host=f"{own}:{server.port}")[0] == 200
        assert server.accepts(host=f"{own}:{server.port}", origin=f"http://{own}:{server.port}")


def test_only_this_machine_is_served(server: served.Server) -> None:
    """The whole of 127.0.0.0/8 leads here, so a server of all interfaces would answer."""
    with pytest.raises(ConnectionRefusedError):
        server.get("/", at="127.0.0.2")


def test_a_fault_of_memplan_leads_back_to_the_default_plan(server: served.Server) -> None:
    with server.session("mb=13") as session:
        assert "Memplan could not show this plan." in session.text
        assert "ZeroDivisionError '13 <b>on</b> purpose'" in session.text
        assert '<a href="./" id="way-back">Open the default plan</a>' in session.text
        assert "Traceback" not in session.text
        assert session.exceptions == []
    with server.session() as session:
        assert "Training fits" in session.text
        assert "Memplan could not" not in session.text


def test_serving_others_asks_nobody(heard: tuple[str, list[bytes]], tmp_path: Path) -> None:
    """All interfaces, under the names that were allowed, and under no other."""
    before = len(heard[1])
    command = (*served.MEMPLAN, "--host", "0.0.0.0", "--allow", "gpu.example")
    through = dict.fromkeys(PROXIES, heard[0])
    with served.serving(tmp_path / "log.txt", command, **through) as server:
        assert server.get("/_stcore/health", at="127.0.0.2", host="gpu.example")[0] == 200
        assert server.get("/", at="127.0.0.2", host="evil.example")[0] == 403
        assert server.accepts(host="gpu.example", origin="http://gpu.example")
        assert not server.accepts(origin="http://evil.example")
    assert heard[1][before:] == []


def test_two_that_start_at_once_print_each_its_own_address(tmp_path: Path) -> None:
    """Neither is asked for a port. The address that each prints is that of its own process."""
    logs = [tmp_path / f"{i}.txt" for i in range(2)]
    with contextlib.ExitStack() as stack:
        processes = []
        for log in logs:
            out = stack.enter_context(log.open("w"))
            process = subprocess.Popen(served.MEMPLAN, stdout=out, stderr=out, cwd=served.ROOT)
            stack.callback(process.wait, served.SECONDS)
            stack.callback(process.terminate)
            processes.append(process)
        end = time.monotonic() + served.SECONDS
        while not all("Memplan is at" in log.read_text() for log in logs):
            assert time.monotonic() < end, [log.read_text() for log in logs]
            assert all(process.poll() is None for process in processes)
            time.sleep(0.1)
        found = [re.findall(r"is at http://127.0.0.1:(\d+) ", log.read_text()) for log in logs]
        (first,), (second,) = found
        assert first != second
        for port, process in ((first, processes[0]), (second, processes[1])):
            assert served.Server(int(port), tmp_path).get("/_stcore/health")[0] == 200
            process.terminate()
            process.wait(served.SECONDS)
            with pytest.raises(ConnectionRefusedError):
                served.Server(int(port), tmp_path).get("/_stcore/health")


def test_below_a_view_there_is_no_server_and_no_error(server: served.Server) -> None:
    """A page asks there first; a browser writes what is not found into its console."""
    assert server.get("/_stcore/health")[0] == 200
    for view in ("time", "serve", "accuracy"):
        assert server.get(f"/{view}?mb=2")[0] == 200
        assert server.get(f"/{view}/_stcore/health")[0] == 300
        assert server.get(f"/{view}/_stcore/host-config")[0] == 300


def test_the_names_that_a_server_answers_to() -> None:
    own = ["localhost", "127.0.0.1", "::1"]
    assert app.names("127.0.0.1", []) == own
    assert app.names("10.1.2.3", ["gpu.example"]) == [*own, "10.1.2.3", "gpu.example"]
    every = app.names("0.0.0.0", ["gpu.example"])
    assert {*own, socket.gethostname(), "gpu.example"} <= set(every)
    assert not {"*", "0.0.0.0"} & set(every)


HEAPS = """
import ctypes, sys, threading
from app import warm
if "one" in sys.argv:
    warm.one_heap()
thread = threading.Thread(target=lambda: [bytes(1000) for _ in range(1000)])
thread.start(); thread.join()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_all_threads_take_memory_from_one_heap() -> None:
    for asked, heaps in (("", 2), ("one", 1)):
        command = (sys.executable, "-c", HEAPS, asked)
        said = subprocess.run(command, capture_output=True, text=True, cwd=served.ROOT, check=True)
        assert said.stderr.count("Arena") == heaps, said.stderr


def test_answers_to_others_come_before_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not for ever; and who is asked again meanwhile leaves off."""
    monkeypatch.setattr(turns, "PATIENCE", 0.2)
    wait = turns._others_first(lambda: None)
    with turns.answering():
        began = time.monotonic()
        wait()
        assert time.monotonic() - began >= 0.2
        began = time.monotonic()
        wait()  # it has waited long enough
        assert time.monotonic() - began < 0.1
    assert turns._answers == 0

    class AskedAgainError(Exception):
        pass

    def asked() -> None:
        raise AskedAgainError

    with turns.turn(asked) as others_first, pausing(others_first):
        with pytest.raises(AskedAgainError):
            pause()
        with pytest.raises(AskedAgainError), turns.turn(asked):  # who waits for a turn, too
            pass
