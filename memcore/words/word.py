"""Word: a row of a table of words, and the bytes of each dtype."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from memcore.shipped import PRESETS

DTYPE_BYTES: dict[str, Any] = {  # integers, but that fp4 has half of one
    "fp32": 4,
    "int32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp4": 0.5,
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


W = TypeVar("W", bound=Word)


def table(name: str, kind: type[W]) -> dict[str, W]:
    """The words of a table of presets/words.toml, in its order."""
    return {word: kind(**row) for word, row in rows(name).items()}


def rows(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The same as the file has them; a list is a tuple."""
    return {
        word: {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}
        for word, row in _tables()[name].items()
    }


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    return tomllib.loads(PRESETS.joinpath("words.toml").read_text(encoding="utf-8"))
