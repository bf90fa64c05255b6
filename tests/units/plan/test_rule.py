"""A rule carries its remedies: they settle it, and its sentence is printed from them."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest

from memcore.errors import PlanError
from memcore.plan import framework_rules, model_rules, serving_rules
from memcore.plan.plan import Plan, get
from memcore.plan.repair import followed, issues_in, repair
from memcore.plan.rule import said
from memcore.training import training
from memcore.words.training import FRAMEWORKS

BROKEN = [
    {"train": {"frozen": "embeddings", "kernels": "compile"}},
    {"train": {"framework": "pytorch", "zero": 3}},
    {"train": {"framework": "deepspeed", "zero": 3, "precision": "fp32"}},
    {"train": {"framework": "deepspeed", "zero": 0, "offload_optimizer": "nvme"}},
    {"train": {"kernels": "megatron"}},
    {"train": {"offload_parameters": "nvme"}},
    {"train": {"adapter": "qlora"}},
    {"train": {"mtp_layers": 1}},
    {"parallel": {"tp": 3}},
    {"parallel": {"pp": 7}},
    {"parallel": {"schedule": "gpipe", "virtual_stages": 2}},
    {"cluster": {"gpus": 7}, "parallel": {"tp": 2}},
    {"serve": {"max_seq_len": 8}},
]


def test_a_sentence_is_printed_from_the_remedies() -> None:
    remedies = (
        {"train.frozen": "none"},
        {"train.kernels": "hf"},
        {"train.kernels": "liger"},
        {"train.framework": "fsdp2", "train.zero": 3},
        {"parallel.tp": 1, "parallel.pp": 1},
    )
    assert said(remedies, "train.frozen") == (
        "set it to none, or train.kernels to hf or liger, or train.framework to fsdp2 and "
        "train.zero to 3, or parallel.tp and pp to 1"
    )


@pytest.mark.parametrize("document", BROKEN, ids=str)
def test_each_remedy_settles_its_own_issue(document: dict) -> None:
    with pytest.raises(PlanError) as refused:
        Plan.of(document)
    assert all(issue.remedies for issue in refused.value.issues)
    for issue in refused.value.issues:
        for remedy in issue.remedies:
            trial = repair({})[0].document()
            for section, words in document.items():
                trial[section] |= words
            for path, value in remedy.items():
                section, name = path.split(".")
                trial[section][name] = value
            left = issues_in(trial)
            assert issue not in left or issue.field == "cluster.gpus"


@pytest.mark.parametrize(
    ("given", "path", "value"),
    [
        ("train.frozen", "train.kernels", "hf"),
        ("train.kernels", "train.frozen", "none"),
    ],
)
def test_repair_keeps_what_was_asked_for_and_changes_something_else(given, path, value) -> None:
    document = {"train": {"frozen": "embeddings", "kernels": "compile"}}
    plan, issues = repair(document, given=[given])
    assert get(plan, path) == value
    assert get(plan, given) == get(document, given)
    assert len(issues) == 1


def test_what_may_follow_follows_and_nothing_else_does() -> None:
    document = Plan.of({"parallel": {"tp": 2}}).document()
    changes = followed(document, {"train.framework": "deepspeed"})
    assert changes == {"train.framework": "deepspeed"}
    changes = followed(document, {"train.framework": "megatron"})
    assert changes == {"train.framework": "megatron", "train.kernels": "megatron"}
    changes = followed(document, {"train.framework": "pytorch"})
    assert changes == {"train.framework": "pytorch", "train.zero": 1}


@pytest.mark.parametrize("module", [framework_rules, model_rules, serving_rules, training])
def test_no_rule_asks_for_a_framework_by_its_word(module: ModuleType) -> None:
    """A new framework says what it is in its word's facts."""
    every = ast.walk(ast.parse(inspect.getsource(module)))
    compared = [n for of in every if isinstance(of, ast.Compare) for n in ast.walk(of)]
    assert compared
    assert not {n.value for n in compared if isinstance(n, ast.Constant)} & FRAMEWORKS.keys()
