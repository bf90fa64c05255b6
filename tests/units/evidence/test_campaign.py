"""What benchmarks/campaign.py would run on a GPU is planned: every run of it, and one at a time."""

import importlib.util
from pathlib import Path

import pytest

from memcore import Plan

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "campaign.py"


@pytest.fixture(scope="module")
def runs():
    spec = importlib.util.spec_from_file_location("campaign", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.campaign())


def test_every_run_is_a_plan_and_no_two_are_the_same(runs):
    plans = [Plan.of(document | {"cluster": {"gpus": 1}}) for _, document in runs]
    assert len({str(plan.document()) for plan in plans}) == len(runs) > 50


def test_sizes_words_and_adapters_are_all_asked(runs):
    asked = {(key, str(value)) for _, document in runs for key, value in document["train"].items()}
    words = {
        "attention": ("eager", "sdpa", "flash"),
        "checkpointing": ("none", "full"),
        "precision": ("bf16-pure", "bf16-autocast", "fp32"),
        "adapter": ("lora",),
    }
    assert {(field, word) for field, those in words.items() for word in those} <= asked
