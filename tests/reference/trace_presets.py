"""Makes presets/traced/NAME.json.gz anew of presets/traced.toml: python trace_presets.py [NAME ...]

It needs the extra [trace]. Each preset is traced in a process of its own; one that cannot be traced
leaves its file as it is, and says why.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRESETS = ROOT / "presets"


def rows() -> dict[str, dict[str, Any]]:
    """The presets that were traced, by name."""
    return tomllib.loads((PRESETS / "traced.toml").read_text(encoding="utf-8"))


def command(row: Mapping[str, Any], out: Path) -> Iterator[str]:
    """What traces a preset into a file."""
    yield from (sys.executable, "-m", "memcore.cli", "trace", str(row["target"]))
    for name, dims in row.get("inputs", {}).items():
        yield from ("--dims", f"{name}={dims}")
    for name, size in row.get("at", {}).items():
        yield from ("--at", f"{name}={size}")
    yield from ("--dtype", row.get("dtype", "bf16"), "--out", str(out))


def made(name: str) -> bool:
    """Whether a preset was traced and its file written."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.json"
        done = subprocess.run([*command(rows()[name], out)], cwd=ROOT, check=False)
        if done.returncode == 0:
            packed = gzip.compress(out.read_bytes(), 9, mtime=0)
            (PRESETS / "traced" / f"{name}.json.gz").write_bytes(packed)
    return done.returncode == 0


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(rows())
    failed = [name for name in chosen if not made(name)]
    sys.exit(f"not traced: {', '.join(failed)}" if failed else 0)
