"""The app uses what Streamlit documents, and nothing from inside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("app/**/*.py"), *ROOT.glob("memcore/**/*.py")])
MOST_LINES_OF_SCRIPT = 100


def faults(source: str) -> Iterator[str]:
    """What a file imports from inside Streamlit, sets of Streamlit's, or reads of its files."""
    tree = ast.parse(source)
    names = set()  # that stand for Streamlit or for something of it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "streamlit":
                    names.add(one.asname or "streamlit")
                    if one.name != "streamlit":
                        yield f"line {node.lineno}: import {one.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "streamlit":
            yield f"line {node.lineno}: from {node.module} import"
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign | ast.Delete)
            else [node.target]
            if isinstance(node, ast.AugAssign | ast.AnnAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and _root(target) in names and not _held(target):
                yield f"line {node.lineno}: {ast.unparse(target)} is set"
        of = _of_call(node) if isinstance(node, ast.Call) else ""
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if of in names or (private and _root(node) in names):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _of_call(call: ast.Call) -> str:
    """Of what a call sets an attribute, or ''."""
    sets = ast.unparse(call.func) in ("setattr", "delattr") and call.args
    return ast.unparse(call.args[0]).split(".")[0] if sets else ""


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _held(target: ast.Attribute) -> bool:
    """Whether it is a value that the session holds: st.session_state.name."""
    return ast.unparse(target.value).endswith(".session_state")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_taken_from_inside_streamlit(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from streamlit.runtime.scriptrunner import get_script_run_ctx",
        "import streamlit.web.cli",
        "from streamlit import config",
        "import streamlit as st\nst.button = None",
        "import streamlit as st\nsetattr(st, 'button', None)",
        "import streamlit as st\nst.App._run = None",
        "import streamlit as st\nopen(st.__file__)",
    ],
)
def test_what_is_taken_from_inside_is_seen(source: str) -> None:
    assert list(faults(source))


def test_there_is_one_component_and_a_page_of_script() -> None:
    uses = [p.name for p in FILES if "components.v2.component(" in p.read_text(encoding="utf-8")]
    assert uses == ["places.py"]
    scripts = ROOT.glob("app/**/*.js")
    assert sum(len(p.read_text(encoding="utf-8").splitlines()) for p in scripts) <= (
        MOST_LINES_OF_SCRIPT
    )
