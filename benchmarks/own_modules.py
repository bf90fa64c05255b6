"""Modules as people write them, for benchmarks/traces.py: each function returns a module and
example inputs, as `memplan trace FILE.py:FUNCTION` takes them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, dict[str, Any]]


class Level(nn.Sequential):
    """Two convolutions of a U-Net in three dimensions."""

    def __init__(self, before: int, after: int):
        parts: list[nn.Module] = []
        for n in (before, after):
            parts += [nn.Conv3d(n, after, 3, padding=1), nn.InstanceNorm3d(after, affine=True)]
            parts.append(nn.LeakyReLU(inplace=True))
        super().__init__(*parts)


class UNet3D(nn.Module):
    """As nnU-Net: strided levels down, transposed convolutions up, a loss of two parts."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(Level(a, b) for a, b in zip((1, *widths), widths, strict=False))
        self.ups = nn.ModuleList(
            nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(widths)
        )
        self.joins = nn.ModuleList(Level(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(widths[0], 4, 1)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        left = []
        for i, level in enumerate(self.down):
            image = level(functional.max_pool3d(image, 2) if i else image)
            left.append(image)
        for i in reversed(range(len(self.ups))):
            image = self.joins[i](torch.cat([self.ups[i](image), left[i]], 1))
        logits = self.head(image)
        share = logits.softmax(1)
        wanted = functional.one_hot(labels, 4).movedim(-1, 1).to(share.dtype)
        dice = (share * wanted).sum((2, 3, 4)) / (share + wanted).sum((2, 3, 4)).clamp(min=1e-5)
        return functional.cross_entropy(logits, labels) - dice.mean()


def unet_3d() -> Built:
    image = torch.zeros(2, 1, 64, 64, 64)
    return UNet3D(), {"image": image, "labels": torch.zeros(2, 64, 64, 64, dtype=torch.long)}


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: complex weights on the lowest modes."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.zeros(width, width, modes, modes, dtype=torch.cfloat))
        self.beside = nn.Conv2d(width, width, 1, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        low = torch.zeros_like(spectrum)
        low[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight)
        back = torch.fft.irfft2(low, s=x.shape[-2:])
        return functional.gelu(back + self.beside(x))


class FNO(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, 64, 1, dtype=torch.float32)
        self.layers = nn.ModuleList(Spectral(64, 16) for _ in range(4))
        self.drop = nn.Conv2d(64, 1, 1, dtype=torch.float32)

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        x = self.lift(field.float())
        for layer in self.layers:
            x = layer(x)
        return self.drop(x)


def fno() -> Built:
    return FNO(), {"field": torch.zeros(2, 3, 128, 128)}


class Messages(nn.Module):
    """A layer of a graph network with index_add."""

    def __init__(self, width: int):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.node = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        sent = self.edge(torch.cat([x[source], x[target]], -1))
        heard = torch.zeros_like(x).index_add(0, target, sent)
        return x + self.node(torch.cat([x, heard], -1))


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 128)
        self.layers = nn.ModuleList(Messages(128) for _ in range(6))
        self.last = nn.Linear(128, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edges[0], edges[1])
        return self.last(x.new_zeros(32, 128).scatter_reduce(
            0, graph[:, None].expand_as(x), x, "mean"
        ))  # fmt: skip


def graph() -> Built:
    return GraphNet(), {
        "x": torch.zeros(1000, 16),
        "edges": torch.zeros(2, 8000, dtype=torch.long),
        "graph": torch.zeros(1000, dtype=torch.long),
    }


class PINN(nn.Module):
    """The heat equation by gradients of gradients."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Linear(2, 256), nn.Tanh()]
        for _ in range(4):
            parts += [nn.Linear(256, 256), nn.Tanh()]
        self.net = nn.Sequential(*parts, nn.Linear(256, 1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        points = points.clone().requires_grad_(True)
        u = self.net(points)
        first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)[0]
        return (first[:, 1] - 0.1 * second[:, 0]).pow(2).mean()


def pinn() -> Built:
    return PINN(), {"points": torch.zeros(4096, 2)}


class ConvLSTM(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(3 + width, 4 * width, 3, padding=1)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        n, times, _, high, wide = clip.shape
        h = c = clip.new_zeros(n, self.width, high, wide)
        said = []
        for t in range(times):
            i, f, o, g = self.gates(torch.cat([clip[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            said.append(self.out(h))
        return functional.mse_loss(torch.stack(said, 1), clip)


def convlstm() -> Built:
    return ConvLSTM(), {"clip": torch.zeros(2, 8, 3, 64, 64)}


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(self.one(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (w // self.heads) ** 0.5
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
        scores = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.join((scores @ v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.two(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32000, 512), nn.Embedding(2048, 512)
        self.blocks = nn.ModuleList(Block(512, 8) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(512), nn.Linear(512, 32000, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def gpt() -> Built:
    return GPT(), {"ids": torch.zeros(2, 256, dtype=torch.long)}


@dataclass
class Found:
    boxes: torch.Tensor
    scores: tuple[torch.Tensor, torch.Tensor]


class Several(nn.Module):
    """Takes a dict, gives a dataclass of a tensor and a tuple; changes values in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(32, 128)
        self.norm = nn.BatchNorm1d(128)
        self.boxes, self.scores = nn.Linear(128, 4), nn.Linear(128, 10)

    def forward(self, parts: dict[str, torch.Tensor], scale: float = 1.0) -> Found:
        x = self.a(parts["left"]) + self.b(parts["right"])
        x = functional.relu_(self.norm(x)).mul_(scale)
        scores = self.scores(x)
        return Found(self.boxes(x).sigmoid(), (scores, scores.argmax(-1)))


def several() -> Built:
    parts = {"left": torch.zeros(8, 64), "right": torch.zeros(8, 32)}
    return Several(), {"parts": parts, "scale": 0.5}


class Mixture(nn.Module):
    """A mixture of experts whose rows are found by nonzero."""

    def __init__(self, width: int = 256, experts: int = 8):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).topk(2)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == i)
            out.index_add_(0, rows, expert(flat[rows]) * weight[rows, places, None])
        return out.view_as(x)


def mixture() -> Built:
    return Mixture(), {"x": torch.zeros(2, 128, 256)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 256, 2, batch_first=True, dropout=0.1)
        self.gru = nn.GRU(256, 128, batch_first=True, bidirectional=True)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(256, 4, batch_first=True), num_layers=3
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.gru(self.lstm(x)[0])[0])


def recurrent() -> Built:
    return Recurrent(), {"x": torch.zeros(2, 50, 64)}
