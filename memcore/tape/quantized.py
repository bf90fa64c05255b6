"""Quantized: what a weight in 4 or in 8 bits is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable

from memcore.tape.dims import Number, Shape, Share, ceil_div, share
from memcore.tape.structure import Narrow
from memcore.words.training import INT8, NF4_DOUBLE

BLOCK = 64  # weights that share a scale
SCALES = 256  # scales that share a scale of their own
CODES = 16  # values that 4 bits stand for


def blocks(shape: Shape) -> Share:
    """How many scales a weight of this shape has."""
    return share("blocks of 64", shape, _per(BLOCK))


def parts(shape: Shape, quantized: str) -> tuple[tuple[str, Shape, str], ...]:
    """Name, shape and dtype of each tensor behind one weight.

    bitsandbytes/functional.py: quantize_4bit, with compress_statistics for NF4_DOUBLE; of INT8,
    whose first dimension is that of the result, int8_vectorwise_quant.
    """
    if quantized == INT8:
        return (" (8 bit)", shape, "int8"), (" (scales)", shape[:1], "fp32")
    values = share("pairs", shape, _per(2))
    packed: tuple[tuple[str, Shape, str], ...] = ((" (4 bit)", (values,), "int8"),)
    codes: tuple[tuple[str, Shape, str], ...] = ((" (codes)", (CODES,), "fp32"),)
    if quantized != NF4_DOUBLE:
        return (*packed, (" (scales)", (blocks(shape),), "fp32"), *codes)
    groups = share("groups of blocks", shape, _groups)
    return (
        *packed,
        (" (scales, 8 bit)", (blocks(shape),), "int8"),
        (" (scales of scales)", (groups,), "fp32"),
        (" (offset)", (), "fp32"),
        *codes,
    )


def _groups(n: Number) -> Number:
    return ceil_div(ceil_div(n, BLOCK), SCALES)


@functools.cache  # of a few blocks
def _per(block: int) -> Callable[[Number], Number]:
    return lambda n: ceil_div(n, block)


def scales(shape: Shape, block: int) -> Share:
    """How many scales a tensor of this shape has, one for each `block` values."""
    return share(f"blocks of {block}", shape, _per(block))


HISTORY = 1024  # largest values that delayed scaling looks back on (recipe.DelayedScaling)
SCALED = 5  # tensors of one linear layer with a scale: input, weight, output and two gradients


def parts_in_8_bits(shape: Shape, narrow: Narrow) -> tuple[tuple[str, Shape, str], ...]:
    """Name, shape and dtype of what Transformer Engine keeps of one weight, besides a 16-bit one.

    transformer_engine/pytorch/module/base.py: quantize_weight, the workspace that is cached between
    micro-batches (is_first_microbatch), and quantization.py: DelayedScalingRecipeState.
    """
    how = narrow.how
    each: list[tuple[str, Shape, str]] = [(f" ({how.bits} bit)", shape, how.dtype)]
    if how.block:
        each.append((" (scales)", (scales(shape, how.block),), "fp8"))
    if narrow.both:
        each += [(f", by columns{name}", shape, dtype) for name, shape, dtype in tuple(each)]
    if how.delayed:
        each.append((" (largest values)", (HISTORY, SCALED), "fp32"))
    return tuple(each)
