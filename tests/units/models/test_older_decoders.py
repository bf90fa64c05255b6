"""GPT-J, GPT-Neo, MPT, GPT-BigCode, DBRX and Mamba-2: what of their config.json is read."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models.counts import active_parameters, parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan

GPTJ = {"model_type": "gptj", "n_embd": 4096, "n_layer": 28}
NEO = {"model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 24}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50_432}
STARCODER = {
    "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24_576,
    "n_positions": 8192, "vocab_size": 49_152,
}  # fmt: skip
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100_352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (GPTJ, 6_050_882_784),
        (NEO, 1_315_575_808),
        (MPT, 6_649_286_656),
        (STARCODER, 15_517_456_384),
        (DBRX, 131_596_523_520),
    ],
)
def test_parameters_of_published_models(config, count):
    """As transformers has them on the meta device."""
    assert parameters(from_config(config)) == count


def test_a_token_of_dbrx_meets_four_experts_of_sixteen():
    model = from_config(DBRX)
    expert = 40 * 3 * 6144 * 10_752
    assert parameters(model) - active_parameters(model) == 12 * expert


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (GPTJ | {"rotary_dim": 300}, "rotary_dim"),
        (NEO | {"num_layers": 4}, "attention_types"),
        (NEO | {"attention_types": [[["near"], 24]]}, "attention_types"),
        (NEO | {"attention_types": "local"}, "attention_types"),
        (MPT | {"attn_config": {"alibi": False}}, "attn_config.alibi"),
        (MPT | {"attn_config": 8}, "attn_config"),
        (MPT | {"no_bias": False}, "no_bias"),
        (DBRX | {"ffn_config": {"moe_top_k": 5}}, "ffn_config.moe_top_k"),
        (DBRX | {"ffn_config": {"ffn_act_fn": {"name": "relu"}}}, "ffn_config.ffn_act_fn"),
        (
            {"model_type": "mamba2", "hidden_size": 1024, "num_heads": 100, "num_hidden_layers": 2},
            "num_heads",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_its_place(words, field):
    with pytest.raises(PlanError) as e:
        from_config(words)
    assert [i.field for i in e.value.issues] == [f"model.{field}"]


def test_a_head_count_that_is_missing_is_said_to_be_taken_from_the_width():
    model = from_config({"model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 2})
    assert model.heads == 2 * 1024 // 64
    assert any("num_heads is taken" in note for note in model.notes)


def test_tables_that_a_model_keeps_for_good_are_counted():
    """A mask of each layer of GPT-Neo, as long as it has positions."""

    def kept(positions):
        config = NEO | {"hidden_size": 256, "max_position_embeddings": positions}
        train = {"seq_len": 64, "attention": "eager", "framework": "pytorch", "zero": 0,
                 "checkpointing": "none", "precision": "bf16-pure", "optimizer": "sgd"}  # fmt: skip
        rows = evaluate(Plan(model=config, cluster={"gpus": 1}, train=train)).ledger
        return sum(r.bytes for r in rows if r.why == "a buffer of the model")

    assert kept(512) == 24 * 512**2
    assert kept(1024) == 24 * 1024**2
