"""A browser's side of Streamlit's protocol, and no more: what it shows, it sends back, and it hears
what the server says only when a test lets it."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

import rig


class Tab:
    """One tab. It holds an address and the widgets' values, as they were when it last listened."""

    def __init__(self, url: str, query: str) -> None:
        address = url.replace("http", "ws", 1) + "/_stcore/stream"
        self.opening = connect(address, subprotocols=["streamlit"], max_size=None, compression=None)
        self.query = query
        self.page = self.entry = ""  # hashes: of the view, and of the script that draws all of them
        self.ended: list[int] = []  # of each run since something was sent: how it ended
        self.ids: dict[str, str] = {}  # of widgets, by their labels
        self.shown: dict[str, tuple[str, Any]] = {}  # by their ids: the kind of value, the value
        self.pages: dict[str, str] = {}  # hashes of all views, by their addresses
        self.answers = 0  # runs of which all came but what waits for a rest
        self.said: list[str] = []  # headings, in the order in which they came

    def __enter__(self) -> Self:
        self.socket = self.opening.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.opening.__exit__(kind, error, at)

    def send(self, went_back: bool = False, page_name: str = "") -> None:
        """Ask for a run, with everything that the tab shows; of a page by its name, at first."""
        message = BackMsg()
        message.rerun_script.is_history_navigation = went_back
        message.rerun_script.query_string = self.query
        message.rerun_script.page_script_hash = self.page
        message.rerun_script.page_name = page_name
        for widget, (kind, value) in self.shown.items():
            state = message.rerun_script.widget_states.widgets.add(id=widget)
            if kind.endswith("array_value"):
                getattr(state, kind).data.extend(value)
            elif value is not None:
                setattr(state, kind, value)
        self.ended = []
        self.socket.send(message.SerializeToString())

    def follow(self, link: str) -> None:
        """Press a link of the navigation; `send` then tells the server."""
        self.page, self.query = self.pages[link], ""

    def choose(self, label: str, value: Any) -> None:
        """Change what a widget shows, as a hand would; `send` then tells the server."""
        kind, _ = self.shown[self.ids[label]]
        self.shown[self.ids[label]] = (kind, [value] if kind.endswith("array_value") else value)

    def value(self, label: str) -> Any:
        _, value = self.shown[self.ids[label]]
        return value[0] if isinstance(value, list) else value

    def listen(self, quiet: float = 1.0, until: float = math.inf) -> bool:
        """Take in what the server says, until a run has ended and nothing more comes; or to this
        time. Whether it has."""
        end, finished = time.monotonic() + rig.SECONDS, False
        while True:
            assert time.monotonic() < end, "no run ends, or one follows another"
            if (left := until - time.monotonic()) <= 0:
                return finished
            try:
                message = self._next(min(quiet, left))
            except TimeoutError:
                if finished:
                    return True
                continue
            self.hear(message)
            kind = message.WhichOneof("type")
            finished = kind != "new_session" and (finished or kind == "script_finished")

    def _next(self, seconds: float) -> ForwardMsg:
        """The next message. Raises TimeoutError where none comes in time."""
        return ForwardMsg.FromString(self.socket.recv(timeout=seconds, decode=False))

    def answer(self, until: float = math.inf) -> bool:
        """Take in what the server says until an answer is there, or to this time. Whether it is."""
        before = self.answers
        while self.answers == before:
            if (left := min(until - time.monotonic(), rig.SECONDS)) <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                self.hear(self._next(left))
        return True

    def begins(self) -> None:
        """Take in what the server says, until a run begins."""
        kind = None
        while kind != "new_session":
            message = self._next(rig.SECONDS)
            self.hear(message)
            kind = message.WhichOneof("type")

    def hear(self, message: ForwardMsg) -> None:
        """Take in one message."""
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.page = message.new_session.page_script_hash
            self.entry = message.new_session.main_script_hash
        elif kind == "script_finished":
            self.ended.append(message.script_finished)
        elif kind == "navigation":
            self.page = message.navigation.page_script_hash
            self.pages = {
                one.url_pathname: one.page_script_hash for one in message.navigation.app_pages
            }
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "delta" and message.delta.WhichOneof("type") == "new_element":
            self._draw(message.delta.new_element)

    def _draw(self, element: Any) -> None:
        kind = element.WhichOneof("type")
        drawn = getattr(element, kind)
        if kind == "exception":
            raise AssertionError(f"{drawn.type}: {drawn.message}")
        if kind == "markdown" and drawn.body.startswith("####"):
            self.said.append(re.sub(r"[\\\u200b#*]", "", drawn.body).strip())
        if kind == "text_input" and drawn.label == "Drawn":
            self.answers += 1
        if kind in READ:
            self.ids[drawn.label] = drawn.id
            if drawn.set_value or drawn.id not in self.shown:
                self.shown[drawn.id] = READ[kind](drawn)


def _slider(drawn: Any) -> tuple[str, Any]:
    if drawn.options:  # a select slider speaks its options' words
        words = list(drawn.raw_value) if drawn.set_value else []
        return "string_array_value", words or [drawn.options[int(i)] for i in drawn.default]
    return "double_array_value", list(drawn.value if drawn.set_value else drawn.default)


def _selectbox(drawn: Any) -> tuple[str, Any]:
    if drawn.set_value:
        return "string_value", drawn.raw_value if drawn.HasField("raw_value") else None
    return "string_value", drawn.options[drawn.default] if drawn.HasField("default") else None


def _plain(field: str) -> Callable[[Any], tuple[str, Any]]:
    return lambda drawn: (field, drawn.value if drawn.set_value else drawn.default)


READ: dict[str, Callable[[Any], tuple[str, Any]]] = {  # by the kind of element
    "slider": _slider,
    "selectbox": _selectbox,
    "number_input": _plain("double_value"),
    "text_input": _plain("string_value"),
    "text_area": _plain("string_value"),
    "checkbox": _plain("bool_value"),
}
