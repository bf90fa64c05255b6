"""`memplan app`: the app in a browser. No other module of the engine may import the app."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from memcore.cli.printing import fail
from memcore.cli.reading import given_plan
from memcore.words.jobs import VIEWS

FIRST_PORT = 8501
NEEDED = {"streamlit": "Streamlit", "plotly": "Plotly", "pandas": "pandas", "jinja2": "Jinja"}
INSTALL = "pip install 'memplan[app]' installs what it lacks"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run(args: argparse.Namespace) -> int:
    """Serve app/main.py and open it."""
    import threading

    if lacks := _missing():
        return fail(f"the page needs {lacks}: {INSTALL}", status=1)
    try:
        _check_address(args.host, args.port)
    except OSError as e:
        at = f"{args.host} port {args.port}" if args.port else args.host
        return fail(f"cannot serve on {at}: {e.strerror or e}; try another --port", status=1)
    _find_the_app()
    browser = not args.no_browser and _has_display()
    opened = f"{args.base_path}{opened_at(args)}"
    from app import main

    threading.Thread(
        target=_announce, args=(args.host, args.base_path, opened, browser), daemon=True
    ).start()

    sys.argv = [main.__file__]  # beside which Streamlit looks for its settings
    main.server.run(
        config={
            "server.address": args.host,
            # Without one Streamlit takes the first free port from FIRST_PORT on.
            **({"server.port": args.port} if args.port else {}),
            "server.baseUrlPath": args.base_path,
            "server.headless": True,  # no question about an e-mail address; we open the browser
            "server.allowedHosts": names(args.host, args.allow),
            "browser.gatherUsageStats": False,
            "logger.hideWelcomeMessage": True,
        }
    )
    return 0


def _missing() -> str:
    """What of the extra `app` is not installed."""
    return ", ".join(name for module, name in NEEDED.items() if find_spec(module) is None)


def _find_the_app() -> None:
    """Let `app` be imported, which lies beside the engine in a checkout. A wheel carries it in a
    folder of Memplan's name, since `app` is a name that others could take."""
    installed = Path(__file__).resolve().parents[2] / "memplan_app"
    if installed.is_dir():
        sys.path.insert(0, str(installed))


def opened_at(args: argparse.Namespace) -> str:
    """What stands behind the server's address where a plan is given. Raises PlanError."""
    if args.plan is None and not args.set and args.job is None:
        return ""
    from memcore.plan.link import encode, query_text

    args.plan = args.plan or "{}"
    plan = given_plan(args)
    return f"/{VIEWS.get(plan.about, '')}?{query_text(encode(plan, short=True))}"


def names(host: str, allowed: Sequence[str]) -> list[str]:
    """The names that the server answers to: this machine's own, and those that were allowed. Not
    every name: a page on the internet can have one lead here."""
    import socket

    if host not in ("0.0.0.0", "::"):
        return list(dict.fromkeys((*LOOPBACK, host, *allowed)))
    machine = socket.gethostname()
    return list(dict.fromkeys((*LOOPBACK, machine, f"{machine}.local", *_address(), *allowed)))


def _address() -> Iterable[str]:
    """This machine's address in its network, if it has one. Nothing is sent."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 1))  # an address that is nobody's (RFC 5737)
        except OSError:
            return
        yield probe.getsockname()[0]


def _check_address(host: str, port: int | None) -> None:
    """Raises OSError where nothing can be served on this host, or on this port of it."""
    import socket

    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    socket.create_server((host, port or 0), family=family).close()


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _announce(host: str, base: str, opened: str, open_browser: bool) -> None:
    """Print the address of what is opened, and open it, as soon as the server answers."""
    import time
    import urllib.request

    from app import warm

    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    server = f"http://{f'[{here}]' if ':' in here else here}:{warm.port()}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            direct.open(f"{server}{base}/_stcore/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    url = f"{server}{opened}"
    print(f"Memplan is at {url} (Ctrl-C stops it)", flush=True)
    if open_browser:
        import webbrowser

        webbrowser.open(url)
