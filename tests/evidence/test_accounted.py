"""Measured figures of high confidence: each is compared, or has the reason why not beside it.

`figures` in the tables says what a list of measured figures calls what a row is about. The list
itself is not part of the project; where it lies beside it, none of it may be missing here.
"""

import csv
from collections import Counter
from pathlib import Path

import pytest

from evidence.measured import measured_table
from evidence.papers import published_table
from evidence.served import served_table
from evidence.times import times_table
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.models.families import from_config

LIST = Path(__file__).resolve().parents[3] / "shared" / "measured" / "measured.csv"
TABLES = (measured_table(), served_table(), times_table())
PARAMETERS = "PA0002"  # torchtitan's DeepSeek-V3 16B, as V2 Lite but for its vocabulary


def compared():
    runs = [run for table in TABLES for run in table["runs"]]
    found = Counter(f for run in (*runs, *published_table()) for f in run.get("figures", ()))
    found.update(run["id"] for run in times_table()["runs"])
    return found + Counter([PARAMETERS])


def left_out():
    return Counter(
        f for table in TABLES for gap in table["left_out"] for f in gap.get("figures", ())
    )


def test_a_figure_is_compared_or_left_out():
    assert not set(compared()) & set(left_out())
    assert set(left_out().values()) == {1}
    assert len(compared()) >= 300


def test_what_is_left_out_has_its_reason():
    for table in TABLES:
        assert all(gap["why"] and gap["runs"] for gap in table["left_out"])


@pytest.mark.skipif(not LIST.exists(), reason="the list of measured figures is not here")
def test_no_figure_of_high_confidence_is_forgotten():
    with LIST.open(newline="") as lines:
        high = {row["id"] for row in csv.DictReader(lines) if row["confidence"] == "high"}
    assert len(high) >= 385
    assert not high - set(compared()) - set(left_out())


def test_parameters_that_torchtitan_logs_with_another_vocabulary():
    config = catalog.model_entry("deepseek-v2-lite")["config"] | {"vocab_size": 129_280}
    assert parameters(from_config(config)) == 15_816_584_704
