"""GPUs: the preset that a file asks for by name, of a scheduler, a cluster or a cloud."""

from __future__ import annotations

import re

from memcore.models import cards

# Where files name a GPU: Slurm's options, Kubernetes' labels, SkyPilot, dstack and Modal.
PLACES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"(--gres)[= ]['\"]?\S{0,80}?gpu:([A-Za-z][\w.-]{0,80})",
        r"(--gpus(?:-per-(?:node|task))?)[= ]['\"]?([A-Za-z][\w.-]{0,80}):\d",
        (
            r"(?<![\w./-])([\w./-]{0,80}(?:gke-accelerator|gpu\.product|instance-gpu-name))"
            r"['\"]?\s*+:\s*+['\"]?([\w.-]{1,80})"
        ),
        r"^[ \t]*+(accelerators|accelerator_type|gpu):\s*+['\"{]*+\s*+([A-Za-z][\w.-]{0,80})",
        r"\b(gpu)\s*+=\s*+['\"]([A-Za-z][\w.-]{0,80})(?::\d{1,9})?['\"]",
        r"(--constraint)[= ]['\"]?([A-Za-z][\w.-]{0,80})",
    )
)
MOST_LOOKED_AT = 300_000  # characters of a text: what is longer is a model or a log


def asked(content: str) -> tuple[str, str, str]:
    """What a text says of the GPU: the key, what it says, and the preset; three '' where it says
    nothing that has one."""
    for place in PLACES if len(content) <= MOST_LOOKED_AT else ():
        for key, said in place.findall(content):
            if found := cards.preset(said):
                return key, said, found
    return "", "", ""


# How many GPUs a machine has and how many machines there are, of Kubernetes' jobs, SkyPilot and
# dstack.
EACH = re.compile(
    r"^[ \t]*+[\"']?(?:nvidia|amd)\.com/gpu[\"']?:\s*+[\"']?(\d{1,9})\b", re.MULTILINE
)
PLACED = re.compile(
    r"^[ \t]*+(?:accelerators|gpu):\s*+[\"'{]*+\s*+[A-Za-z][\w.-]{0,80}:\s*+(\d{1,9})\b",
    re.MULTILINE,
)
NODES = re.compile(r"^[ \t]*+(?:num_nodes|numNodes|nodes):[ \t]*+(\d{1,9})[ \t\r]*+$", re.MULTILINE)
REPLICAS = re.compile(r"^[ \t]*+replicas:[ \t]*+(\d{1,9})[ \t\r]*+$", re.MULTILINE)


def counted(content: str) -> tuple[int, int]:
    """Machines, and GPUs of each, that a cluster's file asks for a training; 0 where it does not
    say it."""
    each = [int(found) for found in (*EACH.findall(content), *PLACED.findall(content))]
    nodes = [int(found) for found in NODES.findall(content)]
    if "pytorchReplicaSpecs" in content:
        nodes = [sum(int(found) for found in REPLICAS.findall(content))]
    return max(nodes, default=0), max(each, default=0)
