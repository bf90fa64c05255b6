"""Ask torchao what float8 keeps under tensor parallelism: `python tests/reference/ask_float8.py [N]
[--write]`.

Asks each N-th row of float8.json anew and compares, as ask_pytorch.py does for families.json. Needs
torchao too.

Layers are shared out by the styles that torchtitan used (torchtitan/models/llama3/infra/
parallelize.py at f9e8897a6: apply_tp), over a simulated process group: under 'tensorwise' torchao's
own (Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput), else PyTorch's. The
head is no float8 layer.

`saved`  of one layer, as in ask_pytorch.py, of one rank without FSDP2
`peak`   as in ask_pytorch.py, with FSDP2 over RANKS; tensors are real, since DeviceMesh wants them
"""

import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from ask_pytorch import Kept, Place, build, main
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_tensor_parallel import (
    Float8ColwiseParallel,
    Float8RowwiseParallel,
    PrepareFloat8ModuleInput,
)

TABLE = Path(__file__).with_name("float8.json")
RANKS = 2  # of FSDP2


def shared_out(model, mesh, precision, gathered=False):
    """The model with its linear layers in float8 and its layers cut over the ranks of a mesh;
    gathered: FSDP2 gathers weights in 8 bits, where they have one scale."""
    column, row, prepared = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if precision != "bf16":
        config = Float8LinearConfig.from_recipe_name(precision)
        if precision == "tensorwise" and gathered:
            config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
        convert_to_float8_training(
            model, config=config, module_filter_fn=lambda _, name: "layers" in name
        )
    if precision == "tensorwise":
        column, row, prepared = (
            Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput,
        )  # fmt: skip
    root = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
    }
    parallelize_module(model.model, mesh, root)
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh, {"lm_head": head})
    for layer in model.model.layers:
        plan = {
            "input_layernorm": SequenceParallel(),
            "self_attn": prepared(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "self_attn.q_proj": column(),
            "self_attn.k_proj": column(),
            "self_attn.v_proj": column(),
            "self_attn.o_proj": row(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": prepared(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": column(),
            "mlp.up_proj": column(),
            "mlp.down_proj": row(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)


def local(tensor):
    """The plain tensors that one rank holds of it."""
    if hasattr(tensor, "_local_tensor"):
        return local(tensor._local_tensor)
    if hasattr(tensor, "_data") and hasattr(tensor, "_scale"):
        return [*local(tensor._data), *local(tensor._scale)]
    return [tensor]


def forward(model, words):
    ids = torch.randint(0, model.config.vocab_size, (words["batch"], words["seq"]))
    places = torch.arange(words["seq"]).unsqueeze(0)  # of all ranks' tokens
    return model(input_ids=ids, labels=ids, position_ids=places, use_cache=False).loss


def saved_by(layers, config, words):
    mesh = init_device_mesh("cpu", (words["tp"],))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build(config | {"num_hidden_layers": layers}, torch.bfloat16, words)
        shared_out(model, mesh, words["precision"])
        states = (*model.parameters(), *model.buffers())
        known = {t.untyped_storage()._cdata for s in states for t in local(s)}
        packed = weakref.WeakSet()

        def pack(t):
            packed.add(kept := Kept(t.detach()))  # as in ask_pytorch.py
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            loss = forward(model, words)
        tensors = [t for kept in packed for t in local(kept.tensor)]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        del loss
        return sum(n for key, n in storages.items() if key not in known)


def saved(config, words):
    return {"bytes": saved_by(3, config, words) - saved_by(2, config, words)}


def peak(config, words):
    mesh = init_device_mesh("cpu", (RANKS, words["tp"]), mesh_dim_names=("dp", "tp"))
    model = build(config, torch.float32, words)
    shared_out(model, mesh["tp"], words["precision"], gathered=True)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs(())
    place = Place(tracker)
    with tracker:
        forward(model, words).backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.reset_mod_stats()
        tracker._peak_mem, tracker._peak_mem_snap = {}, {}
        forward(model, words).backward()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    snapshot = {getattr(k, "value", k): int(v) for k, v in snapshot.items() if v}
    return {"bytes": snapshot.pop("Total"), "at": place.at, "detail": snapshot}


def ask(config, words):
    dist.init_process_group("fake", rank=0, world_size=RANKS * words["tp"], store=FakeStore())
    try:
        return (peak if words["kind"] == "peak" else saved)(config, words)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(TABLE, ask, ("torch", "torchao", "transformers"))
