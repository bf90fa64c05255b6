"""The server: whom it lets in, what it sends, what it says when Memplan itself goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import platform
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import served
from starlette.datastructures import QueryParams
from streamlit.components.v2.bidi_component import main as bidi_component
from streamlit.cursor import Cursor, RunningCursor
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.BidiComponent_pb2 import BidiComponent
from streamlit.proto.Delta_pb2 import Delta
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.runtime.fragment import MemoryFragmentStorage
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.runtime import Runtime
from streamlit.runtime.scriptrunner import RerunData, ScriptRunner, ScriptRunnerEvent
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.runtime.state import SafeSessionState, SessionState
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager
from streamlit.web.server.starlette.starlette_websocket import StarletteSessionClient

from app import front, rest
from memcore.cli import app
from memcore.pausing import pause
from memcore.plan.plan import Plan
from memcore.serving.server import Server
from memcore.training.training import Training

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


def test_every_view_has_a_front_and_no_other_path_has(server: served.Server) -> None:
    for view in ("", "timeline", "serve", "accuracy"):
        status, text = server.get(f"/{view}?mb=2")
        assert status == 200
        assert "BACKEND_BASE_URL" in text
        assert not view or server.get(f"/{view}/_stcore/health")[0] == 404
    for path in ("/_stcore/", "/_stcore/health", "/_stcore/timeline", "/nosuchview"):
        assert "BACKEND_BASE_URL" not in server.get(path)[1]


def test_the_names_that_a_server_answers_to() -> None:
    own = ["localhost", "127.0.0.1", "::1"]
    assert app.names("127.0.0.1", []) == own
    assert app.names("10.1.2.3", ["gpu.example"]) == [*own, "10.1.2.3", "gpu.example"]
    every = app.names("0.0.0.0", ["gpu.example"])
    assert {*own, socket.gethostname(), "gpu.example"} <= set(every)
    assert not {"*", "0.0.0.0"} & set(every)


def test_what_a_session_keeps_is_the_same_asked_for_one_by_one() -> None:
    """Else a widget would not know that its value is None."""
    inner = SessionState()
    kept = SafeSessionState(inner, lambda: None)
    for key, value in {"n": 3, "none": None}.items():
        inner[key] = value
    one_by_one = front.State(kept)
    assert dict(one_by_one) == inner.filtered_state == {"n": 3, "none": None}
    assert "none" in one_by_one
    assert one_by_one["none"] is None
    assert "other" not in one_by_one
    assert len(one_by_one) == 2


def test_a_component_is_told_what_streamlit_would_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"rows": [["a", None, 1.5]], "text": "é <b>", "whole": 2**60}
    theirs, ours = BidiComponent(), BidiComponent()
    bidi_component.serialize_mixed_data(data, theirs)
    monkeypatch.setattr(bidi_component, "serialize_mixed_data", bidi_component.serialize_mixed_data)
    front.tell_components_plain_data()
    bidi_component.serialize_mixed_data(data, ours)
    assert json.loads(ours.json) == json.loads(theirs.json) == data


class Session:
    """One whose runs say something, and what its server's thread hears of it."""

    id = "session"

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.woken: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.cancelled: list[float] = []
        self._event_loop = self

    def _handle_scriptrunner_event_on_event_loop(
        self, sender: object, event: ScriptRunnerEvent, forward_msg: object = None
    ) -> None:
        self.heard.append(forward_msg or event)
        if forward_msg == "a fault":
            raise ValueError

    def _call_soon_on_event_loop(self, callback: Callable[[], object]) -> None:
        self.woken.append(callback)

    def call_later(self, seconds: float, take: Callable[[Any], None], of: Session) -> Any:
        self.later.append((seconds, lambda: take(of)))
        return SimpleNamespace(cancel=lambda: self.cancelled.append(seconds))

    def call_exception_handler(self, said: dict[str, Any]) -> None:
        self.heard.append(type(said["exception"]))


