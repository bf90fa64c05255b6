"""The rooms of the engine: an import goes down only, and no number follows from what a thing is
called."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tables import each

ROOT = Path(__file__).resolve().parents[2]
# From the ground up: a room imports those before it. A room is a folder of memcore, or a file that
# lies in no folder. A new room takes its place here.
ROOMS = (
    *("units", "errors", "version", "shipped", "cache", "pausing", "notebook"),
    *("hardware", "words", "tape", "report", "layers", "models", "plan", "quantity", "step"),
    "timing",
    *("frameworks", "training", "serving", "together", "evaluate", "formats"),
    *("search", "stream", "evidence", "explain"),
    "memcore",  # what the package itself offers
    *("tracing", "cli", "app"),
)
# The command that opens the app imports it when it does so, and nothing else upwards.
OPENS_THE_APP = ("cli", "app")
FILES = sorted(p for package in ("memcore", "app") for p in (ROOT / package).rglob("*.py"))


def where(node: ast.AST, path: Path) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


# ---- imports


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def room(name: str) -> str:
    """memcore.plan.link lies in plan, app.views.train in app, memcore itself in memcore."""
    package, _, inner = name.partition(".")
    return package if package == "app" or not inner else inner.partition(".")[0]


def imports(path: Path, nodes: Iterator[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Each import among these nodes of a module of this project, with the module's name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{where(node, path)}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in MODULES else str(node.module) for name in whole]
        else:
            continue
        yield from ((node, name) for name in found if name in MODULES)


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def running(tree: ast.AST, functions: bool) -> Iterator[ast.AST]:
    """Statements that ever run: all but what is imported for types alone. Without `functions`,
    those that run when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr) or for_types(child):
            continue
        if functions or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from running(child, functions)


@functools.cache  # of a file that three tests read
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


@each("path", FILES, ids=module)
def test_an_import_goes_down_only(path: Path) -> None:
    here = room(module(path))
    assert here in ROOMS, f"{here} has no place in the order of rooms"
    for node, name in imports(path, running(parsed(path), functions=True)):
        there = room(name)
        down = there == here or ROOMS.index(there) < ROOMS.index(here)
        assert down or (here, there) == OPENS_THE_APP, f"{where(node, path)} imports {name}"


# A model that holds models of other families looks them up among all families, when it is built.
LOOKED_UP = {
    (f"memcore.models.families.{name}", "memcore.models.families")
    for name in ("llava", "gemma3", "qwen_vl", "rows")
}


def test_no_module_imports_itself_by_way_of_others() -> None:
    reads = {
        name: {other for _, other in imports(path, running(parsed(path), functions=False))}
        for name, path in MODULES.items()
    }
    for name, other in LOOKED_UP:
        reads[name].discard(other)
    while free := [name for name, others in reads.items() if not others & reads.keys()]:
        for name in free:
            del reads[name]
    assert not reads, "each of these imports another of them"


# ---- no physics from names

CALLED = {"name", "label", "title", "why", "text", "note", "sentence", "meaning"}
ASKED = {"startswith", "endswith", "find", "rfind", "split", "partition", "rpartition"}
PATTERNS = {"match", "search", "fullmatch", "findall"}


def called(node: ast.AST) -> bool:
    """Whether this is what a thing is called."""
    return isinstance(node, ast.Attribute) and node.attr in CALLED


def a_name(node: ast.AST) -> bool:
    return called(node) or (isinstance(node, ast.Name) and node.id == "name")


def literal(node: ast.AST) -> bool:
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(map(literal, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def asks_a_name(node: ast.AST) -> bool:
    """`".mlp" in x.name`, `x.why == "kept"`, `x.name.endswith(".bias")`, `re.match(p, x.name)`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and a_name(right):
            return True
        return (called(left) and literal(right)) or (literal(left) and called(right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in PATTERNS:
            return any(map(a_name, node.args))
        return node.func.attr in ASKED and a_name(node.func.value)
    return False


# Names that are themselves what is read, and the numbers do not follow from them.
READ = {
    ("memcore.models.catalog", "f.name.endswith('.json')"),  # files
    ("memcore.models.catalog", "file.name.endswith('.toml')"),
    ("memcore.models.catalog", "name.split('-')"),  # to sort by the numbers in it
    ("memcore.formats.hub", "_says(pattern).search(name)"),  # what publishers call weights
    ("memcore.formats.overrides", "text.name.endswith('.py')"),  # files
    ("memcore.formats.reading", "name.endswith('.py')"),
    ("memcore.formats.placement", "pattern.search(name)"),  # llama.cpp's rules on its own names
    ("memcore.formats.snapshot", "name.startswith(STEPS)"),  # what PyTorch's optimizers annotate
    ("memcore.models.families", "name.rpartition('.')"),  # a class of transformers, in config.json
    ("memcore.models.families.wrappers", "name.endswith(SUFFIXES)"),
    ("memcore.models.quantization", "name.startswith('re:')"),  # a pattern, in config.json
    ("memcore.quantity.reading", "name.startswith('__')"),  # Python's own attributes
}


def test_no_number_follows_from_what_a_thing_is_called() -> None:
    found = {
        (module(path), ast.unparse(node))
        for path in FILES
        if room(module(path)) not in ("cli", "app")
        for node in ast.walk(parsed(path))
        if asks_a_name(node)
    }
    assert found <= READ, f"what is said in a name should be a field of its own: {found - READ}"
    assert found >= READ, f"gone: {READ - found}"


@pytest.mark.parametrize(
    "text",
    [
        *("'.mlp.' in x.name", "x.name not in y.name", "x.why == 'kept'", "'a' != x.label"),
        *("x.name in ('a', 'b')", "x.name.endswith('bias')", "name.startswith(y)"),
        *("x.name.partition('.')", "re.search(p, x.note)"),
    ],
)
def test_a_name_that_is_asked_is_seen(text: str) -> None:
    assert any(map(asks_a_name, ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text", ["x.name", "x.kind == 'kept'", "x.name == y.name", "{x.name: 1}", "x.kind in KINDS"]
)
def test_a_field_that_is_asked_is_none(text: str) -> None:
    assert not any(map(asks_a_name, ast.walk(ast.parse(text))))
