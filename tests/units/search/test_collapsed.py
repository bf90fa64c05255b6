"""Formulas that are collapsed first give each cell the number that they give it unread."""

import numpy as np
import pytest
from drawn import plans
from explored import examples
from hypothesis import given

from memcore.errors import PlanError
from memcore.plan.plan import Plan
from memcore.search import sweep as sweeping
from memcore.search.sweep import sweep
from memcore.tape.algebra import Algebra, UnsaidError
from memcore.tape.dims import ceil_div, maximum, minimum, next_power_of_2, where
from memcore.tape.program import Program
from memcore.training.overheads import by_rules
from memcore.training.training import not_planned

SIZES = ("memory.allocated_bytes", "memory.tiers.dram", "memory.tiers.nvme")
MEMORY = (*SIZES, "memory.fits", "memory.device_bytes.1", "memory.reserved_bytes.0")
TIMES = (
    *("time.step_seconds", "time.bubble_seconds", "time.mfu", "time.exposed.compute"),
    *("time.exposed.host", "time.resources.network", "run.gpu_hours"),
)
ROUNDING = 1e-11  # of floating-point sums in another order


def both(plan, axes, numbers):
    """Each number with collapsed formulas, and without. Raises UnsaidError."""
    shaped = {
        name: np.asarray(values).reshape([-1 if i == k else 1 for k in range(len(axes))])
        for i, (name, values) in enumerate(axes.items())
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = sweeping._read(plan, shaped, numbers)
    return sweeping._collapsed(plan, shaped, numbers), plain


def held(plan, axes, numbers):
    collapsed, plain = both(plan, axes, numbers)
    for number in numbers:
        ours, theirs = np.broadcast_arrays(collapsed[number], plain[number])
        if number in SIZES:
            assert (ours == theirs).all(), number
        np.testing.assert_allclose(ours, np.asarray(theirs, float), ROUNDING, err_msg=number)


@examples(15)
@given(plans())
def test_any_plan(plan):
    if not_planned(plan):
        return
    image = plan.architecture.image
    lengths = [image.tokens] if image else [1, 64, 300, 4096]
    axes = {"train.micro_batch": [1, 2, 5, 96], "train.seq_len": lengths}
    try:
        held(plan, axes, TIMES)
        held(plan, axes | {"cluster.gpus": [plan.cluster.gpus * n for n in (1, 2, 7)]}, MEMORY)
    except UnsaidError:  # what follows each plan's tensors one by one, and tokens cut into entries
        assert by_rules(plan) or plan.architecture.entries


@pytest.mark.parametrize(
    "train",
    [
        {"framework": "pytorch", "zero": 0},
        {"framework": "fsdp2", "checkpointing": "full"},
        {"framework": "deepspeed", "offload_optimizer": "cpu"},
        {"framework": "megatron", "zero": 1, "kernels": "megatron"},
    ],
    ids=lambda train: train["framework"],
)
def test_what_every_framework_does_can_be_said(train):
    plan = Plan.of({"train": train})
    axes = {"train.micro_batch": range(1, 20), "train.seq_len": range(64, 1024, 64)}
    held(plan, axes, (*MEMORY, *TIMES))


def test_a_long_table_is_collapsed_and_a_short_one_is_not():
    axes = {"train.micro_batch": range(1, 101), "train.seq_len": range(64, 64 * 101, 64)}
    long = sweep(Plan(), axes, [*SIZES, "time.step_seconds"])
    short = sweep(Plan(), axes | {"train.seq_len": [64, 640]}, [*SIZES, "time.step_seconds"])
    both = long.merge(short, on=list(axes))
    assert len(both) == len(short) == 200 < sweeping.MANY <= len(long)
    for number in SIZES:
        assert (both[f"{number}_x"] == both[f"{number}_y"]).all()


def value(number, **axes):
    """A term's values at a grid of the axes."""
    program = Program(number.algebra, list(axes.values()), [number])
    out = np.empty(tuple(map(len, axes.values())))
    for where_, (n,) in program.blocks():
        out[where_] = n
    return out


def test_terms_are_numbers():
    b, s = np.arange(1, 50), np.arange(3, 4000, 7)
    every = [
        lambda x, y: x * y * 6 - 3 * y + x - 1,
        lambda x, y: ceil_div(x * y * 5 + 3, 64),
        lambda x, y: (12 * x * y + 5) // 4 // y,
        lambda x, y: maximum(7 * x * y, 100 * y + x),
        lambda x, y: minimum(maximum(x, 13), y),
        lambda x, y: where((x == 1) | (y > 500), y + 1, x * y),
        lambda x, y: where(~(x > 4) & (y >= 100), 0, 2 * x),
        lambda x, y: next_power_of_2(ceil_div(x * y, 9)),
        lambda x, y: x * y / (x + y) / 3.0,
        lambda x, y: (x * y) % 17 + y // x,
    ]
    for formula in every:
        algebra = Algebra()
        x, y = algebra.axis("x", int(b.min()), int(b.max())), algebra.axis("y", 3, int(s.max()))
        ours = value(formula(x, y), x=b, y=s)
        np.testing.assert_allclose(ours, formula(b[:, None], s[None, :]), 1e-15)


def test_what_never_wins_is_dropped():
    algebra = Algebra()
    x = algebra.axis("x", 2, 9)
    assert maximum(4 * x, x + 5).parts == (4 * x).parts  # from 2 on
    assert maximum(0, 4 * x).parts == (4 * x).parts
    assert len(algebra.atoms) == 1  # nothing but the axis
    assert len(maximum(maximum(3 * x, x + 5), 2 * x + 1).parts) == 1
    assert len(algebra.atoms) == 2  # one maximum of 3 x and x + 5


def test_what_has_no_words_is_said_so():
    algebra = Algebra()
    x = algebra.axis("x", 1, 2**30)
    for refused in (int, float, bool, list, lambda n: n * float("inf"), lambda n: n**2 // 3):
        with pytest.raises(UnsaidError):
            refused(x)


def test_a_plan_that_is_none_stays_refused():
    with pytest.raises(PlanError):
        sweep(Plan(), {"train.micro": range(10_000)})
