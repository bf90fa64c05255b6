"""The Tiers page: its picture adds up, and its switches change the plan with what they need."""

from itertools import product
from typing import Any

import pytest
from pages import alive, opened, shown_plan, verdict

from app import charts, tables
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

FULL = {"offload_optimizer": "nvme", "offload_parameters": "nvme", "offload_activations": "cpu"}
PLANS = [
    Plan(),
    Plan(model="llama-3.1-70b", train={"framework": "deepspeed", **FULL}),
    Plan(model="llama-3.1-405b", train={"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
    Plan(train={"framework": "pytorch", "zero": 1, "offload_optimizer": "cpu"}),
]
PLACES = {
    "optimizer": ("none", "cpu", "nvme"),
    "parameters": ("none", "cpu", "nvme"),
    "activations": ("none", "cpu"),
}


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.architecture.label)
def test_the_consumers_of_a_tier_add_up_to_what_it_holds(plan: Plan) -> None:
    report = evaluate(plan)
    assert report.memory
    held = tables.in_tiers(report)
    for tier, size in report.memory.tiers.items():
        assert sum(h["bytes"] for h in held if h["tier"] == tier) == size
    figure = charts.tiers(tables.tiers(plan, report), held, report.memory)
    assert all(0 <= x <= 1 for t in figure.data if t["type"] == "bar" for x in t["x"])
    text = " ".join(a["text"] for a in figure.layout["annotations"])
    full = [t for t, n in report.memory.tiers.items() if n > report.memory.tier_capacities[t]]
    assert text.count("too much") == text.count("capacity") == len(full)


def test_what_is_too_much_for_the_host_is_said() -> None:
    at = opened({"model": "llama-3.1-405b", "offopt": "cpu", "offpar": "cpu"}, "tiers")
    alive(at)
    assert "Host DRAM" in verdict(at)
    assert "too much" in verdict(at)


def chosen(at: Any, name: str, place: str) -> None:
    at.button_group(key=f"tiers_train.offload_{name}").set_value(place).run()


def test_every_switch_leads_to_a_plan() -> None:
    """From each place to each other, in a framework that brings what the place needs."""
    at = opened({"seq": "512"}, "tiers")
    for name, places in PLACES.items():
        for place in (*places[1:], places[0]):
            chosen(at, name, place)
            alive(at)
            assert getattr(shown_plan(at).train, f"offload_{name}") == place
            assert not at.error


@pytest.mark.parametrize(("framework", "zero"), [("pytorch", 0), ("deepspeed", 0), ("megatron", 1)])
def test_switches_of_other_frameworks(framework: str, zero: int) -> None:
    query = {"fw": framework, "zero": str(zero), "seq": "512"}
    if framework == "megatron":
        query["kernels"] = "megatron"
    for name, place in product(("optimizer", "parameters"), ("cpu", "nvme")):
        at = opened(query, "tiers")
        chosen(at, name, place)
        alive(at)
        assert getattr(shown_plan(at).train, f"offload_{name}") == place
