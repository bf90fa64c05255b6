"""Embedding and loss as layers of a pipeline (Megatron-Core, transformer_block.py:
get_num_layers_to_build; "The Llama 3 Herd of Models", 3.3.2, on 126 layers over 16 stages)."""

import pytest

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.training.steps import steps_of

EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


def plan_of(layers, pp, virtual=1, counted=(), gpus=16):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": layers}
    train = {"framework": "megatron", "kernels": "megatron", "zero": 1, "grad_accumulation": 64}
    parallel = {"pp": pp, "virtual_stages": virtual} | dict.fromkeys(counted, True)
    return Plan(model=config, cluster={"gpus": gpus}, parallel=parallel, train=train)


def layers_of(plan):
    return [step.layers.count for step in steps_of(plan)]


@pytest.mark.parametrize(
    ("layers", "pp", "counted", "expected"),
    [
        (126, 16, (EMBEDDING, LOSS), [7, *[8] * 14, 7]),
        (63, 16, (LOSS,), [*[4] * 15, 3]),
        (63, 16, (EMBEDDING,), [3, *[4] * 15]),
        (30, 2, (EMBEDDING, LOSS), [15, 15]),
        (32, 1, (EMBEDDING, LOSS), [32]),
    ],
)
def test_layers_of_each_stage(layers, pp, counted, expected):
    assert layers_of(plan_of(layers, pp, counted=counted)) == expected


def test_405b_on_16_stages_with_8_virtual_ones():
    with pytest.raises(PlanError, match="8 virtual stages on each of 16 for 126 layers"):
        plan_of(126, 16, 8)
    plan = plan_of(126, 16, 8, (EMBEDDING, LOSS))
    few, many = (evaluate(p).time.bubble_seconds for p in (plan_of(126, 16), plan))
    assert many < 0.2 * few


def test_what_does_not_divide_is_refused():
    with pytest.raises(PlanError, match=r"parallel\.pp: 63 layers and 2 for embedding and loss"):
        plan_of(63, 16, counted=(EMBEDDING, LOSS))
