"""A solver's answer is what trying every value finds."""

import pytest
from drawn import plans, served
from explored import examples
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from memcore import solve
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan, facts, field_of, field_paths, limits_of
from memcore.search import sweep as sweeping
from memcore.search.solver import LARGEST, bookable, numeric_fields, smallest_gpu
from memcore.serving.serve import servable, serve

BEYOND = 24  # values past an answer that are tried


def fits(plan, path, value):
    """As evaluate says; None where there is no such plan."""
    try:
        changed = plan.changed(path, value)
    except PlanError:
        return None
    if path.startswith("serve."):
        return serve(changed).fits
    return evaluate(changed).verdict == "fits"


def held(plan, path, found, values):
    """An answer against every one of these values, in the order from best to worst."""
    best = next((v for v in values if fits(plan, path, v)), None)
    assert found.value == best, path
    if best is not None:
        assert found.plan == plan.changed(path, best)


TRAINED = ("train.micro_batch", "train.seq_len", "train.zero", "parallel.tp")


@examples(12)
@given(plans(), st.sampled_from(TRAINED))
def test_any_plan_as_brute_force(plan, path):
    found = solve(plan, path)
    if found.goal == LARGEST:
        top = min(int(limits_of(path)[1]), (found.value or 0) + BEYOND)
        values = range(top, max(0, top - 3 * BEYOND), -1)
    else:
        values = range(int(limits_of(path)[0]), 33)
    held(plan, path, found, values)


@examples(8)
@given(plans())
def test_gpus_as_brute_force(plan):
    found = solve(plan, "cluster.gpus")
    few = [n for n in bookable(plan) if n <= 512]
    held(plan, "cluster.gpus", found, few if found.value is None or found.value <= 512 else [])


@examples(8)
@given(served(), st.sampled_from(["serve.concurrency", "serve.prompt_len"]))
def test_serving_as_brute_force(plan, path):
    if servable(plan.architecture):
        found = solve(plan, path)
        top = min(int(limits_of(path)[1]), (found.value or 0) + BEYOND)
        if found.value is None:  # a prompt may be too short for what all share of it
            assert not fits(plan, path, 1)
        else:
            held(plan, path, found, range(top, top - 2 * BEYOND, -1))


@each("path", numeric_fields())
def test_every_number_of_a_plan_can_be_solved_for(path):
    plan = Plan.of({"model": "llama-3.2-1b", "train": {"adapter": "lora"}})
    found = solve(plan, path)
    assert found.field == path
    if found.value is not None:
        assert fits(plan, path, found.value)
        assert type(found.value) is field_of(path).annotation


@pytest.mark.parametrize("path", [p for p in field_paths() if facts(p).frees])
def test_more_of_what_frees_memory_needs_no_more(path):
    train = {"framework": "megatron", "kernels": "megatron", "zero": 0}
    staged = {"train": train} if path == "parallel.pp" else {}
    plan = Plan.of({"model": "llama-3-8b", "cluster": {"gpus": 16}, **staged})
    values = {
        "serve.memory_utilization": (0.5, 0.9), "serve.offload_weights": (0.0, 4.0),
        "serve.shared_prefix": (0, 512), "train.zero": (0, 3), "cluster.gpus": (8, 16),
        "parallel.shard_group": (4, 16), "parallel.ep": (1, 1), "parallel.etp": (1, 1),
        "cluster.gpu_share": (0.5, 1.0),
    }.get(path, (1, 8))  # fmt: skip
    less, more = (evaluate(plan.changed(path, v)) for v in values)
    if path.startswith("serve."):
        assert more.serve.max_concurrency >= less.serve.max_concurrency
    else:
        left = [r.memory.capacity_bytes - r.memory.device_bytes[1] for r in (more, less)]
        assert left[0] >= left[1]


def test_fewest_gpus_are_whole_nodes_and_no_power_of_two():
    plan = Plan.of({"model": "llama-3-70b", "cluster": {"gpus": 8}})
    assert solve(plan, "cluster.gpus").value == 24


UNEVEN = {  # 128 experts: 136 ranks have each as much of them as 128 have, and gather more
    "model": "qwen3-30b-a3b",
    "cluster": {"gpu": "a100-sxm-40gb", "gpus": 64},
    "train": {"framework": "fsdp2", "seq_len": 2048, "checkpointing": "none"},
    "run": {"tokens": 10**9},
}


@pytest.mark.parametrize("days", [0, 30])
def test_more_gpus_may_need_more_memory_each(days):
    plan = Plan.of(UNEVEN).with_changes({"run.target_days": days})
    values = [n for n in bookable(plan) if n <= 256]
    found = solve(plan, "cluster.gpus")
    held(plan, "cluster.gpus", found, values)
    assert not fits(plan, "cluster.gpus", 256)
    assert solve(plan, "cluster.gpus", LARGEST).value == max(
        n for n in values if fits(plan, "cluster.gpus", n)
    )


