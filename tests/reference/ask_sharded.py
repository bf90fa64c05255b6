"""Asks PyTorch about the nets of traced_nets.py under FSDP2, each unit a group of its own and the
rest another, on a fake group of ranks: the peak of a second step's forward and backward on one of
them, AdamW's states resident. python ask_sharded.py writes sharded.json anew; it needs the extra
[trace].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ask_traced import DIMS, POINTS, target
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from memcore.tracing.stand_ins import stand_ins
from memcore.tracing.trace import _inputs, _model, _placed, units_of

RANKS = 8


def asked(name: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """What PyTorch says of a net at some sizes."""
    net = target(name)
    model = _model(net, torch.bfloat16)
    mesh = init_device_mesh("cpu", (RANKS,))
    with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
        _placed(model)
        units = units_of(model)
        for path, m in list(model.named_modules()):
            if path in units:
                fully_shard(m, mesh=mesh)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        inputs = _inputs(net, sizes, torch.bfloat16)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs(tuple(inputs.values()))
        with tracker:
            net.loss(model(**inputs), inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
            tracker._peak_mem, tracker._peak_mem_snap = {}, {}
            net.loss(model(**inputs), inputs).backward()
        (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return {"net": name, "dims": dict(sizes), "ranks": RANKS, "peak_bytes": int(snapshot["Total"])}


def main() -> None:
    """Write the table."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    rows = [asked(name, sizes) for name in DIMS for sizes in POINTS]
    text = "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"
    Path(__file__).with_name("sharded.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
