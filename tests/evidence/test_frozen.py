"""Frozen weights against PyTorch, and moving averages of the weights.

frozen.json holds what reference/ask_frozen.py was told by torch and transformers.
"""

import asked
import pytest
from explained import checked
from tables import each

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

TABLE = asked.table("frozen")
WORDS = ("attention", "checkpointing", "frozen", "trained_layers", "kernels")
PEAK_TOLERANCE = 0.01
# The embedding's result needs a gradient then. FSDP2's tracker keeps that result and its gradient,
# which PyTorch does not; PyTorch keeps the result where the first layer gets something made from
# it. Each is one tensor of few in models this small.
CHECKPOINTED_TOLERANCE = 0.045
# Where no layer is trained the peak is in the forward of one, and eager attention holds by name
# what a trained one saves; ours frees it.
NAMES_HELD = {"bloom-drop": 0.35, "gemma2": 0.09}


def plan_of(row):
    return asked.plan_of(TABLE, row, (*WORDS, *asked.seen(row)))


@each("row", asked.rows(TABLE, "parameters"))
def test_trained_parameters_are_equal(row):
    assert asked.trained(plan_of(row)).trainable_parameters == row["bytes"]


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    assert asked.saved(plan_of(row)) == row["bytes"]


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = asked.peak(plan_of(row))
    tolerance = PEAK_TOLERANCE
    if row["checkpointing"] != "none":
        tolerance = CHECKPOINTED_TOLERANCE
    elif row["trained_layers"] == 0 and row["frozen"] == "lower":
        tolerance = NAMES_HELD.get(row["model"], PEAK_TOLERANCE)
    assert ours == pytest.approx(row["bytes"], rel=tolerance)


def plan(model="llama-3-8b", gpus=8, **train):
    return Plan(model=model, cluster={"gpus": gpus}, train={"checkpointing": "none"} | train)


def test_a_frozen_weight_has_no_gradient_and_no_state():
    report = evaluate(plan(frozen="lower", trained_layers=2))
    layer = 4096 * (6144 + 4096 + 3 * 14_336 + 2)
    assert report.trainable_parameters == 2 * layer + 4096 + 4096 * 128_256
    states = sum(r.bytes for r in report.ledger if ".exp_avg" in r.name)
    assert states == 8 * report.trainable_parameters / 8
    assert report.time
    assert any("frozen" in note for note in report.notes)


def test_more_trained_layers_take_longer():
    """And one that backward does not reach is not gathered for it: FSDP2's traffic is of forward
    alone, where no layer is trained."""
    steps = [evaluate(plan(frozen="lower", trained_layers=n)).time for n in (0, 1, 2, 8, 31, 32)]
    seconds = [t.step_seconds for t in steps]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(seconds)
    whole = evaluate(plan(frozen="embeddings")).time
    assert steps[-1].step_seconds == whole.step_seconds < evaluate(plan()).time.step_seconds

    def moved(time, word):
        return sum(t.bytes for t in time.transfers if word in t.name)

    assert moved(steps[0], "layers, backward") == 0
    share = moved(steps[3], "layers, backward") / moved(whole, "layers, backward")
    assert share == pytest.approx(7 / 31)


@pytest.mark.parametrize(("zero", "framework"), [(0, "pytorch"), (0, "fsdp2"), (2, "fsdp2")])
def test_gradients_sent_are_of_trained_weights(zero, framework):
    words = {"zero": zero, "framework": framework, "frozen": "lower", "trained_layers": 8}
    sent = [
        sum(t.bytes for t in evaluate(plan(**train)).time.transfers if "reduce" in t.name)
        for train in (words, words | {"trained_layers": 32})
    ]
    assert sent[0] < sent[1] / 2


def test_more_trained_layers_never_need_less():
    peaks = [
        evaluate(plan(frozen="lower", trained_layers=n)).memory.allocated_bytes
        for n in (0, 1, 2, 8, 31, 32, 40)
    ]
    assert peaks == sorted(peaks)
    assert peaks[-1] == evaluate(plan(frozen="embeddings")).memory.allocated_bytes


# AveragedModel's weights are like the model's: fp32 and sharded under FSDP2. The optimizer's are in
# fp32, and over ranks under ZeRO-1.
@pytest.mark.parametrize(
    ("words", "ema", "per_parameter"),
    [
        ({}, "weights", 4 / 8),
        ({}, "fp32", 4 / 8),
        ({"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}, "weights", 2),
        ({"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}, "fp32", 4),
        ({"framework": "megatron", "kernels": "megatron", "zero": 1}, "weights", 2),
        ({"framework": "megatron", "kernels": "megatron", "zero": 1}, "fp32", 4 / 8),
    ],
)
def test_bytes_of_an_average(words, ema, per_parameter):
    without, kept = (evaluate(plan(ema=e, **words)) for e in ("none", ema))
    beside = kept.memory.allocated_bytes - without.memory.allocated_bytes
    assert beside == pytest.approx(per_parameter * kept.parameters, rel=1e-4)
    rows = [r for r in kept.ledger if "average" in r.name]
    assert sum(r.bytes for r in rows) == beside
    assert {r.consumer for r in rows} == {"optimizer_states"}


def test_an_average_in_fp32_is_offloaded_with_the_optimizer():
    on, off = (
        evaluate(plan(ema=e, offload_optimizer="cpu")).memory.tiers["dram"]
        for e in ("fp32", "none")
    )
    assert on - off == pytest.approx(4 * 8_030_261_248, rel=1e-4)


@pytest.mark.oracle
def test_torch_s_averaged_model_is_as_large_as_the_model():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(64, 32, dtype=torch.bfloat16)
    average = torch.optim.swa_utils.AveragedModel(model)
    sizes = {n: p.numel() * p.element_size() for n, p in average.state_dict().items()}
    assert sizes == {"n_averaged": 8, "module.weight": 64 * 32 * 2, "module.bias": 32 * 2}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"frozen": "lower", "framework": "megatron", "kernels": "megatron", "zero": 1}, "frozen"),
        ({"frozen": "lower", "kernels": "compile"}, "frozen"),
        ({"frozen": "embeddings", "offload_optimizer": "cpu"}, "frozen"),
        ({"frozen": "embeddings", "adapter": "lora", "adapter_dtype": "base"}, "frozen"),
        ({"frozen": "embeddings", "model": "bert-base"}, "frozen"),
        ({"ema": "fp32", "adapter": "lora", "adapter_dtype": "base"}, "ema"),
    ],
)
def test_what_is_not_modelled_is_refused(words, field):
    with pytest.raises(PlanError, match=rf"train\.{field}"):
        plan(**words)


@pytest.mark.parametrize(
    "words",
    [
        {"frozen": "embeddings"},
        {"frozen": "lower", "trained_layers": 0},
        {"frozen": "lower", "trained_layers": 3, "checkpointing": "full"},
        {"ema": "fp32"},
        {"ema": "weights", "framework": "pytorch", "zero": 0, "precision": "bf16-pure"},
    ],
)
def test_every_number_is_explained(words):
    p = plan(**words)
    checked(Book(p, evaluate(p)))
