"""What schedulers are asked for: GPUs, CPUs, host memory and shared memory of a plan, as Kubernetes
objects, values of charts and a header of Slurm.

Keys of charts are those of llm-d-modelservice (024c0f2) and vLLM's production stack (00c38d1)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from memcore.errors import Issue, refusal
from memcore.evaluate import evaluate
from memcore.formats import hub
from memcore.formats.export import Exported, export
from memcore.plan.plan import Plan
from memcore.units import GiB, bytes_text

# Assumed, on the safe side; what a process of one GPU and what starts it hold in host memory with
# PyTorch and CUDA in it, and what NCCL and the processes of a server share in /dev/shm.
PROCESS_BYTES = 6 * GiB
SHARED_BYTES = 2 * GiB
VLLM_CORES = 2  # besides one a GPU, as vLLM's documentation asks for; a core is two CPUs
IMAGE, LLM_D_IMAGE = "vllm/vllm-openai:latest", "ghcr.io/llm-d/llm-d-cuda:latest"
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "google": "google.com/tpu"}


@dataclass(frozen=True, slots=True)
class Pod:
    """One replica of vLLM: its GPUs, CPUs, GiB of host memory and of shared memory in it, and its
    command's words."""

    name: str
    replicas: int
    resource: str
    gpus: int
    cpus: int
    memory: int
    shared: int
    model: str
    words: tuple[str, ...]

    @property
    def resources(self) -> dict[str, Any]:
        asked = {"cpu": str(self.cpus), "memory": f"{self.memory}Gi", self.resource: str(self.gpus)}
        return {"requests": asked, "limits": {self.resource: str(self.gpus)}}

    @property
    def shared_memory(self) -> dict[str, Any]:
        return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{self.shared}Gi"}}


STACK_KEYS = {
    "--tensor-parallel-size": "tensorParallelSize",
    "--max-model-len": "maxModelLen",
    "--max-num-seqs": "maxNumSeqs",
    "--gpu-memory-utilization": "gpuMemoryUtilization",
}
MOUNT = {"name": "shm", "mountPath": "/dev/shm"}


def kubernetes(pod: Pod) -> dict[str, str]:
    """A Deployment."""
    container = {
        "name": "vllm",
        "image": IMAGE,
        "command": list(pod.words),
        "ports": [{"containerPort": 8000}],
        "resources": pod.resources,
        "volumeMounts": [MOUNT],
    }
    return _yaml("deployment.yaml", {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pod.name},
        "spec": {
            "replicas": pod.replicas,
            "selector": {"matchLabels": {"app": pod.name}},
            "template": {
                "metadata": {"labels": {"app": pod.name}},
                "spec": {"containers": [container], "volumes": [pod.shared_memory]},
            },
        },
    })  # fmt: skip


def stack(pod: Pod) -> dict[str, str]:
    """Values of vLLM's production stack."""
    said, words = _options(pod, STACK_KEYS)
    repository, _, tag = IMAGE.partition(":")
    spec = {
        "name": pod.name,
        "repository": repository,
        "tag": tag,
        "modelURL": pod.model,
        "replicaCount": pod.replicas,
        "requestCPU": pod.cpus,
        "requestMemory": f"{pod.memory}Gi",
        "requestGPU": pod.gpus,
        **({"requestGPUType": pod.resource} if pod.resource != RESOURCES["nvidia"] else {}),
        "shmSize": f"{pod.shared}Gi",
        "vllmConfig": {**said, "extraArgs": words},
    }
    return _yaml("values.yaml", {"servingEngineSpec": {"modelSpec": [spec]}})


def llm_d(pod: Pod) -> dict[str, str]:
    """Values of llm-d's modelservice."""
    said, words = _options(pod, {"--tensor-parallel-size": "tensor"})
    container = {
        "name": "vllm",
        "image": LLM_D_IMAGE,
        "modelCommand": "vllmServe",
        "args": words,
        "resources": pod.resources,
        "mountModelVolume": True,
        "volumeMounts": [MOUNT],
    }
    return _yaml("values.yaml", {
        "modelArtifacts": {"name": pod.model, "uri": f"hf://{pod.model}"},
        "decode": {
            "replicas": pod.replicas,
            "parallelism": said,
            "containers": [container],
            "volumes": [pod.shared_memory],
        },
    })  # fmt: skip


