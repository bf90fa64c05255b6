"""Python: the constants of a module, which is read and never run."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
SUPPORTED = ("is_bf16_supported", "is_bfloat16_supported")  # asked of the GPU, which has it
READS = ("getenv", "get")  # of os and os.environ: a variable, or what stands beside it
CONVERTS: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
}


MOST = 10**30  # of a number that sums make
LEAVES = 200  # of a constant that holds others


def depth(tree: ast.Module) -> int:
    """How deep expressions stand in each other, in the statement where they are deepest."""
    level, deepest = list[tuple[ast.AST, int]]([(tree, 0)]), 0
    while level:
        node, deep = level.pop()
        deepest = max(deepest, deep)
        inside = 0 if isinstance(node, ast.stmt) else deep + 1
        for part in vars(node).values():
            if isinstance(part, ast.AST):
                if part._fields:
                    level.append((part, inside))
            elif isinstance(part, list):
                level += [(each, inside) for each in part if isinstance(each, ast.AST)]
    return deepest


def _is_small(found: Any) -> bool:
    """Whether a constant holds few others: by their names lists may hold themselves many times."""
    left, level = LEAVES, [found]
    while level and left:
        each, left = level.pop(), left - 1
        if isinstance(each, (list, dict)):
            level += each if isinstance(each, list) else each.values()
    return not level


def last_name(node: ast.expr) -> str:
    """What is called, without what it is a part of: pipeline of lmdeploy.pipeline; '' of none."""
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
    return ""


@functools.lru_cache(maxsize=1)  # each reader of modules asks for those of the same one
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module that say something, as ast.walk has them."""
    found: list[ast.AST] = [tree]
    for node in found:
        for part in vars(node).values():
            if isinstance(part, ast.AST):
                if part._fields:
                    found.append(part)
            elif isinstance(part, list):
                found += [each for each in part if isinstance(each, ast.AST)]
    return tuple(found)


@functools.lru_cache(maxsize=1)
def constants(tree: ast.Module) -> dict[str, Any]:
    """Constants that the module gives a name, and after a dot those that an option has where
    nobody says it."""
    found: dict[str, Any] = {}
    for node in nodes(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            said = value(node.value, found)
            if isinstance(target, ast.Name) and said is not None and _is_small(said):
                found[target.id] = said
        elif isinstance(node, ast.FunctionDef):  # what its parameters are where nobody gives them
            for name, said in defaults(node, found):
                found.setdefault(name, said)
        elif isinstance(node, ast.ClassDef) and node.decorator_list:  # a dataclass
            for name, said in _fields(node, found):
                found.setdefault(f".{name}", said)
        elif isinstance(node, ast.Call) and last_name(node.func) in OPTIONS:
            name, said = _option(node), _default(node, found)
            if name and said is not None:
                found[f".{name}"] = said
                found.setdefault(name, said)
    for each in tree.body:  # what a command gives, which stands over all
        call = each.value if isinstance(each, ast.Expr) else None
        if isinstance(call, ast.Call) and last_name(call.func) == GIVEN:
            found[f".{_option(call)}"] = found[_option(call)] = _default(call, found)
    return found


OPTIONS = ("add_argument", "option")  # argparse's, click's
GIVEN = "given_by_the_command"  # the call by which overrides.py writes what a command gives
FIELDS = ("field", "Field", "Option", "Argument")  # of dataclasses and of typer


def _option(call: ast.Call) -> str:
    names = [each.value for each in call.args if isinstance(each, ast.Constant)]
    return str(names[-1]).lstrip("-").replace("-", "_") if names else ""


def _default(call: ast.Call, constants: Mapping[str, Any]) -> Any:
    return next((value(k.value, constants) for k in call.keywords if k.arg == "default"), None)


def defaults(node: ast.FunctionDef, constants: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters of a function whose default is a constant."""
    given = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    pairs = [*zip(given, node.args.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
    return [(a.arg, said) for a, d in pairs if (said := _field(d, constants)) is not None]


def _fields(node: ast.ClassDef, constants: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Fields of a dataclass whose default is a constant."""
    return [
        (each.target.id, said)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value
        if (said := _field(each.value, constants)) is not None
    ]


def _field(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """A constant, also within field(default=...) and typer.Option(...)."""
    if isinstance(node, ast.Call) and last_name(node.func) in FIELDS:
        first = value(node.args[0], constants) if node.args else None
        return first if first is not None else _default(node, constants)
    return value(node, constants)


class Evaluator:
    """What expressions come to where constants say it: a constant, what a name stands for, a sum of
    such, the last word of torch.bfloat16; None for all else. `names`: those of constants, after a
    dot those of options."""

    def __init__(self, names: Mapping[str, Any]):
        self.names = names

    def value(self, node: ast.expr) -> Any:
        """What an expression comes to."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.names.get(node.id)
            case ast.Attribute():
                return self.attribute(node)
            case ast.List() | ast.Tuple():
                found = [self.value(each) for each in node.elts]
                return found if found and None not in found else None
            case ast.Dict():
                return self._pairs(node)
            case ast.UnaryOp():
                inner = self.value(node.operand)
                if isinstance(node.op, ast.Not):
                    return None if inner is None else not inner
                return -inner if _number(inner) and isinstance(node.op, ast.USub) else None
            case ast.BinOp():
                return _sum(node.op, self.value(node.left), self.value(node.right))
            case ast.Call():
                return self.call(node)
        return None

    def attribute(self, node: ast.Attribute) -> Any:
        """What a part of something is."""
        own = isinstance(node.value, ast.Name) and node.value.id == "torch"
        return node.attr if own else self.names.get(f".{node.attr}")

    def call(self, node: ast.Call) -> Any:
        """What a call returns, of dict(), of conversions, and of what asks the environment."""
        last = last_name(node.func)
        if last in SUPPORTED:
            return True
        if last not in {"dict", *READS, *CONVERTS}:
            return None
        function = ast.unparse(node.func)
        if function == "dict":
            return arguments(node, self.names)[0]
        if last in READS and function.startswith("os.") and len(node.args) == 2:
            return self.value(node.args[1])
        if function in CONVERTS and len(node.args) == 1:
            inner = self.value(node.args[0])
            try:
                return None if inner is None else CONVERTS[function](inner)
            except (TypeError, ValueError, OverflowError):
                return None
        return None

    def _pairs(self, node: ast.Dict) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            name, said = self.value(key) if key else None, self.value(each)
            if key is None and isinstance(said, Mapping):  # **more
                pairs |= said
            elif isinstance(name, str):
                pairs[name] = said
        return pairs


def value(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """What an expression comes to, with constants by their names."""
    return Evaluator(constants).value(node)


def arguments(call: ast.Call, constants: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What a call is given by name, None where no constant says it, with what stands in **mapping
    where constants make that; and how it writes those of which nothing is known."""
    found, unknown = dict[str, Any](), list[str]()
    for each in sorted(call.keywords, key=lambda each: each.arg is not None):
        said = value(each.value, constants)
        if each.arg:
            found[each.arg] = said
        elif isinstance(said, Mapping):
            found |= said
        else:
            unknown.append(f"**{ast.unparse(each.value)[:40]}")
    return found, unknown


def _number(found: Any) -> bool:
    return isinstance(found, (int, float)) and not isinstance(found, bool)


def _sum(sign: ast.operator, left: Any, right: Any) -> Any:
    if type(sign) not in SUMS or not (_number(left) and _number(right)):
        return None
    try:
        found = SUMS[type(sign)](left, right)
    except (ArithmeticError, ValueError):
        return None
    return found if abs(found) < MOST else None
