"""The tables in reference/: what PyTorch, PEFT and others said, and the plans of their rows."""

import json
from pathlib import Path

import pytest

from memcore.evidence import REGIMES
from memcore.plan.plan import Plan

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
RANKS = 4  # of the FSDP2 rows
UNNAMED = ("kind", "bytes", "at", "detail")  # of a row: what its test's name leaves out


def table(name):
    return json.loads((REFERENCE / f"{name}.json").read_text())


def rows(asked, kind):
    return [
        pytest.param(r, id=" ".join(str(v) for k, v in r.items() if k not in UNNAMED))
        for r in asked["rows"]
        if r["kind"] == kind
    ]


def plan_of(asked, row, words, train=(), gpu="h100-sxm-80gb"):
    """The plan of a row whose `words` are fields of `train` by the same names."""
    regime = row.get("regime", "pure-bf16")
    own = {"micro_batch": row["batch"], "seq_len": row["seq"]} | {w: row[w] for w in words}
    gpus = RANKS if regime.startswith("fsdp2") else 1
    return Plan(
        model=asked["configs"][row["model"]],
        train=own | REGIMES[regime] | dict(train),
        cluster={"gpu": gpu, "gpus": gpus},
    )


def plan_of_family(asked, row):
    more = [word for word in ("images", "target_len") if word in row]
    return plan_of(asked, row, ("attention", "checkpointing", *more))


def peak_before_the_optimizer(memory):
    """The references leave the optimizer's step out."""
    return max(m.bytes for m in memory.timeline if m.id != "optimizer-step")
