"""float8 under tensor parallelism, against what torchao keeps of it (reference/ask_float8.py)."""

import asked
import pytest
from tables import each

from evidence.pytorch import dispatched
from memcore.plan.plan import Plan

TABLE = asked.table("float8")
RANKS = 2  # of FSDP2, as in ask_float8.py
PRECISIONS = {
    "bf16": "bf16-mixed", "rowwise": "float8-rowwise", "tensorwise": "float8-tensorwise",
}  # fmt: skip
# Eager casts go through copies in fp32, some of which DTensor lets go of earlier and some later
# than one function would; a compiler makes none of them.
PEAK_TOLERANCE = 0.07


def plan_of(row, layers, ranks):
    train = {w: row[w] for w in ("attention", "checkpointing")} | {
        "micro_batch": row["batch"], "seq_len": row["seq"], "zero": 3 if ranks > 1 else 0,
        "precision": PRECISIONS[row["precision"]],
    }  # fmt: skip
    return Plan(
        model=TABLE["configs"][row["model"]] | {"num_hidden_layers": layers},
        cluster={"gpu": "h100-sxm-80gb", "gpus": ranks * row["tp"]},
        parallel={"tp": row["tp"], "sequence_parallel": True},
        train=train,
    )


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_of_a_layer_are_equal(row):
    """Tokens that ranks gather, and the inputs of row-parallel products, in 8 bits with one scale;
    in 16 bits where each row has one."""
    more, less = (asked.saved(plan_of(row, n, 1)) for n in (3, 2))
    assert more - less == row["bytes"]


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = dispatched(asked.trained(plan_of(row, 3, RANKS)))
    assert ours == pytest.approx(row["bytes"], rel=PEAK_TOLERANCE)
