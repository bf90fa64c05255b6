"""What a chart says of a step at once is what its instants say, one after the other."""

import pytest

from memcore import Plan
from memcore.step.step import STEPPING, at_least
from memcore.tape.ledger import Amounts
from memcore.training.memory import instant_bytes
from memcore.training.steps import steps_of, training_sizes

HOSTED = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
WAYS = (
    ("llama-3-8b", {"framework": "fsdp2", "zero": 3, "checkpointing": "full"} | HOSTED),
    ("qwen3-30b-a3b", {"framework": "fsdp2", "zero": 2, "precision": "bf16-autocast"}),
    ("gemma-3-27b", {"framework": "fsdp2", "zero": 3, "grad_accumulation": 2}),
    ("llama-3-8b", {"framework": "deepspeed", "zero": 3, "offload_optimizer": "cpu"}),
    ("qwen3-30b-a3b", {"framework": "deepspeed", "zero": 1, "grad_accumulation": 4}),
    ("llama-3-8b", {"framework": "megatron", "kernels": "megatron", "checkpointing": "selective"}),
    ("qwen3-30b-a3b", {"framework": "megatron", "kernels": "megatron", "zero": 1}),
    ("gemma-3-27b", {"framework": "pytorch", "zero": 0, "checkpointing": "selective-op"}),
)


@pytest.mark.parametrize(("model", "words"), WAYS)
def test_a_chart_is_as_its_instants(model, words):
    pp = 2 if words["framework"] == "megatron" else 1
    train = {"zero": 0} | words
    plan = Plan.of({"model": model, "cluster": {"gpus": 8}, "parallel": {"pp": pp}, "train": train})
    amounts = Amounts(training_sizes(plan))
    for step in {one.alone for one in steps_of(plan)}:
        running, stepping, each = step.charted(amounts)
        found = {True: [], False: []}
        for instant in step.instants:
            found[instant.id in STEPPING].append(instant_bytes(instant, amounts)[0])
        assert running[:, 0].tolist() == found[False]
        assert stepping[:, 0].tolist() == found[True]
        assert each[0] == amounts.held(step.one_waiting)
        assert step.charted_least(amounts)[0, 0] == amounts.alive(at_least(step))
