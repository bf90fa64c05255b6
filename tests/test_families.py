"""Every family against PyTorch: small models with every flag that changes which tensors exist.

families.json holds what reference/ask_pytorch.py was told by torch and transformers.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from memcore import Plan, evaluate
from memcore.evidence import REGIMES
from memcore.families import FAMILIES

TABLE = json.loads((Path(__file__).parent / "reference" / "families.json").read_text())
RANKS = 4  # of the FSDP2 rows

UNNAMED = ("kind", "bytes", "at", "detail")  # of a row: what its test's name leaves out

# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.01


def plan_of(row):
    regime = row.get("regime", "pure-bf16")
    train = {
        "micro_batch": row["batch"],
        "seq_len": row["seq"],
        "attention": row["attention"],
        "checkpointing": row["checkpointing"],
    }
    gpus = RANKS if regime.startswith("fsdp2") else 1
    config = TABLE["configs"][row["model"]]
    return Plan(model=config, train=train | REGIMES[regime], cluster={"gpus": gpus})


def rows(kind):
    return [
        pytest.param(r, id=" ".join(str(v) for k, v in r.items() if k not in UNNAMED))
        for r in TABLE["rows"]
        if r["kind"] == kind
    ]


@pytest.mark.parametrize("row", rows("saved"))
def test_saved_bytes_are_equal(row):
    assert evaluate(plan_of(row)).memory.saved_for_backward_bytes == row["bytes"]


@pytest.mark.parametrize("row", rows("peak"))
def test_peaks_agree(row):
    memory = evaluate(plan_of(row)).memory
    ours = max(m.bytes for m in memory.timeline if m.id != "optimizer-step")
    assert ours == pytest.approx(row["bytes"], rel=PEAK_TOLERANCE)


def test_every_family_is_asked():
    asked = Counter(TABLE["configs"][row["model"]]["model_type"] for row in TABLE["rows"])
    assert set(asked) == set(FAMILIES)
    assert min(asked.values()) >= 12
