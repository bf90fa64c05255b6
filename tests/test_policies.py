"""Every training policy against PyTorch, Liger's and bitsandbytes' own code, on small models.

policies.json holds what reference/ask_policies.py was told.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from memcore import Plan, evaluate, policies
from memcore.evidence import REGIMES

TABLE = json.loads((Path(__file__).parent / "reference" / "policies.json").read_text())
RANKS = 4  # of the FSDP2 rows
GPU = "h100-sxm-80gb"  # Liger sums weight gradients in as many parts as a GPU has multiprocessors

# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.01
# An attention core that runs again lets go of a joint projection a little before ours does.
CORE_TOLERANCE = 0.025
# Inductor merges equal statistics and reads queries, keys and values without copying them.
COMPILED_TOLERANCE = 0.01

WORDS = ("attention", "checkpointing", "checkpoint_every", "kernels", "cross_entropy")


def plan_of(row):
    regime = row["regime"]
    train = {"micro_batch": row["batch"], "seq_len": row["seq"]} | {w: row[w] for w in WORDS}
    gpus = RANKS if regime.startswith("fsdp2") else 1
    config = TABLE["configs"][row["model"]]
    return Plan(model=config, train=train | REGIMES[regime], cluster={"gpu": GPU, "gpus": gpus})


def rows(kind):
    return [
        pytest.param(r, id=" ".join(str(v) for k, v in r.items() if k not in ("bytes", "detail")))
        for r in TABLE["rows"]
        if r["kind"] == kind
    ]


@pytest.mark.parametrize("row", rows("saved"))
def test_saved_bytes_are_equal(row):
    ours = evaluate(plan_of(row)).memory.saved_for_backward_bytes
    tolerance = COMPILED_TOLERANCE if row["kernels"] == "compile" else 0
    assert ours == pytest.approx(row["bytes"], rel=tolerance, abs=0)


@pytest.mark.parametrize("row", rows("peak"))
def test_peaks_agree(row):
    memory = evaluate(plan_of(row)).memory
    ours = max(m.bytes for m in memory.timeline if m.id != "optimizer-step")
    core = row["checkpointing"] == "selective"
    assert ours == pytest.approx(row["bytes"], rel=CORE_TOLERANCE if core else PEAK_TOLERANCE)


@pytest.mark.parametrize("row", [r for r in rows("optimizer state") if r.values[0].get("model")])
def test_8_bit_states_are_equal(row):
    train = {"optimizer": "adam8bit", "seq_len": 64, **REGIMES["pure-bf16"]}
    plan = Plan(model=TABLE["configs"][row["model"]], cluster={"gpus": 1}, train=train)
    ours = [r for r in evaluate(plan).ledger if r.consumer == "optimizer_states"]
    assert sum(r.bytes for r in ours) == row["bytes"]


def test_every_word_is_asked():
    asked = [r for r in TABLE["rows"] if r["kind"] in ("saved", "peak")]
    for word, table in (
        ("checkpointing", policies.CHECKPOINTING),
        ("kernels", set(policies.KERNELS) - {"megatron"}),  # Transformer Engine needs a GPU
        ("cross_entropy", policies.CROSS_ENTROPY),
    ):
        counts = Counter(r[word] for r in asked)
        assert set(counts) == set(table)
        assert min(counts.values()) >= 20
