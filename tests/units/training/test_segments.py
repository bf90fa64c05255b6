"""The native allocator's rules (training/segments.py): of blocks alone, and of whole steps."""

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.hardware import constants
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.sweep import sweep
from memcore.training.overheads import by_rules, context, rules_of
from memcore.training.segments import Allocator, replayed, reserved_by_rules
from memcore.training.training import Training
from memcore.units import MiB


def native(**words):
    train = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "attention": "sdpa",
             "allocator": "native", "micro_batch": 1, "seq_len": 512}  # fmt: skip
    return Plan(model="smollm2-135m", cluster={"gpu": "t4-16gb", "gpus": 1}, train=train | words)


@pytest.mark.parametrize(
    ("mib", "segment"), [(0.4, 2), (1, 2), (1.5, 20), (9.5, 20), (10, 10), (11, 12), (21, 22)]
)
def test_the_segment_of_a_first_tensor(mib, segment):
    kept = Allocator()
    kept.take(int(mib * MiB))
    assert kept.reserved == segment * MiB


def test_what_is_freed_is_used_again_where_it_fits():
    kept = Allocator()
    large = kept.take(64 * MiB)
    kept.give(large)
    a, b = kept.take(30 * MiB), kept.take(34 * MiB)
    assert kept.reserved == 64 * MiB
    kept.give(a)
    c = kept.take(32 * MiB)  # 30 MiB are free, and not enough
    assert kept.reserved == 96 * MiB
    for block in (b, c):
        kept.give(block)
    kept.take(64 * MiB)  # the halves of the first segment were merged
    assert kept.reserved == 96 * MiB


def test_the_smallest_block_that_fits_and_what_is_not_split():
    kept = Allocator()
    wide, narrow = kept.take(100 * MiB), kept.take(40 * MiB)
    for block in (wide, narrow):
        kept.give(block)
    found = kept.take(39 * MiB)  # a rest of 1 MiB stays with it
    assert found is narrow
    assert kept.allocated == 40 * MiB


def test_a_step_needs_at_least_what_it_allocates():
    for words in ({}, {"checkpointing": "none"}, {"grad_accumulation": 4}, {"adapter": "lora"}):
        plan = native(**words)
        found = Training.of(plan)
        reserved = reserved_by_rules(found.step, found.amounts)
        assert 0.99 <= reserved / found.memory.allocated_bytes <= 1.6, words
        assert found.memory.reserved_bytes[0] >= found.memory.allocated_bytes


def test_what_is_between_the_first_and_the_last_layers_adds_what_it_keeps():
    """Layers between are not followed tensor by tensor, yet each adds its weights and states; these
    go where there is room at the end of the first step, so that few layers more say little."""
    config = catalog.model_entry("smollm2-135m")["config"]
    sizes = []
    for layers in (12, 20, 30):
        plan = native().changed("model", config | {"num_hidden_layers": layers})
        found = Training.of(plan)
        sizes.append((reserved_by_rules(found.step, found.amounts), found.memory.allocated_bytes))
    (least, low), (middle, _), (most, high) = sizes
    assert least < middle < most
    assert most - least == pytest.approx(high - low, rel=0.35)


MEGATRON = {"framework": "megatron", "kernels": "megatron", "attention": "flash", "zero": 1,
            "precision": "bf16-mixed", "grad_accumulation": 8}  # fmt: skip
DEEPSPEED = {"framework": "deepspeed", "precision": "bf16-mixed"}
FSDP2 = {"framework": "fsdp2", "precision": "bf16-mixed"}
STEPS_OF = {
    "alone": (1, {}, {}),
    "LoRA, layer by layer": (1, {}, {"adapter": "lora", "checkpointing": "none"}),
    "accumulated": (1, {}, {"grad_accumulation": 4}),
    "1F1B": (2, {"pp": 2}, MEGATRON),
    "1F1B, run again": (2, {"pp": 2}, MEGATRON | {"checkpointing": "full"}),
    "interleaved": (2, {"pp": 2, "virtual_stages": 3}, MEGATRON),
    "GPipe": (2, {"pp": 2, "schedule": "gpipe"}, MEGATRON),
    "optimizer on the host": (2, {}, MEGATRON | {"offload_optimizer": "cpu"}),
    "activations on the host": (1, {}, {"offload_activations": "cpu", "checkpointing": "full"}),
    "all activations on the host": (1, {}, {"offload_activations": "cpu", "checkpointing": "none"}),
    **{f"FSDP2, ZeRO {zero}": (2, {}, FSDP2 | {"zero": zero}) for zero in (0, 2, 3)},
    "Megatron-DeepSpeed": (2, {"pp": 2}, MEGATRON | {"attention": "eager"}),
    **{f"DeepSpeed, ZeRO {zero}": (2, {}, DEEPSPEED | {"zero": zero}) for zero in (0, 1, 2)},
}


@pytest.mark.parametrize("words", STEPS_OF.values(), ids=STEPS_OF)
def test_what_is_taken_is_what_the_ledger_has(words):
    """At the peak as many bytes are in use as the ledger says, with what is not split off, and each
    step gives back what it took, so that steps after the third reserve nothing more."""
    gpus, parallel, train = words
    cluster = {"gpu": "h100-sxm-80gb", "gpus": gpus}
    train = native().train.model_dump(exclude_unset=True) | train
    plan = Plan(model="smollm2-135m", cluster=cluster, parallel=parallel, train=train)
    found = Training.of(plan)
    assert by_rules(plan)
    three, more = (replayed(found.step, found.amounts, steps) for steps in (3, 6))
    assert 1 <= three.most / found.memory.allocated_bytes <= 1.015
    assert three.allocated == more.allocated
    assert three.reserved == pytest.approx(more.reserved, rel=0.01)


def test_what_lies_on_other_streams_does_not_follow_the_rules():
    """But under FSDP2, where runs were held against them."""
    apart = [
        native(**DEEPSPEED, zero=3),
        native(**MEGATRON | {"zero": 3}),
    ]
    assert not any(by_rules(plan) for plan in apart)
    assert rules_of(native(**FSDP2, zero=3)) is constants.NATIVE_RULES_FSDP2


def test_a_sweep_reads_the_same():
    axes = {"train.micro_batch": [1, 3], "train.seq_len": [256, 512]}
    table = sweep(native(), axes, ["memory.reserved_bytes.1"])
    assert len(table) == 4
    for row in table.to_dict("records"):
        plan = native().with_changes({path: int(row[path]) for path in axes})
        assert row["memory.reserved_bytes.1"] == evaluate(plan).memory.reserved_bytes[1]


def test_gaps_are_an_overhead_with_its_source():
    report = evaluate(native())
    first = report.memory.overheads[0]
    assert "native allocator" in first.name
    checked(Book(native(), report))


def test_a_small_gpu_has_a_small_context():
    """141 MiB on a T4, by nvidia-smi less what PyTorch reserves; what H100s showed stays."""
    low, high = context(catalog.accelerator("t4-16gb"))
    assert low <= 147_718_144 <= high <= 2 * 147_718_144
    large = evaluate(Plan()).memory.overheads
    assert next(o for o in large if "CUDA context" in o.name).low == int(0.3 * 2**30)
