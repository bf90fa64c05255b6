"""Quantized: what a frozen weight in 4 bits is made of."""

from __future__ import annotations

from memcore.dims import Shape, Share, ceil_div, share
from memcore.policies import NF4_DOUBLE

BLOCK = 64  # weights that share a scale
SCALES = 256  # scales that share a scale of their own
CODES = 16  # values that 4 bits stand for


def blocks(shape: Shape) -> Share:
    """How many scales a weight of this shape has."""
    return share("blocks of 64", shape, lambda n: ceil_div(n, BLOCK))


def parts(shape: Shape, quantized: str) -> tuple[tuple[str, Shape, str], ...]:
    """Name, shape and dtype of each tensor behind one weight.

    bitsandbytes/functional.py: quantize_4bit, with compress_statistics for NF4_DOUBLE.
    """
    values = share("pairs", shape, lambda n: ceil_div(n, 2))
    packed: tuple[tuple[str, Shape, str], ...] = ((" (4 bit)", (values,), "int8"),)
    codes: tuple[tuple[str, Shape, str], ...] = ((" (codes)", (CODES,), "fp32"),)
    if quantized != NF4_DOUBLE:
        return (*packed, (" (scales)", (blocks(shape),), "fp32"), *codes)
    groups = share("groups of blocks", shape, lambda n: ceil_div(ceil_div(n, BLOCK), SCALES))
    return (
        *packed,
        (" (scales, 8 bit)", (blocks(shape),), "int8"),
        (" (scales of scales)", (groups,), "fp32"),
        (" (offset)", (), "fp32"),
        *codes,
    )