def test_what_a_run_says_is_heard_together_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end at once, with all before it; a beginning waits for elements a moment, they for others
    a shorter one."""
    for patched, name in (
        (AppSession, "_on_scriptrunner_event"),
        (Runtime, "_enqueued_some_message"),
    ):
        monkeypatch.setattr(patched, name, getattr(patched, name))
    front.hand_over_together()
    monkeypatch.setattr(front, "ANSWERING", set())
    session = Session()
    begins, says, ends = (
        ScriptRunnerEvent.SCRIPT_STARTED,
        ScriptRunnerEvent.ENQUEUE_FORWARD_MSG,
        ScriptRunnerEvent.SCRIPT_STOPPED_WITH_SUCCESS,
    )

    def say(event: ScriptRunnerEvent, **more: Any) -> None:
        AppSession._on_scriptrunner_event(session, None, event, **more)  # type: ignore[arg-type]

    def wake() -> None:
        while session.woken:
            session.woken.pop(0)()

    def waited() -> float:
        seconds, take = session.later.pop()
        take()
        return seconds

    say(begins)
    assert {session.id} == front.ANSWERING
    for word in ("one", "a fault", "three"):
        say(says, forward_msg=word)
    assert len(session.woken) == 1
    wake()
    assert not session.heard
    assert waited() == front.BEGINS
    assert session.heard == [begins, "one", "a fault", ValueError, "three"]
    say(says, forward_msg="four")
    say(says, forward_msg="five")
    wake()
    assert waited() == front.TOGETHER < front.BEGINS
    assert session.heard[-2:] == ["four", "five"]
    say(says, forward_msg="six")
    say(ends)
    wake()
    assert session.heard[-2:] == ["six", ends]
    assert not front.ANSWERING
    assert session.cancelled[-1] == front.TOGETHER
    session.cancelled.clear()
    say(begins)
    wake()
    say(ends)
    wake()
    assert session.heard[-2:] == [begins, ends]
    assert session.cancelled == [front.BEGINS]  # the next run waits for its own


@pytest.mark.parametrize("asked", [True, False])
def test_what_there_is_for_a_browser_is_one_frame(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """In its order, where it asks for that; else message by message."""
    monkeypatch.setattr(StarletteSessionClient, "__init__", StarletteSessionClient.__init__)
    for patched, name in ((AppSession, "flush_browser_queue"), (Runtime, "_send_message")):
        monkeypatch.setattr(patched, name, getattr(patched, name))
    front.send_in_one_piece()
    sent: list[bytes] = []

    class Socket:
        headers: ClassVar[dict[str, str]] = {}
        cookies: ClassVar[dict[str, str]] = {}
        client = None
        query_params = QueryParams(front.IN_ONE_FRAME if asked else "")

        async def send_bytes(self, data: bytes) -> None:
            sent.append(data)
            await asyncio.sleep(0)

    messages = [ForwardMsg(script_finished=0), ForwardMsg(delta=Delta(fragment_id="é" * 300))]
    texts = [message.SerializeToString() for message in messages]

    async def talk() -> None:
        client = StarletteSessionClient(Socket())  # type: ignore[arg-type]
        for message in messages:
            client.write_forward_msg(message)
        await asyncio.sleep(0.01)
        client.write_forward_msg(messages[0])
        await asyncio.sleep(0.01)
        await client.aclose()

    asyncio.run(talk())
    frames = [front.in_one_frame(texts), front.in_one_frame(texts[:1])]
    assert sent == (frames if asked else [*texts, texts[0]])
    assert front.in_one_frame([b"ab", b"", b"c" * 258]) == (
        b"\0\0\0\2ab" + b"\0\0\0\0" + b"\0\0\1\2" + b"c" * 258
    )


def test_all_that_there_is_for_a_browser_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, and nothing where there is nothing."""
    sent: list[tuple[str, str]] = []
    waiting = ["one", "two"]
    monkeypatch.setattr(AppSession, "flush_browser_queue", lambda _: list(waiting))
    monkeypatch.setattr(Runtime, "_send_message", lambda _, to, message: sent.append((to, message)))
    front.send_in_one_piece()
    session: Any = SimpleNamespace()
    for found in AppSession.flush_browser_queue(session):
        Runtime._send_message(session, "browser", found)  # type: ignore[arg-type]
    assert sent == [("browser", "one"), ("browser", "two")]
    waiting.clear()
    assert AppSession.flush_browser_queue(session) == []


