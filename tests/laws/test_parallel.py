"""Parallelism: ranks add up, an axis of one changes nothing, stages hold what is in flight."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import LATENT, MEGATRON, MIXTURE, of_experts
from swept import peaks

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.step import pipeline
from memcore.tape.ledger import Amounts
from memcore.training.memory import saved_rows
from memcore.training.steps import step_of, training_sizes

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


@given(st.integers(1, 64), st.integers(1, 200), st.booleans())
def test_stages_have_every_layer_once(stages, layers, spared):
    spans = [pipeline.span(layers, stages, s, spared=spared) for s in range(stages)]
    assert spans[0][0] == 0
    assert spans[-1][1] == layers
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    counts = [end - start for start, end in spans]
    others = counts[:-1] if spared and counts[-1] <= counts[0] else counts
    assert max(others, default=0) - min(others, default=0) <= 1


@pytest.mark.parametrize(
    ("stages", "counts"), [(4, [16, 16, 16, 13]), (8, [8] * 7 + [5]), (16, [4] * 15 + [1])]
)
def test_the_last_stage_of_megatron_has_the_head_and_fewer_layers(stages, counts):
    spans = [pipeline.span(61, stages, s, spared=True) for s in range(stages)]
    assert [end - start for start, end in spans] == counts


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
    layer = amounts.alive([(step.kept(0), 1)])
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


def mixture(model=MIXTURE, gpus=16, train=MEGATRON, **parallel):
    words = {"seq_len": 256, "grad_accumulation": 8} | train
    parallel = {"sequence_parallel": True} | parallel
    return Plan(model=model, cluster={"gpus": gpus}, parallel=parallel, train=words)


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
@pytest.mark.parametrize("ep", [1, 2, 8, 16])
@pytest.mark.parametrize("tp", [1, 4])
def test_experts_of_all_ranks_add_up_to_the_whole(model, ep, tp):
    """Whole experts are shared out, whatever the tensor-parallel ranks are; the rest is not."""
    whole, cut = mixture(model), mixture(model, ep=ep, tp=tp)
    for state in ("resident", "gradients"):
        assert ep * of_experts(cut, state) == of_experts(whole, state) > 0
        assert of_experts(cut, state, False) == of_experts(mixture(model, tp=tp), state, False)


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
@pytest.mark.parametrize(("ep", "tp", "cp", "pp"), [(1, 1, 1, 1), (4, 1, 1, 1), (8, 2, 2, 1)])
def test_states_of_experts_are_shared_by_the_ranks_that_have_them(model, ep, tp, cp, pp):
    """All ranks of a stage together have each state once, of experts as of all else."""
    p = mixture(model, gpus=16, ep=ep, tp=tp, cp=cp)
    for state in ("moments", "master"):
        assert 16 * of_experts(p, state) == of_experts(mixture(model, gpus=1), state)
    rest = mixture(model, tp=tp, cp=cp)
    assert of_experts(p, "master", False) == of_experts(rest, "master", False)


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
@pytest.mark.parametrize(("ep", "etp"), [(1, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 2)])
def test_ranks_that_share_each_expert_add_up_to_the_whole(model, ep, etp, tp, cp):
    whole, cut = mixture(model), mixture(model, ep=ep, etp=etp, tp=tp, cp=cp)
    for state in ("resident", "gradients"):
        assert ep * etp * of_experts(cut, state) == of_experts(whole, state)
    for state in ("moments", "master"):
        assert 16 * of_experts(cut, state) == of_experts(mixture(model, gpus=1), state)
        without = mixture(model, tp=tp, cp=cp)
        assert of_experts(cut, state, False) == of_experts(without, state, False)


def saved_rows_of(p):
    return {r.name.removeprefix("layers.mlp."): r for r in saved_rows(p)}


def test_ranks_that_share_each_expert_compute_a_part_of_every_rank_s_rows():
    """The rows of both, and half of each expert's width: as many products as before."""
    alone, both = (saved_rows_of(mixture(ep=4, etp=etp)) for etp in (1, 2))
    for name in ("sort by expert, result", "sort by expert, row map"):
        assert both[name].bytes == 2 * alone[name].bytes
    for name in ("experts.linear_fc1 out", "experts.weighted product"):
        assert both[name].bytes == alone[name].bytes
    assert both["row map"].bytes == alone["row map"].bytes


