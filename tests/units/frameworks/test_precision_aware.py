"""Megatron's precision-aware optimizer: 2 bytes for each moment and for a master's remainder."""

from __future__ import annotations

import pytest
from explained import checked

from memcore import Plan, PlanError, evaluate
from memcore.explain.book import Book

# Moonlight 16B-A3B on 8 H100 by Megatron-Bridge's recipe, which has it
# (recipes/moonlight/h100/moonlight_16b.py; skills/nemo-mbridge-perf-activation-recompute; 067f987).
PEAKS = {"none": 36.618e9, "core_attn": 36.614e9, "moe_act": 35.941e9, "mla_up_proj": 35.902e9,
         "mla_up_proj,mlp": 35.917e9}  # fmt: skip
# Experts step with moments in fp32, which every run does alike; why the runs that keep less have
# 0.7 GB less then, none says.
OFF = 0.03
OWN = {"framework": "megatron", "kernels": "megatron", "zero": 1, "optimizer": "adamw-aware"}


def moonlight(modules: str = "none", **words: object) -> Plan:
    none = modules == "none"
    train = OWN | {
        "attention": "flash", "cross_entropy": "fused", "grad_reduce_in_fp32": False,
        "tp_comm_overlap": False, "checkpointing": "none" if none else "selective",
        "recompute_modules": "core_attn" if none else modules,
    }  # fmt: skip
    return Plan(
        model="moonlight-16b-a3b",
        cluster={"gpu": "h100-sxm-80gb", "gpus": 8},
        parallel={"tp": 2, "ep": 8, "sequence_parallel": True},
        train=train | words,
    )


@pytest.mark.parametrize("modules", PEAKS)
def test_the_published_peaks_of_moonlight(modules):
    found = evaluate(moonlight(modules)).memory.allocated_bytes
    assert found == pytest.approx(PEAKS[modules], rel=OFF)


def test_each_weight_has_six_bytes_and_its_gradient_is_read_as_it_is():
    """llama-3-8b on one GPU: 2 of each moment, 2 of the master, and nothing is widened but moments,
    4 bytes each, while the step runs."""
    plan = Plan(
        model="llama-3-8b",
        cluster={"gpu": "h200-sxm-141gb", "gpus": 1},
        train=OWN | {"grad_reduce_in_fp32": False},
    )
    report = evaluate(plan)
    padded = 128_256  # a multiple of 128 already
    assert plan.architecture.vocab_size == padded
    step = next(m for m in report.memory.timeline if m.id == "optimizer-step")
    n = report.parameters
    assert step.consumers["optimizer_states"] == 6 * n
    assert step.consumers["gradients"] == 2 * n
    assert 8 * n <= step.consumers["workspace"] <= 8.1 * n


def test_experts_step_behind_all_else():
    ids = [m.id for m in evaluate(moonlight()).memory.timeline]
    assert ids[-2:] == ["optimizer-step", "optimizer-step-experts"]
    dense = [m.id for m in evaluate(moonlight(optimizer="adamw")).memory.timeline]
    assert dense[-1] == "optimizer-step"


def test_every_number_is_explained():
    plan = moonlight()
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"zero": 0}, r"distributed optimizer"),
        ({"precision": "fp8-params"}, r"master copies of its own"),
        ({"precision": "fp16-mixed"}, r"master copies of its own"),
        ({"framework": "fsdp2", "kernels": "hf", "zero": 3}, r"Megatron alone has it"),
    ],
)
def test_where_there_is_none(words, said):
    with pytest.raises(PlanError, match=rf"train\.optimizer.*{said}.*adamw"):
        Plan(model="llama-3-8b", cluster={"gpus": 8}, train=OWN | words)
