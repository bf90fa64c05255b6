"""Megatron-FSDP: what each rank has, what is gathered and reduced at once, and what is sent
(megatron/core/distributed/fsdp/src/megatron_fsdp at d98e8a6)."""

import pytest
from explained import checked
from mixtures import MIXTURE

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.tape.ledger import Amounts
from memcore.training.steps import step_of, training_sizes

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip
# Products of a layer, and its norms; embedding and head.
LAYER = 1024 * 1024 * 3 + 3 * 1024 * 4096 + 2 * 1024
TABLE = 1024 * 32000


def plan_of(gpus=8, model=LLAMA, parallel=None, **words):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 3, "precision": "bf16-mixed",
        "micro_batch": 1, "seq_len": 512, "checkpointing": "none",
    }  # fmt: skip
    return Plan(model=model, cluster={"gpus": gpus}, parallel=parallel or {}, train=train | words)


def rows(plan, consumer, part=""):
    return sum(r.bytes for r in evaluate(plan).ledger if r.consumer == consumer and part in r.name)


@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("in_fp32", [True, False])
def test_a_rank_has_its_part_of_all_states(gpus, in_fp32):
    """Weights in bf16, gradients as they are summed, and a master copy and two moments in fp32."""
    plan = plan_of(gpus, grad_reduce_in_fp32=in_fp32)
    whole = 8 * LAYER + 2 * TABLE + 1024
    peak = evaluate(plan).memory.timeline[0].consumers
    assert peak["parameters"] == pytest.approx(2 * whole / gpus, rel=1e-3)
    assert peak["gradients"] == pytest.approx((4 if in_fp32 else 2) * whole / gpus, rel=1e-3)
    assert peak["optimizer_states"] == pytest.approx(12 * whole / gpus, rel=1e-3)


def test_halves_of_a_measured_run_differ_by_the_states_that_another_rank_has():
    """Golden runs of Megatron-LM on GB200, of a GPT with TP 2: 246,999,552 B after a step with four
    ranks, 394,290,688 with two (gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor, and its _1node)."""
    gpt = {
        "model_type": "gpt2", "n_embd": 512, "n_layer": 12, "n_head": 8, "n_positions": 1024,
        "vocab_size": 50257, "tie_word_embeddings": True,
    }  # fmt: skip

    def states(gpus):
        plan = plan_of(gpus, gpt, {"tp": 2}, micro_batch=4, seq_len=1024, attention="flash")
        last = evaluate(plan).memory.timeline[-1].consumers
        return sum(last[c] for c in ("parameters", "gradients", "optimizer_states"))

    measured = 394_290_688 - 246_999_552
    assert states(4) - states(8) == pytest.approx(measured, rel=0.012)


def test_one_rank_gathers_nothing():
    plan = plan_of(1)
    whole = evaluate(plan.changed("train.zero", 1)).memory.allocated_bytes
    assert evaluate(plan).memory.allocated_bytes == whole
    assert evaluate(plan).time.transfers == ()


def simulated(unit, layers):
    """Layers that are gathered at once in backward, and whose gradients are there: the loops of
    AllGatherPipeline.all_gather_params and GradReducePipeline.wait_for_previous_grad_reduce."""
    suggested = max(1_000_000_000, unit * 2)
    ready, queue, gathered, waiting = set(), [], 0, 0
    for layer in reversed(range(layers)):
        wanted, size = [layer], 0
        while wanted[-1] > 0 and size < suggested // 2:
            wanted.append(wanted[-1] - 1)
            size = unit * (len(wanted) - 1)
        ready |= set(wanted)
        gathered = max(gathered, len(ready))
        waiting = max(waiting, len(queue) + 1)
        ready.discard(layer)
        while unit * len(queue) > suggested:
            queue.pop(0)
        queue.append(layer)
    return gathered, waiting


@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b"])
def test_as_many_layers_are_there_at_once_as_its_loops_leave(model):
    plan = plan_of(16, model)
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    layers, sizes = sum(step.grouped), amounts.sizes
    found = min(sizes["AHEAD"], layers - 1) + 1, min(sizes["QUEUED"], layers - 1) + 1
    assert found == simulated(sizes["UNIT"], layers)


def test_each_micro_batch_gathers_twice_and_reduces_once():
    """What is no unit is gathered once a step."""
    plan = plan_of(grad_accumulation=4)
    moved = {t.name: t.bytes for t in evaluate(plan).time.transfers}
    gathers, reduces = 2 * LAYER, 4 * LAYER
    forward = moved["all-gather first layer's weights"]
    forward += moved["all-gather layers', forward, weights"]
    assert forward == pytest.approx(4 * 8 * gathers, rel=1e-3)
    both = moved["all-gather and reduce-scatter layers', backward, weights"]
    assert both == pytest.approx(4 * 7 * (gathers + reduces), rel=1e-3)
    assert moved["all-gather root's weights"] == pytest.approx(2 * 2 * TABLE, rel=1e-3)


def test_experts_are_cut_over_ranks_that_have_the_same():
    plan = plan_of(model=MIXTURE, parallel={"ep": 4})
    alone = plan.changed("parallel.ep", 8)
    moved = {t.name for t in evaluate(plan).time.transfers}
    assert "all-gather layers', forward, experts" in moved
    assert not any(
        "experts" in t.name and "layers" in t.name for t in evaluate(alone).time.transfers
    )
    experts = 4 * 16 * 3 * 512 * 256
    for p in (plan, alone):  # on one of 8 ranks, however they are shared out
        found = [r for r in evaluate(p).ledger if ".experts." in r.name and ".step" not in r.name]
        assert sum(r.bytes for r in found if r.consumer == "optimizer_states") == 12 * experts / 8


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"pp": 2}, {}),
        ({}, {"adapter": "lora"}),
        ({}, {"precision": "fp8-params"}),
        ({}, {"optimizer": "adamw-aware"}),
        ({}, {"cuda_graphs": "full_iteration"}),
        ({}, {"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
    ],
)
def test_what_it_is_not_planned_with(parallel, words):
    with pytest.raises(PlanError):
        plan_of(parallel=parallel, **words)


def test_every_number_is_explained():
    plan = plan_of(model=MIXTURE, parallel={"ep": 4}, grad_accumulation=2)
    checked(Book(plan, evaluate(plan)))
