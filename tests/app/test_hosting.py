"""Two processes below a path behind a real nginx, with the file that the project ships."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import served

from memcore.cli import arguments

BASE = "/memplan"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


LOG = "log_format who '$cookie_memplan $upstream_addr';\naccess_log %s/access.txt who;\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[served.Server]]:
    folder = tmp_path_factory.mktemp("replicas")
    command = (*served.MEMPLAN, "--base-path", BASE)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(served.serving(folder / f"{i}.txt", command)) for i in range(2)]


@pytest.fixture(scope="module")
def proxy(
    replicas: list[served.Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[served.Server]:
    """deploy/nginx.conf, but for where it listens, whom it asks and where it may write."""
    if NGINX is None:
        if os.environ.get("MEMPLAN_REQUIRE_BROWSER") == "1":  # on CI nothing is left out
            pytest.fail("no nginx: `apt-get install nginx-light`")
        pytest.skip("no nginx: `apt-get install nginx-light`")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    text = (served.ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    for i, replica in enumerate(replicas, 1):
        text = text.replace(f"memplan-{i}:8501", f"127.0.0.1:{replica.port}")
    own = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {", f"http {{\n{own}{LOG % folder}", 1)
    text = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.txt;\n{text}"
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        found = served.Server(port, folder / "error.txt", process.pid, BASE)
        end = time.monotonic() + served.SECONDS
        while not _up(found):
            assert process.poll() is None, "nginx ended"
            assert time.monotonic() < end, "nginx is not up"
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(served.SECONDS)


def _up(server: served.Server) -> bool:
    try:
        return server.get(f"{BASE}/_stcore/health") == (200, "ok")
    except OSError:
        return False


def cookie(server: served.Server) -> str:
    """What a browser keeps of its first answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=served.SECONDS)
    connection.request("GET", f"{BASE}/?mb=2")
    answer = connection.getresponse()
    assert answer.status == 200
    given = answer.getheader("Set-Cookie") or ""
    connection.close()
    assert "HttpOnly" in given
    return re.split(";", given)[0]


def test_every_view_is_served_below_the_path(proxy: served.Server) -> None:
    for view in ("", "serve", "timeline", "accuracy"):
        status, text = proxy.get(f"{BASE}/{view}?mb=2")
        assert status == 200, view
        assert "<html" in text
    scripts = re.findall(r'src="\.?/?([^"]+\.js)"', proxy.get(f"{BASE}/")[1])
    assert scripts
    assert all(
        proxy.get(f"{BASE}/{script.removeprefix('memplan/')}")[0] == 200 for script in scripts
    )
    assert proxy.get(BASE)[0] == 308
    assert proxy.get("/serve")[0] == 404


def test_a_browser_keeps_its_replica_and_others_have_the_other(
    proxy: served.Server, replicas: list[served.Server]
) -> None:
    """By what nginx writes of each request: which cookie it had, and whom it was passed on to."""
    cookies = [cookie(proxy) for _ in range(12)]
    assert len(set(cookies)) == 12
    for kept in cookies[:2]:
        with proxy.session("mb=3", cookie=kept) as session:
            assert "Training fits" in session.text
            assert session.run("mb=4").exceptions == []
    for kept in cookies:
        for path in ("", "_stcore/health", "serve"):
            proxy.get(f"{BASE}/{path}", cookie=kept)
    log = (proxy.log_path.parent / "access.txt").read_text(encoding="utf-8")
    asked: dict[str, set[str]] = {}
    for line in log.splitlines():
        name, _, replica = line.partition(" ")
        asked.setdefault(name, set()).add(replica)
    by_cookie = [asked[kept.removeprefix("memplan=")] for kept in cookies]
    assert all(len(found) == 1 for found in by_cookie)
    assert {*by_cookie[0].union(*by_cookie)} == {f"127.0.0.1:{r.port}" for r in replicas}


def test_a_link_survives_the_restart_of_its_replica(
    proxy: served.Server, replicas: list[served.Server], tmp_path: Path
) -> None:
    """Whichever process ends, the same address with the same cookie shows the same plan."""
    kept = cookie(proxy)
    with proxy.session("mb=3&seq=2048", cookie=kept) as session:
        said = session.text
    os.kill(replicas[0].pid, 15)
    end = time.monotonic() + served.SECONDS
    while _up(replicas[0]):
        assert time.monotonic() < end
        time.sleep(0.1)
    for _ in range(3):  # with any cookie: one of them was the ended one's
        with proxy.session("mb=3&seq=2048", cookie=kept) as session:
            assert session.text == said
        kept = cookie(proxy)


@pytest.mark.parametrize(
    ("text", "path"), [("", ""), ("/", ""), ("memplan", "/memplan"), ("/a/b-1/", "/a/b-1")]
)
def test_a_base_path_is_written_in_any_way(text: str, path: str) -> None:
    assert arguments.path(text) == path


@pytest.mark.parametrize("text", ["/a b", "/..", "/a?b", "http://x/y"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no path"):
        arguments.path(text)
