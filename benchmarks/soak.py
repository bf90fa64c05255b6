"""How much memory the app takes over time: `python benchmarks/soak.py [MINUTES]`. Never fails.

One user, one interaction a second: mostly other GPUs, and every tenth time somebody else's link, of
another model on another page. A process that has seen many plans may not be larger than one that
has seen a few; target: 350 MiB, and flat over the second half. Needs Linux, which says what a
process takes.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from protocol import Tab  # noqa: E402

import rig  # noqa: E402
from memcore.models import catalog  # noqa: E402
from memcore.units import MiB  # noqa: E402

PAGES = ("", "serve", "time", "timeline", "ledger", "tiers")
GPUS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512)


def main(minutes: float) -> None:
    chance, interactions, took = random.Random(5), 0, []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        log = Path(folder, "log.txt")
        server = stack.enter_context(rig.serving(rig.streamlit(ROOT / "app" / "main.py"), log))
        tab = opened(server.url, "", "")
        start = time.monotonic()
        for minute in range(1, round(minutes) + 1):
            while time.monotonic() < start + 60 * minute:
                begun = time.monotonic()
                kind = chance.random()
                if kind < 0.1:
                    tab.__exit__(None, None, None)
                    tab = opened(server.url, link(chance), chance.choice(PAGES))
                elif kind < 0.4:
                    interact(tab, "GPUs per node", chance.choice((1, 2, 4, 8)))
                elif kind < 0.5:
                    interact(tab, "GPUs", chance.randint(1, 10**5))
                else:
                    interact(tab, "GPUs", chance.choice(GPUS))
                interactions += 1
                took.append(time.monotonic() - begun)
                time.sleep(max(0.0, 1 - took[-1]))
            took.sort()
            print(
                f"{minute:3} min   {resident(server.pid) / MiB:6.0f} MiB   {interactions:4} "
                f"interactions, median {took[len(took) // 2]:.2f} s",
                flush=True,
            )
        errors = server.log().count("Traceback")
        print(f"errors in the log: {errors}")


def link(chance: random.Random) -> str:
    words = {
        "v": 1,
        "model": chance.choice(catalog.model_names()),
        "gpu": chance.choice(catalog.gpu_names()),
        "seq": chance.randint(128, 9000),
        "mb": chance.randint(1, 40),
        "tp": chance.choice((1, 2, 4)),
    }
    return urlencode(words)


def opened(url: str, query: str, page: str) -> Tab:
    tab = Tab(url, query).__enter__()
    tab.send(page_name=page)
    tab.listen(0.2)
    return tab


def interact(tab: Tab, label: str, value: object) -> None:
    if label in tab.ids:
        tab.choose(label, value)
        tab.send()
        tab.listen(0.2)


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return 4096 * int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
