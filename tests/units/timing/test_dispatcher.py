"""Dispatchers of rows to experts: what DeepEP and HybridEP send once."""

from itertools import combinations

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.quantity.reading import PLAIN
from memcore.timing.communication import experts_reached, links


def plan_of(dispatcher, ep=16, gpus=16, overlap=False):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none",
        "cross_entropy": "fused", "micro_batch": 1, "seq_len": 4096, "grad_accumulation": 64,
        "grad_reduce_in_fp32": False, "moe_dispatcher": dispatcher,
        "overlap_moe_expert_parallel_comm": overlap,
    }  # fmt: skip
    cluster = {"gpu": "h100-sxm-80gb", "gpus": gpus}
    return Plan(model="qwen3-30b-a3b", cluster=cluster, parallel={"ep": ep}, train=train)


def sent(plan):
    """Bytes that come to a rank over fast links and that leave its node, of one byte of rows."""
    over = links(plan, "EP")
    return over.dispatched(1.0), (over.inside, over.ranks)


def test_a_token_reaches_as_many_places_as_its_experts_are_in_at_random():
    """Against every choice of experts of a small mixture."""
    experts, chosen, ranks, domains = 8, 3, 4, 2
    model = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "num_local_experts": experts, "num_experts_per_tok": chosen,
    }  # fmt: skip
    plan = Plan.of(plan_of("deepep", ep=ranks).document() | {"model": model})
    every = list(combinations(range(experts), chosen))

    def mean(count):
        return sum(count(of) for of in every) / len(every)

    k, in_ranks, others = experts_reached(plan, domains, PLAIN)
    assert k == chosen
    assert in_ranks == pytest.approx(mean(lambda of: len({e * ranks // experts for e in of})))
    other = mean(lambda of: any(e * domains // experts for e in of))
    assert others == pytest.approx(other)


def test_what_crosses_the_network_is_sent_once():
    """Two nodes and 8 experts of 128: 4 rows of 8 go to the other node, or one."""
    (_, once), (inside, ranks) = sent(plan_of("deepep"))
    rows = inside * (ranks - inside) / ranks
    assert once / rows == pytest.approx(1 / 4, rel=0.01)
    each, other, same = (evaluate(plan_of(d)).time for d in ("alltoall", "deepep", "hybridep"))
    assert other.resources["network"] < 0.3 * each.resources["network"]
    assert same.step_seconds == other.step_seconds < each.step_seconds


def test_all_in_a_node_are_reached_over_fast_links():
    (inside, outside), (ranks, _) = sent(plan_of("deepep", ep=8, gpus=8))
    assert outside == 0
    assert inside / ((ranks - 1) / ranks) == pytest.approx(5.35 / 8, rel=0.01)  # of 8 ranks


@pytest.mark.parametrize("overlap", [False, True])
def test_every_number_is_explained(overlap):
    plan = plan_of("hybridep", overlap=overlap)
    checked(Book(plan, evaluate(plan)))
