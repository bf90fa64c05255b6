"""GPUs: the preset that a file asks for by name, of a scheduler, a cluster or a cloud."""

from __future__ import annotations

import re

from memcore.models import cards

# Where files name a GPU: Slurm's options, Kubernetes' labels, SkyPilot, dstack and Modal.
PLACES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"(--gres)[= ]['\"]?\S*?gpu:([A-Za-z][\w.-]*)",
        r"(--gpus(?:-per-(?:node|task))?)[= ]['\"]?([A-Za-z][\w.-]*):\d",
        r"([\w./-]*(?:gke-accelerator|gpu\.product|instance-gpu-name))['\"]?\s*:\s*['\"]?([\w.-]+)",
        r"^[ \t]*(accelerators|accelerator_type|gpu):\s*['\"{]*\s*([A-Za-z][\w.-]*)",
        r"\b(gpu)\s*=\s*['\"]([A-Za-z][\w.-]*)(?::\d+)?['\"]",
        r"(--constraint)[= ]['\"]?([A-Za-z][\w.-]*)",
    )
)


def asked(content: str) -> tuple[str, str, str]:
    """What a text says of the GPU: the key, what it says, and the preset; three '' where it says
    nothing that has one."""
    for place in PLACES:
        for key, said in place.findall(content):
            if found := cards.preset(said):
                return key, said, found
    return "", "", ""


# How many GPUs a machine has and how many machines there are, of Kubernetes' jobs, SkyPilot and
# dstack.
EACH = re.compile(r"^[ \t]*[\"']?(?:nvidia|amd)\.com/gpu[\"']?:\s*[\"']?(\d+)", re.MULTILINE)
PLACED = re.compile(
    r"^[ \t]*(?:accelerators|gpu):\s*[\"'{]*\s*[A-Za-z][\w.-]*:\s*(\d+)", re.MULTILINE
)
NODES = re.compile(r"^[ \t]*(?:num_nodes|numNodes|nodes):\s*(\d+)\s*$", re.MULTILINE)
REPLICAS = re.compile(r"^[ \t]*replicas:\s*(\d+)\s*$", re.MULTILINE)


def counted(content: str) -> tuple[int, int]:
    """Machines, and GPUs of each, that a cluster's file asks for a training; 0 where it does not
    say it."""
    each = [int(found) for found in (*EACH.findall(content), *PLACED.findall(content))]
    nodes = [int(found) for found in NODES.findall(content)]
    if "pytorchReplicaSpecs" in content:
        nodes = [sum(int(found) for found in REPLICAS.findall(content))]
    return max(nodes, default=0), max(each, default=0)
