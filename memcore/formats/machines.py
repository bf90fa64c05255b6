"""GPUs: the preset that a file asks for by name, of a scheduler, a cluster or a cloud."""

from __future__ import annotations

import functools
import re

from memcore.models import catalog

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
FORMS = {"sxm", "pcie", "nvl"}
SIZE = re.compile(r"\d+gb")


def asked(content: str) -> tuple[str, str, str]:
    """What a text says of the GPU: the key, what it says, and the preset; three '' where it says
    nothing that has one."""
    for place in PLACES:
        for key, said in place.findall(content):
            if found := preset(said):
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


def preset(name: str) -> str:
    """The accelerator that a name means, or ''. Of several memories that it leaves open it is the
    smallest, since what fits there fits the others too; of forms the SXM one."""
    said = _parts(name)
    sizes = {part for part in said if SIZE.fullmatch(part)}
    fitting = [
        (len(chip), -memory, "sxm" in forms, one)
        for one, chip, forms, memory in _known()
        if chip <= said and said & FORMS <= forms and sizes <= {f"{memory}gb"}
    ]
    return max(fitting)[-1] if fitting else ""


def called(name: str) -> str:
    """The accelerator that a person means: what `preset` gives, else the one whose name has all of
    these parts and the fewest others, as rtx-4090-24gb has of 4090; '' where several have."""
    if found := preset(name):
        return found
    said = _parts(name)
    sizes = {part for part in said if SIZE.fullmatch(part)}
    within = [
        (len(chip), one)
        for one, chip, forms, memory in _known()
        if said - sizes and said <= chip | forms | {f"{memory}gb"}
    ]
    fewest = [one for parts, one in within if parts == min(within)[0]]
    return fewest[0] if len(fewest) == 1 else ""


def _parts(name: str) -> frozenset[str]:
    """The parts of a name that tell GPUs apart: of NVIDIA-A100-SXM4-80GB a100, sxm and 80gb."""
    plain = re.sub(r"(sxm)\d", r"\1", name.lower())
    plain = re.sub(r"(?<![a-z\d])(\d+)[-_ ]?gi?b?(?![a-z\d])", r"\1gb", plain)
    plain = re.sub(r"(?<![a-z])(rtx|gtx|mi|tpu|gaudi)[-_ ]?(?=\d)", r"\1-", plain)
    return frozenset(part for part in re.split(r"[^a-z0-9]+", plain) if part)


@functools.cache
def _known() -> tuple[tuple[str, frozenset[str], frozenset[str], int], ...]:
    """Each accelerator with the parts of its chip's name, its form, and its memory in GB."""
    found = []
    for one in catalog.gpu_names():
        parts = _parts(one)
        size = next(part for part in parts if SIZE.fullmatch(part))
        rest = parts - {size} - FORMS - {"500w"}
        found.append((one, rest, parts & FORMS, int(size[:-2])))
    return tuple(found)
