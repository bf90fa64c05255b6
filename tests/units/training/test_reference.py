"""A frozen reference beside the trained model: its bytes, its forward, and where it has none."""

import pytest
from explained import checked

from memcore import Plan, PlanError, evaluate
from memcore.explain.book import Book

HALF = 2 * 1_235_814_400  # Llama 3.2 1B in 16 bits, its head tied
PYTORCH = {"framework": "pytorch", "zero": 0, "precision": "bf16-autocast"}
ZERO_2 = {"framework": "deepspeed", "zero": 2}
ZERO_3 = {"framework": "deepspeed", "zero": 3, "stage3_param_persistence_threshold": 0}


def plan_of(reference="none", **words):
    train = {"reference": reference, "seq_len": 1024} | words
    return Plan(model="llama-3.2-1b", cluster={"gpus": 8}, train=train)


def report(reference="none", **words):
    return evaluate(plan_of(reference, **words))


def more(attribute, reference="16-bit", **words):
    """What a reference adds to a number of memory."""
    with_it, without = (getattr(report(r, **words).memory, attribute) for r in (reference, "none"))
    if attribute == "consumers":
        return with_it["parameters"] - without["parameters"]
    return with_it["dram"] - without["dram"]


@pytest.mark.parametrize(
    ("words", "reference", "bytes_"),
    [
        (PYTORCH, "16-bit", HALF),
        (PYTORCH, "loaded", 2 * HALF),
        (ZERO_2, "16-bit", HALF),
        (ZERO_3, "16-bit", HALF // 8),
        ({}, "16-bit", HALF // 8),  # FSDP2
        ({}, "loaded", HALF // 4),
    ],
)
def test_a_copy_is_cut_as_the_framework_cuts_weights(words, reference, bytes_):
    assert more("consumers", reference, **words) == pytest.approx(bytes_, rel=1e-4)


def test_a_copy_of_offloaded_parameters_is_in_host_memory():
    words = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    assert more("consumers", **words) < HALF / 8 / 2  # what is there: a layer on its way
    assert more("tiers", **words) == pytest.approx(HALF, rel=1e-4)


@pytest.mark.parametrize("words", [PYTORCH, ZERO_3, {}, {"adapter": "lora"}])
def test_every_micro_batch_runs_forward_once_more(words):
    """As the operations' seconds say, and every number of it is explained by its parts."""
    once, twice = report(**words).time, report("16-bit", **words).time
    assert twice.phases["forward"] == pytest.approx(2 * once.phases["forward"])
    assert twice.phases["backward"] == once.phases["backward"]
    assert twice.step_seconds > once.step_seconds
    assert twice.model_flops == once.model_flops
    plan = plan_of("16-bit", grad_accumulation=2, **words)
    checked(Book(plan, evaluate(plan)))


def test_the_model_without_its_adapter_takes_no_bytes():
    assert more("consumers", adapter="lora") == 0


def test_the_logits_of_both_are_there_at_once():
    """The trained model's wait for their backward while the reference makes its own."""
    vocabulary, fp32 = 128_256, 4
    words = PYTORCH | {"precision": "bf16-pure", "optimizer": "sgd", "seq_len": 8192}
    copied = report("16-bit", **words).memory
    assert copied.peak.instant == "reference-head"
    assert copied.consumers["activations"] > 8192 * vocabulary * fp32
    assert copied.consumers["workspace"] > 8192 * vocabulary * fp32


def test_what_a_reference_is_not_planned_with():
    megatron = {"framework": "megatron", "kernels": "megatron", "zero": 1}
    with pytest.raises(PlanError, match="not planned with Megatron"):
        report("16-bit", **megatron)
    with pytest.raises(PlanError, match=r"together\.reference"):
        Plan(train={"reference": "16-bit"}, together={"kind": "grpo"})