def _options(pod: Pod, keys: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The options of `vllm serve MODEL`: those that a chart has keys for, by these, and the words
    of all others."""
    said, words = dict[str, Any](), list(pod.words[3:])
    for option in (each for each in keys if each in words):
        at = words.index(option)
        said[keys[option]] = yaml.safe_load(words[at + 1])
        del words[at : at + 2]
    return said, words


def _yaml(name: str, document: Mapping[str, Any]) -> dict[str, str]:
    return {name: yaml.safe_dump(document, sort_keys=False)}


PODS: Mapping[str, Callable[[Pod], dict[str, str]]] = {
    "kubernetes": kubernetes, "vllm-stack": stack, "llm-d": llm_d,
}  # fmt: skip
SLURM = "slurm"
SCHEDULERS = (*PODS, SLURM)


def scheduled(plan: Plan, scheduler: str) -> Exported:
    """A plan as what a scheduler is asked for, one of SCHEDULERS. Raises PlanError where it cannot
    be."""
    return _training(plan) if scheduler == SLURM else _serving(plan, scheduler)


def _serving(plan: Plan, scheduler: str) -> Exported:
    written, report = export(plan, "vllm"), evaluate(plan)
    if (s := report.serve) is None:
        raise refusal("model", "cannot be served")
    if not isinstance(plan.model, str):
        raise refusal("model", f"{scheduler} takes a model that is published under a name")
    if (resource := RESOURCES.get(plan.accelerator.vendor)) is None:
        raise refusal("cluster.gpu", f"no resource of Kubernetes is known for {plan.gpu_name}")
    gpus = s.gpus_per_replica
    if gpus > plan.node.gpus or s.pp > 1:
        raise refusal(
            "serve.tp", f"a replica is one pod on one host here, not {gpus} GPUs in stages"
        )
    shared = gpus * SHARED_BYTES
    held = gpus * (s.loaded_bytes + s.offloaded_bytes + plan.second_tier * s.host_room_bytes)
    memory = held + (gpus + 1) * PROCESS_BYTES + shared
    model = hub.published(plan.model)
    command = written.files["serve.sh"].replace("\\\n", " ")
    pod = Pod(
        name=re.sub(r"[^a-z0-9]+", "-", model.rpartition("/")[2].lower()).strip("-")[:50],
        replicas=s.replicas, resource=resource, gpus=gpus, cpus=2 * (VLLM_CORES + gpus),
        memory=math.ceil(memory / GiB), shared=shared // GiB, model=model,
        words=tuple(shlex.split(command, comments=True)),
    )  # fmt: skip
    per_host = memory * min(s.replicas, plan.node.gpus // gpus)
    return replace(
        written, files=PODS[scheduler](pod), left=(*written.left, *_over(plan, per_host))
    )


def _training(plan: Plan) -> Exported:
    """The header of a job of Slurm: a task a node, which starts a process a GPU."""
    report = evaluate(plan)
    if report.memory is None:
        raise refusal("model", "its training is not planned, which the header is of")
    held = report.together.dram_bytes if report.together else report.memory.tiers["dram"]
    memory = held + (plan.gpus_in_node + 1) * PROCESS_BYTES
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes={math.ceil(plan.cluster.gpus / plan.gpus_in_node)}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={plan.gpus_in_node}",
        f"#SBATCH --mem={math.ceil(memory / GiB)}G",
        *(["#SBATCH --exclusive"] if plan.gpus_in_node == plan.node.gpus else []),
        "# The memory has what is kept on the host and the processes, no workers of a loader.",
    ]
    return Exported({"job.sbatch": "\n".join(lines) + "\n"}, tuple(_over(plan, memory)))


def _over(plan: Plan, memory: int) -> list[Issue]:
    """That a host has less memory than is asked of it."""
    if plan.accelerator.unified_memory or memory <= plan.node.dram_bytes:
        return []
    has = bytes_text(plan.node.dram_bytes)
    return [
        Issue("cluster.node", f"{bytes_text(memory)} of host memory are asked of one with {has}")
    ]
