"""The repository's own rules: which way imports point, what views may hold, what files may say."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tables import each

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENGINE = sorted((ROOT / "memcore").rglob("*.py"))
APP = sorted((ROOT / "app").rglob("*.py"))
VIEWS = sorted((ROOT / "app" / "views").glob("*.py"))
OPENS_THE_APP = ROOT / "memcore" / "cli" / "app.py"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """Top-level packages that these nodes import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported; `if TYPE_CHECKING` does not."""
    for child in ast.iter_child_nodes(tree):
        typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not typing and not isinstance(
            child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        ):
            yield child
            yield from outside_functions(child)


@each("path", ENGINE, ids=name)
def test_the_engine_imports_only_the_standard_library_pydantic_and_numpy(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    allowed = {*sys.stdlib_module_names, "memcore", "pydantic", "numpy"}
    if path.parent.name == "formats":  # of other programs, some of which are YAML
        allowed |= {"yaml"}
    if path.parent.name == "tracing":  # which the command imports, where torch is
        allowed |= {"torch"}
    lazily = {"huggingface_hub", "mcp", "pandas", "pyarrow", "torch"} | (
        {"app", "streamlit"} if path == OPENS_THE_APP else set()
    )
    assert imported(outside_functions(tree)) <= allowed
    assert imported(ast.walk(tree)) <= allowed | lazily


@each("path", ENGINE, ids=name)
def test_the_engine_never_imports_the_app(path: Path) -> None:
    """But for the command that opens it, when it does."""
    indent = "" if path == OPENS_THE_APP else r"\s*"
    assert not re.search(rf"^{indent}(from|import) app\b", path.read_text(encoding="utf-8"), re.M)


def test_importing_the_engine_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "plotly", "streamlit"}
    code = f"import sys, memcore; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_app_uses_no_plotly_express() -> None:
    """Importing it takes 0.7 s and using it 80 ms an interaction."""
    for path in APP:
        assert "plotly.express" not in path.read_text(encoding="utf-8"), name(path)


FORBIDDEN_IN_VIEWS = (ast.Try, ast.TryStar, ast.AugAssign, ast.BinOp)


@pytest.mark.parametrize("path", VIEWS, ids=name)
def test_views_hold_no_arithmetic_no_try_and_no_html(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{name(path)}:{getattr(node, 'lineno', 0)}"
        joins_types = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        assert joins_types or not isinstance(node, FORBIDDEN_IN_VIEWS), f"{where}: {type(node)}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(r"</?[a-z][^>]*>", node.value), f"{where}: HTML"
        if isinstance(node, ast.keyword):
            assert node.arg != "unsafe_allow_html", where
        if isinstance(node, ast.Attribute):
            assert node.attr != "html", where


MAKES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
OF_PLANS = [path for path in VIEWS if path.stem != "accuracy"]


@pytest.mark.parametrize("path", [ROOT / "app" / "page.py", *OF_PLANS], ids=name)
def test_what_each_run_executes_anew_makes_no_function(path: Path) -> None:
    """A function knows the names of its script, and the script knows it: a cycle, which holds the
    run's report."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(node, MAKES), f"{name(path)}:{getattr(node, 'lineno', 0)}"


# ---- packaging


def test_the_wheel_is_told_of_every_package() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["memcore"]
    # Names that other packages could take lie below Memplan's.
    assert wheel["force-include"] == {"app": "memplan_app/app", "presets": "memcore/presets"}
    assert (ROOT / "app" / ".streamlit" / "config.toml").is_file()


def test_every_dependency_has_a_floor_and_a_ceiling() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    itself, *dev = extras["dev"]
    assert itself == "memplan[app]"
    for requirement in (*PROJECT["project"]["dependencies"], *extras["app"], *dev):
        assert re.fullmatch(r"[a-z0-9-]+>=[0-9.]+,<[0-9.]+", requirement), requirement
    for requirement in extras["oracle"]:  # the reference tables are of these versions
        assert re.fullmatch(r"[a-z-]+==[0-9.]+", requirement), requirement


def test_the_command_exists() -> None:
    from memcore import cli

    assert PROJECT["project"]["scripts"] == {"memplan": "memcore.cli:main"}
    assert callable(cli.main)


PAGES = (
    *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "memcore/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "skills" / "memplan" / "SKILL.md",
)


def test_the_readme_has_the_two_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:sh|bash)\n(.+?)```", text, re.S)
    assert any(block.strip().endswith("memplan app") for block in blocks)
    assert any(block.strip().endswith("-m pytest") for block in blocks)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_whatever_a_page_leads_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_is_one_and_a_half_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_the_map_names_every_room() -> None:
    text = (ROOT / "memcore" / "README.md").read_text(encoding="utf-8")
    for room in (ROOT / "memcore").iterdir():
        if room.is_dir() and (room / "__init__.py").exists():
            assert re.search(rf"^ .*\b{room.name}\b", text, re.M), room.name


def test_the_command_line_page_names_every_command() -> None:
    from memcore.cli import program

    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for command in program.commands().choices:
        assert f"memplan {command} " in text, command


def test_a_command_that_computes_nothing_starts_without_what_computes() -> None:
    code = """
import sys
from memcore.cli import main
try:
    main(["--help"])
except SystemExit:
    assert not {"pydantic", "numpy", "yaml"} & sys.modules.keys()
import memcore.evaluate
from memcore import evaluate, search
assert evaluate is memcore.evaluate is sys.modules["memcore.evaluate"].evaluate, evaluate
assert search.__module__ == "memcore.search.search"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def commands_of(text: str) -> Iterator[str]:
    """The commands that a page has in its blocks, and with arguments in its sentences."""
    for block in re.findall(r"```sh\n(.+?)```", text, re.S):
        yield from re.findall(r"(?:^|\| )memplan ([^|\n]+)", block, re.M)
    yield from re.findall(r"`memplan ([a-z]+ [^`]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_of_a_page_can_be_given(page: Path) -> None:
    """Its words and options exist, and none that it needs is left out."""
    from memcore.cli import program

    parser = program.parser()
    for command in commands_of(page.read_text(encoding="utf-8")):
        words = shlex.split(re.split(r"\s[<>]\s", command)[0], comments=True)
        parser.parse_args(words)


# ---- what no file says


def repository_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        cwd=ROOT,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (ROOT / file for file in listed.stdout.decode().split("\0") if file)
    return [path for path in paths if path.is_file()]


# Spelt so that this file does not say them either.
HOME = re.compile(rb"(?<![\w.:/-])/(work|home|root|Us[e]rs|private/tmp|mnt)/\w")
INDEX = re.compile(rb"py[p]i\.org|python[h]osted\.org|index[-_]ur[l]")


def test_no_file_names_a_place_on_somebodys_machine_or_a_package_index() -> None:
    found = []
    for path in repository_files():
        text = path.read_bytes()
        if b"\0" in text[:8_000] or path.name == "uv.lock":
            continue
        found += [f"{name(path)}: {m[0]!r}" for m in (HOME.search(text), INDEX.search(text)) if m]
    assert not found


def test_no_file_is_large() -> None:
    for path in repository_files():
        assert path.stat().st_size < 1_500_000, name(path)
