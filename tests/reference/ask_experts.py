"""Ask transformers about expert parallelism: `python tests/reference/ask_experts.py [N] [--write]`.

Asks each N-th row of experts.json anew and compares, as ask_pytorch.py does for families.json.

The experts are shared out by transformers' own code (distributed/expert_parallel.py: AllToAllEP,
which its `ep_plan` runs in training), over a simulated process group of RANKS. FSDP2 shards the
experts of a layer between the ranks that have the same ones, and every other weight between all,
layer by layer. Tensors are real here, since how many rows are sent is read from them. An exchange
brings as many rows as it takes away: routing is balanced.

`saved`, `peak`   as in ask_pytorch.py; `saved` of one rank without FSDP2
"""

import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from ask_pytorch import Kept, Place, build, main, step
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed import expert_parallel

TABLE = Path(__file__).with_name("experts.json")
RANKS = 4
CAST = ("hunyuan_v1_moe",)  # whose code asks which dtype a weight has: FSDP2 casts all of them


def shared_out(model, ep):
    """The model with its experts shared out, and the meshes of experts and of all else."""
    mesh = init_device_mesh("cpu", (RANKS // ep, ep, 1), mesh_dim_names=("efsdp", "ep", "tp"))
    plan = dict(model.config.base_model_ep_plan)
    names = [n for n, _ in model.named_modules()] + [n for n, _ in model.named_parameters()]
    rules = {
        name: style
        for name in names
        for key, style in plan.items()
        if name.startswith("model.") and matches(key, name.removeprefix("model."))
        if ".experts" in key  # Gemma 4's plan cuts its MLP too, over the one rank of tp
    }
    expert_parallel.all_to_all_single = lambda out, given, group: out.copy_(given)
    expert_parallel.apply_expert_parallelism(model, mesh["ep"], mesh["tp"], rules)
    experts = [model.get_submodule(n) for n, s in rules.items() if s == "ep_dispatch_experts"]
    return experts, mesh["efsdp"], mesh["efsdp", "ep"]._flatten("fsdp")


def matches(key, name):
    parts, given = key.split("."), name.split(".")
    return len(parts) == len(given) and all(
        p in ("*", g) for p, g in zip(parts, given, strict=True)
    )


def saved(config, words):
    model = build(config, torch.bfloat16, words)
    if config["model_type"] in CAST:
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16)
    shared_out(model, words["ep"])
    known = {t.untyped_storage()._cdata for t in local(model)}
    packed = weakref.WeakSet()

    def pack(t):
        packed.add(kept := Kept(t.detach()))  # as in ask_pytorch.py
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        loss = step(model, words, autocast=False)
    tensors = [kept.tensor for kept in packed]
    tensors = [t._local_tensor if hasattr(t, "_local_tensor") else t for t in tensors]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    del loss
    return {"bytes": sum(n for key, n in storages.items() if key not in known)}


def local(model):
    for t in (*model.parameters(), *model.buffers()):
        yield t._local_tensor if hasattr(t, "_local_tensor") else t


def peak(config, words):
    model = build(config, torch.float32, words)
    experts, theirs, everybody = shared_out(model, words["ep"])
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    reshard = words["regime"] == "fsdp2-reshard"
    for module in experts:
        fully_shard(module, mesh=theirs, reshard_after_forward=reshard, **policy)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=everybody, reshard_after_forward=reshard, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs(())
    place = Place(tracker)
    with tracker:
        step(model, words, False).backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.reset_mod_stats()
        tracker._peak_mem, tracker._peak_mem_snap = {}, {}
        step(model, words, False).backward()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    snapshot = {getattr(k, "value", k): int(v) for k, v in snapshot.items() if v}
    return {"bytes": snapshot.pop("Total"), "at": place.at, "detail": snapshot}


def ask(config, words):
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        return (peak if words["kind"] == "peak" else saved)(config, words)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(TABLE, ask)
