"""LoRA under Megatron, as Megatron-Bridge's ParallelLinearAdapter (peft/utils.py) and Transformer
Engine's LayerNormLinear (return_layernorm_output_gathered) have it, counted by hand."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.training.memory import saved_rows

LAYERS, D, QKV, F, HEADS, RANK = 80, 8192, 10_240, 28_672, 64, 16
S = 4096


def plan_of(tp=2, pp=4, parallel=(), **words):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "precision": "bf16-mixed",
        "checkpointing": "none", "micro_batch": 1, "seq_len": S, "cross_entropy": "fused",
        "grad_accumulation": 8, "adapter": "lora", "lora_targets": "attention-all",
    }  # fmt: skip
    shared = {"tp": tp, "pp": pp, "sequence_parallel": tp > 1} | dict(parallel)
    return Plan(model="llama-2-70b", cluster={"gpus": 16}, parallel=shared, train=train | words)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 4), (8, 2)])
def test_trainable_parameters_of_all_ranks(tp, pp):
    """44.6 million: A and B beside the joint projection and the output projection."""
    each = RANK * (D + QKV) + RANK * (D + D)
    assert evaluate(plan_of(tp, pp)).trainable_parameters == LAYERS * each == 44_564_480


def test_a_layer_keeps_what_adapters_and_kernels_read():
    """Of a frozen product nothing; A's input is the norm's result of all ranks' tokens."""
    tp = 2
    stream = 2 * S // tp * D + 4 * S // tp  # a norm's input and its statistics
    attention = 2 * S * (QKV + D) // tp + 4 * S * HEADS // tp
    adapters = 2 * S * D + 2 * (2 * S * RANK)  # the gathered norm, and the results of both A
    mlp = 2 * S * 2 * F // tp  # gate and up
    angles = 4 * S * 128
    found = sum(row.bytes for row in saved_rows(plan_of(tp, pp=4), stage=1))
    assert found == LAYERS // 4 * (2 * stream + attention + adapters + mlp) + angles


def test_gradients_and_states_are_of_adapters_alone():
    report = evaluate(plan_of(tp=2, pp=1))
    of = {
        kind: sum(r.bytes for r in report.ledger if r.consumer == kind)
        for kind in ("gradients", "optimizer_states")
    }
    own, replicas = 44_564_480 // 2, 8
    assert of["gradients"] == 4 * own
    assert of["optimizer_states"] == pytest.approx(12 * own / replicas, rel=1e-3)
    sent = {t.name: t.bytes for t in report.time.transfers if "weights" in t.name}
    assert sent == {
        "reduce-scatter gradients of weights": 4 * own,
        "all-gather updated weights": 2 * own,
    }


def test_a_frozen_model_runs_no_product_for_weights():
    whole, lora = (evaluate(plan_of(adapter=a)).time.model_flops for a in ("none", "lora"))
    assert lora < 0.72 * whole


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"adapter": "qlora"}, "unquantized"),
        ({"lora_modules": "q_proj"}, "names of their own"),
        ({"lora_rank": 9}, "set it to 10"),
    ],
)
def test_what_megatron_has_not(words, message):
    with pytest.raises(PlanError, match=message):
        plan_of(**words)


def test_without_sequence_parallelism_gradients_are_summed_twice():
    """The frozen product's and the adapter's, each on its own."""

    def sent(adapter):
        plan = plan_of(parallel={"sequence_parallel": False}, adapter=adapter)
        return sum(t.bytes for t in evaluate(plan).time.transfers if "gradients of tok" in t.name)

    assert sent("lora") > sent("none")


def test_experts_stay_as_they_are():
    words = {"adapter": "lora", "lora_targets": "attention-all", "framework": "megatron",
             "kernels": "megatron", "zero": 1, "checkpointing": "none"}  # fmt: skip
    plan = Plan(model="qwen3-30b-a3b", cluster={"gpus": 8}, parallel={"ep": 8}, train=words)
    report = evaluate(plan)
    assert all("adapter" in r.name for r in report.ledger if r.consumer == "gradients")


@pytest.mark.parametrize(("tp", "words"), [(2, {}), (1, {"lora_targets": "all-linear"})])
def test_every_number_is_explained(tp, words):
    plan = plan_of(tp=tp, pp=1, lora_dropout=0.1, **words)
    checked(Book(plan, evaluate(plan)))


SPARSE, WIDE, NARROW, ROWS = 48, 2048, 768, 4096 * 8


def mixture(ep=8, **words):
    train = {
        "adapter": "lora", "lora_targets": "all-linear", "framework": "megatron",
        "kernels": "megatron", "zero": 1, "checkpointing": "none", "lora_rank": RANK,
    }  # fmt: skip
    gpus = {"gpus": 8}
    return Plan(model="qwen3-30b-a3b", cluster=gpus, parallel={"ep": ep}, train=train | words)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_experts_have_one_adapter_together(ep):
    """Megatron-Bridge's LoRA: share_expert_adapters is its default (peft/lora.py)."""
    attention = evaluate(mixture(ep, lora_targets="attention-all"))
    both = evaluate(mixture(ep))
    each = RANK * (WIDE + 2 * NARROW) + RANK * (NARROW + WIDE)
    assert both.trainable_parameters - attention.trainable_parameters == SPARSE * each
    states = [
        sum(row.bytes for row in of.ledger if row.consumer == "optimizer_states")
        for of in (both, attention)
    ]
    holders, steps = 8 // ep, 4 * 4 * SPARSE  # ranks with the same experts; counters of 4 tensors
    assert states[0] - states[1] == 12 * SPARSE * each // holders + steps
    summed = [t for t in both.time.transfers if "experts' adapters" in t.name]
    assert bool(summed) == (ep > 1)


def test_adapters_of_experts_keep_the_rows_that_they_read():
    saved = [
        evaluate(mixture(lora_targets=of)).memory.saved_for_backward_bytes
        for of in ("all-linear", "attention-all")
    ]
    read = 2 * ROWS * (WIDE + NARROW)  # by A of each product
    made = 2 * (2 * ROWS * RANK)  # by B of each
    assert saved[0] - saved[1] == SPARSE * (read + made)


def test_each_expert_shared_by_ranks_has_no_adapter_planned():
    with pytest.raises(PlanError, match=r"lora_targets.*attention-all.*parallel\.etp to 1"):
        mixture(ep=2).with_changes({"parallel.tp": 2, "parallel.etp": 2})


def test_every_number_of_adapted_experts_is_explained():
    plan = mixture(lora_dropout=0.1)
    checked(Book(plan, evaluate(plan)))
