"""Glossary: the words of terms and of what is left out, from presets/evidence/method.toml."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from memcore.shipped import PRESETS


@functools.cache
def method() -> Mapping[str, Any]:
    """What pages explain: terms, left_out, sources, limits."""
    return tomllib.loads(PRESETS.joinpath("evidence", "method.toml").read_text(encoding="utf-8"))


def term(word: str) -> str:
    """What a word of the pages means, as method.toml says it."""
    return next((str(t["meaning"]) for t in method()["terms"] if t["term"] == word), "")
