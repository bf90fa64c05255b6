"""LoRA targets as PEFT's target_modules has them: names of linear layers."""

import pytest

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.models.counts import weights
from memcore.plan.link import decode, encode
from memcore.plan.model_rules import linear_layers
from memcore.plan.plan import Plan


def plan_of(modules, model="llama-2-7b", **words):
    train = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "adapter": "lora",
             "lora_rank": 16, "seq_len": 512}  # fmt: skip
    return Plan(model=model, cluster={"gpus": 1}, train=train | {"lora_modules": modules} | words)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ("q_proj,v_proj", {"lora_targets": "attention"}),
        ("v_proj, k_proj, q_proj, o_proj", {"lora_targets": "attention-all"}),
        (
            "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            {"lora_targets": "all-linear"},
        ),
    ],
)
def test_a_list_is_what_the_word_for_it_is(modules, words):
    listed, worded = evaluate(plan_of(modules)), evaluate(plan_of("none", **words))
    assert listed.trainable_parameters == worded.trainable_parameters
    assert listed.memory == worded.memory


def test_a_list_that_no_word_says():
    report = evaluate(plan_of("down_proj"))
    assert report.trainable_parameters == 32 * 16 * (11_008 + 4_096)


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(PlanError, match=r"train\.lora_modules.*c_attn"):
        plan_of("q_proj,c_attn")
    with pytest.raises(PlanError, match=r"did you mean.*q_proj"):
        plan_of("q_porj")
    with pytest.raises(PlanError, match="lm_head"):
        plan_of("q_proj,lm_head")
    with pytest.raises(PlanError, match="logits"):
        plan_of("logits", model="qwen3-30b-a3b")


def test_every_planned_decoder_has_linear_layers():
    for name in ("llama-2-7b", "gpt2", "phi-3-mini-4k", "deepseek-v2-lite"):
        model = catalog.model(name)
        assert linear_layers(model)
        assert weights(model)
    assert linear_layers(catalog.model("gpt2")) == ("c_attn", "c_proj", "c_fc")


@pytest.mark.parametrize("nothing", ["", " ", ",", "none"])
def test_no_name_is_none(nothing):
    assert plan_of(nothing).train.lora_modules == "none"
    assert plan_of(" q_proj ,v_proj,q_proj").train.lora_modules == "q_proj,v_proj"


def test_a_list_is_held_against_the_model_without_an_adapter_too():
    """So that a misspelt name is refused, and not the adapter."""
    with pytest.raises(PlanError, match=r"train\.lora_modules"):
        plan_of("q_porj", adapter="none")


def test_a_link_carries_the_names():
    plan = plan_of("q_proj,v_proj")
    found, issues = decode(encode(plan))
    assert not issues
    assert found.train.lora_modules == "q_proj,v_proj"
    assert encode(Plan(), short=True).get("modules") is None
