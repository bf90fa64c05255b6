"""DINOv2 takes images of any size, to which its positions are interpolated."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.solver import solve
from memcore.search.sweep import sweep

# What torch 2.13's MemTracker says of one step of transformers 5.23's classifier with 2 images, all
# in bf16: bytes at the peak.
SMALL = {
    "hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "image_size": 140,
    "patch_size": 14, "id2label": {str(n): str(n) for n in range(10)},
}  # fmt: skip
CLASSES = {"dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters"}
TRACKED = {
    ("dinov2", 140): 18_042_804,
    ("dinov2", 84): 15_456_980,
    ("dinov2", 224): 27_984_252,
    ("dinov2_with_registers", 84): 15_463_128,
    ("dinov2_with_registers", 224): 28_217_152,
}
WORKSPACES = 64 * 2**20  # of cuBLAS, which the tracker does not see
CLOSE = 0.002


def plan_of(family, side, **words):
    config = {**SMALL, "model_type": family,
              "architectures": [f"{CLASSES[family]}ForImageClassification"]}  # fmt: skip
    own = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "attention": "sdpa"}
    train = {**own, "checkpointing": "none", "micro_batch": 2, **words}
    return Plan(model=config, cluster={"gpus": 1}, train={**train, "image_size": side})


@pytest.mark.parametrize(("family", "side"), TRACKED)
def test_the_peak_is_the_trackers(family, side):
    found = evaluate(plan_of(family, side)).memory.allocated_bytes - WORKSPACES
    assert found == pytest.approx(TRACKED[family, side], rel=CLOSE)


def test_the_table_stays_as_it_is_stored():
    counts = {evaluate(plan_of("dinov2", side)).parameters for side in (140, 84, 224)}
    assert len(counts) == 1


def test_an_image_has_a_patch_at_least():
    with pytest.raises(PlanError, match=r"a patch of .* has 14"):
        plan_of("dinov2", 13)


def test_images_that_nobody_says_are_those_of_the_config_which_is_told():
    notes = evaluate(Plan(model="dinov2-base")).notes
    assert any("518 x 518" in note and "train.image_size" in note for note in notes)


@pytest.mark.parametrize("model", ["dinov2-base", "qwen2.5-vl-7b-vision"])
def test_a_changed_size_is_that_of_a_plan_with_it(model):
    """Also of a plan whose model was read before."""
    before, fresh = Plan(model=model), Plan(model=model, train={"image_size": 252})
    assert before.architecture != fresh.architecture
    changed = before.changed("train.image_size", 252)
    assert changed.architecture == fresh.architecture
    assert evaluate(changed).memory.allocated_bytes == evaluate(fresh).memory.allocated_bytes


def test_a_sweep_and_a_solution_have_the_sequence_of_each_size():
    plan = Plan(model="dinov2-base", cluster={"gpus": 1})
    cells = sweep(plan, {"train.image_size": [112, 224]}, ["memory.allocated_bytes"])
    each = [evaluate(plan.changed("train.image_size", n)).memory for n in (112, 224)]
    assert list(cells["memory.allocated_bytes"]) == [one.allocated_bytes for one in each]
    assert solve(plan, "train.image_size").value > 1000
