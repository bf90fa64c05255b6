"""A sweep's cell is the number that `evaluate` gives that plan."""

import contextlib
import math

import pandas as pd
import pytest
from drawn import plans
from explored import examples
from hypothesis import given
from swept import number_at

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.quantity.reading import QUANTITIES, Values
from memcore.search import sweep as sweeping
from memcore.search.sweep import sweep
from memcore.training.saved import Saved

ROUNDING = 1e-9  # of floating-point sums in another order
SWEPT = (
    *("memory.allocated_bytes", "time.step_seconds", "time.bubble_seconds", "time.mfu"),
    *("time.tokens_per_second", "time.exposed.compute", "time.exposed.hbm", "time.exposed.nvlink"),
    *("time.exposed.host", "time.resources.network", "run.steps", "run.seconds", "run.gpu_hours"),
)


MEMORY = (
    *("memory.allocated_bytes", "memory.fits", "memory.tiers.dram", "memory.tiers.nvme"),
    *("memory.reserved_bytes.0", "memory.reserved_bytes.1"),
    *("memory.device_bytes.0", "memory.device_bytes.1", "memory.tier_capacities.dram"),
)


def held(table, plan, axes, numbers):
    """Every cell of a table against evaluate; how many were compared."""
    compared = 0
    for row in table.to_dict("records"):
        document = plan.document()
        for name in axes:
            part, _, field = name.partition(".")
            document[part][field] = row[name]
        try:
            report = evaluate(Plan.of(document)).to_dict()
        except PlanError:
            report = {}
        for number in numbers:
            value = number_at(report, number)
            if value is None:
                assert math.isnan(row[number]), (row, number)
            else:
                assert row[number] == pytest.approx(value, rel=ROUNDING), (row, number)
                compared += 1
    return compared


@examples(8)
@given(plans())
def test_times_of_any_plan(plan):
    """Where training is planned: batches and lengths as arrays, read by the same functions."""
    image = plan.architecture.image
    axes = {
        "train.micro_batch": [1, 2, 5],
        "train.seq_len": [image.tokens] if image else [1, 64, 300],
    }
    held(sweep(plan, axes, SWEPT), plan, axes, SWEPT)


@examples(4)
@given(plans())
def test_memory_of_any_plan(plan):
    """What is reserved, what the GPU and its host hold and whether it fits: batches as arrays."""
    image = plan.architecture.image
    axes = {
        "train.micro_batch": [1, 5],
        "train.seq_len": [image.tokens] if image else [64, 300],
        "cluster.gpus": [1, 64],
    }
    held(sweep(plan, axes, MEMORY), plan, axes, MEMORY)


# Of its two stages the second has a layer more, and the loss.
FIFTEEN = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 15}
FIFTEEN |= {"num_attention_heads": 16, "intermediate_size": 5632, "vocab_size": 32_000}


@pytest.mark.parametrize(
    "words",
    [
        {"train": {"framework": "fsdp2", "offload_activations": "cpu"}},
        {"train": {"framework": "deepspeed", "zero": 3, "offload_optimizer": "nvme"}},
        {"train": {"framework": "deepspeed", "zero": 2, "offload_optimizer": "cpu"}},
        {"train": {"framework": "pytorch", "zero": 0, "allocator": "native"}},
        {
            "train": {
                "framework": "megatron",
                "kernels": "megatron",
                "zero": 1,
                "grad_accumulation": 4,
            }
        }
        | {"parallel": {"tp": 2, "pp": 2}},
        {
            "train": {
                "framework": "fsdp2",
                "zero": 0,
                "optimizer": "paged-adamw32bit",
                "grad_accumulation": 4,
            }
        }
        | {"model": FIFTEEN, "parallel": {"pp": 2}},
        {"model": "qwen2.5-0.5b", "cluster": {"gpu": "dgx-spark-gb10-128gb", "gpus": 1}},
    ],
    ids=["activations", "nvme", "host", "ddp", "pipeline", "pages", "unified"],
)
def test_memory_and_whether_it_fits(words):
    """A sweep passes from what fits to what does not at the same cell as evaluate."""
    plan = Plan.of({"model": "llama-3.2-1b"} | words)
    axes = {"cluster.gpus": [1, 2, 4, 16], "train.micro_batch": [1, 64, 512]}
    table = sweep(plan, axes, MEMORY)
    assert held(table, plan, axes, MEMORY) >= 3 * len(MEMORY)
    assert set(table["memory.fits"].dropna()) == {0, 1}