def test_where_more_gpus_never_help_that_is_soon_said(monkeypatch):
    """A million GPUs with replicas are asked as two plans, not one by one."""
    asked = []
    steps_of = sweeping.steps_of
    monkeypatch.setattr(sweeping, "steps_of", lambda plan: asked.append(plan) or steps_of(plan))
    plan = Plan.of({"model": "llama-3-70b", "train": {"framework": "pytorch", "zero": 0}})
    assert solve(plan, "cluster.gpus").value is None
    assert len(asked) < 20


def test_the_deepest_model_and_the_least_dram():
    plan = Plan.of({"model": "llama-3.2-1b"})
    deep = solve(plan, "layers")
    assert deep.plan.architecture.layers == deep.value > 16
    assert evaluate(deep.plan).memory.fits
    assert not evaluate(solve(deep.plan, "layers").plan).memory.fits or deep.limit == "memory"
    config = deep.plan.model | {"num_hidden_layers": deep.value + 1}
    assert not evaluate(Plan.of({"model": config})).memory.fits
    offloaded = plan.with_changes({"train.offload_optimizer": "cpu"})
    least = solve(offloaded, "cluster.node.dram_bytes")
    assert least.value == evaluate(offloaded).memory.tiers["dram"]


@pytest.mark.parametrize("key", ["memory_bytes", "usable_bytes"])
def test_the_least_memory_of_a_gpu(key):
    plan = Plan.of({"model": "llama-3.2-1b"})
    found = solve(plan, f"cluster.gpu.{key}")
    assert found.plan.cluster.gpu.usable_bytes == evaluate(plan).memory.device_bytes[1]
    assert found.limit == "memory"
    assert evaluate(found.plan).verdict == "fits"


def test_layers_of_several_kinds_go_on_in_their_pattern():
    plan = Plan.of({"model": "gemma-3-1b"})
    found = solve(plan, "layers")
    assert found.plan.architecture.layers == found.value


def test_the_highest_rank():
    train = {"adapter": "lora", "framework": "pytorch", "zero": 0, "precision": "bf16-pure"}
    plan = Plan.of({"model": "llama-3-8b", "cluster": {"gpus": 1}, "train": train})
    found = solve(plan, "lora_rank")
    assert fits(plan, "train.lora_rank", found.value)
    assert not fits(plan, "train.lora_rank", found.value + 1)


def test_the_smallest_gpu():
    found = smallest_gpu(Plan.of({"model": "llama-3.2-1b"}), names=["h100-sxm-80gb", "l4-24gb"])
    assert found.value == "l4-24gb"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("micro_bach", "micro_batch"),
        ("tp", "parallel.tp and serve.tp"),
        ("train.precision", "takes no number"),
        ("model.hidden", "hidden_size"),
        ("cluster.node.dram", "dram_bytes"),
    ],
)
def test_what_is_no_number_is_refused_by_name(field, said):
    with pytest.raises(PlanError, match=said.replace(".", r"\.")):
        solve(Plan(), field)


def test_what_cannot_be_planned_has_no_answer():
    unplanned = Plan.of({"model": "gpt-oss-20b", "parallel": {"tp": 2}})
    with pytest.raises(PlanError, match=r"training is not planned: tensor parallelism"):
        solve(unplanned, "train.micro_batch")
    with pytest.raises(PlanError, match=r"training is not planned: tensor parallelism"):
        solve(unplanned, "cluster.gpus")
    words = {"model": "bert-base", "train": {"attention": "sdpa", "seq_len": 512}}
    with pytest.raises(PlanError, match="cannot be served"):
        solve(Plan.of(words), "serve.concurrency")


# -- GPUs for a whole run -------------------------------------------------------------------------

DAY = 86_400
RUN = Plan.of(
    {
        "model": "llama-3-8b",
        "cluster": {"gpus": 8},
        "run": {"tokens": 200_000_000_000, "price_per_gpu_hour": 2.5},
    }
)


@pytest.mark.parametrize(("days", "cost"), [(30, 0), (12.5, 0), (0, 40_000), (30, 34_000)])
def test_the_fewest_gpus_for_a_run_are_those_of_brute_force(days, cost):
    asked = RUN.with_changes({"run.target_days": days, "run.target_cost": cost})
    found = solve(asked, "cluster.gpus")
    kept = []
    for gpus in [n for n in bookable(asked) if n <= 128]:
        there = evaluate(asked.changed("cluster.gpus", gpus))
        late = days and there.run.seconds > days * DAY
        if there.memory.fits and not late and not (cost and there.run.cost > cost):
            kept.append(gpus)
    assert found.value == (min(kept) if kept else None)
    assert kept or found.limit in ("days", "cost")


def test_without_a_price_no_cost_is_asked_for():
    free = RUN.with_changes({"run.target_cost": 1.0, "run.price_per_gpu_hour": 0.0})
    assert solve(free, "cluster.gpus").value == solve(RUN, "cluster.gpus").value
    assert any("run.target_cost limits nothing" in note for note in evaluate(free).notes)


def test_a_deadline_changes_no_other_answer():
    soon = RUN.changed("run.target_days", 1.0)
    assert solve(soon, "train.micro_batch").value == solve(RUN, "train.micro_batch").value
