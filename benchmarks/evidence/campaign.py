"""Campaign: steps that we measured ourselves (presets/evidence/campaign.jsonl).

benchmarks/campaign.py wrote the figures; a line says besides what is left out of it, and why.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from memcore.evidence.comparison import CHECK, text

RUN_NAME = "an H100 of our own"  # begins the name of each run
SOURCE = "Memplan's campaign on an H100"
WHERE = (
    "presets/evidence/campaign.jsonl: PyTorch 2.11.0, CUDA 13.0, driver 580.159.04, transformers "
    "5.17.0, PEFT 0.21.0, bitsandbytes 0.50.2, Liger 0.8.5"
)
COUNTERS = ("allocated", "reserved", "device")
SECONDS, ALL = "seconds", "all"


@functools.cache
def lines() -> tuple[dict[str, Any], ...]:
    """Every measured step: `name`, `plan`, `seconds` of it, of its `phases`, bytes by counter, and
    perhaps a `remark` and what is `left_out`: a figure, or all of them, and why."""
    return tuple(json.loads(line) for line in text("campaign.jsonl").splitlines())


def runs_of(*figures: str) -> Iterator[dict[str, Any]]:
    """Those figures of every step, each as a run as the other tables have them."""
    for number, line in enumerate(lines(), 1):
        for figure in figures:
            if not {figure, ALL} & line.get("left_out", {}).keys():
                yield {
                    "id": f"campaign-{number}-{figure}",
                    "run": f"{RUN_NAME}: {line['name']}",
                    "plan": line["plan"],
                    "source": SOURCE,
                    "where": WHERE,
                    "confidence": "high",
                    "used_for": CHECK,
                    "figures": [],
                    "remark": line.get("remark", ""),
                    **({SECONDS: line[SECONDS], "printed": f"{line[SECONDS] * 1e3:.1f} ms"}
                       if figure == SECONDS else {"counter": figure, "value": line[figure]}),
                }  # fmt: skip


def left_out() -> list[dict[str, Any]]:
    """What is in no comparison."""
    return [
        {"what": line["name"], "runs": f"{SOURCE}: {figure}", "why": f"{why}.", "figures": []}
        for line in lines()
        for figure, why in line.get("left_out", {}).items()
    ]
