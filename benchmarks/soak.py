"""What people cost: `python benchmarks/soak.py [MINUTES [USERS [PROCESSES]]]`. Never fails.

Each user changes something once a second and looks at what comes, also at what comes when the plan
rests, but waits for that no longer than to the next second: mostly a number, sometimes GPUs, and
every hundredth time somebody else's link, of another model on another page. Printed each minute:
how long an answer took from the change until all but what waits for a rest had come, what a change
cost, with all that came when the plan rested, how often that came in time, and the memory of each
process, which may not grow for ever.
Target: with 20 users on one process p95 below 500 ms, and 400 MiB after ten minutes. Needs Linux.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from latency import processor  # noqa: E402
from protocol import Tab  # noqa: E402
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg  # noqa: E402

import rig  # noqa: E402
from memcore.models import catalog  # noqa: E402
from memcore.units import MiB  # noqa: E402

PINNED = "v=2&pin=v%3D2%26zero%3D2"
PAGES = (  # where a user is, and the number that is changed there
    ("", "v=2", "Micro-batch, typed"),
    ("time", "v=2", "Micro-batch, typed"),
    ("tiers", "v=2", "Micro-batch, typed"),
    ("ledger", "v=2", "Sequence length, typed"),
    ("serve", "v=2", "Concurrency"),
    ("explore", "v=2", "Micro-batch, typed"),
    ("compare", PINNED, "Sequence length, typed"),
)
GPUS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512)
SECOND = 1.0  # between two changes of a user
REST = 0.4  # seconds of silence after which a first page has come


class Person(Tab):
    """A tab that notes what came over the wire."""

    messages, bytes = 0, 0

    def hear(self, message: ForwardMsg) -> None:
        super().hear(message)
        self.messages, self.bytes = self.messages + 1, self.bytes + message.ByteSize()

    def look(self) -> float:
        """Send, and take in what comes; the seconds until the answer was there."""
        begun = time.monotonic()
        self.send()
        assert self.answer(begun + rig.SECONDS), "no answer"
        return time.monotonic() - begun


class Crowd:
    """Users who are at it until `end`, and what was measured since the last look."""

    def __init__(self, servers: list[rig.Server], users: int, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.took: list[float] = []
        self.rests: list[bool] = []  # whether what a plan waits for came before its next change
        self.wire = [0, 0]
        self.failed: list[str] = []
        self.threads = [
            threading.Thread(target=self._person, args=(servers[n % len(servers)].url, n))
            for n in range(users)
        ]
        for thread in self.threads:
            thread.start()

    def _person(self, url: str, n: int) -> None:
        chance = random.Random(n)
        time.sleep(SECOND * chance.random())
        while time.monotonic() < self.end:
            page, query, label = chance.choice(PAGES)
            try:
                with Person(url, link(chance, query)) as tab:
                    tab.send(page_name=page)
                    tab.listen(REST)
                    self._changes(tab, label, chance)
            except Exception as error:
                self.failed.append(f"{page}?{query}: {type(error).__name__}: {error}")

    def _changes(self, tab: Person, label: str, chance: random.Random) -> None:
        while chance.random() > 0.01 and time.monotonic() < self.end:
            begun = time.monotonic()
            before = tab.messages, tab.bytes
            if chance.random() < 0.2 and "GPUs" in tab.ids:
                tab.choose("GPUs", chance.choice(GPUS))
            elif label in tab.ids:
                tab.choose(label, int(tab.value(label) or 1) % 40 + 1 + 40 * chance.randint(0, 9))
            took = tab.look()
            came = bool(tab.ended) or tab.listen(SECOND, begun + SECOND)
            with self.lock:
                self.took.append(took)
                self.rests.append(came)
                self.wire[0] += tab.messages - before[0]
                self.wire[1] += tab.bytes - before[1]
            time.sleep(max(0.0, begun + SECOND - time.monotonic()))

    def told(self) -> tuple[list[float], list[int], list[bool]]:
        """What was measured since this was asked last."""
        with self.lock:
            found = sorted(self.took), self.wire, self.rests
            self.took, self.wire, self.rests = [], [0, 0], []
        return found


def main(minutes: int, users: int, processes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        command = rig.streamlit(ROOT / "app" / "main.py")
        servers = [
            stack.enter_context(rig.serving(command, Path(folder, f"{n}.txt")))
            for n in range(processes)
        ]
        crowd = Crowd(servers, users, 60 * minutes)
        for minute in range(1, minutes + 1):
            before = sum(processor(s.pid) for s in servers)
            time.sleep(max(0.0, crowd.end - 60 * (minutes - minute) - time.monotonic()))
            took, (messages, size), rests = crowd.told()
            if not (n := len(took)):
                continue
            used = sum(processor(s.pid) for s in servers) - before
            memory = ", ".join(f"{resident(s.pid) / MiB:.0f}" for s in servers)
            print(
                f"{minute:3} min   {n / 60:5.1f} changes/s   median {1000 * took[n // 2]:5.0f} ms, "
                f"p95 {1000 * took[int(0.95 * (n - 1))]:5.0f} ms   a change: processor "
                f"{used / n:4.0f} ms, {messages / n:3.0f} messages, {size / n / 1000:4.0f} kB   "
                f"rests answered {sum(rests) / max(1, len(rests)):4.0%}   {memory} MiB",
                flush=True,
            )
        for thread in crowd.threads:
            thread.join()
        errors = sum(server.log().count("Traceback") for server in servers)
        print(f"errors in the logs: {errors}; tabs that failed: {len(crowd.failed)}")
        print("\n".join(crowd.failed[:5]))


def link(chance: random.Random, query: str) -> str:
    """Somebody's plan."""
    words = {
        "model": chance.choice(catalog.model_names()),
        "gpu": chance.choice(catalog.gpu_names()),
        "seq": chance.randint(128, 9000),
        "mb": chance.randint(1, 40),
        "tp": chance.choice((1, 2, 4)),
    }
    return f"{query}&{urlencode(words)}"


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return 4096 * int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(10, 1, 1)[len(given) :])
