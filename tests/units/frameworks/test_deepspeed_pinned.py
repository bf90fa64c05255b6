"""DeepSpeed's page-locked buffers, held against hosts that had room for them or had not."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.sweep import sweep

GIB = 2**30
ON_HOST = {
    "framework": "deepspeed",
    "zero": 3,
    "offload_optimizer": "cpu",
    "offload_parameters": "cpu",
    "micro_batch": 1,
    "seq_len": 2048,
}


def plan_of(model: str, gpu: str, gpus: int, **train: object) -> Plan:
    train = ON_HOST | train
    return Plan(model=model, job="train", cluster={"gpu": gpu, "gpus": gpus}, train=train)


def host_of(plan: Plan) -> int:
    return evaluate(plan).memory.tiers["dram"]


def rows_of(plan: Plan) -> dict[str, int]:
    """Bytes on the host by the name of what lies there."""
    found: dict[str, int] = {}
    for row in evaluate(plan).ledger:
        if row.tier == "dram":
            found[row.name] = found.get(row.name, 0) + row.bytes
    return found


def test_llama_30b_took_750_to_800_gb_of_eight_processes() -> None:
    # deepspeedai/DeepSpeed #3448: 600 GB were too few; "750G ~ 800G RAM" with stanford_alpaca's
    # default_offload_opt_param.json, which pins both, on eight A100 of 40 GB.
    plan = plan_of("llama-30b", "a100-sxm-40gb", 8, reduce_bucket_size=6656**2)
    assert 0.97 * 750e9 < host_of(plan) < 800e9


def test_qwen_32b_on_one_gpu_was_killed_with_744_gb_and_is_not_without_pinning() -> None:
    # hiyouga/LlamaFactory #6755; what cures it elsewhere (OpenRLHF #632) is pin_memory: false.
    plan = plan_of("qwen2.5-32b", "h100-nvl-94gb", 1)
    assert host_of(plan) > 744e9
    assert host_of(plan_of("qwen2.5-32b", "h100-nvl-94gb", 1, offload_pin_memory=False)) < 744e9


def test_a_buffer_takes_a_power_of_two_and_a_tensor_its_block() -> None:
    # Of TinyLlama's layers on one GPU: tied to nothing, 22 layers of 2,048 with 4 of 32 heads of
    # keys, 5,632 wide, 32,000 tokens.
    rows = rows_of(plan_of("tinyllama-1.1b", "h100-sxm-80gb", 1))
    mib = 2**20
    # q and o of 8 MiB, k and v of 1 MiB, three of 22 MiB each in a block of 32 MiB; two of 125 MiB
    assert rows["weights as they were loaded"] == (22 * (2 * 8 + 2 * 1 + 3 * 32) + 2 * 128) * mib
    n = 1_100_048_384
    first = 32_000 * 2_048
    layer = 2 * 2_048**2 + 2 * 2_048 * 256 + 3 * 2_048 * 5_632 + 2 * 2_048
    assert first * 2 + 22 * layer + 2_048 == n
    # The first sub-group ends within the 22nd layer, and takes 4 GiB; the rest 0.5 GiB. Two
    # buffers in 16 bits take 4 GiB each.
    whole = 4 * GIB + GIB // 2 + 2 * 4 * GIB
    assert rows["pinned buffers, rounded up"] == whole - 4 * n - 2 * 2 * n


def test_stages_below_3_pin_the_master_copy_its_16_bits_and_its_gradients() -> None:
    changes = {"zero": 2, "offload_parameters": "none"}
    rows = rows_of(plan_of("tinyllama-1.1b", "h100-sxm-80gb", 1, **changes))
    n, largest = 1_100_048_384, 32_000 * 2_048
    whole = (8 + 8 + 4) * GIB + GIB // 8
    assert rows["pinned buffers, rounded up"] == whole - (4 + 4 + 2) * n - 2 * largest
    unpinned = rows_of(
        plan_of("tinyllama-1.1b", "h100-sxm-80gb", 1, offload_pin_memory=False, **changes)
    )
    assert "pinned buffers, rounded up" not in unpinned


@pytest.mark.parametrize("zero", [2, 3])
def test_a_sweep_rounds_as_single_plans_do(zero: int) -> None:
    parameters = "cpu" if zero == 3 else "none"
    plan = plan_of(
        "llama-3-8b", "h100-sxm-80gb", 8, zero=zero, offload_parameters=parameters,
        grad_accumulation=2,
    )  # fmt: skip
    found = sweep(plan, {"cluster.gpus": [1, 2, 8]}, ["memory.tiers.dram"])
    for gpus, host in zip(found["cluster.gpus"], found["memory.tiers.dram"], strict=True):
        changes = {"zero": zero, "offload_parameters": parameters, "grad_accumulation": 2}
        assert host == host_of(plan_of("llama-3-8b", "h100-sxm-80gb", int(gpus), **changes))
