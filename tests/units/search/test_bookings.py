"""On how few GPUs of each kind a plan is trained."""

from __future__ import annotations

import math

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.bookings import to_train_on
from memcore.search.solver import bookable
from memcore.timing.certainty import ranked

DAY = 86_400
GPUS = ("h100-sxm-80gb", "l40s-48gb", "rtx-4090-24gb", "a100-sxm-40gb")
PLANS = {
    "one-gpu-too-few": {"model": "llama-3-8b", "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}},
    "fits": {"model": "qwen3-0.6b", "cluster": {"gpus": 8}},
    "deadline": {"model": "llama-3.2-1b", "run": {"tokens": 10**11, "target_days": 10}},
    "budget": {
        "model": "llama-3-8b",
        "run": {"tokens": 10**9, "target_cost": 100, "price_per_gpu_hour": 2.0},
    },
    "both": {
        "model": "llama-3.2-1b",
        "run": {"tokens": 10**10, "target_days": 2, "target_cost": 110, "price_per_gpu_hour": 1.0},
    },
    "engine-beside": {"model": "qwen3-0.6b", "together": {"kind": "grpo", "engine_tp": 2}},
    # 128 experts: 136 ranks have each as much of them as 128 have, and gather more.
    "uneven": {
        "model": "qwen3-30b-a3b",
        "cluster": {"gpus": 8},
        "train": {"framework": "fsdp2", "seq_len": 2048, "checkpointing": "none"},
    },
}
TRIED = 200  # GPUs of a kind without a booking


@pytest.mark.parametrize("name", PLANS)
def test_each_booking_fits_in_time_and_fewer_gpus_do_not(name):
    """Against every smaller number, one after the other."""
    plan = Plan.of(PLANS[name])
    found = to_train_on(plan, GPUS)
    for gpu in set(GPUS) - {b.gpu for b in found}:
        there = plan.changed("cluster.gpu", gpu)
        for gpus in bookable(there, TRIED):
            report = evaluate(there.changed("cluster.gpus", gpus))
            late = report.run.seconds > (plan.run.target_days or 1e9) * DAY
            dear = plan.run.target_cost and report.run.cost > plan.run.target_cost
            assert late or dear or report.verdict != "fits", (gpu, gpus)
    for b in found:
        for gpus in [n for n in bookable(b.plan) if n <= b.gpus]:
            there = plan.with_changes({"cluster.gpu": b.gpu, "cluster.gpus": gpus})
            report = evaluate(there.changed("run.price_per_gpu_hour", b.price or 0.0))
            days = report.run.seconds / DAY
            kept = not plan.run.target_days or days <= plan.run.target_days
            kept &= not plan.run.target_cost or report.run.cost <= plan.run.target_cost
            assert (report.verdict == "fits" and kept) == (gpus == b.gpus), (b.gpu, gpus)
        assert b.seconds == report.run.seconds
        assert math.isclose(b.cost, report.run.cost)
        assert b.headroom_bytes == report.memory.capacity_bytes - report.memory.device_bytes[1]


def test_the_cheapest_run_comes_first_and_what_fits_nowhere_is_left_out():
    found = to_train_on(Plan.of(PLANS["one-gpu-too-few"]))
    assert [b.cost for b in found] == sorted(b.cost for b in found)
    assert [b.rank for b in found] == ranked([b.plan for b in found], [b.cost for b in found])
    assert len({b.rank for b in found}) < len(found)  # some cannot be told apart
    for b in found:
        assert b.step_interval == evaluate(b.plan).time.step_interval
    whole = Plan.of({"model": "llama-3-70b", "train": {"framework": "pytorch", "zero": 0}})
    assert not to_train_on(whole, GPUS)
