"""Word: a row of a table of words, and the bytes of each dtype."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {
    "fp32": 4,
    "int32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int16": 2,
    "int8": 1,
    "bool": 1,
    "int64": 8,
    "fp64": 8,
}


@dataclass(frozen=True, slots=True)
class Word:
    """A policy's label and one sentence for the person who chooses it."""

    label: str
    help: str
