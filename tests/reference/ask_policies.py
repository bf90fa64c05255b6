"""Ask PyTorch what training policies keep: `python tests/reference/ask_policies.py [N] [--write]`.

Asks each N-th row of policies.json anew and compares, as ask_pytorch.py does for families.json.

`selective`     only the attention core runs again: from q, k, v after the rotary embedding to the
                attention output
`selective-op`  each layer is checkpointed, but attention and every other matrix product (the first,
                third, ... `mm` of a layer) is kept, as torchtitan does; a product with a bias is
                an `addmm` and not on the list
`full`          each layer is checkpointed, or those whose index is a multiple of checkpoint_every
"""

from functools import partial
from pathlib import Path
from weakref import WeakSet

import ask_pytorch
import liger
import torch
from ask_pytorch import Recomputing, noting, peak, recompute, saved
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TABLE = Path(__file__).with_name("policies.json")
CACHES = WeakSet()  # of selective-op, one for each layer, alive as long as PyTorch needs it
interface_of = ALL_ATTENTION_FUNCTIONS.get_interface


def selective_op():
    """What the forward and the recomputation of one layer run under."""
    products = 0

    def policy(ctx, func, *args, **kwargs):
        nonlocal products
        products += func is torch.ops.aten.mm.default
        keep = (
            products % 2
            if func is torch.ops.aten.mm.default
            else func is torch.ops.memplan.attention.default
        )
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)
    CACHES.add(again)
    return forward, Recomputing(again)


def cached():
    """The tensors in CACHES, which no hook for saved tensors is shown."""
    outputs = [
        output for cache in CACHES for calls in cache.storage.values() for output in calls.values()
    ]
    kept = (k for output in outputs for k in (output if isinstance(output, tuple) else (output,)))
    return [k.val for k in kept if hasattr(k, "val")]


def core_again(implementation, default):
    """The attention function of that name, checkpointed."""
    attend = interface_of(implementation, default)
    return partial(checkpoint, attend, use_reentrant=False, context_fn=noting)


def build(config, dtype, words):
    CACHES.clear()
    liger.restore()
    if words["kernels"] == "liger" or words["cross_entropy"] != "eager":
        liger.apply(config["model_type"], words["kernels"], words["cross_entropy"])
    model = ask_pytorch.build(config, dtype, words)
    policy = words["checkpointing"]
    ALL_ATTENTION_FUNCTIONS.get_interface = core_again if policy == "selective" else interface_of
    if policy == "selective-op":
        recompute(model, selective_op)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing &= index % words["checkpoint_every"] == 0
    return model


def ask(config, words):
    if words["kind"] == "peak":
        return peak(config, words, build)
    return saved(config, words, build, cached)


if __name__ == "__main__":
    ask_pytorch.main(TABLE, ask)
