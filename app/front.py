"""Front: what a browser gets first, and where it finds the server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from streamlit import config, file_util
from streamlit.components.v2.bidi_component import main as bidi_component
from streamlit.cursor import Cursor, SparseList
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.BidiComponent_pb2 import BidiComponent
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime import app_session
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.runtime import Runtime
from streamlit.runtime.scriptrunner import ScriptRunner, ScriptRunnerEvent, get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_requests import (
    RerunData,
    ScriptRequests,
    ScriptRequestType,
)
from streamlit.runtime.scriptrunner_utils.script_run_context_attr import (
    SCRIPT_RUN_CONTEXT_ATTR_NAME,
)
from streamlit.runtime.session_manager import ActiveSessionInfo, SessionClient
from streamlit.runtime.state.common import user_key_from_element_id
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.state.session_state import SessionState
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager
from streamlit.web.server.starlette.starlette_websocket import StarletteSessionClient

VIEWS = frozenset(path.stem for path in Path(__file__).with_name("views").glob("[!_]*.py"))
OLD = frozenset(("timeline",))  # addresses of views that stand elsewhere now
# What the page does before Streamlit's own scripts.
BEFORE = f"<script>{Path(__file__).with_suffix('.js').read_text(encoding='utf-8')}</script>"
# What the page's boxes ask of each suggestion: Streamlit's own wants every letter that was typed in
# its order, and for "glm 4.5" suggests no GLM-4.5. Here each word is anywhere in the label, or all
# but the marks in it are. Whose a model is on the hub, and how it was tuned, tells nothing apart.
SUGGESTS = re.compile(
    r"(function \w+\(e,t\)\{)e=e\.toLowerCase\(\),t=t\.toLowerCase\(\);let n=e\.length;"
    r"for\(let r=0,i=0;r<n;r\+=1\)if\(i=t\.indexOf\(e\[r\],i\)\+1,i===0\)return!1;return!0\}"
)
BY_WORDS = (
    r"\1e=e.toLowerCase();t=t.toLowerCase();const bare=s=>s.replace(/[^a-z0-9.]/g,'');"
    r"return e.split('/').pop().split(/[\\s\\-_:,]+/).filter(w=>!/^(instruct|chat|it|hf)$/.test(w))"
    r".every(w=>t.includes(w)||bare(t).includes(bare(w)||w))}"
)
FETCHED = 60.0  # seconds; a browser that is slower to fetch a file than this has given up
BEHIND = 4  # runs that a browser has not drawn yet when somebody presses there, at most
bound = threading.Event()


@contextlib.asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Says that the server has its port; it starts to answer now."""
    bound.set()
    yield


def port() -> int:
    """The port that this server has; waits until it has one."""
    bound.wait()
    return int(config.get_option("server.port"))


def suggesting() -> dict[str, str]:
    """The scripts of the page that find what to suggest, by their names: they find it by words."""
    folder = Path(file_util.get_static_dir(), "static", "js")
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*ComboBox*.js")}
    return {n: SUGGESTS.sub(BY_WORDS, text) for n, text in texts.items() if SUGGESTS.search(text)}


