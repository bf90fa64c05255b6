"""A field of the plan is declared once: what it declares, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tables import each

from memcore import Plan, PlanError
from memcore.plan.field import GROUPS, HARDWARE, TOP, EachWord, Switch
from memcore.plan.keys import KEYS
from memcore.plan.plan import facts, field_of, field_paths, get, put, words_of
from memcore.search.levers import declared

OBJECTS = {"version", "model", "cluster.gpu", "cluster.node"}
ON_A_PAGE = {"serve.target_ttft", "serve.target_tpot"}  # drawn beside what they are held against
FIELDS = [path for path in field_paths() if path not in OBJECTS]


@each("path", FIELDS)
def test_a_field_says_all_of_itself(path: str) -> None:
    """Title, help, a key of its own, a frozen default of its type, and a group."""
    info, said = field_of(path), facts(path)
    assert info.title
    assert info.description
    assert KEYS[said.key].path == path
    assert type(KEYS[said.key].default) is type(get(Plan(), path))
    assert said.group in (*GROUPS, TOP, HARDWARE) or path in ON_A_PAGE
    assert not said.after or facts(said.after).group == said.group


def test_every_field_that_takes_words_refuses_any_other() -> None:
    """In one place for all; the message names the field and the nearest word."""
    worded = [path for path in FIELDS if facts(path).words]
    assert len(worded) == 43
    for path in worded:
        section, _, name = path.partition(".")
        with pytest.raises(PlanError) as raised:
            Plan.of({section: {name: "no such word"}})
        assert [issue.field for issue in raised.value.issues] == [path]
        assert "is not known" in raised.value.issues[0].message


def test_the_schema_names_unit_and_words() -> None:
    train = Plan.model_json_schema()["$defs"]["Train"]["properties"]
    assert train["allocator"]["enum"] == ["expandable", "native"]
    assert train["seq_len"]["unit"] == "tokens"


def test_a_declared_lever_is_tried() -> None:
    plan = Plan()
    for path in FIELDS:
        lever, here = facts(path).lever, get(plan, path)
        ways = [way.ladder for way in declared(path)(plan)]
        when = facts(path).when
        if when and not when(lambda p: get(plan, p), plan.architecture):
            assert ways == []  # it has no meaning in this plan
        elif isinstance(lever, EachWord):
            others = [word for word in facts(path).words or () if word != here]
            assert ways == [[{path: word}] for word in others]
        elif isinstance(lever, Switch):
            assert ways == ([] if here == lever.to else [[{path: lever.to}]])
        else:
            assert ways == []


def _spoken(make: Callable[[], Plan]) -> object:
    """A plan's document, or what it is refused with."""
    try:
        return make().document()
    except PlanError as e:
        return [(issue.field, issue.message, issue.remedies) for issue in e.issues]


@pytest.mark.parametrize(
    "words",
    [
        {},
        {
            "train": {
                "adapter": "qlora",
                "framework": "pytorch",
                "zero": 0,
                "precision": "bf16-pure",
            }
        },
        {"train": {"framework": "megatron", "kernels": "megatron", "zero": 1}},
        {"train": {"framework": "deepspeed", "offload_optimizer": "cpu"}},
        {"model": "qwen3-30b-a3b", "serve": {"engine": "llama.cpp"}, "together": {"kind": "grpo"}},
    ],
)
def test_a_changed_plan_is_the_plan_of_the_changed_document(words: dict[str, object]) -> None:
    """Where only what changed is checked, the same is refused in the same words."""
    plan = Plan.of(words)
    for path in field_paths()[1:]:  # a version is asked of documents only
        for value in [*(words_of(path) or ()), 0, 2, 3, 64, 1.5, True, None, "none", "\ud800"]:
            document = plan.document()
            put(document, path, value)
            one = _spoken(lambda: plan.changed(path, value))  # noqa: B023
            assert one == _spoken(lambda: Plan.of(document)), (path, value)  # noqa: B023
