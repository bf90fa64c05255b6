"""A server of the app, and sessions that speak its protocol: what a browser would say, without one.

A session answers what a page would read: the text of the page, and how a run ended.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120  # for whatever must happen; generous, for a loaded machine
STREAMLIT = (sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "main.py"))
MEMPLAN = (sys.executable, "-m", "memcore.cli", "app", "--no-browser")


@dataclass
class Server:
    port: int
    log_path: Path
    pid: int = 0
    base: str = ""  # the path below which it serves

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def get(
        self, path: str, host: str = "", at: str = "127.0.0.1", cookie: str = ""
    ) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = http.client.HTTPConnection(at, self.port, timeout=SECONDS)
        try:
            named = {"Host": host or f"{at}:{self.port}"}
            connection.request("GET", path, headers=named | ({"Cookie": cookie} if cookie else {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    @contextlib.contextmanager
    def session(
        self, query: str = "", page: str = "", cookie: str = "", **headers: str
    ) -> Iterator[Session]:
        """A session that has drawn its first page; with Host or Origin as given."""
        here = f"127.0.0.1:{self.port}"
        with connect(
            f"ws://{headers.get('host', here)}{self.base}/_stcore/stream",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            subprotocols=["streamlit"],  # type: ignore[list-item]
            origin=headers.get("origin", f"http://{here}"),  # type: ignore[arg-type]
            additional_headers={"Cookie": cookie} if cookie else None,
            open_timeout=SECONDS,
            max_size=None,
            compression=None,
            proxy=None,
        ) as connection:
            session = Session(connection)
            session.run(query, page)
            yield session

    def accepts(self, **headers: str) -> bool:
        """Whether a web socket with this Host or Origin is let in."""
        try:
            with self.session(**headers):
                return True
        except InvalidStatus as refused:
            if refused.response.status_code != 403:
                raise
            return False


@dataclass
class Session:
    connection: ClientConnection
    texts: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)

    def run(self, query: str = "", page: str = "") -> Session:
        """Draw a page anew."""
        message = BackMsg()
        message.rerun_script.query_string = query
        message.rerun_script.page_name = page
        return self.answer(message)

    def answer(self, message: BackMsg) -> Session:
        """Send a message, and read until the run that it causes is over."""
        self.texts.clear()
        self.exceptions.clear()
        self.connection.send(message.SerializeToString())
        while True:
            said = self.connection.recv(timeout=SECONDS)
            assert isinstance(said, bytes)
            heard = ForwardMsg.FromString(said)
            kind = heard.WhichOneof("type")
            if kind == "script_finished" and heard.script_finished in (
                ForwardMsg.FINISHED_SUCCESSFULLY,
                ForwardMsg.FINISHED_WITH_COMPILE_ERROR,
            ):
                return self
            if kind == "delta":
                self._read(heard)

    def _read(self, heard: ForwardMsg) -> None:
        element = heard.delta.new_element
        kind = element.WhichOneof("type")
        if kind == "markdown":
            self.texts.append(element.markdown.body)
        elif kind == "alert":
            self.texts.append(element.alert.body)
        elif kind == "button":
            self.texts.append(element.button.label.replace("**", ""))
        elif kind == "html":
            self.texts.append(element.html.body)
        elif kind == "bidi_component" and element.bidi_component.json:
            said = json.loads(element.bidi_component.json)
            items = said.get("items", ()) if isinstance(said, dict) else ()
            self.texts.append(" ".join(f"{i.get('bold', '')}{i['text']}" for i in items))
        elif kind == "exception":
            self.exceptions.append(f"{element.exception.type}: {element.exception.message}")

    @property
    def text(self) -> str:
        """What the page says, without markdown's escapes."""
        return "\n".join(self.texts).replace("\\", "").replace("\u200b", "")


@contextlib.contextmanager
def serving(
    log_path: Path, command: Sequence[str] = STREAMLIT, cwd: Path = ROOT, **environment: str
) -> Iterator[Server]:
    """The app on a free port, healthy; stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flag = "--port" if "memcore.cli" in command else "--server.port"
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT)]))
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, f"{flag}={port}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
    base = next((b for a, b in itertools.pairwise(command) if a == "--base-path"), "")
    server = Server(port, log_path, process.pid, base)
    try:
        end = time.monotonic() + SECONDS
        while not _healthy(server):
            assert process.poll() is None, f"the server ended:\n{server.log()}"
            assert time.monotonic() < end, f"the server is not healthy:\n{server.log()}"
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(server: Server) -> bool:
    try:
        return server.get(f"{server.base}/_stcore/health")[0] == 200
    except OSError:
        return False


@contextlib.contextmanager
def ear() -> Iterator[tuple[str, list[bytes]]]:
    """A place that listens: its address as a proxy's, and the first words of all who came."""
    heard: list[bytes] = []

    def listen(door: socket.socket) -> None:
        while True:
            try:
                guest, _ = door.accept()
            except OSError:
                return
            with guest:
                heard.append(guest.recv(200))

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=listen, args=(door,), daemon=True).start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}", heard
