"""DeepSpeed's own buffers, as it says itself (tests/reference/deepspeed.json)."""

import asked
import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.tape.ledger import Amounts
from memcore.training.memory import rows_at
from memcore.training.steps import step_of, training_sizes

ASKED = asked.table("deepspeed")
ROUNDING = 32  # elements: each tensor's part is rounded up for itself
GIB = 2**30


def plan_of(train, gpus=2):
    train = ASKED["train"] | {"framework": "deepspeed", "seq_len": 64} | train
    return Plan(model=ASKED["config"], cluster={"gpus": gpus, "gpus_per_node": gpus}, train=train)


def every_row(plan):
    """Rows of every instant once, by name, and those of other tiers."""
    rows = {}
    for i, _ in enumerate(evaluate(plan).memory.timeline):
        rows |= {("hbm", r.name, str(r.shape)): r for r in rows_at(plan, i)}
    rows |= {(r.tier, r.name, str(r.shape)): r for r in evaluate(plan).ledger if r.tier != "hbm"}
    return rows.values()


def elements(rows, tier, ending):
    """Of rows of a tier whose name ends so, on one of the node's two GPUs."""
    width = {"fp32": 4, "bf16": 2, "fp64": 8, "int64": 8}
    found = [r for r in rows if r.tier == tier and r.name.endswith(ending)]
    assert found, ending
    gpus = 1 if tier == "hbm" else 2
    return sum(r.bytes // width[r.dtype] for r in found) // gpus


@pytest.mark.parametrize("row", ASKED["rows"], ids=lambda r: str(r["train"]))
def test_deepspeed_s_tensors_are_as_large_as_ours(row):
    plan = plan_of(row["train"])
    rows, sizes = every_row(plan), training_sizes(plan)
    assert sizes["GROUP"] == ASKED["parameters"]
    assert sizes["LARGEST"] == ASKED["largest"]
    tier = "hbm" if plan.train.offload_optimizer == "none" else "dram"
    for name, where, ending in (
        ("master", tier, ".master"),
        ("moment", tier, ".exp_avg_sq"),
        ("averaged_gradients", "hbm", ".grad (partition)"),
        ("bucket", "hbm", "gradient bucket"),
        ("persistent", "hbm", "small weights (gathered)"),
        ("host_weights", "dram", "weights, 16 bit"),
        ("staging", "dram", "gradient staging"),
        ("host_flat", "dram", "weights"),
    ):
        if name in row:
            assert elements(rows, where, ending) == pytest.approx(row[name], abs=ROUNDING), name
    if "host_gradients" in row:
        assert elements(rows, "dram", "gradients") == row["host_gradients"]
    if "flat" in row:
        step, amounts = step_of(plan), Amounts(sizes)
        held = amounts.alive(step.every("resident")) // 2
        assert held == pytest.approx(row["flat"], abs=ROUNDING)


@pytest.mark.parametrize("row", [r for r in ASKED["rows"] if "gathered" in r], ids=str)
def test_no_more_is_gathered_than_we_say(row):
    """And not less than a tensor under it."""
    live = training_sizes(plan_of(row["train"]))["LIVE"]
    assert row["gathered"] <= live < row["gathered"] + ASKED["largest"] / 10


def test_zero_infinity_s_bytes_for_each_parameter():
    """Rajbhandari et al. 2021, section 3: 20 bytes, of which the optimizer has 16 on NVMe."""
    train = {"zero": 3, "offload_optimizer": "nvme", "offload_parameters": "cpu"}
    rows = evaluate(plan_of(train, gpus=1)).ledger
    names = ("parameters", "gradients", "optimizer_states")
    states = [r for r in rows if r.tier != "hbm" and r.consumer in names]
    n = ASKED["parameters"]
    assert sum(r.bytes for r in states if r.tier == "nvme") == 16 * n
    assert sum(r.bytes for r in states) == 20 * n


@pytest.mark.parametrize("framework", ["fsdp2", "deepspeed"])
def test_what_leaves_the_gpu_is_on_the_host(framework):
    def found(place):
        train = {"framework": framework, "zero": 3, "checkpointing": "none", "seq_len": 4096}
        train |= {"offload_optimizer": place, "offload_parameters": place}
        return evaluate(Plan(model="llama-2-7b", train=train))

    here, there = found("none").memory, found("cpu").memory
    for name in ("parameters", "optimizer_states"):
        assert there.consumers[name] < 0.04 * here.consumers[name]  # one layer on its way
    host = [r for r in found("cpu").ledger if r.tier == "dram"]
    for name in ("parameters", "optimizer_states"):
        moved = sum(r.bytes for r in host if r.consumer == name)
        assert moved >= 0.98 * 8 * here.consumers[name] > 0


def test_activations_on_the_host_are_those_that_left_the_gpu():
    def memory(place, kept="none"):
        return evaluate(Plan(train={"offload_activations": place, "checkpointing": kept}))

    for kept in ("none", "full"):
        here, there = memory("none", kept), memory("cpu", kept)
        left = here.memory.saved_for_backward_bytes - there.memory.saved_for_backward_bytes
        rows = [r for r in there.ledger if r.tier == "dram" and r.consumer == "activations"]
        assert sum(r.bytes for r in rows) == 8 * left > 0
        assert there.memory.allocated_bytes < here.memory.allocated_bytes
        crossed = sum(t.bytes for t in there.time.transfers if t.link == "pcie")
        assert crossed == 2 * left


def test_too_little_dram_is_a_verdict_of_its_own():
    offload = {"offload_optimizer": "cpu", "offload_parameters": "cpu", "seq_len": 512}
    memory = evaluate(Plan(model="llama-3.1-405b", cluster={"gpus": 8}, train=offload)).memory
    assert memory.tiers["dram"] > memory.tier_capacities["dram"]
    assert not memory.fits


def test_hybrid_sharding_shards_within_its_group():
    """Llama's dimensions divide by 8, so that a group of 8 of 64 ranks holds what 8 alone do."""
    group = {"gpus": 64, "gpus_per_node": 8}
    hybrid = evaluate(Plan(model="llama-2-7b", cluster=group, parallel={"shard_group": 8}))
    alone = evaluate(Plan(model="llama-2-7b", cluster={"gpus": 8}))
    assert hybrid.memory.timeline == alone.memory.timeline
    shards = next(t for t in hybrid.time.transfers if "between groups" in t.name)
    whole = evaluate(Plan(model="llama-2-7b", cluster=group)).memory
    assert whole.consumers["parameters"] * 8 == hybrid.memory.consumers["parameters"]
    assert shards.bytes == pytest.approx(4 * hybrid.parameters / 8, rel=1e-3)


def test_a_loader_s_batches_are_rows_of_the_host():
    def dram(**train):
        return evaluate(Plan(train=train)).memory.tiers["dram"]

    batch = 4096 * 3 * 8 * 8  # tokens, three int64 tensors, eight GPUs
    assert dram() == batch
    assert dram(loader_workers=4, loader_prefetch=3) == 12 * batch


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 7, 64])
def test_parts_add_up_to_the_whole_plus_padding(zero, ranks):
    """Of weights, master copies and moments: less than one element a tensor and rank too much."""

    def parts(gpus):
        step = step_of(plan := plan_of({"zero": zero}, gpus))
        sizes = training_sizes(plan)
        amounts = Amounts(sizes)
        states = [amounts.alive(step.every(s)) for s in ("resident", "master", "moments")]
        return sizes["STATE"] if zero else 1, states

    _, whole = parts(1)
    n, shares = parts(ranks)
    assert n == ranks
    for share, all_of_it, width in zip(shares, whole, (2, 4, 8), strict=True):
        shared = ranks if zero == 3 or width > 2 else 1
        tensors = 3 * 9 + 3
        assert all_of_it <= share * shared <= all_of_it + width * tensors * (shared - 1)


def test_one_gpu_s_buffers_are_those_of_deepspeed_s_defaults():
    """2 + 2 + 12 bytes a weight, and a bucket of 500 million 16-bit elements."""
    plan = Plan(model="llama-2-7b", cluster={"gpus": 1}, train={"framework": "deepspeed"})
    report = evaluate(plan)
    states = ("parameters", "gradients", "optimizer_states")
    norm = next(m for m in report.memory.timeline if m.id == "gradient-norm")
    assert sum(norm.consumers[c] for c in states) == 16 * report.parameters
    assert training_sizes(plan)["LIVE"] == 0  # one rank gathers nothing
    bucket = next(r for r in report.ledger if r.name == "gradient bucket")
    assert bucket.bytes == 2 * 500_000_000
