"""Asks PyTorch about the nets of traced_nets.py with a checkpoint around each unit: bytes saved for
backward, and the peak of forward and backward. python ask_traced.py writes them and the model files
anew; it needs the extra [trace].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from memcore.tracing.targets import target_of
from memcore.tracing.trace import totals, trace, units_of

HERE = Path(__file__).parent
FILES = HERE.parent / "units" / "models"
DIMS = {
    "net": {"image": ("batch", "3", "height", "width")},
    "attends": {"image": ("batch", "3", "height", "width")},
    "stages": {"image": ("batch", "3", "height", "width")},
    "unet": {"image": ("batch", "3", "8*height", "8*width")},
}
POINTS = (
    {"batch": 2, "height": 32, "width": 48},
    {"batch": 3, "height": 64, "width": 64},
    {"batch": 6, "height": 96, "width": 40},
)


def target(name: str) -> Any:
    """One of the nets, as `memplan trace` reads it."""
    return target_of(f"{HERE / 'traced_nets.py'}:{name}", DIMS[name])


def checkpointing(model: torch.nn.Module) -> torch.nn.Module:
    """The model with a checkpoint around each of its units."""

    def again(run: Any) -> Any:
        return lambda *args, **named: checkpoint(run, *args, use_reentrant=False, **named)

    modules = dict(model.named_modules())
    for name in units_of(model):
        modules[name].forward = again(modules[name].forward)  # type: ignore[method-assign]
    return model


def asked(name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What PyTorch says of a net at some sizes."""
    net = target(name)
    of = totals(replace(net, build=lambda: checkpointing(net.build())), "bf16", sizes)
    return {"net": name, "dims": dict(sizes), **{k: of[k] for k in ("saved_bytes", "peak_bytes")}}


def main() -> None:
    """Write the model files and the table."""
    for name in DIMS:
        document = trace(target(name), "bf16")
        text = json.dumps(document, separators=(",", ":"))
        (FILES / f"traced_{name}.json").write_text(text, encoding="utf-8")
    rows = [asked(name, sizes) for name in DIMS for sizes in POINTS]
    forwards = [
        {
            "net": name,
            "dims": dict(sizes),
            "peak_bytes": totals(target(name), "bf16", sizes, True)["peak_bytes"],
        }
        for name in DIMS
        for sizes in POINTS
    ]
    (HERE / "traced_forwards.json").write_text(
        "[\n" + ",\n".join(map(json.dumps, forwards)) + "\n]\n", encoding="utf-8"
    )
    (HERE / "traced.json").write_text(
        "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
