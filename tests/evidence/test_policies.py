"""Every training policy against PyTorch, Liger's and bitsandbytes' own code, on small models.

policies.json holds what reference/ask_policies.py was told.
"""

from collections import Counter

import asked
import pytest
from tables import each

from evidence.pytorch import REGIMES
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.words.training import CHECKPOINTING, CROSS_ENTROPY, KERNELS

TABLE = asked.table("policies")

# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.01
# An attention core that runs again lets go of a joint projection a little before ours does.
CORE_TOLERANCE = 0.025
# Inductor merges equal statistics and reads queries, keys and values without copying them.
COMPILED_TOLERANCE = 0.01

WORDS = ("attention", "checkpointing", "checkpoint_every", "kernels", "cross_entropy")


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    ours = asked.saved(asked.plan_of(TABLE, row, WORDS))
    tolerance = COMPILED_TOLERANCE if row["kernels"] == "compile" else 0
    assert ours == pytest.approx(row["bytes"], rel=tolerance, abs=0)


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = asked.peak(asked.plan_of(TABLE, row, WORDS))
    core = row["checkpointing"] == "selective"
    assert ours == pytest.approx(row["bytes"], rel=CORE_TOLERANCE if core else PEAK_TOLERANCE)


@pytest.mark.parametrize(
    "row", [r for r in asked.rows(TABLE, "optimizer state") if r.values[0].get("model")]
)
def test_8_bit_states_are_equal(row):
    train = {"optimizer": "adam8bit", "seq_len": 64, **REGIMES["pure-bf16"]}
    plan = Plan(model=TABLE["configs"][row["model"]], cluster={"gpus": 1}, train=train)
    ours = [r for r in evaluate(plan).ledger if r.consumer == "optimizer_states"]
    assert sum(r.bytes for r in ours) == row["bytes"]


def test_every_word_is_asked():
    steps = [r for r in TABLE["rows"] if r["kind"] in ("saved", "peak")]
    for word, table in (
        ("checkpointing", CHECKPOINTING),
        ("kernels", set(KERNELS) - {"megatron"}),  # Transformer Engine needs a GPU
        ("cross_entropy", CROSS_ENTROPY),
    ):
        counts = Counter(r[word] for r in steps)
        assert set(counts) == set(table)
        assert min(counts.values()) >= 20
