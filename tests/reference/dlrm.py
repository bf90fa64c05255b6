"""DLRM with a low-rank cross network (DCNv2), as MLPerf Training has had it since 3.0, in plain
PyTorch; torchrec.models.dlrm.DLRM_DCN is the same.

    python tests/reference/dlrm.py > /tmp/dims
    memplan trace tests/reference/dlrm.py:build $(cat /tmp/dims) --dtype fp32 --out dlrm-dcnv2.json

Sizes: github.com/mlcommons/training, recommendation_v2/torchrec_dlrm (its README's command). Tables
are cut at 40,000,000 rows; LOOKUPS is multi_hot_sizes.
"""

from __future__ import annotations

import torch
from torch import nn

ROWS = (
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209,
    11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
)  # fmt: skip
LOOKUPS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)  # fmt: skip
WIDTH, DENSE, BOTTOM, TOP, CROSSES, RANK = 128, 13, (512, 256, 128), (1024, 1024, 512, 256), 3, 512


def perceptron(width: int, sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((width, *sizes), sizes, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Cross(nn.Module):
    """A layer of a low-rank cross network."""

    def __init__(self, width: int):
        super().__init__()
        self.v = nn.Linear(width, RANK, bias=False)
        self.w = nn.Linear(RANK, width)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return first * self.w(self.v(x)) + x


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = WIDTH * (len(ROWS) + 1)
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, WIDTH, mode="sum") for n in ROWS)
        self.bottom = perceptron(DENSE, BOTTOM)
        self.cross = nn.ModuleList(Cross(width) for _ in range(CROSSES))
        self.top = nn.Sequential(*perceptron(width, TOP), nn.Linear(TOP[-1], 1))

    def forward(
        self, dense: torch.Tensor, labels: torch.Tensor, **ids: torch.Tensor
    ) -> torch.Tensor:
        pooled = [table(ids[f"ids_{i}"]) for i, table in enumerate(self.tables)]
        first = x = torch.cat([self.bottom(dense), *pooled], 1)
        for cross in self.cross:
            x = cross(first, x)
        logits = self.top(x)[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    ids = {f"ids_{i}": torch.zeros(4, n, dtype=torch.int64) for i, n in enumerate(LOOKUPS)}
    return DLRM(), {"dense": torch.zeros(4, DENSE), "labels": torch.zeros(4), **ids}


if __name__ == "__main__":
    inputs = {"dense": f"batch,{DENSE}", "labels": "batch"}
    inputs |= {f"ids_{i}": f"batch,{n}" for i, n in enumerate(LOOKUPS)}
    print(*(f"--dims {name}={dims}" for name, dims in inputs.items()))
