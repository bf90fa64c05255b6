"""A field of the plan is declared once: what it declares, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tables import each

from memcore import Plan, PlanError
from memcore.plan import field, keys
from memcore.plan.field import GROUPS, HARDWARE, TOP, EachWord, Facts, Switch
from memcore.plan.keys import KEYS
from memcore.plan.plan import facts, field_of, field_paths, get, meant, put, words_of
from memcore.search.levers import declared

OBJECTS = {"version", "model", "cluster.gpu", "cluster.node"}
# Drawn beside what they are held against, or by the choice of a job.
ON_A_PAGE = {"job", "serve.target_ttft", "serve.target_tpot"}
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


DECLARED = {path: (field_of(path).title or "", facts(path)) for path in FIELDS}


@pytest.mark.parametrize(
    ("title", "said", "says"),
    [
        ("New", Facts(key="mb"), "train.micro_batch and train.new both have the link key 'mb'"),
        (
            "Optimizer",
            Facts(key="new", group="Training details"),
            "train.optimizer and train.new both have the title 'Optimizer'",
        ),
        ("New", Facts(key="new", group="Trainin"), "train.new: there is no group 'Trainin'"),
        (
            "New",
            Facts(key="new", group="Offload", after="train.seq_len"),
            "train.new is drawn behind train.seq_len, which is no field of its group",
        ),
    ],
)
def test_a_field_that_claims_what_another_has_is_refused_where_it_is_declared(
    title: str, said: Facts, says: str
) -> None:
    """At import, by one message, and not by the tests of links, none of which would say why."""
    field.checked(DECLARED)
    with pytest.raises(ValueError, match=says):
        field.checked(DECLARED | {"train.new": (title, said)})


def test_a_link_s_key_is_free_and_has_a_frozen_default() -> None:
    paths = {name: key.path for name, key in KEYS.items()}
    keys.checked(paths)
    for name, says in (
        ("pin", "train.new: in a link the key 'pin' means something else"),
        ("new", r"train\.new: link-v1\.json has no default for its key 'new'"),
    ):
        with pytest.raises(ValueError, match=says):
            keys.checked(paths | {name: "train.new"})
    del paths["mb"]
    with pytest.raises(ValueError, match=r"link-v1\.json: no field has the key 'mb'"):
        keys.checked(paths)


def test_every_field_that_takes_words_refuses_any_other() -> None:
    """In one place for all; the message names the field and the nearest word."""
    worded = [path for path in FIELDS if facts(path).words]
    assert len(worded) == 49
    for path in worded:
        section, _, name = path.partition(".")
        with pytest.raises(PlanError) as raised:
            Plan.of({section: {name: "no such word"} if name else "no such word"})
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


MEANT = {  # what people write, and what they are told to write
    "train.micro_bach": "'micro_batch'",
    "train.batch_size": "'micro_batch'",
    "train.gradientCheckpointing": "'checkpointing'",
    "train.zero-stage": "'zero'",
    "train.qlora": "'adapter', which takes 'qlora'",
    "train.FSDP2": "'framework', which takes 'fsdp2'",
    "serve.batch_size": "'concurrency'",
    "serve.gpu_memory_utilization": "'memory_utilization'",
    "cluster.tp": "'parallel.tp' or 'serve.tp'",
    "gpus": "'cluster.gpus'",
    "batch_size": "'train.micro_batch' or 'serve.concurrency'",
}


@each("wrote", MEANT)
def test_who_writes_another_name_is_led_to_the_field(wrote: str) -> None:
    *section, name = wrote.split(".")
    document = {section[0]: {name: 1}} if section else {name: 1}
    with pytest.raises(PlanError) as raised:
        Plan.of(document)
    (issue,) = raised.value.issues
    assert issue.message == f"unknown key; did you mean {MEANT[wrote]}?"


def test_who_writes_what_nobody_means_is_told_what_there_is() -> None:
    for wrote, known in (("train.zzz", "adapter, adapter_dtype"), ("zzz", "cluster, parallel")):
        assert meant(wrote).startswith(f"choose one of {known}")


def test_other_names_are_names_of_no_field_beside() -> None:
    """None would hide a field of the same section."""
    for path in FIELDS:
        section = path.partition(".")[0]
        names = {p.rpartition(".")[2] for p in FIELDS if p.startswith(section)}
        assert names.isdisjoint(facts(path).names), path