def test_what_is_to_spare_is_swept_too():
    numbers = ("memory.room_bytes.0", "memory.capacity_bytes", "memory.device_bytes.1")
    room, capacity, device = sweep(Plan(), {"train.micro_batch": [1, 4]}, numbers)[
        list(numbers)
    ].T.values
    assert (room == capacity - device).all()


@pytest.mark.parametrize(
    "words",
    [
        {},
        {
            "train": {"framework": "megatron", "kernels": "megatron", "zero": 1}
            | {"grad_accumulation": 4},
            "parallel": {"tp": 2, "pp": 4},
        },
        {"train": {"framework": "deepspeed", "offload_optimizer": "cpu"}},
        {"train": {"framework": "pytorch", "zero": 0}},
        {"model": "qwen3-30b-a3b"},
    ],
    ids=["fsdp2", "megatron", "deepspeed", "ddp", "mixture"],
)
def test_every_kind_of_axis(words):
    plan = Plan.of({"model": "llama-3.2-1b"} | words)
    axes = {
        "train.checkpointing": ["none", "full"],
        "train.micro_batch": [1, 4],
        "cluster.gpus": [1, 8, 12],
        "train.seq_len": [512, 2048],
    }
    numbers = ("memory.allocated_bytes", "time.step_seconds", "run.seconds")
    assert held(sweep(plan, axes, numbers), plan, axes, numbers) > 20


@pytest.mark.parametrize("gpus", [1, 8])
def test_replicas_are_read_with_arrays(gpus, monkeypatch):
    """One GPU reduces no gradients, so that its step is another; those of 2 and 1,024 are one."""
    plan = Plan.of(
        {
            "model": "llama-3.2-1b",
            "cluster": {"gpus": gpus},
            "train": {"framework": "pytorch", "zero": 0},
        }
    )
    axes = {"train.micro_batch": [1, 2], "cluster.gpus": [2, 1, 0, 3, 8, 1024]}
    counted, steps_of = [], sweeping.steps_of
    monkeypatch.setattr(sweeping, "steps_of", lambda of: counted.append(of) or steps_of(of))
    table = sweep(plan, axes, MEMORY)
    assert len(counted) == 2
    assert held(table, plan, axes, MEMORY) == 10 * len(MEMORY)


def test_pipelines_that_leave_weights_for_last_are_swept():
    start = Plan.of(
        {
            "model": "llama-3.2-1b",
            "parallel": {"pp": 2, "schedule": "zero-bubble"},
            "train": {"framework": "fsdp2", "grad_accumulation": 4},
        }
    )
    axes = {
        "train.micro_batch": list(range(1, 5)),
        "train.seq_len": [64 * i for i in range(1, 5)],
    }
    numbers = ("memory.allocated_bytes", "time.step_seconds")
    found = sweep(start, axes, numbers)
    held(found.iloc[::2], start, axes, numbers)


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_numbers_beyond_64_bits_are_right(attention):
    """At 16 million tokens a sequence a step of a large model has more than 2^63 operations."""
    train = {"seq_len": 1 << 24, "attention": attention}
    start = Plan.of({"model": "llama-3.1-405b", "cluster": {"gpus": 1024}, "train": train})
    numbers = ["memory.allocated_bytes", "time.step_seconds"]
    found = sweep(start, {"train.micro_batch": [1, 16, 65536]}, numbers)
    for batch, *cells in found.itertuples(index=False):
        report = evaluate(start.with_changes({"train.micro_batch": batch})).to_dict()
        assert cells == pytest.approx([number_at(report, n) for n in numbers], rel=ROUNDING)


def test_a_number_that_is_not_read_with_arrays_is_that_of_each_plan():
    axes = {"serve.concurrency": [1, 64], "serve.kv_dtype": ["bf16", "fp8"]}
    numbers = ("serve.max_concurrency", "serve.tpot_seconds", "parameters")
    table = sweep(Plan(), axes, numbers)
    assert list(table) == [*axes, *numbers]
    assert held(table, Plan(), axes, numbers) == 12


def test_what_cannot_exist_has_no_number():
    table = sweep(Plan(), {"parallel.tp": [1, 7]}, ["time.step_seconds"])
    assert table["time.step_seconds"].notna().tolist() == [True, False]


