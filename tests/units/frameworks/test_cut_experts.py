"""Tensor parallelism of mixtures outside Megatron: ranks cut each expert's width, and every rank
routes all tokens of its group (torchtitan v0.2.2, distributed/expert_parallel.py: TensorParallel;
models/llama4/infra/parallelize.py: apply_moe_ep_tp)."""

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.tape.ledger import Amounts, saved
from memcore.training.steps import step_of, training_sizes

QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024,
    "moe_intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 4,
    "vocab_size": 4096,
}  # fmt: skip
HALF = QWEN | {"moe_intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 4096,
}  # fmt: skip
TOKENS = 2 * 256
DEEPSEEK = {"model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4}


def plan_of(model=QWEN, tp=2, sequence=False, gpus=None, **words):
    train = {
        "framework": "fsdp2", "zero": 3, "precision": "bf16-mixed", "micro_batch": 2,
        "seq_len": 256, "checkpointing": "none",
    }  # fmt: skip
    return Plan(
        model=model, cluster={"gpus": gpus or 4 * tp},
        parallel={"tp": tp, "sequence_parallel": sequence}, train=train | words,
    )  # fmt: skip


def layers(plan):
    """Bytes of what one layer keeps for its backward, by name."""
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    rows = saved(step.blocks.layers[0]).rows
    return {r.name: r.copies * amounts.bytes(r.shape, r.dtype) for r in rows}


def test_a_rank_keeps_what_a_model_of_half_as_wide_experts_keeps():
    """Without sequence parallelism each of two ranks runs a model with half the heads and experts
    half as wide: what its layers keep is the same tensor by tensor."""
    cut, half = layers(plan_of()), layers(plan_of(HALF, tp=1))
    assert cut
    assert cut == half


@pytest.mark.parametrize("model", [QWEN, MIXTRAL])
def test_weights_of_experts_are_cut_and_the_router_is_not(model):
    cut, whole = (evaluate(plan_of(model, tp=tp)).ledger for tp in (2, 1))

    def states(ledger, part):
        return sum(
            r.bytes for r in ledger if part in r.name and r.consumer == "optimizer_states"
            and not r.name.endswith(".step")
        )  # fmt: skip

    assert states(cut, ".experts.") == states(whole, ".experts.") / 2
    assert states(cut, ".gate.") == states(whole, ".gate.")


@pytest.mark.parametrize("sequence", [False, True])
def test_tokens_are_gathered_once_and_partial_results_summed(sequence):
    """As an MLP of ranks that share its width: without sequence parallelism two all-reduces for
    each of attention and experts; with it twice an all-gather and a reduce-scatter."""
    time = evaluate(plan_of(sequence=sequence)).time
    moved = {t.name: t.bytes for t in time.transfers if t.link == "nvlink"}
    dense = QWEN | {"model_type": "qwen3"}
    as_dense = {
        t.name: t.bytes
        for t in evaluate(plan_of(dense, sequence=sequence)).time.transfers
        if t.link == "nvlink"
    }
    names = {n for n in moved if "weights" not in n and "layer" not in n and "root" not in n}
    assert names
    for name in names:
        assert moved[name] == pytest.approx(as_dense[name]), name


def test_all_ranks_route_all_tokens_under_sequence_parallelism():
    rows = layers(plan_of(sequence=True))
    routed = [n for name, n in rows.items() if "rows by expert" in name]
    assert routed
    assert all(n == TOKENS * 4 * 512 * 2 for n in routed)


def test_a_step_on_twice_the_ranks_is_shorter():
    one, two = (evaluate(plan_of(tp=tp, gpus=8)).time for tp in (1, 2))
    expert = [sum(o.flops for o in t.operations if "grouped_mm" in o.name) for t in (one, two)]
    assert expert[1] == pytest.approx(expert[0] / 2)


QWEN2 = QWEN | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 512}


@pytest.mark.parametrize("model", ["gpt-oss-20b", QWEN2])
@pytest.mark.parametrize("sequence", [False, True])
def test_others_are_planned_for_megatron_alone(model, sequence):
    report = evaluate(plan_of(model, tp=2, sequence=sequence))
    assert report.memory is None
    assert any("of this mixture of experts" in str(note) for note in report.notes)


def test_every_number_is_explained():
    plan = plan_of(sequence=True)
    checked(Book(plan, evaluate(plan)))
