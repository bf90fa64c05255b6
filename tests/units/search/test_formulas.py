"""The peak's formulas: what they say in words is what `evaluate` counts."""

import math
import re

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.formulas import formulas, usual

BIG = {"model": "llama-3-70b", "cluster": {"gpus": 64}}


def said(formula, **values):
    """The bytes that a formula's words say."""
    total = 0.0
    for size, words in formula.terms:
        text = re.sub(r"(?<=\d),(?=\d)", "", words or "1")
        text = text.replace(" x ", " * ").replace("^", "**").replace("rounded ", "rounded_")
        names = {"rounded_up": math.ceil, "rounded_down": math.floor, **values}
        total += size * eval(text, {}, names)
    return total


@pytest.mark.parametrize(
    "words",
    [
        BIG,
        {"train": {"checkpointing": "none"}},
        {"train": {"framework": "deepspeed"}},
        {"model": "qwen3-30b-a3b"},
        {"train": {"framework": "megatron", "zero": 1, "kernels": "megatron"}}
        | {"parallel": {"tp": 2, "pp": 4}},
    ],
    ids=["fsdp2", "kept", "deepspeed", "mixture", "megatron"],
)
def test_the_largest_formula_is_the_peak(words):
    plan = Plan.of(words)
    over = {"train.micro_batch": [2, 3, 8, 40], "train.seq_len": [256, 2048, 8192]}
    found = formulas(plan, over)
    assert sum(f.share for f in found) == pytest.approx(1)
    for batch in over["train.micro_batch"]:
        for length in over["train.seq_len"]:
            changed = plan.with_changes({"train.micro_batch": batch, "train.seq_len": length})
            memory = evaluate(changed).memory
            sizes = [said(f, micro_batch=batch, seq_len=length) for f in found]
            assert max(sizes) == pytest.approx(memory.allocated_bytes, rel=1e-12)
            highest = {
                (f.instant, f.stage) for f, n in zip(found, sizes, strict=True) if n == max(sizes)
            }
            assert (memory.peak.instant, memory.peak.rank) in highest


def test_formulas_over_gpus_round_shards_up():
    found = formulas(Plan.of(BIG), {"cluster.gpus": range(8, 100)})
    for gpus in (8, 49, 64, 99):
        peak = evaluate(Plan.of(BIG | {"cluster": {"gpus": gpus}})).memory.allocated_bytes
        assert max(said(f, gpus=gpus) for f in found) == pytest.approx(peak, rel=1e-12)


def test_which_instant_takes_over_where():
    plan = Plan.of(BIG)
    backward, layer = formulas(plan, {"train.micro_batch": range(1, 65)})
    assert (backward.instant, backward.first["train.micro_batch"]) == ("loss-backward", 2)
    assert (layer.instant, layer.last["train.micro_batch"]) == ("backward-next-to-last-layer", 1)
    assert re.fullmatch(r"[\d.]+ GiB \+ [\d.]+ GiB x micro_batch", backward.text)


def test_what_has_no_formula_is_refused_by_name():
    with pytest.raises(PlanError, match=r"train\.grad_accumulation.*no formula"):
        formulas(Plan(), {"train.grad_accumulation": [1, 2]})
    with pytest.raises(PlanError, match=r"train\.micro_bach.*train\.micro_batch"):
        usual(Plan(), "train.micro_bach")
    with pytest.raises(PlanError, match=r"train\.micro_batch.*no value"):
        formulas(Plan(), {"train.micro_batch": [0]})
