"""Stand-ins: operations that keep something else on a CPU than on a GPU.

A trace runs on fake tensors of a CPU. Some operations are replaced there by what keeps the same as
the kernels of CUDA do (PyTorch's derivatives.yaml, aten/src/ATen/native).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STAND_INS = {
    "scaled_dot_product_attention": "flash: keeps q, k, v, the result and its log-sum-exp in fp32, "
    "and a mask in the compute dtype where there is one",
    "layer_norm": "keeps mean and reciprocal deviation in fp32",
    "batch_norm": "keeps each channel's mean and reciprocal deviation in fp32; cuDNN's reserve, "
    "which has no bytes in the usual layout, is left out",
    "instance_norm": "is batch norm with each sample's channels as channels of its own",
    "group_norm": "keeps mean and reciprocal deviation in the dtype of its weights",
    "dropout": "keeps a mask of one byte per element",
}

Product = tuple[int, tuple[Any, ...]]  # a count and sizes, whose product are its FLOPs
# Its name, the tensors whose bytes are its traffic, and all that it is given and makes.
Told = Callable[[str, Product | None, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]], None]


@contextmanager
def stand_ins(told: Told | None = None) -> Iterator[set[str]]:
    """Within it the operations of STAND_INS are replaced; gives the names of those that ran.
    `told` hears of each run of attention, whose FLOPs no other operation shows."""
    import torch
    from torch.nn import functional

    used: set[str] = set()

    def say(
        name: str, product: Product | None, tensors: tuple[Any, ...], given: tuple[Any, ...],
        made: tuple[Any, ...],
    ) -> None:  # fmt: skip
        if told:
            told(name, product, tensors, given, made)

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
            *before, heads, tokens, _ = q.shape
            out = q.new_empty(*before, tokens, heads, v.shape[-1]).transpose(-3, -2)
            bias: tuple[Any, ...] = ()
            if mask is not None:
                made = mask.new_empty(mask.shape, dtype=q.dtype)
                bias = (made if mask.dtype == torch.bool else mask,)
            lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(q, k, v, out, lse, *bias)
            alike = q.shape[-1] == v.shape[-1]
            width = q.shape[-1] if alike else q.shape[-1] + v.shape[-1]
            ctx.times, ctx.pairs = 4 if alike else 2, (*q.shape[:-1], k.shape[-2], width)
            say("attention", (ctx.times, ctx.pairs), (q, k, v, out), (q, k, v), (out, lse))
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            q, k, v, out, *rest = ctx.saved_tensors
            made = tuple(torch.empty_like(t) for t in (q, k, v))
            product = ctx.times * 5 // 2, ctx.pairs
            given = q, k, v, out, *grads
            say("attention backward", product, (*given, *made), (*given, *rest), made)
            return *made, None

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any, stats: Any, dtype: Any) -> Any:
            kept = [x.new_empty(stats, dtype=dtype) for _ in range(2)]
            ctx.save_for_backward(x, weight, *kept)
            ctx.bias = bias is not None
            out = torch.empty_like(x)
            say("norm", None, (x, out), (x,), (out, *kept))
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, weight, *kept = ctx.saved_tensors
            bias = weight if ctx.bias else None
            made = [None if t is None else torch.empty_like(t) for t in (x, weight, bias)]
            say("norm backward", None, (x, grads[0], made[0]), (x, grads[0], *kept), tuple(made))
            return *made, None, None

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any
    ) -> Any:
        used.add("scaled_dot_product_attention")
        return Flash.apply(query, key, value, attn_mask)

    def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 0) -> Any:
        used.add("layer_norm")
        stats = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
        return Norm.apply(x, weight, bias, stats, torch.float32)

    def batch_norm(
        x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
        *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        if not training:
            return theirs["batch_norm"](x, mean, var, weight, bias, training, *rest, **named)
        used.add("batch_norm")
        return Norm.apply(x, weight, bias, x.shape[1:2], torch.float32)

    def instance_norm(
        x: Any, mean: Any = None, var: Any = None, weight: Any = None, bias: Any = None,
        use_input_stats: bool = True, *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        if not use_input_stats:
            given = (x, mean, var, weight, bias, use_input_stats)
            return theirs["instance_norm"](*given, *rest, **named)
        used.add("instance_norm")
        b, c = x.shape[:2]
        scales = [None if t is None else t.repeat(b) for t in (weight, bias)]
        out = Norm.apply(x.reshape(1, b * c, *x.shape[2:]), *scales, (b * c,), torch.float32)
        return out.view(x.shape)

    def group_norm(
        x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 0
    ) -> Any:
        used.add("group_norm")
        mixed = weight is not None and weight.dtype != x.dtype
        stats = (x.shape[0], groups)
        return Norm.apply(x.contiguous(), weight, bias, stats, torch.float32 if mixed else x.dtype)

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not (training and p):
            return x
        used.add("dropout")
        return torch.native_dropout(x, p, True)[0]

    ours = {
        "scaled_dot_product_attention": attention, "layer_norm": layer_norm, "dropout": dropout,
        "batch_norm": batch_norm, "instance_norm": instance_norm, "group_norm": group_norm,
    }  # fmt: skip
    theirs = {name: getattr(functional, name) for name in ours}
    for name, function in ours.items():
        setattr(functional, name, function)
    try:
        yield used
    finally:
        for name, function in theirs.items():
            setattr(functional, name, function)
