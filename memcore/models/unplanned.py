"""Unplanned: programs and architectures that are known and not planned, by how they are called.
Their table is presets/families/unplanned.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from memcore.errors import shown
from memcore.shipped import PRESETS

CLASS = "_class_name"  # of the config.json of diffusers
HOW = (
    "trace it, which takes about ten seconds: `memplan trace config.json --out traced.json`, then "
    "`memplan evaluate traced.json`, or drop traced.json on the page (the extra [trace] brings "
    "what that needs: `pip install -e '.[trace]'` in a clone)"
)
OWN = "trace its module: `memplan trace FILE.py:FUNCTION`, then `memplan evaluate` what it writes"
TRACE = f"is no family that Memplan has by hand: {HOW}"


@functools.cache
def _table(name: str) -> Mapping[str, list[str]]:
    """Patterns by what fits them."""
    file = PRESETS.joinpath("families", "unplanned.toml")
    found: dict[str, list[str]] = tomllib.loads(file.read_text(encoding="utf-8"))[name]
    return found


def _first(name: str, text: str, start: str = "") -> str:
    found = (
        what
        for what, patterns in _table(name).items()
        if any(re.search(start + pattern, text, re.MULTILINE) for pattern in patterns)
    )
    return next((f"{what} not planned" for what in found), "")


def command(line: str) -> str:
    """Why what a command starts is not planned, or ''."""
    return _first("commands", line)


def document(content: str) -> str:
    """Why what a module or a document describes is not planned, or ''."""
    return _first("texts", content)


def name(called: str) -> str:
    """Why a model that is called so is not planned, or ''."""
    last = called.rstrip("/").rpartition("/")[2].lower()
    return _first("names", last, r"\A")


def config(kind: str) -> str:
    """Why an architecture is not planned that transformers does not know either, or ''."""
    why = _first("architectures", kind, r"\A")
    return f"architecture {shown(kind)}: {why} by a config.json; {OWN}" if why else ""


def architecture(config: Mapping[str, Any]) -> str:
    """Why the model of a config.json is not planned as it is, where diffusers wrote it, or ''."""
    part = config.get(CLASS)
    command = TRACE.replace("trace config", "trace diffusers:config")
    return f"{shown(part)} of diffusers {command}" if isinstance(part, str) else ""
