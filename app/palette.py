"""Palette: one colour per thing, the same on every page.

Okabe and Ito's colours for the consumers of memory, Tol's bright scheme for the resources of time:
both stay distinct without colour vision and keep a contrast of 3:1 or nearly so on white and on
near-black. Neutral parts (free, overhead) are grey.
"""

from __future__ import annotations

CONSUMERS = {
    "parameters": ("Parameters", "#0072B2"),
    "gradients": ("Gradients", "#56B4E9"),
    "optimizer_states": ("Optimizer states", "#009E73"),
    "activations": ("Activations", "#E69F00"),
    "workspace": ("Workspace", "#CC79A7"),
}
KV_CACHE = ("KV cache", "#D55E00")
STATES = ("States", "#CC79A7")  # of sequences; no page shows it beside Workspace
OVERHEAD = ("Overhead, at least", "#8A8F98")
TOGETHER = {  # parts of a phase that trains or serves
    "policy": CONSUMERS["parameters"][1],
    "critic": CONSUMERS["gradients"][1],
    "reference": CONSUMERS["optimizer_states"][1],
    "reward": "#999933",
    "rollouts": "#CC6677",
    "engine_weights": "#AA4499",
    "engine_activations": CONSUMERS["activations"][1],
    "kv_cache": KV_CACHE[1],
}
MORE, LESS = ("#D55E00", 1), ("#0072B2", -1)  # what a change adds and takes, with its sign
CAPACITY = "#E5484D"
OURS = CONSUMERS["parameters"][1]  # Memplan's own figure beside those of others
# Sources of evidence, in the order of evidence.SOURCES: Tol's bright scheme, as for resources.
SOURCE_COLOURS = ("#228833", "#4477AA", "#EE6677", "#AA3377", "#CCBB44", "#66CCEE", "#999933")

RESOURCES = {
    "compute": ("Compute", "#4477AA"),
    "hbm": ("HBM", "#EE6677"),
    "nvlink": ("NVLink", "#228833"),
    "network": ("Network", "#CCBB44"),
    "pcie": ("PCIe", "#66CCEE"),
    "dram": ("Host DRAM", "#999933"),
    "nvme": ("NVMe", "#AA3377"),
    "host": ("Host", "#9970AB"),
}
CONSUMER_LABELS = {name: label for name, (label, _) in CONSUMERS.items()}
CONSUMER_LABELS["kv_cache"] = KV_CACHE[0]
CONSUMER_LABELS["states"] = STATES[0]
PHASES = {
    "forward": ("Forward", "circle"),
    "recompute": ("Recompute", "diamond"),
    "backward": ("Backward", "square"),
    "optimizer": ("Optimizer", "triangle-up"),
}
PHASE_COLOURS = {
    "forward": "#4477AA",
    "recompute": "#AA3377",
    "backward": "#228833",
    "optimizer": "#EE6677",
    "communication": "#CCBB44",
    "offload": "#66CCEE",
    "host": "#9970AB",
    "bubble": "#8A8F98",
}
LINKS = {  # between GPUs and between nodes
    "nvlink": "NVLink",
    "infinity-fabric": "Infinity Fabric",
    "ici": "ICI",
    "neuronlink": "NeuronLink",
    "pcie": "PCIe",
    "infiniband-hdr": "InfiniBand HDR",
    "infiniband-ndr": "InfiniBand NDR",
    "roce": "RoCE",
    "ethernet": "Ethernet",
}
WAITS = {
    "bubble": "Pipeline bubble",
    "host": "Waiting for the host",
}  # parts of a step in which no operation runs


def resource(name: str) -> str:
    """A resource's label; one that is not in the table keeps its own name."""
    return RESOURCES.get(name, (name, ""))[0]


def link(name: str) -> str:
    return LINKS.get(name, name)


def consumer(name: str) -> str:
    return CONSUMER_LABELS.get(name, name)


def phase(name: str) -> str:
    return PHASES.get(name, (WAITS.get(name, name.capitalize()), ""))[0]
