"""Small modules, one of each kind of code that a trace once did not hold."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, Tensor]]


class Net(nn.Module):
    """A convolution before, and one after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x))).tanh()


def _built(kind: type[Net]) -> Built:
    return kind(), {"x": torch.zeros(2, 3, 64, 80)}


class Resized(Net):
    """Operations that torch takes apart where sizes are symbols."""

    def between(self, x: Tensor) -> Tensor:
        wide = functional.interpolate(x.flatten(2), scale_factor=2.0, mode="linear").sin()
        small = functional.interpolate(x, size=(9, 11), mode="bilinear", antialias=True).sin()
        half = functional.interpolate(x, scale_factor=0.5, mode="bicubic").sin()
        like = functional.interpolate(half, size=x.shape[2:], mode="bilinear").sin()
        large = functional.interpolate(x, scale_factor=2.0).sin()
        return x + wide.mean() + small.mean() + like + functional.avg_pool2d(large, 2)


def resized() -> Built:
    return _built(Resized)


class HalfSteps(Net):
    """A size that is a fraction, rounded up."""

    def between(self, x: Tensor) -> Tensor:
        across = torch.arange(0.5, x.shape[3], dtype=x.dtype) * self.last.bias[0]
        return x * across.sin()


def half_steps() -> Built:
    return _built(HalfSteps)


class CachedBySize(Net):
    """A function of sizes whose results are kept."""

    @lru_cache(maxsize=4)  # noqa: B019
    def places(self, width: int) -> Tensor:
        return torch.arange(width, dtype=torch.float32)

    def between(self, x: Tensor) -> Tensor:
        return x * (self.places(x.shape[3]) * self.last.bias[0]).sin()


def cached_by_size() -> Built:
    return _built(CachedBySize)


class ConditionOnValues(Net):
    """A line that runs only where values are not numbers."""

    def between(self, x: Tensor) -> Tensor:
        if torch.isinf(x).any():
            x = x.clamp(-1, 1)
        return x


def condition_on_values() -> Built:
    return _built(ConditionOnValues)


class UnusedBranch(Net):
    """A result that the loss does not use."""

    def between(self, x: Tensor) -> Tensor:
        x.sin().cos()
        return x


def unused_branch() -> Built:
    return _built(UnusedBranch)


class NumbersForWidth(Net):
    """A loop over a size."""

    def between(self, x: Tensor) -> Tensor:
        total = x[..., 0]
        for i in range(1, x.shape[3], 16):
            total = total + x[..., i]
        return x + total.unsqueeze(-1)


def numbers_for_width() -> Built:
    return _built(NumbersForWidth)


class TiedTables(nn.Module):
    """One table under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(50, 8)
        self.decoder = nn.Module()
        self.decoder.words = nn.Embedding(50, 8)
        self.decoder.words.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        return (self.shared(ids) * self.decoder.words(ids)).sin()


def tied_tables() -> Built:
    return TiedTables(), {"ids": torch.zeros(2, 5, dtype=torch.int64)}
