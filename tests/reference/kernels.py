"""The code of mamba_ssm, causal_conv1d and flash-linear-attention without a GPU: their Triton and
CUDA kernels do nothing, their allocations and what they save are real.

Needs the Python sources of all three on the path (mamba-ssm 2.3.2, causal-conv1d 1.6.1,
flash-linear-attention 0.5.2; no build) and einops; transformers takes them for installed.
"""

import contextlib
import importlib
import importlib.machinery
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import liger
import torch

# Types of models whose layers keep a state; their code in transformers asks for the packages.
STATES = (
    *("mamba", "mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h"),
    *("lfm2", "lfm2_moe", "jamba"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
)


class Kernel(liger.Nothing):
    """A kernel that does nothing, of which the first configuration is the best."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(name)


def _autotune(configs=(), **_):
    def tuned(_):
        kernel = Kernel("kernel")
        kernel.configs = list(configs)
        kernel.best_config = kernel.configs[0] if configs else None
        return kernel

    return tuned


def _configured(kwargs, **words):
    return SimpleNamespace(kwargs=kwargs, **{"num_stages": 1, "num_warps": 4} | words)


def _of_the_cpu(decorator):
    return lambda function, **_: decorator(function, device_type="cpu")


def _selective_scan(u, delta, a, b, c, d, z, bias, softplus):
    """What csrc/selective_scan/selective_scan.cpp allocates: a state for each 2,048 tokens."""
    chunks = -(-u.shape[-1] // 2048)
    states = u.new_empty(*u.shape[:2], chunks, 2 * a.shape[1], dtype=a.dtype)
    return torch.empty_like(delta), states, torch.empty_like(z)


def _selective_grads(u, delta, a, b, c, d, z, bias, dout, x, out, dz, softplus, again):
    dz = torch.empty_like(z) if dz is None else dz
    out_z = [torch.empty_like(out)] if again else []
    of = [torch.empty_like(t) for t in (u, delta, a, b.float(), c.float(), d, bias)]
    of[3:5] = (wide.to(t.dtype) for wide, t in zip(of[3:5], (b, c), strict=True))
    return (*of, dz, *out_z)


def _package(name):
    """A package of which nothing runs but what is asked for."""
    outer, _, own = name.rpartition(".")
    path = sys.modules[outer].__path__ if outer else None
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None:
        raise ModuleNotFoundError(f"{name} is not on the path")
    module = ModuleType(name)
    module.__path__ = [str(Path(spec.origin).parent)]
    module.__spec__ = spec
    sys.modules[name] = module
    if outer:
        setattr(sys.modules[outer], own, module)
    return module


def there():
    """Whether all of them are on the path."""
    names = ("mamba_ssm", "causal_conv1d", "fla", "einops")
    return all(importlib.machinery.PathFinder.find_spec(name) for name in names)


@cache
def load():
    """All of them imported, before transformers' code of such a model is."""
    triton = liger.without_triton(Kernel)
    triton.autotune, triton.Config = _autotune, _configured
    triton.__version__ = "3.7.1"  # fla refuses Hopper with those before
    target = SimpleNamespace(backend="cuda")
    active = SimpleNamespace(get_current_target=lambda: target)
    triton.runtime = Kernel("runtime")
    triton.runtime.driver = SimpleNamespace(active=active)
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
    torch.cuda.device = lambda _: contextlib.nullcontext()
    enabled = torch.is_autocast_enabled  # they ask for CUDA's, which is a CPU's here
    torch.is_autocast_enabled = lambda *device: enabled(*(device or ("cpu",)))
    for name in ("custom_fwd", "custom_bwd"):
        setattr(torch.amp, name, _of_the_cpu(getattr(torch.amp, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")
    for name in ("causal_conv1d_cuda", "selective_scan_cuda"):
        sys.modules[name] = liger.Nothing(name)
    sys.modules["selective_scan_cuda"] = SimpleNamespace(fwd=_selective_scan, bwd=_selective_grads)
    conv = _package("causal_conv1d")
    conv.causal_conv1d_fn = importlib.import_module(
        "causal_conv1d.causal_conv1d_interface"
    ).causal_conv1d_fn
    _package("mamba_ssm")
    importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
    for name in ("ops", "ops.triton"):  # as attributes too
        importlib.import_module(f"mamba_ssm.{name}")
    inner = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    for name in ("mamba_inner_fn", "selective_scan_fn"):
        setattr(sys.modules["mamba_ssm"], name, getattr(inner, name))
    _package("fla").__version__ = "0.5.2"
    for name in ("fla.ops", "fla.modules", "fla.ops.gated_delta_rule"):
        _package(name)
    tuned = sys.modules["fla.ops.utils.cache"] = ModuleType("fla.ops.utils.cache")
    tuned.fla_cache_autotune = _autotune
    importlib.import_module("fla.utils").check_shared_mem = lambda *_: True  # an H100's
    chunk = importlib.import_module("fla.ops.gated_delta_rule.chunk")
    sys.modules["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = chunk.chunk_gated_delta_rule
