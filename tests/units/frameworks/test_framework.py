"""A framework is one record: what the engine knows of it, it reads there."""

from __future__ import annotations

import pytest

from memcore.frameworks import FRAMEWORKS
from memcore.plan.plan import Plan
from memcore.training.steps import step_of
from memcore.words.training import FRAMEWORKS as WORDS


def test_every_word_has_its_record() -> None:
    assert list(FRAMEWORKS) == list(WORDS)


@pytest.mark.parametrize(
    ("framework", "zero", "gathered"),
    [
        (f, zero, f == "fsdp2" or (f in ("deepspeed", "megatron") and zero == 3))
        for f in WORDS
        for zero in WORDS[f].zero
    ],
)
def test_weights_are_gathered_by_fsdp2_and_by_others_at_stage_3(framework, zero, gathered):
    kernels = "megatron" if framework == "megatron" else "hf"
    words = {"framework": framework, "zero": zero, "kernels": kernels}
    assert step_of(Plan.of({"train": words})).sharded == gathered
