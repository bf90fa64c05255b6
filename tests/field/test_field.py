"""What strangers gave to Memplan, and the right answer, from the command line.

Each file beside this one is a kind; each [[case]] in it is one input:

id, source  a name, and where the right answer is from
files       texts by name, that the commands read; or beside, files of tests/field/files
run         Memplan's commands, a list of words each; a command reads what the one before it printed
expect      what must hold, as {of, path, ...} and one of is, within = [low, high], matches, lacks
            of: exit, stdout, stderr, output (both), plan or report; of the last command that has it
            path: dotted, of plan and report
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from memcore.cli import main

HERE = Path(__file__).parent
CASES = {
    f"{file.stem}: {case['id']}": case
    for file in sorted(HERE.glob("*.toml"))
    for case in tomllib.loads(file.read_text(encoding="utf-8"))["case"]
}
MISSING = "nothing"
KNOWN = {"id", "source", "files", "beside", "run", "expect"}
BOUNDS = ("is", "within", "matches", "lacks")


def value_at(document: Any, path: str) -> Any:
    """What stands in a document at a dotted path, or MISSING."""
    for step in path.split("."):
        try:
            document = document[int(step)] if isinstance(document, list) else document[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return MISSING
    return document


def parsed(text: str) -> dict[str, Any]:
    """The JSON object that a text is; an empty one where it is none."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def plan_in(document: dict[str, Any]) -> dict[str, Any]:
    """The plan that a command printed, alone or within what `read` and `evaluate` say of it."""
    plan = document.get("plan") or document
    return plan if "cluster" in plan else {}


def report_in(document: dict[str, Any]) -> dict[str, Any]:
    return {} if "cluster" in document else document


def actual(expected: dict[str, Any], outputs: list[dict[str, Any]]) -> Any:
    """What came where an expectation looks."""
    if expected["of"] not in ("plan", "report"):
        return outputs[-1][expected["of"]]
    part = plan_in if expected["of"] == "plan" else report_in
    documents = [found for each in reversed(outputs) if (found := part(parsed(each["stdout"])))]
    return value_at(documents[0], expected["path"]) if documents else MISSING


def holds(expected: dict[str, Any], value: Any) -> bool:
    if "is" in expected:
        return bool(value == expected["is"])
    if "within" in expected:
        low, high = expected["within"]
        return isinstance(value, (int, float)) and low <= value <= high
    if value == MISSING:
        return False
    if "lacks" in expected:
        return not re.search(expected["lacks"], str(value), re.IGNORECASE)
    return bool(re.search(expected["matches"], str(value), re.IGNORECASE))


@pytest.mark.parametrize("name", CASES)
def test_a_stranger_gets_the_right_answer(name, tmp_path, monkeypatch, capsys):
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for file, content in case.get("files", {}).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content, encoding="utf-8")
    for file in case.get("beside", []):
        shutil.copy(HERE / "files" / file, tmp_path)
    outputs: list[dict[str, Any]] = []
    for words in case["run"]:
        printed = outputs[-1]["stdout"] if outputs else ""
        stream = io.TextIOWrapper(io.BytesIO(printed.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        try:
            status = main(words)
        except SystemExit as e:  # argparse's way to refuse
            status = int(e.code or 0)
        said = capsys.readouterr()
        outputs.append(
            {"exit": status, "stdout": said.out, "stderr": said.err, "output": said.out + said.err}
        )
    for expected in case["expect"]:
        value = actual(expected, outputs)
        assert holds(expected, value), f"{expected}: {value}\n{outputs[-1]['output'][-2000:]}"


@pytest.mark.parametrize("name", CASES)
def test_a_case_names_its_source_and_can_fail(name):
    case = CASES[name]
    assert case.keys() <= KNOWN
    assert case["source"]
    assert case["expect"]
    for expected in case["expect"]:
        assert sum(bound in expected for bound in BOUNDS) == 1
        assert ("path" in expected) == (expected["of"] in ("plan", "report"))
