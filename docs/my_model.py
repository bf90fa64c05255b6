"""A model of one's own: a U-Net that segments images of any size."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1)
        self.norm = nn.GroupNorm(8, after)
        self.second = nn.Conv2d(after, after, 3, 1, 1)

    def forward(self, x):
        return functional.silu(self.second(functional.silu(self.norm(self.first(x)))))


class UNet(nn.Module):
    def __init__(self, classes: int = 19):
        super().__init__()
        self.stem = Block(3, 64)
        self.down = nn.ModuleList(Block(w // 2, w, 2) for w in (128, 256, 512))
        self.up = nn.ModuleList(Block(w + w // 2, w // 2) for w in (512, 256, 128))
        self.head = nn.Conv2d(64, classes, 1)

    def forward(self, image):
        skips = [self.stem(image)]
        for block in self.down:
            skips.append(block(skips[-1]))
        x = skips.pop()
        for block in self.up:
            skip = skips.pop()
            x = block(torch.cat((functional.interpolate(x, skip.shape[-2:]), skip), 1))
        return self.head(x)


def build():
    return UNet(), {"image": torch.zeros(2, 3, 128, 192)}
