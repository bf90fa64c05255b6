"""What the sidebar draws, and in which order, is read off the fields of the plan."""

from __future__ import annotations

import pytest

from app.fields import field, in_group, issue_text
from app.sidebar import OWN
from memcore.errors import PlanError
from memcore.models import catalog
from memcore.plan.field import GROUPS, HARDWARE, TOP
from memcore.plan.keys import FIELDS
from memcore.plan.link import decode
from memcore.plan.plan import Plan, facts, get

ON_A_PAGE = {"job", "serve.target_ttft", "serve.target_tpot"}


def test_every_field_is_in_one_group() -> None:
    drawn = [path for group in (TOP, HARDWARE, *GROUPS) for path in in_group(group)]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == set(FIELDS) - ON_A_PAGE
    assert set(OWN) <= set(drawn)


def test_a_group_has_the_order_of_the_plan() -> None:
    """But for what says behind which other field it is."""
    assert in_group(TOP) == tuple(
        f"train.{n}" for n in ("micro_batch", "seq_len", "precision", "checkpointing", "zero")
    )
    ranks = in_group("Parallelism")
    assert ranks[ranks.index("parallel.etp") + 1] == "train.imbalance"


def test_a_field_without_a_meaning_is_not_drawn() -> None:
    """Fields of DeepSpeed under DeepSpeed, those of experts for models that have some."""

    def shown(path: str, plan: Plan) -> bool:
        when = facts(path).when
        assert when
        return when(lambda other: get(plan, other), plan.architecture)

    dense, mixed = Plan(), Plan(model="mixtral-8x7b")
    deepspeed = Plan(train={"framework": "deepspeed", "zero": 1})
    assert not shown("train.reduce_bucket_size", dense)
    assert shown("train.reduce_bucket_size", deepspeed)
    assert not shown("train.sub_group_size", deepspeed)
    assert shown("train.sub_group_size", deepspeed.changed("train.zero", 3))
    assert not shown("train.imbalance", dense)
    assert shown("train.imbalance", mixed)
    reads = next(n for n in catalog.model_names() if n.startswith("llava"))
    assert shown("train.images", Plan(model=reads))
    assert not shown("train.target_len", Plan(model=reads))


def test_a_form_has_limits_and_words_from_the_field() -> None:
    batch = field("train.micro_batch")
    assert (batch.low, batch.high, batch.unit) == (1, 65_536, "sequences")
    assert field("train.allocator").words is facts("train.allocator").words


def test_a_label_has_its_unit_where_the_title_does_not_say_it() -> None:
    said = ("run.tokens", "serve.turns", "run.watts_per_gpu", "run.target_days")
    labels = ["Tokens to train on", "Turns", "Power (W)", "Done within (days)"]
    assert [field(path).label for path in said] == labels


@pytest.mark.parametrize(
    ("train", "why", "settles"),
    [
        (
            {"framework": "deepspeed", "precision": "bf16-autocast"},
            "DeepSpeed does not have bf16 autocast",
            'set it to bf16 mixed or fp16 mixed, or "Framework" to PyTorch (DDP) or PyTorch FSDP2',
        ),
        (
            {"kernels": "megatron"},
            "PyTorch FSDP2 does not run Megatron-LM",
            'set it to Hugging Face, Liger or torch.compile, or "Framework" to Megatron-LM',
        ),
    ],
)
def test_a_refusal_speaks_as_the_sidebar_does(
    train: dict[str, str], why: str, settles: str
) -> None:
    with pytest.raises(PlanError) as refused:
        Plan.of({"train": train})
    assert f"{why}; {settles}" in [issue_text(issue) for issue in refused.value.issues]


def test_what_a_link_had_to_give_up_is_said_once() -> None:
    _, (issue,) = decode({"v": "2", "fw": "megatron"})
    assert issue_text(issue) == "Megatron-LM does not run Hugging Face. Now Kernels: Megatron"
