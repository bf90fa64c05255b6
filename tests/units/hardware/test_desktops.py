"""Desktops: the lanes that their GPUs share, and boards whose units are cut."""

import pytest

from memcore.evaluate import evaluate
from memcore.hardware import kernels
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.sweep import sweep
from memcore.serving.time import product_share


@pytest.mark.parametrize(("gpus", "lanes"), [(1, 16), (2, 8), (3, 4), (4, 4), (8, 4)])
def test_gpus_of_a_desktop_share_its_lanes(gpus: int, lanes: int) -> None:
    plan = Plan(model="llama-3.1-8b", cluster={"gpu": "rtx-3090-24gb", "gpus": gpus})
    assert plan.node.pcie_bandwidth == 2e9 * lanes
    servers = Plan(model="llama-3.1-8b", cluster={"gpu": "l40s-48gb", "gpus": gpus})
    assert servers.node.pcie_bandwidth == 32e9


@pytest.mark.parametrize("name", catalog.gpu_names())
def test_geforce_boards_halve_sums_in_32_bits_and_no_others_do(name: str) -> None:
    gpu = catalog.accelerator(name)
    if gpu.vendor == "nvidia" and "GeForce RTX" in gpu.label:
        assert gpu.halves_sums("fp16")
    if gpu.memory_kind.startswith("HBM") or gpu.vendor != "nvidia":
        assert not gpu.halves_sums("bf16")


def test_products_of_engines_keep_halved_units_busy() -> None:
    def share(name: str) -> float:
        gpu = catalog.accelerator(name)
        return product_share(kernels.VLLM[kernels.memory_class(gpu)], gpu, "bf16").middle

    assert share("a6000-48gb") == share("a100-sxm-80gb") < 0.8
    assert 0.9 < share("rtx-3090-24gb") <= 1


@pytest.mark.parametrize(
    ("gpu", "gpus", "weights", "batched", "tokens", "seconds"),
    [
        # noonghunna/club-3090 #1095: eight lanes each, 350 W
        ("rtx-3090-24gb", 2, "int4", 8192, 10_375, 6.406),
        # #1120: INT6-Mixed
        ("rtx-3090-24gb", 2, "int8", 8192, 10_273, 6.115),
        # #1086: eight lanes of PCIe 5.0 each, with access to each other's memory
        ("rtx-5090-32gb", 2, "fp8", 8192, 9_646, 1.812),
        # #625: four lanes each, 300 W
        ("rtx-3090-24gb", 4, "fp8", 2048, 10_000, 10.2),
    ],
)
def test_the_first_token_of_long_prompts_on_desktops(
    gpu: str, gpus: int, weights: str, batched: int, tokens: int, seconds: float
) -> None:
    plan = Plan.of({
        "model": "qwen3.6-27b",
        "job": "serve",
        "cluster": {"gpu": gpu, "gpus": gpus},
        "train": {"seq_len": 1024},
        "serve": {
            "tp": gpus, "weight_dtype": weights, "max_batched_tokens": batched,
            "prompt_len": tokens, "output_len": 256, "concurrency": 1, "prefill": "chunked",
            "max_num_seqs": 4,
        },
    })  # fmt: skip
    assert evaluate(plan).serve.ttft_seconds == pytest.approx(seconds, rel=0.22)


def test_a_sweep_over_gpus_has_the_lanes_of_each() -> None:
    plan = Plan.of({
        "model": "qwen3.6-27b",
        "job": "serve",
        "cluster": {"gpu": "rtx-3090-24gb", "gpus": 4},
        "train": {"seq_len": 1024},
        "serve": {"tp": 2, "weight_dtype": "int4", "concurrency": 1, "max_num_seqs": 4},
    })  # fmt: skip
    found = sweep(plan, {"cluster.gpus": [2, 4, 8]}, ["serve.ttft_seconds"])
    for gpus, first in zip(found["cluster.gpus"], found["serve.ttft_seconds"], strict=True):
        alone = Plan.of(plan.document() | {"cluster": {"gpu": "rtx-3090-24gb", "gpus": int(gpus)}})
        assert first == pytest.approx(evaluate(alone).serve.ttft_seconds)