def test_imbalance_brings_rows_to_the_fullest_rank():
    """And no more than all that are sent: EP times the mean. What a rank sends stays the same."""

    def saved(imbalance, ep=4):
        return saved_rows_of(mixture(ep=ep, train=MEGATRON | {"imbalance": imbalance}))

    balanced, uneven, all_of_them = (saved(f) for f in (1.0, 1.5, 60.0))
    for name in ("sort by expert, result", "experts.linear_fc1 out", "experts.weighted product"):
        assert 2 * uneven[name].bytes == 3 * balanced[name].bytes
        assert all_of_them[name].bytes == 4 * balanced[name].bytes
    assert uneven["row map"].bytes == balanced["row map"].bytes
    assert saved(60.0, ep=1) == saved(1.0, ep=1)


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
def test_one_expert_parallel_rank_changes_nothing(model):
    """Nothing is sent, and experts' states are cut as all others are."""
    plain = evaluate(mixture(model, ep=1, sequence_parallel=False))
    assert not any("received" in row.name or "/EP" in str(row.shape) for row in plain.ledger)
    assert evaluate(mixture(model, ep=1)).ledger == plain.ledger
    p = mixture(model)
    sizes = training_sizes(p)
    assert (sizes["EP"], sizes["EDP"]) == (1, sizes["STATE"])


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
def test_sharing_out_experts_sends_rows_and_changes_no_other_activation(model):
    """Balanced routing brings as many rows as it takes away; only what is sent comes on top."""
    alone, shared = (mixture(model, ep=ep) for ep in (1, 4))
    saved = [evaluate(p).memory.saved_for_backward_bytes for p in (alone, shared)]
    assert saved[0] == saved[1]


def test_each_rank_routes_its_own_tokens():
    """Under sequence parallelism experts get rows for a rank's tokens, and compute them whole."""
    rows = {r.name: r for r in evaluate(mixture(tp=4, ep=4, train=MEGATRON)).ledger}
    assert rows["layers.mlp.experts.linear_fc1 out"].bytes_each == 256 // 4 * 4 * 512 * 2


def test_stand_ins_are_for_one_expert():
    rows = {r.name: r for r in evaluate(mixture(ep=4)).ledger}
    stand_in = "stand-in for a weight's gradient, EXPERT_FUSED/ETP x D"
    assert rows[stand_in].bytes == 2 * 256 * 512 * 2
    assert not any(name.endswith(", EXPERTS x D") for name in rows)  # the router's is returned


@pytest.mark.parametrize(
    ("parallel", "field"),
    [
        ({"ep": 3}, "parallel.ep"),  # of 16 experts
        ({"ep": 16, "pp": 2}, "parallel.ep"),  # of 8 GPUs on a stage
        ({"ep": 4, "etp": 8}, "parallel.etp"),  # of 16 GPUs
        ({"etp": 16, "model": MIXTURE | {"moe_intermediate_size": 200}}, "parallel.etp"),
        ({"tp": 2, "sequence_parallel": False}, "parallel.sequence_parallel"),
    ],
)
def test_impossible_expert_parallelism_is_refused(parallel, field):
    with pytest.raises(PlanError) as e:
        mixture(**parallel)
    assert field in {issue.field for issue in e.value.issues}


@pytest.mark.parametrize(
    ("model", "train"),
    [
        (MIXTURE, FSDP2 | {"zero": 2}),
        (MIXTURE, {"framework": "pytorch", "zero": 0}),
        (MODEL, MEGATRON),
    ],
)
def test_expert_parallelism_elsewhere_is_not_planned(model, train):
    report = evaluate(mixture(model, train=train, ep=4))
    assert report.memory is None
    assert any("parallel.ep to 1" in note for note in report.notes)


@pytest.mark.parametrize("words", [{"pp": 3}, {"pp": 2, "tp": 2, "schedule": "gpipe"}, {"cp": 2}])
def test_a_sweep_looks_at_every_stage(words):
    p = plan(gpus=12, **words)
    cells = peaks(p, {"train.micro_batch": [1, 3], "train.seq_len": [64, 512]})
    for i, batch in enumerate([1, 3]):
        for j, length in enumerate([64, 512]):
            cell = p.changed("train.micro_batch", batch).changed("train.seq_len", length)
            assert cells[i, j] == evaluate(cell).memory.allocated_bytes
