"""Multi-token prediction: layers behind the last one, on the last stage, each with a loss."""

import pytest
from mixtures import LATENT, MEGATRON
from swept import peaks

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.tape.ledger import Amounts
from memcore.training.memory import rows_at, saved_rows
from memcore.training.steps import step_of, training_sizes
from memcore.training.training import predicting

DENSE = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 4096,
}


def plan(model=LATENT, mtp=1, gpus=16, train=MEGATRON, **parallel):
    words = {"seq_len": 256, "grad_accumulation": 8, "mtp_layers": mtp} | train
    parallel = {"sequence_parallel": True} | parallel
    return Plan(model=model, cluster={"gpus": gpus}, parallel=parallel, train=words)


def resident(p, stage=0):
    """Bytes of the parameters of one stage, on one GPU."""
    step = step_of(p, stage)
    return Amounts(training_sizes(p)).alive(step.every("resident"))


def test_deepseek_s_module_has_as_many_parameters_as_published():
    """DeepSeek-V3's README_WEIGHTS.md: "11.5B unique parameters", which is the layer alone; the
    projection of 2 x 7,168 to 7,168 adds 0.1 of them."""
    p = Plan(model="deepseek-v3", cluster={"gpus": 256}, parallel={"ep": 32},
             train=MEGATRON | {"mtp_layers": 1})  # fmt: skip
    assert predicting(p) - 2 * 7168**2 == pytest.approx(11.5e9, abs=0.05e9)
    assert any(f"{predicting(p):,}" in note for note in evaluate(p).notes)


@pytest.mark.parametrize("model", [LATENT, DENSE])
@pytest.mark.parametrize("pp", [1, 2])
def test_only_the_last_stage_has_them_and_its_own_embedding(model, pp):
    """Where the last stage is the first too, the embedding is there already."""
    p, plain = plan(model, pp=pp), plan(model, mtp=0, pp=pp)
    more = [resident(p, stage) - resident(plain, stage) for stage in range(pp)]
    table = 4096 * 512 * (pp > 1)
    assert more == [0] * (pp - 1) + [2 * (predicting(p) + table)]


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (4, 1), (2, 2)])
def test_ranks_add_up_to_the_whole_plus_what_each_has(tp, ep, etp):
    def rows(p):
        amounts = Amounts(training_sizes(p))
        head = step_of(p).head.resident.rows
        return {r.name: amounts.bytes(r.shape, r.dtype) for r in head if ".mtp." in r.name}

    whole, cut = rows(plan()), rows(plan(tp=tp, ep=ep, etp=etp))
    for name, n in whole.items():
        once = "norm" in name or any(part in name for part in ("q_down", "kv_down", "router"))
        ranks = ep * etp if ".experts." in name else 1 if once else tp
        assert ranks * cut[name] == n, name


def test_each_of_them_has_logits_of_its_own():
    """At the loss the fp32 exponentials of every prediction are there."""
    for mtp in (0, 1, 3):
        p = plan(mtp=mtp)
        at = [m.id for m in evaluate(p).memory.timeline].index("loss")
        wide = [r for r in rows_at(p, at) if r.name.endswith("exponentials (fp32)")]
        assert sum(r.count for r in wide) == mtp + 1
        assert {r.bytes_each for r in wide} == {4 * 256 * 4096}


@pytest.mark.parametrize("model", [LATENT, DENSE])
@pytest.mark.parametrize("pp", [1, 2])
def test_more_predictions_never_need_less(model, pp):
    needs = [evaluate(plan(model, mtp=n, pp=pp)).memory.ranks[-1].allocated_bytes for n in range(4)]
    assert needs == sorted(set(needs))


def test_checkpointing_keeps_the_inputs_of_their_layers():
    names = {
        word: {r.name for r in saved_rows(plan(train=MEGATRON | {"checkpointing": word}))}
        for word in ("none", "selective", "full")
    }
    of_layer = {w: {n for n in names[w] if ".mtp.0." in n} for w in names}
    assert any("linear_fc1" in n for n in of_layer["none"] & of_layer["selective"])
    assert any("log-sum-exp" in n for n in of_layer["none"] - of_layer["selective"])
    assert not any("linear_fc1" in n for n in of_layer["full"])
    assert "head.mtp.0.embeddings" in of_layer["full"] or "head.mtp.0.scattered" in of_layer["full"]


def test_a_weight_of_a_recomputed_layer_is_counted_once():
    for checkpointing in ("none", "selective", "full"):
        p = plan(train=MEGATRON | {"checkpointing": checkpointing})
        assert resident(p) == resident(plan())


def test_a_sweep_s_cell_is_the_plan_of_that_cell():
    p = plan(pp=2)
    cells = peaks(p, {"train.micro_batch": [1, 3], "train.seq_len": [64, 512]})
    for i, batch in enumerate([1, 3]):
        for j, length in enumerate([64, 512]):
            cell = p.changed("train.micro_batch", batch).changed("train.seq_len", length)
            assert cells[i, j] == evaluate(cell).memory.allocated_bytes


@pytest.mark.parametrize(
    ("model", "train"),
    [
        (LATENT, {"framework": "fsdp2", "zero": 3, "kernels": "hf"}),
        ("gpt2", {}),
        (DENSE, {"cross_entropy": "chunked"}),
        (DENSE, {"checkpointing": "selective-op"}),
    ],
)
def test_where_nobody_trains_them_they_are_refused(model, train):
    with pytest.raises(PlanError) as e:
        plan(model, train=MEGATRON | train, gpus=8)
    assert "train.mtp_layers" in {issue.field for issue in e.value.issues}
    document = plan().document()
    document["train"] |= {"framework": "fsdp2", "kernels": "hf", "zero": 3}
    mended, issues = repair(document)
    assert mended.train.mtp_layers == 0
    assert any(issue.field == "train.mtp_layers" for issue in issues)
