"""What schedulers are asked for, read again as any other file is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from memcore import Plan, PlanError, evaluate
from memcore.formats import read_files
from memcore.formats.schedulers import PODS, PROCESS_BYTES, SCHEDULERS, SHARED_BYTES, scheduled
from memcore.formats.texts import Text
from memcore.units import GiB

SERVED: dict[str, Any] = {
    "model": "llama-3.3-70b",
    "job": "serve",
    "serve": {"tp": 4, "max_seq_len": 16_384, "kv_dtype": "fp8"},
}


def limits(scheduler: str, document: Any) -> tuple[int, int, int]:
    """GPUs, GiB of memory and of shared memory of a pod."""
    if scheduler == "vllm-stack":
        (spec,) = document["servingEngineSpec"]["modelSpec"]
        asked = spec["requestGPU"], spec["requestMemory"], spec["shmSize"]
    else:
        pod = document["decode"] if scheduler == "llm-d" else document["spec"]["template"]["spec"]
        requests = pod["containers"][0]["resources"]["requests"]
        (shared,) = pod["volumes"]
        asked = requests["nvidia.com/gpu"], requests["memory"], shared["emptyDir"]["sizeLimit"]
    gpus, memory, shm = (int(str(each).removesuffix("Gi")) for each in asked)
    return gpus, memory, shm


@pytest.mark.parametrize("scheduler", PODS)
def test_a_pod_has_what_its_replica_holds(scheduler: str) -> None:
    plan = Plan.of(SERVED)
    written = scheduled(plan, scheduler)
    assert not written.left
    ((name, text),) = written.files.items()
    gpus, memory, shared = limits(scheduler, yaml.safe_load(text))
    serve = evaluate(plan).serve
    assert serve
    assert gpus == 4
    assert shared * GiB == 4 * SHARED_BYTES
    needed = 4 * serve.loaded_bytes + 5 * PROCESS_BYTES + 4 * SHARED_BYTES
    assert 0 <= memory * GiB - needed < GiB
    if scheduler != "llm-d":  # whose values nothing reads
        back = read_files([Text(name, text)], gpu="h100-sxm-80gb", gpus=8).plan
        assert back.model == plan.model
        for field in ("tp", "max_seq_len", "kv_dtype", "concurrency"):
            assert getattr(back.serve, field) == getattr(plan.serve, field), field


def test_a_job_of_slurm_asks_for_what_is_kept_on_the_host() -> None:
    plan = Plan.of({"cluster": {"gpus": 16}, "train": {"offload_optimizer": "cpu"}})
    ((_, text),) = scheduled(plan, "slurm").files.items()
    report = evaluate(plan)
    assert report.memory
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    needed = report.memory.tiers["dram"] + 9 * PROCESS_BYTES
    assert f"#SBATCH --mem={-(-needed // GiB)}G\n" in text
    assert report.memory.tiers["dram"] > 50 * GiB


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_host_with_too_little_memory_is_told(scheduler: str) -> None:
    plan = Plan.of({**SERVED, "cluster": {"dram_gib": 50}})
    (issue,) = scheduled(plan, scheduler).left
    assert issue.field == "cluster.node"
    assert "of one with 50.0 GiB" in issue.message


def test_what_is_no_single_pod_is_refused() -> None:
    plan = Plan.of({**SERVED, "cluster": {"gpus": 16}, "serve": {"tp": 8, "pp": 2}})
    with pytest.raises(PlanError, match=r"serve\.tp"):
        scheduled(plan, "kubernetes")
