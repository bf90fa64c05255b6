"""The command in a shell: statuses, widths, colours, completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memcore.cli import printing, program

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
STATUSES = re.findall(r"^\| (\d+) \| [^|]+ \| (?:`memplan ([^`]+)`)? *\|$", PAGE, re.M)
EXAMPLES = [(int(status), command) for status, command in STATUSES if command]


@pytest.mark.parametrize(("status", "command"), EXAMPLES)
def test_the_table_of_exit_statuses_is_true(memplan: Any, status: int, command: str) -> None:
    assert memplan(*shlex.split(command)).status == status


def test_the_table_has_every_exit_status(memplan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_function", lambda _: ended)
    every = {*printing.CHECKED.values(), *printing.WORST, memplan("models").status}
    assert {int(status) for status, _ in STATUSES} == every


@pytest.mark.parametrize("command", ["plans", "levers llama-3-8b"])
def test_a_table_is_as_wide_as_the_terminal(
    memplan: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = memplan(*command.split()).out
    monkeypatch.setenv("COLUMNS", "140")
    narrow = memplan(*command.split()).out
    assert max(map(len, wide.splitlines())) > 140
    in_table = [line for line in narrow.splitlines() if line not in wide.splitlines()]
    assert max(map(len, in_table)) <= 140
    assert sorted(narrow.split()) == sorted(wide.split())


def test_no_number_and_no_word_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    lines = list(printing.table(("what", "is"), [("a number of this", "1,000,000")]))
    assert lines == ["what                 is", "a number of   1,000,000", "this"]


def test_a_terminal_without_colours_has_none() -> None:
    pty = pytest.importorskip("pty")
    for words in (["--help"], ["evaluate", "7B"]):
        main, end = pty.openpty()
        code = f"import sys; from memcore.cli import main; sys.exit(main({words!r}))"
        env = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
        done = subprocess.Popen([sys.executable, "-c", code], stdout=end, stderr=end, env=env)
        os.close(end)
        printed = b""
        try:
            while more := os.read(main, 65_536):
                printed += more
        except OSError:  # the other end is closed
            pass
        os.close(main)
        assert done.wait() == 0
        assert b"memplan" in printed or b"FITS" in printed
        assert b"\x1b" not in printed


def test_a_shell_completes_commands_and_their_options() -> None:
    shtab = pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "fish"):
        script = shtab.complete(program.parser(), shell)
        assert "evaluate" in script
        assert "--max-device-gib" in script
