"""What a checkpointed layer keeps and runs again: collectives, and under a compiler.

PyTorch 2.13 on two ranks that are faked (torch.testing._internal.distributed.fake_pg), a llama
block under torchtitan's plan of tensor parallelism, with its policy: of seven products it keeps the
first, third, fifth and seventh, attention, and both reduce-scatters; backward's recomputation
gathers twice and reduces nothing. Compiled with its checkpoint inside (aot_autograd's graphs), it
has 6 products more in backward than gradients take under full checkpointing, 3 by operation.
"""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan


def kept(report):
    """Names and bytes of what the policy keeps of one layer of a micro-batch."""
    why = "kept by the checkpointing policy"
    return [row for row in report.ledger if row.why.startswith(why)]


def plan(train=None, **parallel):
    words = {"framework": "fsdp2", "zero": 3, "checkpointing": "selective-op", "seq_len": 8192}
    return Plan(
        model="llama-3-8b", cluster={"gpus": 8}, parallel=parallel, train=words | (train or {})
    )


@pytest.mark.parametrize("tp", [2, 4])
def test_both_reduce_scatters_of_a_layer_are_kept(tp):
    report = evaluate(plan(tp=tp, sequence_parallel=True))
    scattered = [t for t in kept(report) if "scatter" in t.name]
    each = 8192 // tp * 4096 * 2
    assert sum(t.bytes for t in scattered) == 2 * 32 * each
    products = [t for t in kept(report) if t not in scattered]
    alone = kept(evaluate(plan()))
    assert {t.name for t in products} == {t.name for t in alone}


def test_what_is_kept_is_not_sent_again():
    sent = {t.name for t in evaluate(plan(tp=2, sequence_parallel=True)).time.transfers}
    again = {name for name in sent if "recompute" in name}
    assert any("all-gather" in name for name in again)
    assert not any("reduce-scatter" in name for name in again)


AGAIN = {"full": 6, "selective-op": 3}
STOPS = ("auto", "off")


@pytest.mark.parametrize("early_stop", STOPS)
@pytest.mark.parametrize("checkpointing", AGAIN)
def test_a_compiler_runs_again_what_backward_needs(checkpointing, early_stop):
    words = {"checkpointing": checkpointing, "early_stop": early_stop, "kernels": "compile"}
    operations = evaluate(plan(words)).time.operations
    again = {o.name for o in operations if o.phase == "recompute" and "matmul" in o.name}
    assert len(again) == AGAIN[checkpointing]
    assert not any("down_proj" in name for name in again)


def test_what_is_not_run_again_is_not_sent_again():
    """The sum over ranks behind the last product: where a layer stops at what is needed."""
    full = {"checkpointing": "full"}
    again = {
        stop: sum(
            t.bytes
            for t in evaluate(
                plan(full | {"early_stop": stop}, tp=2, sequence_parallel=True)
            ).time.transfers
            if t.name.startswith("reduce-scatter") and "recompute" in t.name
        )
        for stop in STOPS
    }
    assert again["off"] == 2 * again["auto"] > 0