def test_of_a_run_that_is_over_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without that Python looks for cycles."""
    script = tmp_path / "script.py"
    script.write_text("import streamlit as st; st.slider('n', key='n')", encoding="utf-8")
    monkeypatch.setattr(Runtime, "_instance", MagicMock())
    running = ScriptRunner._run_script_thread
    monkeypatch.setattr(ScriptRunner, "_run_script_thread", running)
    front.let_go_of_what_ran()
    gc.disable()
    try:
        ended: list[ScriptRunnerEvent] = []
        runner = ScriptRunner(
            "session",
            str(script),
            SessionState(),
            MemoryUploadedFileManager("/"),
            ScriptCache(),
            RerunData(),
            {},
            MemoryFragmentStorage(),
            PagesManager(str(script)),
            event_loop=asyncio.new_event_loop(),
        )

        def hear(_: object, event: ScriptRunnerEvent, **more: object) -> None:
            ended.append(event)

        runner.on_event.connect(hear)
        runner.start()
        assert runner._script_thread
        runner._script_thread.join()
        assert ended[-2:] == [
            ScriptRunnerEvent.SCRIPT_STOPPED_WITH_SUCCESS,
            ScriptRunnerEvent.SHUTDOWN,
        ]
        gone = weakref.ref(runner)
        del runner
        assert gone() is None
    finally:
        gc.enable()


def test_a_place_of_a_run_is_copied_as_streamlit_copies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has all of it, and moves alone."""
    one = RunningCursor(root_container=1, parent_path=(2, 3))
    one.lock_element()
    usual = vars(copy.deepcopy(one))
    monkeypatch.setattr(Cursor, "__deepcopy__", None, raising=False)
    front.copy_places_quickly()
    other = copy.deepcopy(one)
    assert type(other) is RunningCursor
    for name, value in vars(other).items():
        assert name == "_transient_elements" or value == usual[name]
    assert vars(other).keys() == usual.keys()
    assert not other.transient_elements
    other.lock_element()
    other.transient_elements[0] = Element()
    assert (one.index, other.index, len(one.transient_elements)) == (1, 2, 0)
    third = copy.deepcopy(other)
    assert list(third.transient_elements.items()) == [(0, Element())]
    assert third.transient_elements is not other.transient_elements


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


