"""Parallelism: ranks add up, an axis of one changes nothing, stages hold what is in flight."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore import Plan, evaluate, pipeline
from memcore.ledger import Amounts
from memcore.memory import step_of, training_sizes

MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none"}
FSDP2 = {"framework": "fsdp2", "zero": 3}
MODEL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}


def plan(train=MEGATRON, gpus=16, batches=8, **parallel):
    words = {"seq_len": 256, "grad_accumulation": batches} | train
    return Plan(model=MODEL, cluster={"gpus": gpus}, parallel=parallel, train=words)


def resident(p, stage=0):
    """Bytes of the parameters of one stage, on one GPU."""
    step = step_of(p, stage)
    return Amounts(training_sizes(p)).alive(step.every("resident"))


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("pp", [1, 2, 3, 5])
def test_ranks_add_up_to_the_whole_plus_padding(tp, pp):
    """Every weight is on one stage, and matrices are cut without rest; norms are on every rank."""
    whole = resident(plan(gpus=120))
    cut = plan(gpus=120, tp=tp, pp=pp)
    ranks = sum(resident(cut, stage) for stage in range(pp)) * tp
    norms = 2 * 512 * (2 * 12 + 1)  # two bytes, two norms in each layer and the last one
    assert ranks == whole + (tp - 1) * norms


@given(st.integers(1, 64), st.integers(1, 200))
def test_stages_have_every_layer_once(stages, layers):
    spans = [pipeline.span(layers, stages, s) for s in range(stages)]
    assert spans[0][0] == 0
    assert spans[-1][1] == layers
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    counts = [end - start for start, end in spans]
    assert max(counts) - min(counts) <= 1


def test_an_axis_of_one_changes_nothing():
    plain = evaluate(plan())
    same = evaluate(plan(sequence_parallel=True, virtual_stages=3, schedule="1f1b"))
    assert same.ledger == plain.ledger
    assert same.memory == plain.memory


def test_fewer_kv_heads_than_ranks_are_replicated():
    """Four KV heads on eight ranks: each has a whole one."""
    rows = {r.name: r for r in evaluate(plan(tp=8)).ledger}
    name = "layers.self_attn.linear_qkv.weight"
    assert rows[name].bytes_each == 2 * 512 * (2 + 1 + 1) * 32


@pytest.mark.parametrize(
    ("schedule", "virtual", "batches", "counts"),
    [
        ("1f1b", 1, 8, [4, 3, 2, 1]),
        ("1f1b", 1, 2, [2, 2, 2, 1]),
        ("gpipe", 1, 8, [8, 8, 8, 8]),
        ("zero-bubble", 1, 8, [4, 4, 4, 4]),
        ("1f1b", 3, 8, [15, 13, 11, 9]),  # of chunks: 2 (p - r - 1) + (v - 1) p + 1
    ],
)
def test_micro_batches_in_flight(schedule, virtual, batches, counts):
    p = plan(batches=batches, pp=4, schedule=schedule, virtual_stages=virtual)
    assert [pipeline.in_flight(p, stage) for stage in range(4)] == counts


def test_only_gpipe_keeps_the_logits_of_every_micro_batch():
    one, every = (
        evaluate(plan(pp=4, batches=8, schedule=s)).memory.ranks[3].consumers["activations"]
        for s in ("1f1b", "gpipe")
    )
    logits = 4 * 256 * 4096  # fp32 exponentials of Megatron's loss
    assert every - one > 7 * logits


def test_the_first_stage_holds_what_is_in_flight():
    """Without head and loss, stages differ by whole micro-batches of activations."""
    p = plan(pp=4, train=MEGATRON | {"seq_len": 2048})
    step, amounts = step_of(p, 1), Amounts(training_sizes(p))
    layer = amounts.group(step.kept(0))
    first, second = (r.allocated_bytes for r in evaluate(p).memory.ranks[1:3])
    assert first - second == 3 * layer


@pytest.mark.parametrize("words", [{}, {"schedule": "gpipe"}, {"virtual_stages": 3}])
def test_every_stage_is_reported_and_the_fullest_is_the_peak(words):
    memory = evaluate(plan(pp=4, **words)).memory
    assert [r.rank for r in memory.ranks] == [0, 1, 2, 3]
    assert max(r.allocated_bytes for r in memory.ranks) == memory.allocated_bytes
    assert memory.ranks[memory.peak.rank].allocated_bytes == memory.allocated_bytes
    assert sum(memory.consumers.values()) == memory.allocated_bytes


@pytest.mark.parametrize(
    ("train", "axis"),
    [(MEGATRON, "tp"), (MEGATRON, "pp"), (MEGATRON, "cp"), (FSDP2, "tp"), (FSDP2, "cp")],
)
def test_more_ranks_need_no_more(train, axis):
    """Not so under FSDP2 with a pipeline: as many GPUs then share each parameter fewer times."""
    needs = [
        evaluate(plan(train=train, **{axis: n, "sequence_parallel": True})).memory.allocated_bytes
        for n in (1, 2, 4)
    ]
    assert needs == sorted(needs, reverse=True)


def test_sequence_parallelism_cuts_what_tensor_parallelism_leaves_whole():
    with_it, without = (
        evaluate(plan(tp=4, sequence_parallel=s)).memory.saved_for_backward_bytes
        for s in (True, False)
    )
    assert with_it < without
