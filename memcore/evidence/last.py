"""Last: every comparison as it was when it was last written down, for pages that show it.

Comparing takes ten seconds of processor; reading takes a hundredth of that. A test holds the file
equal to what `compare` finds: `python -m memcore.evidence.markdown` writes it anew.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from memcore.evidence.comparison import Comparison, text

FILE = "compared.jsonl"
PATH = Path(__file__).parents[2] / "presets" / "evidence" / FILE
DEFAULTS = {f.name: f.default for f in fields(Comparison)}


@functools.cache
def last_compared() -> tuple[Comparison, ...]:
    """What `compare` found, in its order."""
    return tuple(Comparison(**json.loads(line)) for line in text(FILE).splitlines())


def lines(rows: Iterable[Comparison]) -> str:
    """Rows as a file: of each what is not as usual."""
    found = (
        {name: value for name, value in asdict(row).items() if value != DEFAULTS[name]}
        for row in rows
    )
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found)


def write(rows: Iterable[Comparison]) -> None:
    PATH.write_text(lines(rows), encoding="utf-8")
