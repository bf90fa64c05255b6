"""Sizes: parameters of the parts that models consist of."""

from __future__ import annotations

import math


def linear(width: int, into: int, bias: bool = True) -> int:
    return width * into + (into if bias else 0)


def norm(width: int) -> int:
    """A norm with a weight and a bias: of layers or of groups."""
    return 2 * width


def convolution(width: int, into: int, *kernel: int, bias: bool = True) -> int:
    """kernel   how many positions along each axis one value is made of"""
    return width * into * math.prod(kernel) + (into if bias else 0)


def attention(width: int, bias: bool = True) -> int:
    """Queries, keys, values and output."""
    return 4 * linear(width, width, bias)


def mlp(width: int, inner: int, bias: bool = True) -> int:
    return linear(width, inner, bias) + linear(inner, width, bias)


def gated_mlp(width: int, inner: int, bias: bool = False) -> int:
    return 2 * linear(width, inner, bias) + linear(inner, width, bias)


def encoder_layer(width: int, inner: int) -> int:
    """Queries, keys, values and output, two layers of an MLP, all with a bias, and two norms."""
    return attention(width) + mlp(width, inner) + 2 * norm(width)
