"""Four nets of one's own, of 30 lines each, that tests plan as `memplan trace` wrote them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, torch.Tensor]]


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4)
        self.blocks = nn.ModuleList(Block(64) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def net() -> Built:
    return Net(), {"image": torch.zeros(4, 3, 64, 96)}


class Pair(nn.Module):
    def __init__(self, before: int, width: int):
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.second(functional.relu(self.norm(self.first(x)))))


class UNet(nn.Module):
    """What goes down is read again on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.ModuleList([Pair(16, 16), Pair(16, 32), Pair(32, 64)])
        self.up = nn.ModuleList([Pair(128, 32), Pair(64, 16), Pair(32, 16)])
        self.wider = nn.ModuleList([nn.ConvTranspose2d(n, n, 2, stride=2) for n in (64, 32, 16)])
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, left = self.stem(image), []
        for pair in self.down:
            x = pair(x)
            left.append(x)
            x = functional.avg_pool2d(x, 2)
        for wider, pair in zip(self.wider, self.up, strict=True):
            x = pair(torch.cat([wider(x), left.pop()], 1))
        return self.out(x)


def unet() -> Built:
    return UNet(), {"image": torch.zeros(2, 3, 64, 64)}


class Attention(nn.Module):
    """A block of a transformer, of which a condition scales what attention reads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.scale = nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        h = self.norm(x) * (1 + self.scale(condition)[:, None])
        parts = (f(h).unflatten(-1, (self.heads, -1)) for f in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.last(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4)
        self.blocks = nn.ModuleList(Attention(64, 4) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2)
        condition = x.mean(1)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(x.mean(1))


def attends() -> Built:
    return Attends(), {"image": torch.zeros(4, 3, 64, 96)}


class Stages(nn.Module):
    """A net whose first block is called with the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Pair(a, b) for a, b in ((3, 16), (16, 16), (16, 16)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            image = stage(image)
        return image.mean()


def stages() -> Built:
    return Stages(), {"image": torch.zeros(2, 3, 64, 64)}
