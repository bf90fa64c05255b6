"""Between two plans: each change by itself, and all of them the whole difference."""

import itertools
import math

import pytest
from drawn import plans
from explored import examples
from hypothesis import given

from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan, put
from memcore.search.change import differences
from memcore.search.waterfall import waterfall

ROUNDING = 1e-9
WORKED = [Plan.of(entry["plan"]) for entry in catalog.plan_entries().values()]


def checked(before, after):
    changes = waterfall(before, after)
    first, last = evaluate(before), evaluate(after)
    if first.memory is None or last.memory is None:
        assert changes == ()
        return
    changed = [path for change in changes for path in change.fields]
    assert sorted(changed) == sorted(differences(before, after))
    moved = last.memory.allocated_bytes - first.memory.allocated_bytes
    assert sum(change.bytes for change in changes) == moved
    device = last.memory.device_bytes[1] - first.memory.device_bytes[1]
    assert sum(change.device_bytes for change in changes) == device
    if first.time and last.time:
        for name, ends in (
            ("seconds", [r.time.step_seconds for r in (first, last)]),
            ("per_token", [1 / r.time.tokens_per_second for r in (first, last)]),
        ):
            total = sum(getattr(change, name) for change in changes)
            assert math.isclose(
                total, ends[1] - ends[0], rel_tol=ROUNDING, abs_tol=1e-9 * max(ends)
            )
    document, at = before.document(), first
    for change in changes:
        for path, value in change.fields.items():
            put(document, path, value)
        then = evaluate(Plan.of(document))
        assert change.bytes == then.memory.allocated_bytes - at.memory.allocated_bytes
        assert change.seconds == then.time.step_seconds - at.time.step_seconds
        at = then
    assert document == after.document()


@given(plans(), plans())
@examples(6)
def test_changes_between_any_two_plans_add_up(before, after):
    checked(before, after)


@pytest.mark.parametrize("pair", list(itertools.pairwise(WORKED)))
def test_changes_between_worked_plans_add_up(pair):
    checked(*pair)


def test_what_must_go_together_goes_together():
    after = Plan(train={"framework": "megatron", "zero": 1, "kernels": "megatron"})
    (change,) = waterfall(Plan(), after)
    assert set(change.fields) == {"train.framework", "train.zero", "train.kernels"}


def test_nothing_between_a_plan_and_itself():
    assert waterfall(Plan(), Plan()) == ()


def test_fields_come_in_the_order_of_a_plan():
    train = {"micro_batch": 2, "optimizer": "sgd", "attention": "sdpa"}
    changes = waterfall(Plan(), Plan(train=train, cluster={"gpus": 16}))
    assert [next(iter(c.fields)) for c in changes] == [
        *("cluster.gpus", "train.micro_batch", "train.optimizer", "train.attention")
    ]
