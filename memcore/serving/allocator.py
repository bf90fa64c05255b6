"""What PyTorch's caching allocator makes of a tensor's bytes, with its default settings.

A tensor of 10 MiB or more has a segment of its own, of whole 2 MiB. What is left of it becomes a
block for other tensors if it is more than 1 MiB; else it stays with the tensor, and
torch.cuda.memory_allocated counts it. Smaller tensors share segments of 2 and 20 MiB: of those
only the last block can be too large, which is not planned.
"""

from __future__ import annotations

from memcore.tape.dims import Number, ceil_div, where
from memcore.units import MiB

SEGMENT, OWN, LEAST = 2 * MiB, 10 * MiB, MiB  # kRoundLarge, kMinLargeAlloc, kSmallSize
SOURCE = (
    "get_allocation_size and should_split of PyTorch's caching allocator "
    "(c10/cuda/CUDACachingAllocator.cpp)"
)


def rest(n: Number) -> Number:
    """Bytes that a tensor's block has beyond its `n`, in a segment of its own."""
    left = ceil_div(n, SEGMENT) * SEGMENT - n
    return where(n >= OWN, where(left <= LEAST, left, 0), 0)