class Base:
    """Serves the page of every view with the place of the server in it, and what it suggests by."""

    def __init__(self, app: ASGIApp):
        self.app = app
        page = Path(file_util.get_static_dir(), "index.html").read_text(encoding="utf-8")
        self.page = page.replace("<head>", f"<head>{BEFORE}", 1)
        self.scripts = suggesting()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and _is_view(scope):
            page = HTMLResponse(self.page, headers={"Cache-Control": "no-cache"})
            await page(scope, receive, send)
        elif scope["type"] == "http" and (name := scope["path"].rpartition("/")[2]) in self.scripts:
            kept = {"Cache-Control": "max-age=86400"}
            script = Response(self.scripts[name], media_type="text/javascript", headers=kept)
            await script(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _is_view(scope: Scope) -> bool:
    *folders, name = str(scope["path"]).split("/")
    base = config.get_option("server.baseUrlPath").strip("/")
    return name in VIEWS | OLD | {""} and "/".join(folders).strip("/") == base


def keep_what_is_unsent() -> None:
    """Let a run begin without dropping what was to be sent before it.

    Of a fragment's run Streamlit drops the fragment's own part, and still says that the run before
    is over. Was that one of the whole page, the browser takes all that it has not got from the
    page, its focus and its values with it. Of any run it drops the answer to a press on a download.
    """
    dropping = ForwardMsgQueue.clear

    def clear(
        self: ForwardMsgQueue,
        retain_lifecycle_msgs: bool = False,
        fragment_ids_this_run: list[str] | None = None,
    ) -> None:
        if retain_lifecycle_msgs and fragment_ids_this_run:
            self._delta_index_map = {}  # what comes now, comes behind
            return
        answers = [m for m in self._queue if m.HasField("backend_operation_response")]
        dropping(self, retain_lifecycle_msgs, fragment_ids_this_run)
        if retain_lifecycle_msgs:
            self._queue += answers

    ForwardMsgQueue.clear = clear  # type: ignore[method-assign]


@dataclass
class Back:
    """Where somebody went Back to, what their browser showed then, and the keys of the widgets that
    were changed since."""

    here: str
    shown: WidgetStates
    changed: set[str | None] = field(default_factory=set)

    def hear(self, states: WidgetStates) -> None:
        before = {one.id: one for one in self.shown.widgets}
        changed = (one.id for one in states.widgets if before.get(one.id) != one)
        self.changed.update(map(user_key_from_element_id, changed))


def note_what_is_asked() -> None:
    """Call who waits when the next run is asked for; and note the address that somebody went Back
    to until a run has read it. Streamlit forgets it where something is pressed there meanwhile: of
    messages that wait it makes one, and a run that has not come to the address yet is broken off
    for the next."""
    requesting = ScriptRequests.request_rerun

    def request_rerun(self: ScriptRequests, new_data: RerunData) -> bool:
        here, states = new_data.query_string, new_data.widget_states or WidgetStates()
        noted = _NOTED.get(self)
        if new_data.is_history_navigation:
            _NOTED[self] = Back(here, states)
        elif noted and noted.here == here:
            noted.hear(states)
        else:
            _NOTED.pop(self, None)
        asked = requesting(self, new_data)
        if call := _CALLS.get(self):
            call.set()
        return asked

    ScriptRequests.request_rerun = request_rerun  # type: ignore[method-assign]


_NOTED: WeakKeyDictionary[ScriptRequests, Back] = WeakKeyDictionary()
_CALLS: WeakKeyDictionary[ScriptRequests, threading.Event] = WeakKeyDictionary()


def went_back() -> Back | None:
    """That somebody went Back to the address of this run, and no run has read it since; asked once
    in a run."""
    context = get_script_run_ctx()
    requests = context.script_requests if context else None
    noted = _NOTED.get(requests) if requests else None
    if context is None or requests is None or noted is None or noted.here != context.query_string:
        return None
    del _NOTED[requests]
    return noted


def asked_again() -> bool:
    """Whether the next run of this session is asked for already, or its end."""
    context = get_script_run_ctx()
    requests = context.script_requests if context else None
    return requests is not None and requests._state is not ScriptRequestType.CONTINUE


@contextlib.contextmanager
def called() -> Iterator[threading.Event]:
    """What calls this run when the next one of its session is asked for."""
    context, call = get_script_run_ctx(), threading.Event()
    requests = context.script_requests if context else None
    if requests is not None:
        _CALLS[requests] = call
    try:
        yield call
    finally:
        if requests is not None:
            _CALLS.pop(requests, None)


class State(Mapping[str, Any]):
    """What a session keeps, value by value."""

    def __init__(self, of: SafeSessionState):
        self.of = of

    def __contains__(self, key: object) -> bool:
        with self.of._lock:
            return key in self.of._state

    def __getitem__(self, key: str) -> Any:
        with self.of._lock:
            return self.of._state[key]

    def _all(self) -> dict[str, Any]:
        with self.of._lock:
            return self.of._state.filtered_state

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


NOWHERE = State(SafeSessionState(SessionState(), lambda: None))


def values() -> State:
    """What this session keeps, to be read without a stop: each look through `st.session_state` asks
    whether the run is to go on, which takes as long as the look. A run is asked often enough."""
    context = get_script_run_ctx()
    return State(context.session_state) if context else NOWHERE


def ask_for_one_value() -> None:
    """Let a widget that asks whether its own value is None look up that one: Streamlit has all that
    a session keeps listed for each widget, about a millisecond of the processor."""
    SafeSessionState.filtered_state = property(State)  # type: ignore[assignment]


def find_the_theme_once() -> None:
    """Let a run begin without reading the theme: Streamlit goes through all its settings six times
    for each run, about two milliseconds of the processor. They do not change while it serves."""
    finding = app_session._populate_theme_msg
    found: dict[str, CustomThemeConfig] = {}

    def populate(message: CustomThemeConfig, section: str = "theme") -> None:
        if section not in found:
            theme = CustomThemeConfig()
            finding(theme, section)
            found[section] = theme
        message.MergeFrom(found[section])

    app_session._populate_theme_msg = populate  # type: ignore[assignment]


def tell_components_plain_data() -> None:
    """Let what a component is told be written as JSON and no more: Streamlit looks for tables in
    it, and loads pandas and PyArrow for that, 65 MiB of each process. Ours are told none."""

    def serialize(data: Any, message: BidiComponent) -> None:
        message.json = json.dumps(data, separators=(",", ":"))

    bidi_component.serialize_mixed_data = serialize  # type: ignore[assignment,attr-defined]


def look_at_what_components_said() -> None:
    """Let what a component has said be a plain mapping. Streamlit makes a class of its own for it,
    through which one could write, each time that anybody looks: for all of them in every run."""

    def presenter(events_id: str, *_: Any) -> Callable[[Any, SessionState], Any]:
        def present(said: Any, state: SessionState) -> Any:
            widgets = state._new_widget_state
            if not isinstance(said, dict) or events_id not in widgets.widget_metadata:
                return said
            events = widgets.get(events_id)
            return {event["event"]: event.get("value") for event in events or ()} | said

        return present

    bidi_component.make_bidi_component_presenter = presenter  # type: ignore[assignment,attr-defined]


ANSWERING: set[str] = set()  # sessions of which a run draws now what somebody has asked for


def step_back() -> None:
    """This run goes on with what can wait for others."""
    if context := get_script_run_ctx():
        ANSWERING.discard(context.session_id)


@contextlib.contextmanager
def while_another_finds_it() -> Iterator[None]:
    """This run waits for another, which must not let it go first."""
    context = get_script_run_ctx()
    answers = context is not None and context.session_id in ANSWERING
    step_back()
    try:
        yield
    finally:
        if context is not None and answers:
            ANSWERING.add(context.session_id)


BEGINS, TOGETHER = 0.1, 0.004  # seconds in which is collected what a run says, at first and later
WAITS = {
    ScriptRunnerEvent.SCRIPT_STARTED: BEGINS,
    ScriptRunnerEvent.ENQUEUE_FORWARD_MSG: TOGETHER,
}


def hand_over_together() -> None:
    """Let a run hand over to the server's thread what it has to say in few pieces. Streamlit wakes
    that thread for each element, and it interrupts the run: together as long as the element itself
    takes. The end of a run is handed over at once, with all that was said before. Its beginning
    waits longer than its elements: a browser that hears of it alone draws the whole page for that,
    and then again, and most runs are over by then."""
    waiting: WeakKeyDictionary[AppSession, deque[Callable[[], None]]] = WeakKeyDictionary()
    due: WeakKeyDictionary[AppSession, asyncio.TimerHandle] = WeakKeyDictionary()
    lock = threading.Lock()

    def take(session: AppSession) -> None:
        """On the server's thread: all that there is, in its order."""
        if timer := due.pop(session, None):
            timer.cancel()  # what the next run says waits for its own
        of = waiting[session]
        while of:
            try:
                of.popleft()()
            except Exception as error:  # as the loop does, which would then go on
                said = {"message": "a run's message was lost", "exception": error}
                session._event_loop.call_exception_handler(said)

    def later(session: AppSession, seconds: float) -> None:
        due[session] = session._event_loop.call_later(seconds, take, session)

    def hear(
        self: AppSession, sender: ScriptRunner | None, event: ScriptRunnerEvent, **more: Any
    ) -> None:
        handle = functools.partial(
            self._handle_scriptrunner_event_on_event_loop, sender, event, **more
        )
        with lock:
            of = waiting.setdefault(self, deque())
            of.append(handle)
            first = len(of) == 1
        wait = WAITS.get(event)
        if event is ScriptRunnerEvent.SCRIPT_STARTED:
            ANSWERING.add(self.id)
        elif wait is None:
            ANSWERING.discard(self.id)
        if wait is None:
            self._call_soon_on_event_loop(lambda: take(self))
        elif first:
            self._call_soon_on_event_loop(lambda: later(self, wait))

    AppSession._on_scriptrunner_event = hear  # type: ignore[method-assign,assignment]

    def said(self: Runtime) -> None:
        """Something is to be sent. On its own thread the server need not be woken for that."""
        server = self._get_async_objs()
        if asyncio._get_running_loop() is server.eventloop:
            server.need_send_data.set()
        else:
            server.eventloop.call_soon_threadsafe(server.need_send_data.set)

    Runtime._enqueued_some_message = said  # type: ignore[method-assign]


def answer_whoever_asks() -> None:
    """Let no change end in nothing: its page would wait for ever.

    Streamlit drops one in a fragment that the server does not have any more; the whole page is
    drawn then, as it is for a browser that was at another view, whose body has the same name. And
    it drops what a browser says whose session it has let go, since the browser did not take in what
    was sent, while their socket is open; it is closed then, and the browser connects again.
    """
    requesting, handling = AppSession.request_rerun, Runtime.handle_backmsg

    def here(self: AppSession, client_state: ClientState) -> bool:
        """Whether a browser is at the view of the session, or names none but the app."""
        at = ("", self._pages_manager.main_script_hash, self.page_script_hash)
        return client_state.page_script_hash in at

    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        of = client_state.fragment_id if client_state else ""
        if client_state and of and not (self.has_fragment(of) and here(self, client_state)):
            whole = ClientState()
            whole.CopyFrom(client_state)
            whole.fragment_id = ""
            client_state = whole
        requesting(self, client_state)

    def handle_backmsg(
        self: Runtime, session_id: str, msg: BackMsg, *, client: SessionClient | None = None
    ) -> None:
        found = self._session_mgr.get_active_session_info(session_id)
        if isinstance(client, StarletteSessionClient) and (found is None or found.client != client):
            closing = asyncio.ensure_future(client._websocket.close(1013))  # "try again later"
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
        else:
            handling(self, session_id, msg, client=client)

    AppSession.request_rerun = request_rerun  # type: ignore[method-assign]
    Runtime.handle_backmsg = handle_backmsg  # type: ignore[method-assign]


_CLOSING: set[asyncio.Future[None]] = set()


IN_ONE_FRAME = "in_one_frame"  # asked by front.js behind the address of the server


def in_one_frame(messages: Iterable[bytes]) -> bytes:
    """Messages as one, each behind the number of its bytes in four."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


class Outgoing(asyncio.Queue[bytes]):
    """What is to be sent to a browser: it gives all that there is as one frame."""

    async def get(self) -> bytes:
        first = await super().get()
        return in_one_frame([first, *(self.get_nowait() for _ in range(self.qsize()))])


def send_in_one_piece() -> None:
    """Send all at once that there is for a browser, in one frame where it asks for that. Streamlit
    looks around after each message, which took as long as the message; and of each the browser made
    a task of its own, between any two of which it may draw the page."""
    flushing, sending = AppSession.flush_browser_queue, Runtime._send_message
    making = StarletteSessionClient.__init__

    def flush(self: AppSession) -> list[Any]:
        found = flushing(self)
        return [found] if found else []

    def send(self: Runtime, info: ActiveSessionInfo, messages: Any) -> None:
        for message in messages:
            sending(self, info, message)

    def make(self: StarletteSessionClient, websocket: WebSocket) -> None:
        making(self, websocket)
        if IN_ONE_FRAME in websocket.query_params:
            self._send_queue = Outgoing(self._send_queue.maxsize)

    AppSession.flush_browser_queue = flush  # type: ignore[method-assign]
    Runtime._send_message = send  # type: ignore[method-assign,assignment]
    StarletteSessionClient.__init__ = make  # type: ignore[method-assign]


def copy_places_quickly() -> None:
    """Let the place at which a run goes on be copied as what it is, four numbers. Streamlit copies
    all places of a run several times for each part that is drawn alone, through what copies any
    object: a fortieth of a change's processor."""

    def copied(self: Cursor, memo: dict[int, Any]) -> Cursor:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        transient = self._transient_elements
        other._transient_elements = copy.deepcopy(transient, memo) if transient else SparseList()
        return other

    Cursor.__deepcopy__ = copied  # type: ignore[attr-defined]


def let_go_of_what_ran() -> None:
    """Let a run be gone as soon as it is over, with the values of all widgets that it was asked
    with. Its thread knows it and it knows its thread: some 20 KiB of each change waited until
    Python looks for cycles among everything, which is minutes."""
    running = ScriptRunner._run_script_thread

    def run(self: ScriptRunner) -> None:
        try:
            running(self)
        finally:
            vars(threading.current_thread()).pop(SCRIPT_RUN_CONTEXT_ATTR_NAME, None)
            object.__setattr__(self._session_state, "_yield_callback", lambda: None)

    ScriptRunner._run_script_thread = run  # type: ignore[method-assign]


def let_go_of_who_is_gone() -> None:
    """End a session whose browser has not come back when Streamlit would not give it to it any
    more. Streamlit only forgets it then: with all that it had it would stay, some megabytes, until
    Python looks for cycles among everything."""
    disconnecting = WebsocketSessionManager.disconnect_session

    def end(self: WebsocketSessionManager, session: AppSession) -> None:
        if self.get_session_info(session.id) is None:
            session.shutdown()
            session._fragment_storage.clear()
            session.session_state.clear()

    def disconnect_session(self: WebsocketSessionManager, session_id: str) -> None:
        found = self.get_active_session_info(session_id)
        disconnecting(self, session_id)
        if found:
            kept = config.get_option("server.disconnectedSessionTTL")
            asyncio.get_running_loop().call_later(kept + 1, end, self, found.session)

    WebsocketSessionManager.disconnect_session = disconnect_session  # type: ignore[method-assign]


class Unused:
    """Since when nothing refers to things, as far as somebody has asked."""

    def __init__(self) -> None:
        self.since: dict[Any, float] = {}

    def long(self, unused: Iterable[Any]) -> list[Any]:
        """Of what is unused now what has been so for FETCHED seconds."""
        now = time.monotonic()
        self.since = {thing: self.since.get(thing, now) for thing in unused}
        return [thing for thing, since in self.since.items() if now - since > FETCHED]


def keep_what_may_be_fetched() -> None:
    """Keep for FETCHED seconds what a download's button stands for, and the file that it made; but
    of each button no more than BEHIND that are not on the page: each has the rows of its plan.

    Streamlit drops a file when two more runs have ended, of whomever, and a button when the next
    run has, though another one is drawn only later. Whoever presses, or fetches, in between gets
    nothing; on a server with many people that is nearly always.
    """
    files, buttons = Unused(), Unused()
    unused_files = MediaFileManager._get_inactive_file_ids

    def inactive(self: MediaFileManager) -> set[str]:
        # What is made again has the same name, and is another file.
        made = {self._file_metadata[name]: name for name in unused_files(self)}
        return {made[file] for file in files.long(made)}

    def forget(self: MediaFileManager) -> None:
        drawn = {i for ids in self._files_by_session_and_coord.values() for i in ids.values()}
        unused = [button for button in self._deferred_callables if button not in drawn]
        gone, behind = set(buttons.long(unused)), Counter[tuple[str, str]]()
        for button in reversed(unused):
            made = self._deferred_callables[button]
            place = made["session_id"], made["element_id"] or made["coordinates"]
            behind[place] += 1
            if behind[place] > BEHIND:
                gone.add(button)
        for button in gone:
            self._drop_deferred_id(button)

    MediaFileManager._get_inactive_file_ids = inactive  # type: ignore[method-assign]
    MediaFileManager._remove_orphaned_deferred_callables = forget  # type: ignore[method-assign]
