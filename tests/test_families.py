"""Every family against PyTorch: small models with every flag that changes which tensors exist.

families.json holds what reference/ask_pytorch.py was told by torch and transformers.
"""

from collections import Counter

import asked
import pytest

from memcore import evaluate
from memcore.families import FAMILIES

TABLE = asked.table("families")
WORDS = ("attention", "checkpointing")

# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.01
# BERT's layers hold the fp32 probabilities until they return, where autocast made them (a variable
# of the modelling code that nobody reads); ours go when the product with V has run.
HELD_TOLERANCE = 0.03
HELD = ("bert", "roberta")


@pytest.mark.parametrize("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    assert (
        evaluate(asked.plan_of(TABLE, row, WORDS)).memory.saved_for_backward_bytes == row["bytes"]
    )


@pytest.mark.parametrize("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    memory = evaluate(asked.plan_of(TABLE, row, WORDS)).memory
    ours = asked.peak_before_the_optimizer(memory)
    held = (row["model"] in HELD, row.get("regime"), row["attention"], row["checkpointing"])
    wide = held == (True, "autocast", "eager", "full")
    assert ours == pytest.approx(row["bytes"], rel=HELD_TOLERANCE if wide else PEAK_TOLERANCE)


def test_every_family_is_asked():
    counts = Counter(TABLE["configs"][row["model"]]["model_type"] for row in TABLE["rows"])
    assert set(counts) == set(FAMILIES)
    assert min(counts.values()) >= 12
