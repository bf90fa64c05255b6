"""Remarks: what a word does in a plan that is not what people choose it for."""

import re

import pytest

from memcore import cli
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.units import bytes_text
from memcore.words.training import ATTENTION

SEVEN = "llama-2-7b"
MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1}


def remarks(**train):
    return evaluate(Plan.of({"model": SEVEN, "train": train})).remarks


@pytest.mark.parametrize("attention", ["sdpa", "flash", "flash3"])
def test_selective_checkpointing_says_that_it_saves_next_to_nothing(attention):
    """0.02 GiB of a 7B's 34.6 for a step that is 5 % longer, as FlashAttention keeps no scores."""
    said = remarks(checkpointing="selective", attention=attention)["train.checkpointing"]
    plans = [Plan.of({"model": SEVEN, "train": {"checkpointing": word, "attention": attention}})
             for word in ("none", "selective")]  # fmt: skip
    none, selective = map(evaluate, plans)
    saved = none.memory.allocated_bytes - selective.memory.allocated_bytes
    assert 0 < saved < 0.001 * none.memory.allocated_bytes
    assert f"saves {bytes_text(saved)} of the allocated peak of" in said
    longer = selective.time.step_seconds / none.time.step_seconds - 1
    assert f"{longer:.1%} longer" in said
    assert ATTENTION[attention].label in said


def test_selective_checkpointing_that_saves_has_no_remark():
    assert not remarks(checkpointing="selective", attention="eager")
    assert not remarks(checkpointing="none")
    assert not remarks(checkpointing="full")
    assert not remarks(checkpointing="selective-op")


def test_attention_that_keeps_scores_is_the_one_whose_core_is_worth_running_again():
    for word, attention in ATTENTION.items():
        found = remarks(checkpointing="selective", attention=word)
        assert bool(found) != attention.scores


@pytest.mark.parametrize("word", ["fp8-mixed", "fp8-delayed"])
def test_fp8_that_adds_memory_says_what_and_why(word):
    """Two 8-bit copies of each matrix are cached beside the 16-bit one."""
    train = {**MEGATRON, "checkpointing": "full"}
    said = remarks(**train, precision=word)["train.precision"]
    wide, narrow = (
        evaluate(Plan.of({"model": SEVEN, "train": {**train, "precision": p}})).memory
        for p in ("bf16-mixed", word)
    )
    added = narrow.allocated_bytes - wide.allocated_bytes
    copies = narrow.consumers["parameters"] - wide.consumers["parameters"]
    assert 0 < copies <= added
    assert f"needs {bytes_text(added)} more" in said
    assert f"{bytes_text(copies)} are copies" in said
    assert re.search(r"A step is \d+\.\d% shorter", said)


def test_fp8_that_saves_memory_has_no_remark():
    assert not remarks(**MEGATRON, checkpointing="none", precision="fp8-params")


@pytest.mark.parametrize("name", catalog.plan_entries())
def test_a_remark_is_of_a_field_and_most_plans_have_none(name):
    plan = Plan.of(catalog.plan_entries()[name]["plan"])
    found = evaluate(plan).remarks
    assert set(found) <= {"train.checkpointing", "train.precision"}
    assert not found or plan.train.checkpointing == "selective"


def test_the_command_line_prints_them(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text('{"model": "llama-2-7b", "train": {"checkpointing": "selective"}}')
    assert cli.main(["evaluate", str(file)]) == 0
    assert "Note on train.checkpointing: This saves" in capsys.readouterr().out


def test_sdpa_says_what_pytorch_runs_where_the_plan_may_have_it():
    """Not under Megatron, whose attention is its own."""
    assert "SDPA with cuDNN" in remarks(attention="sdpa")["train.attention"]
    assert "train.attention" not in remarks(**MEGATRON, attention="sdpa")
