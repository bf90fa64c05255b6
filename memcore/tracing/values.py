"""Values: what a run without values takes where a model's code asks for them."""

from __future__ import annotations

import contextlib
import random
import traceback
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

CHOSEN = "chosen"  # the dimension of what values choose: rows of a mask, of nonzero, of nms
_NMS = "torchvision::nms"
_INDEXED = (
    torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default,
)  # fmt: skip


class Values(TorchDispatchMode):
    """Within it each choice by values, as nonzero is, chooses `chosen` rows, and a condition on
    values does not hold; what a model's code draws outside of torch is the same in each run.
    `taken`: what was taken, in words, by the line that asked."""

    def __init__(self, chosen: Any):
        super().__init__()
        self.chosen = chosen
        self.taken: dict[str, str] = {}
        self._drawn: tuple[Any, Any] | None = None

    def __enter__(self) -> Values:
        self._drawn = random.getstate(), np.random.get_state()
        random.seed(0)
        np.random.seed(0)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._drawn:
            random.setstate(self._drawn[0])
            np.random.set_state(self._drawn[1])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            with contextlib.suppress(DataDependentOutputException):
                known = func(*args, **kwargs)
                if isinstance(known, bool):
                    return known
            self._note("a condition on values is taken not to hold")
            return False
        if func is aten.nonzero.default:
            return self._rows(args[0], args[0].dim())
        if func is aten.masked_select.default:
            self._note("a choice by values")
            return args[0].new_empty((self.chosen,))
        if func.name() == _NMS:
            return self._rows(args[0])
        if func in _INDEXED and any(
            t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]
        ):
            return func(args[0], self._places(args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)

    def _places(self, indices: Any) -> list[Any]:
        """Indices whose masks are replaced by the places that they choose."""
        places: list[Any] = []
        for t in indices:
            if t is not None and t.dtype in (torch.bool, torch.uint8):
                places += [self._rows(t) for _ in range(t.dim())]
            else:
                places.append(t)
        return places

    def _rows(self, like: torch.Tensor, *more: int) -> torch.Tensor:
        self._note("a choice by values")
        return like.new_empty((self.chosen, *more), dtype=torch.int64)

    def _note(self, what: str) -> None:
        frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename]
        theirs = [f for f in frames if "/memcore/" not in f.filename] or frames
        at = theirs[-1]
        self.taken[f"{'/'.join(at.filename.split('/')[-2:])}:{at.lineno}"] = what