def test_what_a_component_said_is_as_streamlit_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps saying, and what it said once."""
    name = "make_bidi_component_presenter"
    theirs = getattr(bidi_component, name)
    monkeypatch.setattr(bidi_component, name, theirs)
    front.look_at_what_components_said()
    ours = getattr(bidi_component, name)
    state = SessionState()
    for events in (None, [], [{"event": "why", "value": "memory"}, {"event": "over"}]):
        widgets = state._new_widget_state
        kind = {"value_type": "json_trigger_value", "deserializer": str, "serializer": str}
        widgets.widget_metadata["events"] = WidgetMetadata("events", **kind)
        widgets.set_from_value("events", events)
        for said in ({}, {"cell": [1, 2]}, None):
            expected = theirs("events")(said, state)
            assert ours("events")(said, state) == expected
    assert ours("others")({"go": "there"}, state) == {"go": "there"}


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> ForwardMsgQueue:
    """One that keeps what is unsent."""
    monkeypatch.setattr(ForwardMsgQueue, "clear", ForwardMsgQueue.clear)
    front.keep_what_is_unsent()
    return ForwardMsgQueue()


def test_what_is_unsent_is_sent_also_when_a_fragment_runs_next(queue: ForwardMsgQueue) -> None:
    """Else the page would lose all that the fragment draws."""
    drawn = ForwardMsg()
    drawn.delta.fragment_id = "body"
    drawn.delta.new_element.text.body = "verdict"
    over = ForwardMsg(script_finished=ForwardMsg.FINISHED_SUCCESSFULLY)
    for message in (drawn, over):
        queue.enqueue(message)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["body"])
    assert queue.flush() == [drawn, over]
    queue.enqueue(drawn)
    queue.clear(retain_lifecycle_msgs=True)  # a run of the whole page draws it again
    assert not queue.flush()


def test_the_answer_to_a_press_is_sent_whatever_runs_next(queue: ForwardMsgQueue) -> None:
    answer = ForwardMsg()
    answer.backend_operation_response.request_id = "a download"
    queue.enqueue(answer)
    queue.clear(retain_lifecycle_msgs=True)
    assert queue.flush() == [answer]
    assert queue.is_empty()


def test_a_download_is_there_while_it_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs end meanwhile, of this page or of others."""
    now = 0.0
    monkeypatch.setattr(front.time, "monotonic", lambda: now)
    for name in ("_get_inactive_file_ids", "_remove_orphaned_deferred_callables"):
        monkeypatch.setattr(MediaFileManager, name, getattr(MediaFileManager, name))
    front.keep_what_may_be_fetched()
    kept = MemoryMediaFileStorage("/media")
    files = MediaFileManager(kept)
    press = files.add_deferred(lambda: "a,b", "text/csv", "0.1", "a.csv")

    def runs_end() -> None:
        files.clear_session_refs()  # a run of the whole page has begun
        for _ in range(3):
            files.remove_orphaned_files()

    def fetched(url: str) -> bytes:
        return kept.get_file(url.rpartition("/")[2]).content

    runs_end()
    first = files.execute_deferred(press)
    runs_end()
    assert fetched(first) == b"a,b"
    now = front.FETCHED
    again = files.execute_deferred(press)
    runs_end()
    now += 1
    runs_end()
    assert fetched(again) == b"a,b", "a file that is made again is a new one"
    with pytest.raises(Exception, match="not found"):
        files.execute_deferred(press)
    now += front.FETCHED
    runs_end()
    with pytest.raises(Exception, match="Bad filename"):
        fetched(again)


