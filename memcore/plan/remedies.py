"""Remedies: frameworks that have a fact, as remedies of rules name them."""

from __future__ import annotations

from collections.abc import Iterable

from memcore.plan.rule import Remedy
from memcore.words.training import FRAMEWORKS, NEVER

PLAIN = [name for name, f in reversed(FRAMEWORKS.items()) if f.plain]
UNSHARDED = [name for name in PLAIN if FRAMEWORKS[name].shards == NEVER]
OWN = [name for name, f in FRAMEWORKS.items() if f.own]
ROWS = [name for name, f in FRAMEWORKS.items() if f.rows]
HYBRID = [name for name, f in FRAMEWORKS.items() if f.hybrid]
SHARDS = [name for name, f in FRAMEWORKS.items() if f.shards < NEVER and not f.own]
WHOLE = [name for name, f in FRAMEWORKS.items() if f.plain and f.shards == NEVER]
SHARDED = [name for name in PLAIN if name not in WHOLE]
NVME = [name for name, f in FRAMEWORKS.items() if f.nvme]


def sharded_by(frameworks: Iterable[str]) -> list[Remedy]:
    """Parameters sharded by one of these."""
    return [{"train.framework": name, "train.zero": 3} for name in frameworks]


DATA_PARALLEL: Remedy = {f"parallel.{axis}": 1 for axis in ("tp", "pp", "cp", "ep")}
