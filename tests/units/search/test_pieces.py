"""The peak as straight pieces: each micro-batch's peak is on its piece."""

import pytest
from drawn import plans
from explored import examples
from hypothesis import given

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.pieces import pieces


def held(plan, found):
    batches = [n for piece in found for n in range(piece.first, piece.last + 1)]
    assert batches == list(range(1, 65))
    for piece in found:
        for n in {piece.first, (piece.first + piece.last) // 2, piece.last}:
            memory = evaluate(plan.changed("train.micro_batch", n)).memory
            said = piece.base_bytes + piece.each_bytes * n
            assert said == pytest.approx(memory.allocated_bytes, abs=n)
        first = evaluate(plan.changed("train.micro_batch", piece.first)).memory.peak
        assert (first.instant, first.rank) == (piece.instant, piece.stage)


@examples(5)
@given(plans())
def test_any_plan(plan):
    held(plan, pieces(plan))


def test_which_instant_takes_over_where():
    plan = Plan.of({"model": "llama-3-70b", "cluster": {"gpus": 64}})
    found = pieces(plan)
    held(plan, found)
    assert [p.instant for p in found] == ["backward-next-to-last-layer", "loss-backward"]
    assert found[0].text == "25.24 GiB + 6.89 GiB x micro_batch"