def test_a_browser_whose_session_was_let_go_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not take in what was sent, and would now wait for ever."""
    for kind, name in ((AppSession, "request_rerun"), (Runtime, "handle_backmsg")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    front.answer_whoever_asks()
    closed: list[int] = []

    async def close(code: int) -> None:
        closed.append(code)

    def said(found: Callable[[StarletteSessionClient], Any]) -> Any:
        client = StarletteSessionClient.__new__(StarletteSessionClient)
        client._websocket = SimpleNamespace(close=close)  # type: ignore[assignment]
        session = SimpleNamespace(handle_backmsg=lambda message: heard.append(message))
        info = found(client) and SimpleNamespace(client=found(client), session=session)
        runtime = SimpleNamespace(
            _state=None, _session_mgr=SimpleNamespace(get_active_session_info=lambda name: info)
        )

        async def handle() -> None:
            Runtime.handle_backmsg(runtime, "one", BackMsg(), client=client)  # type: ignore[arg-type]
            await asyncio.sleep(0)

        asyncio.run(handle())

    heard: list[BackMsg] = []
    said(lambda client: client)
    assert len(heard) == 1
    assert not closed
    said(lambda client: None)
    said(lambda client: object())
    assert len(heard) == 1
    assert closed == [1013, 1013]


@pytest.mark.parametrize("came_back", [False, True])
def test_of_a_session_that_is_over_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, came_back: bool
) -> None:
    """Streamlit ends it when Python finds its cycles: long after, in any thread, with any lock."""
    done: list[str] = []

    def says(what: str) -> SimpleNamespace:
        return SimpleNamespace(clear=lambda: done.append(what))

    session = SimpleNamespace(
        id="one",
        shutdown=lambda: done.append("shut down"),
        _fragment_storage=says("fragments"),
        session_state=says("state"),
    )
    found = SimpleNamespace(session=session)
    manager = SimpleNamespace(
        get_active_session_info=lambda name: found,
        get_session_info=lambda name: found if came_back else None,
    )
    monkeypatch.setattr(
        WebsocketSessionManager, "disconnect_session", lambda self, name: done.append(name)
    )
    monkeypatch.setattr(front.config, "get_option", lambda name: -1)
    front.let_go_of_who_is_gone()

    async def leave() -> None:
        WebsocketSessionManager.disconnect_session(manager, "one")  # type: ignore[arg-type]
        assert done == ["one"]
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    assert done == (["one"] if came_back else ["one", "shut down", "fragments", "state"])


def test_of_a_button_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the rows of a plan; who moves a slider draws one more with each step."""
    monkeypatch.setattr(
        MediaFileManager,
        "_remove_orphaned_deferred_callables",
        MediaFileManager._remove_orphaned_deferred_callables,
    )
    monkeypatch.setattr(
        MediaFileManager, "_get_inactive_file_ids", MediaFileManager._get_inactive_file_ids
    )
    front.keep_what_may_be_fetched()
    files = MediaFileManager(MemoryMediaFileStorage("/media"))

    def drawn(n: int, key: str) -> str:
        return files.add_deferred(
            lambda: f"{n}", "text/csv", f"{key}.{n}", f"{n}.csv", element_id=f"$$ID-{key}"
        )

    presses = []
    for n in range(20):
        files.clear_session_refs()
        presses.append(drawn(n, "a"))
        other = drawn(n, "b")
        files.remove_orphaned_files()
    assert len(files._deferred_callables) == 2 * (1 + front.BEHIND)
    for press in (presses[-1], presses[-1 - front.BEHIND], other):
        assert files.execute_deferred(press)
    with pytest.raises(Exception, match="not found"):
        files.execute_deferred(presses[-2 - front.BEHIND])


def test_of_all_sessions_one_at_a_time_finds_what_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And who has changed the plan meanwhile waits for no turn."""
    at_once, most, asked = 0, 0, False
    monkeypatch.setattr(front, "asked_again", lambda: asked)

    def find() -> None:
        nonlocal at_once, most
        with rest._turn():
            at_once += 1
            most = max(most, at_once)
            time.sleep(0.02)
            at_once -= 1

    threads = [threading.Thread(target=find) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    with rest._turn():
        asked = True
        with rest._turn(), pytest.raises(rest.AskedAgainError):  # no turn, and no wait
            pause()


def test_answers_to_others_come_before_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not for ever, and who has changed the plan meanwhile does not wait for them."""
    asked, answering = False, {"another session"}
    monkeypatch.setattr(front, "ANSWERING", answering)
    monkeypatch.setattr(front, "asked_again", lambda: asked)
    monkeypatch.setattr(rest, "PATIENCE", 300)

    def over() -> None:
        time.sleep(0.1)
        answering.clear()

    other = threading.Thread(target=over)
    other.start()
    with rest._turn():
        Training.of(Plan())  # as each plan that is evaluated
        assert not answering
    other.join()
    answering.add("another session")
    monkeypatch.setattr(rest, "PATIENCE", 0.1)
    with rest._turn():
        Server.of(Plan())
        assert answering
    monkeypatch.setattr(rest, "PATIENCE", 300)
    with rest._turn():
        asked = True
        with pytest.raises(rest.AskedAgainError):
            pause()
    pause()  # who waits for a plan itself is held up by nobody
