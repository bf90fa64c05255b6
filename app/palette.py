"""Palette: one colour per thing, the same on every page.

Okabe and Ito's colours for the consumers of memory. Time is shown by resource and by phase side by
side, so these two have no colour in common: resources are blue, violet and orange, phases green and
pink. All of them stay apart without colour vision and have a contrast of 3:1 on white and on the
dark page; phases have a pattern or a symbol too, and resources their names beside them. Neutral
parts (free, overhead) are grey.
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
FREE = "#8A8F9840"  # room that nothing takes: pale on both themes
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
# What why.css draws around each area, on the light page and on the dark: how much of which ink.
MORE, LESS = ("#D55E00", 1), ("#0072B2", -1)  # what a change adds and takes, with its sign
CAPACITY = "#E5484D"
TIGHT = "#B37B00"  # a point of a plan that may fit
OURS = CONSUMERS["parameters"][1]  # Memplan's own figure beside those of others
# Sources of evidence, in the order of evidence.SOURCES: Tol's bright scheme,
# its pale ones darker, as dots have no edge.
SOURCE_COLOURS = ("#228833", "#4477AA", "#EE6677", "#AD3479", "#A2942C", "#179FCD", "#777777")

RESOURCES = {
    "compute": ("Compute", "#4C5ACB"),
    "hbm": ("HBM", "#DB7812"),
    "nvlink": ("GPU links", "#9A8BC1"),
    "network": ("Network", "#BE5108"),
    "pcie": ("PCIe", "#7B6BA6"),
    "dram": ("Host DRAM", "#A97275"),
    "nvme": ("NVMe", "#8F575E"),
    "host": ("Host", "#6678E8"),
}
LAUNCH = "kernel launches"  # what a server waits for where its CPU is slower than its GPU
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
    "forward": "#03A3AF",
    "recompute": "#EA6695",
    "backward": "#21725C",
    "optimizer": "#B44295",
    "communication": "#789E17",
    "offload": "#1F9064",
    "host": "#6D8305",
    "bubble": OVERHEAD[1],
}
PHASE_PATTERNS = {  # of bars, by which phases are told apart without any colour
    "forward": "",
    "recompute": "x",
    "backward": "\\",
    "optimizer": "-",
    "communication": ".",
    "offload": "+",
    "host": "|",
    "bubble": "/",
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


# From little to much, on both themes and without colour vision: Cividis without its darkest end.
RAMP = ("#2F4B7C", "#5C6A7D", "#838479", "#B09F69", "#E0BE4C", "#FDE737")


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def text_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour: a luminance of 0.18 has the same
    contrast with both."""
    channels = (n / 255 for n in _channels(colour))
    shares = (0.2126, 0.7152, 0.0722)
    light = sum(s * c**2.2 for s, c in zip(shares, channels, strict=True))
    return "#000000" if light > 0.18 else "#ffffff"


def resource(name: str) -> str:
    """A resource's label; one that is not in the table keeps its own name."""
    return LAUNCH if name == "launch" else RESOURCES.get(name, (name, ""))[0]


def link(name: str) -> str:
    return LINKS.get(name, name)


def consumer(name: str) -> str:
    return CONSUMER_LABELS.get(name, name)


def phase(name: str) -> str:
    return PHASES.get(name, (WAITS.get(name, name.capitalize()), ""))[0]
