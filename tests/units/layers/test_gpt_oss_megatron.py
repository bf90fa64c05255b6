"""gpt-oss under Megatron (Megatron-Bridge, gpt_oss_bridge.py): TEGroupedMLP with biases, and
weighted_bias_quick_geglu_impl, whose clamps keep what they read."""

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.training.memory import saved_rows

S, D, F, LAYERS, TOP_K = 4096, 2880, 2880, 24, 4


def plan_of(**words):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none",
        "micro_batch": 1, "seq_len": S, "cross_entropy": "fused",
    }  # fmt: skip
    return Plan(model="gpt-oss-20b", cluster={"gpus": 8}, parallel={"ep": 8}, train=train | words)


def test_its_weights_are_those_of_transformers():
    plan = plan_of().with_changes({"parallel.ep": 1})
    found = sum(r.bytes for r in evaluate(plan).ledger if r.consumer == "parameters")
    assert found == 2 * evaluate(plan).parameters


@pytest.mark.parametrize(
    ("name", "width"), [("linear_fc1 out", 2 * F), ("clamped", 2 * F), ("weighted product", F)]
)
def test_what_experts_keep(name, width):
    """Gate and up before and after the clamps, and the product: rows of TOP_K experts each."""
    found = [r for r in saved_rows(plan_of()) if name in r.name]
    assert sum(r.bytes for r in found) == LAYERS * 2 * TOP_K * S * width


def test_every_number_is_explained():
    plan = plan_of()
    checked(Book(plan, evaluate(plan)))


def test_adafactor_keeps_one_value_of_rows_of_each_experts_bias():
    report = evaluate(plan_of(optimizer="adafactor"))
    states = [r for r in report.ledger if r.consumer == "optimizer_states" and "bias" in r.name]
    assert 32 // 8 * 4 in {r.bytes_each for r in states}  # experts of a rank, fp32
