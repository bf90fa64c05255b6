"""Ask PyTorch what training policies keep: `python tests/reference/ask_policies.py [N] [--write]`.

Asks each N-th row of policies.json anew and compares, as ask_pytorch.py does for families.json.
Some rows need liger-kernel or bitsandbytes too (`pip install --no-deps`: no GPU is wanted).

`selective`     only the attention core runs again: from q, k, v after the rotary embedding to the
                attention output
`selective-op`  each layer is checkpointed, but attention, products with a bias (`addmm`), batched
                ones (`bmm`) and every other plain one (the first, third, ... `mm` of a layer) are
                kept, as torchtitan's SelectiveAC does
`full`          each layer is checkpointed, or of every so many the last
`liger`         Liger's modules, applied before the model is built; its loss is `fused` where the
                logits exist, which it gets as they are, and `chunked` where they do not
`compile`       torch.compile of each layer, as far as what its forward hands to its backward
`adam8bit`      the states of bitsandbytes' AdamW8bit, of a model or of parameters of some sizes
"""

from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from weakref import WeakSet

import ask_pytorch
import compiled
import liger
import torch
from ask_pytorch import NOTING, Recomputing, peak, recompute, saved
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TABLE = Path(__file__).with_name("policies.json")
PACKAGES = "torch", "transformers", "liger-kernel", "bitsandbytes"
KEPT = (
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.memplan.attention.default,
)
CACHES = WeakSet()  # of selective-op, one for each layer, alive as long as PyTorch needs it
interface_of = ALL_ATTENTION_FUNCTIONS.get_interface


def selective_op():
    """What the forward and the recomputation of one layer run under."""
    products = 0

    def policy(ctx, func, *args, **kwargs):
        nonlocal products
        products += func is torch.ops.aten.mm.default
        keep = func in KEPT or (func is torch.ops.aten.mm.default and products % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)
    CACHES.add(again)
    return forward, again


def noting_selective_op():
    forward, again = selective_op()
    return forward, Recomputing(again)


def cached():
    """The tensors in CACHES, which no hook for saved tensors is shown."""
    outputs = [
        output for cache in CACHES for calls in cache.storage.values() for output in calls.values()
    ]
    kept = (k for output in outputs for k in (output if isinstance(output, tuple) else (output,)))
    return [k.val for k in kept if hasattr(k, "val")]


def core_again(contexts, implementation, default):
    """The attention function of that name, checkpointed."""
    attend = interface_of(implementation, default)
    return partial(checkpoint, attend, use_reentrant=False, **contexts)


def set_checkpointing(model, policy, every, is_compiled):
    # A graph takes no contexts but those of selective-op, and no peak is asked of it.
    contexts = {} if is_compiled else NOTING
    if policy == "selective-op":
        contexts = {"context_fn": selective_op if is_compiled else noting_selective_op}
    if policy in ("full", "selective-op"):
        recompute(model, contexts)
    ALL_ATTENTION_FUNCTIONS.get_interface = (
        partial(core_again, contexts) if policy == "selective" else interface_of
    )
    for index, layer in enumerate(layers_of(model)):
        layer.gradient_checkpointing &= (index + 1) % every == 0


def layers_of(model):
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def build(config, dtype, words):
    CACHES.clear()
    liger.restore()
    kernels = words["kernels"]
    if kernels == "liger" or words["cross_entropy"] != "eager":
        liger.apply(config["model_type"], kernels, words["cross_entropy"])
    model = ask_pytorch.build(config, dtype, words)
    if words["cross_entropy"] == "fused":
        model.loss_function = liger.fused_loss
    is_compiled = kernels == "compile"
    set_checkpointing(model, words["checkpointing"], words["checkpoint_every"], is_compiled)
    if is_compiled:
        compiled.compile_layers(layers_of(model))
    return model


def optimizer_state(config, words):
    """Bytes of every distinct storage that bitsandbytes keeps after a step, and of each name."""
    import bitsandbytes

    if config:
        parameters = list(ask_pytorch.build(config, torch.bfloat16, words).parameters())
    else:
        parameters = [torch.nn.Parameter(torch.zeros(n)) for n in words["numels"]]
    optimizer = bitsandbytes.optim.AdamW8bit(parameters)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    sizes = {
        (name, value.untyped_storage().data_ptr()): value.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    detail = Counter()
    for (name, _), size in sizes.items():
        detail[name] += size
    return {"bytes": sum(sizes.values()), "detail": dict(detail)}


def ask(config, words):
    if words["kind"] == "optimizer state":
        return optimizer_state(config, words)
    if words["kernels"] == "compile":  # its tensors are real, and no cache is beside its graph
        return saved(config, words, build, mode=nullcontext())
    if words["kind"] == "saved":
        return saved(config, words, build, cached)
    return peak(config, words, build)


if __name__ == "__main__":
    ask_pytorch.main(TABLE, ask, PACKAGES)
