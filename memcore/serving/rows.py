"""Rows: what lies on one GPU of a server, as the ledger has it."""

from __future__ import annotations

from memcore.report import LedgerRow
from memcore.tape.dims import Extents


def row(
    name: str,
    consumer: str,
    shape: Extents,
    dtype: str,
    each: int,
    count: int,
    source: str,
    why: str,
    lifetime: str = "always",
) -> LedgerRow:
    """So many tensors of `each` bytes that are known exactly."""
    size = each * count
    return LedgerRow(
        name, consumer, shape, dtype, each, count, size, "hbm", lifetime, "exact", source, why
    )
