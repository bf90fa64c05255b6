"""Ask PEFT what a step with adapters keeps: `python tests/reference/ask_adapters.py [N] [--write]`.

Asks each N-th row of adapters.json anew and compares, as ask_pytorch.py does for families.json;
`pip install --no-deps peft accelerate bitsandbytes` besides. Models are PEFT's own
(get_peft_model), on fake tensors; with checkpointing PEFT lets the embedding's result need a
gradient.

Fake modules cannot be moved or cast in place, so a stand-in casts adapters: to the base weights'
dtype, or not at all for `adapter_dtype` fp32, which is what autocast_adapter_dtype comes to.
"""

import weakref
from collections import OrderedDict
from pathlib import Path
from unittest.mock import patch

import ask_policies
import ask_pytorch
import bitsandbytes
import peft
import torch
from ask_pytorch import FakeTensorMode, peak, saved
from bitsandbytes.autograd._functions import MatMul8bitLt
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

TABLE = Path(__file__).with_name("adapters.json")
PACKAGES = "torch", "transformers", "peft", "liger-kernel", "bitsandbytes"
TARGETS = {
    "attention": r".*\.(q_proj|v_proj|qkv_proj|c_attn|query_key_value)",
    "attention-all": r".*att\w*\.(q_proj|k_proj|v_proj|o_proj|out_proj|qkv_proj|c_attn|c_proj"
    r"|query_key_value|dense|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)",
    "all-linear": "all-linear",
}
# Of a model with a tower that reads images, as LLaMA-Factory has it: the language model's.
OF_THE_TEXT = r".*language_model\..*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def cast(dtype, layer, adapter, device=None):
    for part in (layer.lora_A[adapter], layer.lora_B[adapter]):
        part.weight = torch.nn.Parameter(part.weight.detach().to(dtype))


HELD = []  # weak references to what nodes of bitsandbytes' products refer to


def product(a, weight, bias, state):
    """bitsandbytes.matmul as on a GPU; on a CPU it would take another way."""
    out = MatMul8bitLt.apply(a, weight, None, bias, state)
    if out.grad_fn is not None:
        HELD.append(weakref.ref(out.grad_fn.tensors[2]))
    return out


def in_eight_bits(model):
    """The model as load_in_8bit has it, with a threshold of 0: fake tensors have no outliers."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if not isinstance(layer, (torch.nn.Linear, Conv1D)) or name in ("lm_head", "embed_out"):
                continue
            turned = isinstance(layer, Conv1D)
            width, into = layer.weight.shape if turned else reversed(layer.weight.shape)
            whole = torch.empty(into, width, dtype=torch.int8)
            weight = torch.nn.Parameter(whole, requires_grad=False)
            weight.CB = None
            with patch("bitsandbytes.nn.modules.Int8Params", lambda *_, **__: weight):  # noqa: B023
                new = bitsandbytes.nn.Linear8bitLt(width, into, has_fp16_weights=False)
            new.state.CB, new.state.SCB = whole, torch.empty(into)
            new.bias = layer.bias
            setattr(module, name, new)
    model.is_loaded_in_8bit = True
    return model


def hook_where_trained(register):
    """The tracker hooks every parameter, but a frozen one has no gradient to follow."""
    return lambda parameter, hook: (
        register(parameter, hook) if parameter.requires_grad else RemovableHandle(OrderedDict())
    )


for name in ("register_hook", "register_post_accumulate_grad_hook"):
    setattr(torch.Tensor, name, hook_where_trained(getattr(torch.Tensor, name)))


class Followed(TorchDispatchMode):
    """Bytes of all storages that are alive, and the most there were."""

    def __init__(self, *tensors):
        super().__init__()
        self.alive, self.most = {}, 0
        self.add(tensors)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.add(tree_leaves(out))
        self.most = max(self.most, sum(self.alive.values()))
        return out

    def add(self, values):
        for storage in (v.untyped_storage() for v in values if isinstance(v, torch.Tensor)):
            if storage._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, storage._cdata, None)


def followed(config, words):
    """The peak of a second step on one GPU. The tracker of ask_pytorch.py keeps an embedding's
    result, and its gradient, where that is a leaf, which PyTorch does not."""
    dtype = torch.bfloat16 if words["regime"] == "pure-bf16" else torch.float32
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build(config, dtype, words)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with Followed(*model.parameters(), *model.buffers()) as tracker:
            for _ in range(2):
                tracker.most = 0
                ask_pytorch.step(model, words, words["regime"] == "autocast").backward()
                most = tracker.most
                optimizer.step()
                optimizer.zero_grad()
    return {"bytes": most}


def build(config, dtype, words):
    kernels = words.get("kernels", "hf")
    policy = {"kernels": kernels, "cross_entropy": "eager", "checkpoint_every": 1}
    by = ask_pytorch if kernels == "hf" else ask_policies
    eight = words.get("adapter") == "lora-8bit"
    again = words["checkpointing"] == "full" and not words.get("reentrant")
    how = {} if again or not eight else {"checkpointing": "none"}
    model = by.build(config, dtype, policy | words | how)
    if eight:
        in_eight_bits(model)
        if words["unquantized_dtype"] == "fp32":
            peft.prepare_model_for_kbit_training(model, False)
        bitsandbytes.matmul = product
    if words.get("reentrant"):
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
    targets = TARGETS[words["lora_targets"]]
    adapters = peft.LoraConfig(
        r=words["lora_rank"],
        target_modules=OF_THE_TEXT if targets == "all-linear" and "images" in words else targets,
        lora_dropout=words["lora_dropout"],
        task_type="CAUSAL_LM",
    )
    to = torch.float32 if words["adapter_dtype"] == "fp32" else dtype
    moving = "_move_adapter_to_device_of_base_layer"
    with (
        patch.object(BaseTunerLayer, moving, lambda *given: cast(to, *given)),
        patch.object(torch.nn.Module, "to", lambda module, *_, **__: module),
    ):
        return peft.get_peft_model(model, adapters, autocast_adapter_dtype=False).base_model.model


def ask(config, words):
    if words["kind"] == "parameters":
        with FakeTensorMode():
            model = build(config, torch.bfloat16, words)
            return {"bytes": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    if words["kind"] == "saved":
        HELD.clear()
        return saved(config, words, build, lambda: filter(torch.is_tensor, (r() for r in HELD)))
    sharded = words["regime"].startswith("fsdp2")
    return peak(config, words, build) if sharded else followed(config, words)


if __name__ == "__main__":
    ask_pytorch.main(TABLE, ask, PACKAGES)