def test_a_field_or_a_number_that_there_is_not_is_refused_by_name():
    with pytest.raises(PlanError, match=r"train\.micro_bach.*train\.micro_batch"):
        sweep(Plan(), {"train.micro_bach": [1]})
    with pytest.raises(PlanError, match=r"time\.step_second.*time\.step_seconds"):
        sweep(Plan(), {"train.micro_batch": [1]}, ["time.step_second"])


def test_a_quantity_is_the_report_s_own_number():
    plan = Plan.of({"run": {"price_per_gpu_hour": 2.5}})
    report = evaluate(plan)
    given = {"time": report.time, "memory": report.memory, "saved": Saved.of(plan)}
    x = Values(plan=plan, hardware=plan.accelerator, **given)
    document = report.to_dict()
    for path in QUANTITIES:
        part, field, *end = path.split(".")
        if (said := number_at(document, path)) is not None and part in ("run", "time", "memory"):
            value = getattr(getattr(x, part), field)
            value = value[int(end[0])] if end else value
            assert (list(value) if isinstance(value, tuple) else value) == said, path


def test_an_empty_axis_gives_an_empty_table():
    table = sweep(Plan(), {"train.micro_batch": []}, ["time.step_seconds"])
    assert isinstance(table, pd.DataFrame)
    assert table.empty


def test_a_value_that_a_field_cannot_have_is_impossible_on_a_numeric_axis_too():
    """Not cut to a whole number, and not a number of a plan that nobody can have."""
    axes = {"train.micro_batch": [0, 1, 2.5, True, "2", 70_000], "train.seq_len": [64, 128]}
    table = sweep(Plan(), axes, ["memory.allocated_bytes", "time.step_seconds"])
    ok = [row == 1 and row is not True for row in axes["train.micro_batch"] for _ in range(2)]
    for number in ("memory.allocated_bytes", "time.step_seconds"):
        assert table[number].notna().tolist() == ok


@pytest.mark.parametrize(
    ("words", "axis"),
    [
        (
            {
                "cluster": {"gpus": 16},
                "together": {"kind": "grpo", "engine_tp": 4},
            },
            {"cluster.gpus": [2, 6, 8, 12]},
        ),
        ({"serve": {"prefill": "disaggregated"}}, {"cluster.gpus": [1, 2, 8]}),
        (
            {"model": "llava-1.5-7b", "train": {"images": 2}},
            {"train.seq_len": [512, 1024, 1152, 4096]},
        ),
    ],
    ids=["engines", "replicas", "images"],
)
def test_rules_that_are_none_of_sizes_forbid_cells_too(words, axis):
    plan = Plan.of(words)
    numbers = ("memory.allocated_bytes", "time.step_seconds")
    table = sweep(plan, axis, numbers)
    held(table, plan, axis, numbers)
    assert table[numbers[0]].isna().any()


def numbers_of(part, path=""):
    """Each number of a report's document, but for its rows."""
    if isinstance(part, dict):
        for name, inner in part.items():
            if name not in ("plan", "ledger", "timeline", "transfers"):
                yield from numbers_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(part, list):
        for i, inner in enumerate(part[:2]):
            yield from numbers_of(inner, f"{path}.{i}")
    elif isinstance(part, int | float):
        yield path


def test_every_number_of_a_report_is_swept():
    plan = Plan.of({"model": "llama-3-8b", "run": {"price_per_gpu_hour": 2.5}})
    axes, numbers = {"train.micro_batch": [1, 2]}, list(numbers_of(evaluate(plan).to_dict()))
    assert held(sweep(plan, axes, numbers), plan, axes, numbers) > 300


def test_whatever_is_asked_for_is_a_number_or_refused():
    others = [p.rpartition(".")[0] for p in numbers_of(evaluate(Plan()).to_dict())]
    wrong = ("time.exposed.foo", "time.exposed.", "time.", ".", "memory.reserved_bytes.7", "run")
    for number in {*QUANTITIES, *others, *wrong}:
        with contextlib.suppress(PlanError):  # and no other error
            assert sweep(Plan(), {"train.micro_batch": [1, 2]}, [number])[number].dtype == float


def test_an_axis_wants_a_list_of_values():
    with pytest.raises(PlanError, match=r"train\.checkpointing.*list of values"):
        sweep(Plan(), {"train.checkpointing": "none"})
