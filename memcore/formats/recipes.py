"""Recipes: NeMo's and Megatron-Bridge's jobs as functions in Python, which are read and never run.

Sources: NeMo 2.0's collections/llm/recipes, Megatron-Bridge 0.6's recipes and perf_recipes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcore.formats import hub, nemo, python
from memcore.formats.draft import Draft
from memcore.formats.programs import Program
from memcore.formats.texts import MAX_VALUES, module
from memcore.models import cards

RECIPES = Program("nemo", "recipes")
MARKS = nemo.NEMO.names["recipe"]
BEGINS = re.compile(r"_(?:config|recipe)$")  # of what is called: another recipe
GPUS = re.compile(r"_(\d+)gpus?(?=_|$)")  # in a recipe's name
ENDS = re.compile(r"_(?:pretrain|finetune|sft|peft|lora|config|recipe|performance).*$")


def jobs(content: str) -> dict[str, dict[str, Any]]:
    """What the functions of a module set, as a document of NeMo's has it."""
    if not any(mark in content for mark in MARKS):
        return {}
    tree = module(content)
    constants = dict(_assigned(tree.body))
    helpers = functions(content)
    left = iter(range(MAX_VALUES))  # of helpers, whose lines count for each job that calls them
    found: dict[str, dict[str, Any]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            parameters = {**dict(python.defaults(node, {})), **_given(tree, node)}
            said = dict(_keywords(node, parameters))
            said |= {RECIPES.renamed.get(name, name): value for name, value in parameters.items()}
            said |= dict(_assigned(_lines(node, helpers, left)))
            if len(MARKS & said.keys()) >= 3:
                tried = (node.name, *map(_callee, _calls(node)), str(constants.get("NAME", "")))
                models = (_model(each) for each in tried)
                named = next((each for each in models if each), "")
                found[node.name] = {"policy": {"megatron_cfg": said, "model_name": named}}
                if isinstance(scheme := said.pop("peft_scheme", None), str):
                    found[node.name] |= {"peft": {"peft_scheme": scheme}}
    return found


def read(content: str, draft: Draft) -> None:
    """The first job whose model has a preset, or the first; the others are told."""
    known = jobs(content)
    chosen = next((job for job in known if known[job]["policy"]["model_name"]), next(iter(known)))
    if named := GPUS.search(chosen):
        draft.ranks = max(draft.ranks, int(named[1]))
    for word in chosen.split("_"):
        if gpu := cards.preset(word):
            draft.put("cluster.gpu", gpu, f"{chosen}()", word)
    nemo.read(known[chosen], draft)
    for helper in _helpers(content, chosen):
        draft.leave(f"{helper}()", "what it sets is not in the file, so it is not planned")
    if base := _base(content, chosen):
        said = known[chosen]["policy"]["megatron_cfg"]
        unsaid = ", ".join(key for key in RECIPES.listed("decide") if key not in said)
        why = f"; taken as Megatron's own: {unsaid}" if unsaid else ""
        draft.leave(f"{base}()", f"the job begins with what it sets, which is not in the file{why}")
    draft.chosen(chosen, "job", known)


def functions(content: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module, by their names."""
    return {each.name: each for each in module(content).body if isinstance(each, ast.FunctionDef)}


def helps(content: str, job: str) -> bool:
    """Whether a module has a function that a job of another module calls to set more."""
    known = functions(content).keys()
    return any(not known.isdisjoint(_setters(each)) for each in functions(job).values())


def _setters(node: ast.FunctionDef) -> list[str]:
    """What a function gives the configuration to that it returns, which may set more of it."""
    returned = {
        each.value.id
        for each in ast.walk(node)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Name)
    }
    return [
        python.last_name(call.func)
        for call in _calls(node)
        for each in (*call.args, *(k.value for k in call.keywords))
        if isinstance(each, ast.Name) and each.id in returned
    ]


def _helpers(content: str, job: str) -> list[str]:
    """What a job calls to set more, and is not in the file."""
    known = functions(content)
    return [name for name in dict.fromkeys(_setters(known[job])) if name not in known]


def _base(content: str, job: str) -> str:
    """The recipe that a job begins with; '' of one that says all itself."""
    called = (each.func for each in _calls(functions(content)[job]))
    return next((said for said in map(ast.unparse, called) if BEGINS.search(said)), "")


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _lines(
    node: ast.FunctionDef, helpers: Mapping[str, ast.FunctionDef], left: Iterator[int]
) -> Iterator[ast.AST]:
    """The lines of a function, and, where it calls one of the file's to set more, that one's, until
    none is `left`."""
    setters = set(_setters(node))
    for statement in node.body:
        call = getattr(statement, "value", None)
        name = python.last_name(call.func) if isinstance(call, ast.Call) else ""
        helper = helpers.get(name) if name in setters else None
        if helper and helper is not node:
            yield from (line for line, _ in zip(ast.walk(helper), left, strict=False))
        else:
            yield from ast.walk(statement)


def _given(tree: ast.Module, node: ast.FunctionDef) -> dict[str, Any]:
    """What the module, outside of its functions, gives a function's parameters."""
    found: dict[str, Any] = {}
    for line in (each for each in tree.body if not isinstance(each, ast.FunctionDef)):
        for call in (each for each in _calls(line) if python.last_name(each.func) == node.name):
            first = zip((each.arg for each in node.args.args), call.args, strict=False)
            found |= {name: python.value(value, {}) for name, value in first}
            found |= python.arguments(call, {})[0]
    return {name: value for name, value in found.items() if value is not None}


def _keywords(node: ast.FunctionDef, constants: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a function says in calls, as run.Config(MegatronStrategy, context_parallel_size=2)."""
    for call in _calls(node):
        for name, said in python.arguments(call, constants)[0].items():
            if said is not None and not isinstance(said, Mapping):
                yield RECIPES.renamed.get(name, name), said


def _assigned(nodes: Any) -> Iterator[tuple[str, Any]]:
    """Constants that are set, by the last part of what they are set to; of a call its first."""
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            named, value = python.last_name(node.targets[0]), node.value
            if isinstance(value, ast.Call) and value.args:
                value = value.args[0]
            said = python.value(value, {})
            none = isinstance(value, ast.Constant)
            if named and (none or said is not None) and not isinstance(said, Mapping):
                yield named, said


def _callee(call: ast.Call) -> str:
    """What a call is of: a function, or the module that a recipe stands in, as in
    llm.llama31_70b.finetune_recipe()."""
    if isinstance(call.func, ast.Attribute) and BEGINS.search(call.func.attr):
        return ast.unparse(call.func.value).rpartition(".")[2]
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _model(function: str) -> str:
    """The model that a recipe is called after, if it has a preset: llama31_70b is Llama 3.1's."""
    name = ENDS.sub("", function).replace("_", "-")
    return hub.preset(name) or hub.preset(re.sub(r"(?<=[a-z])(\d)(\d)(?=-)", r"\1.\2", name))
