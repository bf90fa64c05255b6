"""`memplan gpus`: the accelerator presets."""

from __future__ import annotations

import argparse

from memcore.cli.arguments import Commands, command, json_option
from memcore.cli.printing import listing, table
from memcore.units import bytes_text, rate_text


def add(commands: Commands) -> None:
    json_option(command(commands, "gpus", _gpus, "List the accelerator presets."))


def _gpus(args: argparse.Namespace) -> int:
    from memcore.models import catalog

    rows = []
    texts = []
    for name in catalog.gpu_names():
        gpu = catalog.accelerator(name)
        bf16 = gpu.flops.get("bf16")
        row = {"name": name, "label": gpu.label, "memory_bytes": gpu.memory_bytes}
        row |= {"memory_bandwidth": gpu.memory_bandwidth, "status": gpu.status}
        rows.append(row | ({"bf16_flops": bf16} if bf16 else {}))
        flops = f"{bf16 / 1e12:,.0f}" if bf16 else "-"
        bandwidth = rate_text(gpu.memory_bandwidth, "B/s")
        status = "" if gpu.status == "shipping" else gpu.status
        texts.append((name, gpu.label, bytes_text(gpu.memory_bytes), bandwidth, flops, status))
    head = ("name", "label", "memory", "bandwidth", "bf16 TFLOP/s", "")
    return listing(rows, table(head, texts, left=2), args.json)
