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
from memcore.formats.megatron import MASTERS, MOMENTS
from memcore.formats.programs import Program
from memcore.formats.texts import MAX_VALUES, module
from memcore.models import cards

RECIPES = Program("nemo", "recipes")
MARKS = nemo.NEMO.names["recipe"]
DTYPES = (*MOMENTS, MASTERS)  # said as torch.bfloat16
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
            said = (
                dict(_keywords(node))
                | dict(_defaults(node))
                | dict(_assigned(_lines(node, helpers, left)))
            )
            if len(MARKS & said.keys()) >= 3:
                called = (each for each in ast.walk(node) if isinstance(each, ast.Call))
                tried = (node.name, *map(_callee, called), str(constants.get("NAME", "")))
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
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return [
        python.last_name(call.func)
        for call in calls
        if any(_named(each) in returned for each in (*call.args, *(k.value for k in call.keywords)))
    ]


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _helpers(content: str, job: str) -> list[str]:
    """What a job calls to set more, and is not in the file."""
    known = functions(content)
    return [name for name in dict.fromkeys(_setters(known[job])) if name not in known]


def _base(content: str, job: str) -> str:
    """The recipe that a job begins with; '' of one that says all itself."""
    functions = (node for node in ast.parse(content).body if isinstance(node, ast.FunctionDef))
    node = next(node for node in functions if node.name == job)
    called = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return next((said for said in map(ast.unparse, called) if BEGINS.search(said)), "")


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


def _defaults(node: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    given = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    for parameter, default in zip(given, node.args.defaults, strict=True):
        if isinstance(default, ast.Constant):
            yield RECIPES.renamed.get(parameter.arg, parameter.arg), default.value


def _keywords(node: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    """What a function says in calls, as run.Config(MegatronStrategy, context_parallel_size=2)."""
    for call in ast.walk(node):
        for each in call.keywords if isinstance(call, ast.Call) else ():
            if each.arg and isinstance(each.value, ast.Constant) and each.value.value is not None:
                yield RECIPES.renamed.get(each.arg, each.arg), each.value.value


def _assigned(nodes: Any) -> Iterator[tuple[str, Any]]:
    """Constants that are set, by the last part of what they are set to; of a call its first."""
    for node in nodes:
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
            continue
        target, value = node.targets[0], node.value
        if isinstance(value, ast.Call) and value.args:
            value = value.args[0]
        named = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if named and isinstance(value, ast.Constant):
            yield named, value.value
        elif named in DTYPES and isinstance(value, ast.Attribute):
            yield named, value.attr  # torch.bfloat16
        elif named and isinstance(value, ast.List):
            yield named, [each.value for each in value.elts if isinstance(each, ast.Constant)]


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
