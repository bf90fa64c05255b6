"""Expert parallelism under FSDP2, against transformers' own (reference/ask_experts.py)."""

from collections import Counter

import asked
import pytest
from mixtures import MIXTURE, of_experts
from tables import each

from evidence.pytorch import dispatched
from memcore.evaluate import evaluate
from memcore.models.config import Keys
from memcore.models.families import FAMILIES
from memcore.plan.plan import Plan
from memcore.training.memory import saved_rows

TABLE = asked.table("experts")
WORDS = ("attention", "checkpointing")

# In models this small a mask of bytes or a sum in flight weighs more than in real ones.
PEAK_TOLERANCE = 0.015
# MiMo-V2-Flash's with its three layers run again, ERNIE's and Hunyuan's: 2 MB more of ours at the
# experts of the second.
WIDER = {("mimo2", "full"): 0.021, ("ernie45moe", "full"): 0.021, ("hunyuanmoe", "full"): 0.026}


def plan_of(row):
    """The row's plan: on RANKS GPUs, of which so many share the experts out."""
    train = {"framework": "fsdp2", "zero": 3, "precision": "bf16-mixed"}
    words = {w: row[w] for w in WORDS} | {"micro_batch": row["batch"], "seq_len": row["seq"]}
    return Plan(
        model=TABLE["configs"][row["model"]],
        train=words | train,
        parallel={"ep": row["ep"]},
        cluster={"gpus": asked.RANKS},
    )


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    assert asked.saved(plan_of(row)) == row["bytes"]


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = dispatched(asked.trained(plan_of(row)))
    wide = WIDER.get((row["model"], row["checkpointing"]), PEAK_TOLERANCE)
    assert ours == pytest.approx(row["bytes"], rel=wide)


GIVEN = {  # where a family's defaults are no model
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gemma4_text": {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2},
    "gemma3": {"vision_config": {"vision_use_head": False}, "mm_tokens_per_image": 49},
}


def usual(family):
    """A model with whatever its transformers configuration class has by default."""
    keys = Keys({"model_type": family} | GIVEN.get(family, {}), FAMILIES[family].aliases)
    return FAMILIES[family].config(keys)


def test_every_family_that_transformers_shares_out_is_asked():
    """All but Llama 4, DBRX and Step, whose experts it does not send rows to, models with states,
    those that are served alone, and the one in Qwen3-VL, whose layers are Qwen3's."""
    counts = Counter(TABLE["configs"][row["model"]]["model_type"] for row in TABLE["rows"])
    trained = (f for f, family in FAMILIES.items() if not family.untrained)
    mixtures = {f for f in trained if usual(f).experts and not usual(f).recurrence}
    of_qwen_vl = {"qwen3_vl_moe_text", "qwen3_vl_moe"}
    assert set(counts) == mixtures - of_qwen_vl - {"dbrx", "llama4_text", "step3p5"}
    assert min(counts.values()) >= 12


def mixture(ep=1, gpus=16, model=MIXTURE, **words):
    train = {"seq_len": 256, "checkpointing": "none", "framework": "fsdp2", "zero": 3} | words
    return Plan(model=model, cluster={"gpus": gpus}, parallel={"ep": ep}, train=train)


@pytest.mark.parametrize("ep", [1, 2, 4, 16])
def test_every_rank_has_its_part_of_its_experts(ep):
    """However they are shared out: FSDP2 cuts what a rank has between those that have the same."""
    for state in ("resident", "gradients", "moments"):
        whole = of_experts(mixture(gpus=1), state)
        assert 16 * of_experts(mixture(ep), state) == whole > 0
        assert of_experts(mixture(ep), state, False) == of_experts(mixture(), state, False)


def test_sharing_out_experts_gathers_fewer_of_them():
    needs = [evaluate(mixture(ep, checkpointing="full")).memory.allocated_bytes for ep in (1, 2, 4)]
    assert needs == sorted(set(needs), reverse=True)


def test_imbalance_brings_more_rows():
    def rows(imbalance):
        found = saved_rows(mixture(4, imbalance=imbalance))
        return {r.name.removeprefix("layers.mlp.experts."): r.bytes for r in found}

    even, uneven = rows(1.0), rows(1.5)
    for name in ("rows by expert", "gate_up_proj, masked", "silu"):
        assert 2 * uneven[name] == 3 * even[name]
    assert uneven["results by token"] == even["results by token"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"zero": 2}, "ZeRO 3"),
        ({"framework": "pytorch", "zero": 0}, "ZeRO 3"),
        ({"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}, "ZeRO 3"),
    ],
)
def test_elsewhere_it_is_not_planned(words, said):
    report = evaluate(mixture(4, **words))
    assert report.memory is None
    assert any(said in note and "parallel.ep to 1" in note for note in report.notes)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("train.offload_optimizer", "cpu"),
        ("train.offload_activations", "cpu"),
        ("parallel.shard_group", 4),
    ],
)
def test_with_offload_or_hybrid_sharding_it_is_not_planned(path, value):
    report = evaluate(mixture(4).changed(path, value))
    assert report.memory is None
    assert any("parallel.ep to 1" in note for note in report.notes)


@pytest.mark.parametrize("axis", ["tp", "pp", "cp"])
def test_with_another_axis_it_is_not_planned(axis):
    report = evaluate(mixture(4).changed(f"parallel.{axis}", 2))
    assert report.memory is None
    assert any("parallel.ep to 1" in note for note in report.notes)


def test_experts_that_do_not_divide_are_said_to_be_padded():
    """16 experts over 4 ranks are 4 each; 8 ranks that have the same are more than that."""
    assert any("padded to 32" in note for note in evaluate(mixture(4, gpus=32)).notes)
    assert not any("padded" in note for note in evaluate(mixture(4, gpus=16)).notes)
