"""CUDA graphs of a training step (Megatron's cuda_graph_impl and cuda_graph_modules)."""

import pytest
from explained import checked

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.hardware.constants import MODULE
from memcore.plan.plan import Plan
from memcore.words.training import CUDA_GRAPHS

MIXTURE = "attn,moe_router,moe_preprocess"


def plan_of(graphs="none", model="qwen3-30b-a3b", **more):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none",
        "cross_entropy": "fused", "micro_batch": 1, "seq_len": 4096, "grad_accumulation": 4,
        "cuda_graphs": graphs,
    }  # fmt: skip
    ep = 8 if model == "qwen3-30b-a3b" else 1
    cluster = {"gpu": "b200-sxm-180gb", "gpus": 8}
    return Plan(model=model, cluster=cluster, parallel={"ep": ep}, train=train | more)


def starts(*given, **more):
    found = evaluate(plan_of(*given, **more)).time.starts
    return found["forward"], found["backward"]


def test_a_graph_is_one_start_of_each_layer():
    """A dense model whose layers are graphs: 32 replays, and what is outside the layers."""
    eager, layers = starts(model="llama-3-8b"), starts("attn,mlp", model="llama-3-8b")
    replays = 4 * 32 * MODULE.middle
    # Residual sums, two of a layer, have one name, and their graph is not told.
    assert layers[0] < replays + 0.2 * eager[0]
    one = starts("full_iteration", model="llama-3-8b")
    assert one == (MODULE.middle, 0)


def test_wider_graphs_leave_less_to_the_host():
    eager, routed, attends = (starts(g) for g in ("none", "moe_router,moe_preprocess", MIXTURE))
    for way in range(2):
        assert attends[way] < routed[way] < eager[way]
    counts = 4 * 48 * (13 + 11 - MODULE.middle)  # the permutation's but its copies, the router's
    norm = 4 * 48 * MODULE.middle
    assert eager[0] - routed[0] == pytest.approx(counts + norm)
    slow, quick = (evaluate(plan_of(g)).time for g in ("none", MIXTURE))
    assert slow.exposed["host"] > slow.step_seconds / 4
    assert quick.step_seconds < 0.9 * slow.step_seconds
    assert quick.resources["compute"] == slow.resources["compute"]


def test_rows_that_a_graph_makes_stay_until_its_backward():
    """48 layers keep 8 rows of 2,048 for each of 4,096 tokens, in bf16, and a weight for each."""
    rows = 8 * 4096 * (2048 + 1) * 2
    saved = {
        (graphs, how): evaluate(plan_of(graphs, moe_dispatcher=how)).memory.saved_for_backward_bytes
        for graphs in ("none", "attn,moe_router", MIXTURE)
        for how in ("alltoall", "hybridep")
    }
    for how in ("alltoall", "hybridep"):
        assert saved["attn,moe_router", how] == saved["none", how]
    assert saved[MIXTURE, "alltoall"] - saved["none", "alltoall"] == 48 * rows
    assert saved[MIXTURE, "hybridep"] == saved["none", "hybridep"]


@pytest.mark.parametrize(
    ("graphs", "more", "why"),
    [
        ("moe_ruter", {}, r"cuda_graphs: 'moe_ruter' is not known; .*moe_router"),
        ("moe_preprocess", {}, r"cuda_graphs.*moe_preprocess is captured with moe_router only"),
        (
            "full_iteration",
            {},
            r"cuda_graphs.*mixture has a graph of the whole iteration with HybridEP only",
        ),
        ("attn,full_iteration", {"model": "llama-3-8b"}, r"cuda_graphs.*nothing is named beside"),
        ("moe_router", {"model": "llama-3-8b"}, r"cuda_graphs.*no experts for moe_router"),
        ("attn", {"checkpointing": "full"}, r"cuda_graphs.*by full_iteration only"),
        (
            "moe_router",
            {"checkpointing": "selective", "recompute_modules": "moe"},
            r"cuda_graphs.*all of moe is run again",
        ),
        (
            "attn",
            {"framework": "fsdp2", "kernels": "hf", "zero": 3, "model": "llama-3-8b"},
            r"cuda_graphs.*planned of Megatron",
        ),
    ],
)
def test_what_cannot_be_captured_is_refused(graphs, more, why):
    with pytest.raises(PlanError, match=why):
        plan_of(graphs, **more)


def test_a_whole_graph_of_a_mixture_spares_the_host_and_keeps_no_rows():
    without, whole = (
        evaluate(plan_of(graphs, moe_dispatcher="hybridep"))
        for graphs in ("none", "full_iteration")
    )
    assert whole.memory.allocated_bytes == without.memory.allocated_bytes
    assert whole.time.exposed["host"] < without.time.exposed["host"]


def test_modules_are_written_in_one_order():
    assert plan_of("moe_preprocess, attn,moe_router").train.cuda_graphs == MIXTURE
    assert plan_of("").train.cuda_graphs == "none"
    assert next(iter(CUDA_GRAPHS)) == "full_iteration"


@pytest.mark.parametrize(
    ("graphs", "model"),
    [(MIXTURE, "qwen3-30b-a3b"), ("attn,mlp", "llama-3-8b"), ("full_iteration", "llama-3-8b")],
)
def test_each_number_is_explained(graphs, model):
    plan = plan_of(graphs, model)
    checked(Book(plan, evaluate(plan)))
