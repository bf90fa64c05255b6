"""Symbolic: what must go with symbols for sizes as it goes with numbers.

Torch's Python takes some operations apart there, and autograd keeps other tensors for the parts: of
`interpolate` the indices of each row and column. And a symbol has no hash, so that a function of
sizes whose results are cached cannot be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def _resizing(operation: Any) -> Callable[..., Any]:
    """The overload that F.interpolate calls, in terms of the one that autograd knows."""
    from torch._decomp.decompositions import upsample_compute_output_size

    def run(x: Any, output_size: Any, *given: Any) -> Any:
        *flags, factors = given
        sizes = upsample_compute_output_size(x.size(), output_size, factors)
        return operation(x, sizes, *flags, *(factors or [None] * len(sizes)))

    return run


def _gradient(grad: Any, _: Any, input_size: Any, *__: Any) -> Any:
    """What backward of a resizing makes: torch's own kernels of some kinds take no symbols."""
    return grad.new_empty(input_size)


def _without_generator(normal: Callable[..., Any]) -> Callable[..., Any]:
    """torch.randn, of which the overload with a generator takes no symbols."""

    def run(*size: Any, generator: Any = None, **named: Any) -> Any:
        return normal(*size, **named)

    return run


@contextmanager
def as_with_numbers() -> Iterator[None]:
    """Within it the operations of F.interpolate run whole under torch's Python dispatcher, and
    symbols may be keys, each of itself alone, and sizes of what torch.randn draws."""
    unhashable, normal = torch.SymInt.__hash__, torch.randn
    packets = [getattr(torch.ops.aten, n) for n in dir(torch.ops.aten) if "upsample_" in n]
    resizing = [p for p in packets if {"vec", "default"} <= set(p.overloads())]
    backward = [p.default for p in packets if p.__name__.endswith("_backward")]
    changed = [*backward, *(op for p in resizing for op in (p.default, p.vec))]
    before = [dict(op.py_kernels) for op in changed]

    def put(op: Any, kernels: dict[Any, Any]) -> None:
        op.py_kernels.clear()
        op.py_kernels.update(kernels)
        op._dispatch_cache.clear()

    try:
        torch.SymInt.__hash__ = object.__hash__
        torch.randn = _without_generator(normal)
        for op, kernels in zip(changed, before, strict=True):
            put(op, {key: k for key, k in kernels.items() if key not in _KEYS})
        for p in resizing:
            p.vec.py_kernels.update(dict.fromkeys(_KEYS, _resizing(p.default)))
        for op in backward:
            op.py_kernels[DispatchKey.Meta] = _gradient
        yield
    finally:
        torch.SymInt.__hash__, torch.randn = unhashable, normal
        for op, kernels in zip(changed, before, strict=True):
            put(op, kernels)
