"""Every family against PyTorch: small models with every flag that changes which tensors exist.

families.json holds what reference/ask_pytorch.py was told by torch and transformers.
"""

from collections import Counter

import asked
import pytest
from tables import each

from memcore.models.families import FAMILIES

TABLE = asked.table("families")


# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.01
# What a variable of the modelling code holds and nobody reads, under autocast with checkpointing:
# BERT's and Seed-OSS's layers, which drop some of them out, the fp32 probabilities until they
# return; LLaVA the states of the tower's last layer until its forward returns.
HELD_TOLERANCE = 0.04
HELD = ("bert", "roberta", "llava", "seed")
# DeBERTa's encoder lists the states behind all layers until it returns: under autocast in fp32.
LISTED_TOLERANCE = 0.02
LISTED = ("deberta-labels", "deberta-spans")
# Its residual is in fp32, which FSDP2 casts to 16 bits before a layer, but not where it runs again.
CAST = ("mamba2",)


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    assert asked.saved(asked.plan_of_family(TABLE, row)) == row["bytes"]


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = asked.peak(asked.plan_of_family(TABLE, row))
    held = (row["model"] in HELD, row.get("regime"), row["checkpointing"])
    cast = row["model"] in CAST and "fsdp2" in row["regime"] and row["checkpointing"] == "full"
    wide = cast or held == (True, "autocast", "full")
    within = HELD_TOLERANCE if wide else PEAK_TOLERANCE
    if row["model"] in LISTED and held[1:] == ("autocast", "none"):
        within = LISTED_TOLERANCE
    assert ours == pytest.approx(row["bytes"], rel=within)


def test_every_family_is_asked():
    counts = Counter(asked.family_of(asked.config_of(TABLE, row)) for row in TABLE["rows"])
    assert set(counts) == set(FAMILIES)
    assert min(counts.values()) >= 12
