"""Asks PyTorch about the nets of traced_nets.py with LoRA beside some of their linear layers, and
with some of their modules frozen: bytes saved for backward, and the peak of forward and backward.
python ask_traced_adapters.py writes traced_adapters.json anew; it needs the extra [trace].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ask_traced import target
from torch import nn

from memcore.tracing.trace import totals

HERE = Path(__file__).parent
POINTS = (
    {"batch": 2, "height": 32, "width": 48},
    {"batch": 3, "height": 64, "width": 64},
    {"batch": 6, "height": 96, "width": 40},
)
DTYPES = {"fp32": torch.float32, "base": torch.bfloat16}
# Of each case: the net, suffixes of the adapted layers, rank, dtype, dropout, frozen modules.
CASES = (
    ("net", ["up", "down"], 8, "base", 0.0, []),
    ("net", ["up", "down"], 8, "fp32", 0.0, []),
    ("net", ["down"], 4, "fp32", 0.1, []),
    ("net", ["2.up", "3.down"], 16, "base", 0.0, []),
    ("attends", ["query", "value"], 8, "fp32", 0.0, []),
    ("attends", ["query", "value"], 8, "base", 0.05, []),
    ("net", [], 0, "base", 0.0, ["stem", "blocks.0", "blocks.1"]),
    ("net", [], 0, "base", 0.0, ["blocks.2", "head"]),
    ("unet", [], 0, "base", 0.0, ["stem", "down"]),
)


class Adapted(nn.Module):
    """A linear layer with LoRA, as peft 0.21.2 runs it (tuners/lora/layer.py: Linear.forward)."""

    def __init__(self, base: nn.Linear, rank: int, dtype: torch.dtype, dropout: float):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=dtype)
        self.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.scaling = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base_layer(x)
        dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling
        return result.to(dtype)


def tuned(model: nn.Module, case: tuple[Any, ...]) -> nn.Module:
    """The model as a case trains it."""
    _, layers, rank, dtype, dropout, frozen = case
    for name, p in model.named_parameters():
        p.requires_grad_(not layers and not any(name.startswith(f"{m}.") for m in frozen))
    for name, m in list(model.named_modules()):
        if isinstance(m, nn.Linear) and any(name.endswith(f".{suffix}") for suffix in layers):
            outer, _, last = name.rpartition(".")
            made = Adapted(m, rank, DTYPES[dtype], dropout)
            model.get_submodule(outer)._modules[last] = made
    return model


def asked(case: tuple[Any, ...], sizes: Mapping[str, int]) -> dict[str, Any]:
    """What PyTorch says of a case at some sizes."""
    net = target(case[0])
    of = totals(replace(net, build=lambda: tuned(net.build(), case)), "bf16", sizes)
    return {"case": case, "dims": dict(sizes), **{k: of[k] for k in ("saved_bytes", "peak_bytes")}}


def main() -> None:
    """Write the table."""
    rows = [asked(case, sizes) for case in CASES for sizes in POINTS]
    text = "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"
    (HERE / "traced_adapters.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
