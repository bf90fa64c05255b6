"""Liger's own code without a GPU: its Triton kernels do nothing, its allocations are real.

Liger asks its tensors whether they are on a CUDA device, and the device how many multiprocessors
it has; here they say so, and it is an H100.
"""

import importlib.machinery
import inspect
import sys
from contextlib import ExitStack
from functools import cache
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
import torch._inductor.compile_fx  # looks for Triton now, and must not find the one below
from torch._subclasses import fake_impls
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

MULTIPROCESSORS = 132  # of an H100
CAPABILITY = (9, 0)
UNDO = ExitStack()  # what the last `apply` changed


class Nothing(ModuleType):
    """A module in which every name exists, and is a decorator or a kernel that does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, grid):
        return self


def without_triton(module=Nothing):
    """A stand-in for Triton, whose kernels do nothing, and for the GPU that they would run on."""
    triton = module("triton")
    triton.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    triton.__version__, triton.__path__ = "3.5.0", []
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    sys.modules["triton"] = triton
    language = module("language")
    language.constexpr = lambda value: SimpleNamespace(value=value)  # which host code reads
    triton.language = language
    for name in ("", ".math", ".extra", ".extra.libdevice", ".extra.cuda", ".extra.cuda.libdevice"):
        sys.modules[f"triton.language{name}"] = language
    device = SimpleNamespace(multi_processor_count=MULTIPROCESSORS, name="NVIDIA H100")
    torch.cuda.get_device_properties = lambda _: device
    torch.cuda.get_device_capability = lambda *_: CAPABILITY
    return triton


@cache
def load():
    without_triton()
    from liger_kernel.ops import fused_linear_cross_entropy, rms_norm

    for module in (fused_linear_cross_entropy, rms_norm):
        source = inspect.getsource(module).replace('"cuda"', '"cpu"')
        exec(compile(source, module.__file__, "exec"), module.__dict__)
    # It counts the targets, checks their range, and skips the product with a gradient of one.
    answers = fake_impls.op_implementations_dict
    answers[torch.ops.aten._local_scalar_dense.default] = lambda mode, op, x: 1
    answers[torch.ops.aten.equal.default] = lambda mode, op, *x: True


def restore():
    UNDO.close()


def fused_loss(logits, labels, vocab_size, **_):
    """Liger's cross-entropy on logits as they are, where transformers would copy them to fp32."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    labels = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    flat = logits.view(-1, vocab_size)
    return LigerCrossEntropyFunction.apply(flat, labels.view(-1), None)[0]


def apply(family, kernels, cross_entropy):
    """For models built from now on: Liger's modules if `kernels` says so, its loss in any case."""
    load()
    import liger_kernel.transformers

    apply_to_family = getattr(liger_kernel.transformers, f"apply_liger_kernel_to_{family}")
    words = set(inspect.signature(apply_to_family).parameters)
    model = AutoModelForCausalLM._model_mapping[type(AutoConfig.for_model(family))]
    UNDO.enter_context(patch.dict(vars(sys.modules[model.__module__])))
    UNDO.enter_context(patch.object(model, "forward", model.forward))
    UNDO.enter_context(patch.object(functional, "cross_entropy", functional.cross_entropy))
    apply_to_family(
        cross_entropy=False,
        fused_linear_cross_entropy=cross_entropy == "chunked",
        **dict.fromkeys(words & {"rope", "rms_norm", "swiglu", "geglu"}, kernels == "liger"),
    )
