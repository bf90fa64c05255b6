"""Laws that hold for every plan, whatever the numbers are."""

import json
import math

import numpy as np
import pytest
from drawn import deeper, plans
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from swept import peaks

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models.families import FAMILIES
from memcore.plan.plan import Plan
from memcore.report import CONSUMERS
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.precision import PRECISIONS
from memcore.words.training import COPIES, FRAMEWORKS

ROUNDING = 1e-9  # of floating-point sums


@given(plans())
def test_parts_add_up(plan):
    report = evaluate(plan)
    memory = report.memory
    assert set(memory.consumers) == set(CONSUMERS)
    assert sum(memory.consumers.values()) == memory.allocated_bytes
    assert sum(r.bytes for r in report.ledger if r.tier == "hbm") == memory.allocated_bytes
    for consumer, n in memory.consumers.items():
        rows = [r for r in report.ledger if r.tier == "hbm" and r.consumer == consumer]
        assert sum(r.bytes for r in rows) == n
    for row in report.ledger:
        assert row.bytes == row.bytes_each * row.count > 0
        assert row.why
        assert row.source
    for moment in memory.timeline:
        assert sum(moment.consumers.values()) == moment.bytes <= memory.allocated_bytes
    assert memory.allocated_bytes == max(m.bytes for m in memory.timeline)
    assert memory.peak.instant in {m.id for m in memory.timeline}
    for tier in ("dram", "nvme"):
        assert memory.tiers[tier] == sum(r.bytes for r in report.ledger if r.tier == tier)


@given(plans())
def test_intervals_are_ordered(plan):
    m = evaluate(plan).memory
    assert m.allocated_bytes <= m.reserved_bytes[0] <= m.reserved_bytes[1]
    assert m.reserved_bytes[0] <= m.device_bytes[0] <= m.device_bytes[1]
    assert m.fits == (m.verdict == "fits")


@given(plans(), st.sampled_from(["micro_batch", "seq_len"]), st.integers(1, 5))
def test_more_work_never_needs_less(plan, field, more):
    document = plan.document()
    value = document["train"][field] + more
    assume(not (field == "seq_len" and value > plan.architecture.max_positions))
    assume(not (field == "seq_len" and plan.architecture.image))
    try:
        bigger = evaluate(plan.changed(f"train.{field}", value))
    except PlanError:
        reject()
    smaller = evaluate(plan)
    assert bigger.memory.allocated_bytes >= smaller.memory.allocated_bytes
    assert bigger.time.step_seconds >= smaller.time.step_seconds * (1 - ROUNDING)


@given(plans(), st.integers(1, 5))
def test_more_layers_never_need_less(plan, more):
    bigger = evaluate(plan.changed("model", deeper(plan.model, more)))
    smaller = evaluate(plan)
    added = bigger.parameters - smaller.parameters
    assert added == 0 if FAMILIES[plan.model["model_type"]].shares else added > 0
    assert bigger.memory.allocated_bytes >= smaller.memory.allocated_bytes
    assert bigger.time.step_seconds > smaller.time.step_seconds


@given(plans())
def test_a_higher_zero_stage_keeps_no_more(plan):
    """Between steps: parameters, gradients and optimizer states that stay. DeepSpeed's ZeRO-3 does
    keep more on one GPU, where it shards nothing and has its gradients for good, and of tensors
    that it is told not to partition; and its bucket, which is workspace, is as large as asked for.
    A paged optimizer keeps small tensors on the GPU, and parts of large ones are small. Megatron's
    layers with eager attention are Megatron-DeepSpeed's at ZeRO 1, which keeps more gradients.
    """
    assume(not OPTIMIZERS[plan.train.optimizer].paged)
    assume((plan.train.framework, plan.train.attention) != ("megatron", "eager"))
    own = plan.train.framework == "deepspeed"
    if own:
        assume(plan.dp > 1)
        plan = plan.changed("train.stage3_param_persistence_threshold", 0)

    def stays(zero):
        try:
            memory = evaluate(plan.changed("train.zero", zero)).memory
        except PlanError:
            return None
        step = next(m for m in memory.timeline if m.id == "optimizer-step")
        kept = ("parameters", "gradients", "optimizer_states")
        return sum(step.consumers[c] for c in kept) if own else step.bytes

    stages = map(stays, FRAMEWORKS[plan.train.framework].zero)
    kept = [size for size in stages if size is not None]
    assert kept == sorted(kept, reverse=True)


@given(plans())
def test_checkpointing_saves_no_more(plan):
    def saved(kind):
        report = evaluate(plan.changed("train.checkpointing", kind))
        return report.memory.saved_for_backward_bytes, report.time.step_seconds

    plan = plan.changed("train.offload_activations", "none")  # less to move is faster then
    full, none = saved("full"), saved("none")
    if plan.train.attention != "eager":  # GPT-2's eager mask is one argument of all its layers
        assert full[0] <= none[0]
    assert full[1] >= none[1] * (1 - ROUNDING)


@given(plans(), st.integers(1, 70))
def test_shards_add_up_to_the_whole_plus_padding(plan, ranks):
    """Each parameter tensor is padded to the group, by less than one row per rank."""
    document = plan.document()
    document["train"] |= {"framework": "fsdp2", "zero": 3, "offload_optimizer": "none"}
    document["train"] |= {"offload_parameters": "none", "kernels": "hf"}

    def resident(gpus):
        document["cluster"] |= {"gpus": gpus, "gpus_per_node": 128}
        report = evaluate(Plan.of(document))
        return report.memory.consumers["parameters"], report

    whole, alone = resident(1)
    shard, shared = resident(ranks)
    width = whole / alone.parameters
    rows = [r for r in shared.ledger if r.consumer == "parameters"]
    padding = sum(r.count * ranks * _row_bytes(r) for r in rows)
    assert whole <= shard * ranks <= whole + padding
    assert width in (2, 4)


def _row_bytes(row):
    """Bytes of one row of a parameter: its shape without the cut dimension."""
    return row.bytes_each // row.shape.tensors[0][0].size


@given(
    plans(),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    st.lists(st.sampled_from(["none", "full"]), min_size=1, max_size=2),
)
def test_a_sweeps_cell_is_evaluate_of_that_cell(plan, batches, lengths, kinds):
    image = plan.architecture.image
    axes = {
        "train.micro_batch": batches,
        "train.checkpointing": kinds,
        "train.seq_len": [image.tokens] if image else lengths,
        "cluster.gpus": [1, 2, 8],
    }
    cells = peaks(plan, axes)
    assert cells.shape == tuple(map(len, axes.values()))
    for index in np.ndindex(*cells.shape):
        there = {name: values[i] for (name, values), i in zip(axes.items(), index, strict=True)}
        try:
            cell = plan.with_changes(there)
        except PlanError:
            assert np.isnan(cells[index])
            continue
        if cell.train.framework == "pytorch" and (cell.dp > 1) != (plan.dp > 1):
            continue  # whether gradients are reduced is a word, not a size
        assert cells[index] == evaluate(cell).memory.allocated_bytes


@given(plans())
def test_time_adds_up(plan):
    time = evaluate(plan).time
    assert sum(time.exposed.values()) == pytest.approx(time.step_seconds)
    assert sum(time.phases.values()) == pytest.approx(time.step_seconds)
    assert time.bound_by == max(time.exposed, key=time.exposed.get)
    for name, busy in time.resources.items():
        assert 0 <= time.exposed[name] <= busy * (1 + ROUNDING) or name in (
            "compute",
            "hbm",
        )
        assert busy <= time.step_seconds * (1 + ROUNDING)
    assert 0 < time.mfu <= time.hfu <= 1 + ROUNDING


@given(plans())
def test_a_report_is_plain_json(plan):
    report = evaluate(plan)
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(text)["parameters"] == report.parameters
    assert Plan.of(json.loads(json.dumps(plan.document()))) == plan


@given(plans())
def test_serving_fits_its_budget(plan):
    s = evaluate(plan).serve
    if not s:
        assert not FAMILIES[plan.architecture.family].decoder
        return
    used = s.weights_bytes + s.table_bytes + s.activation_bytes + s.overhead_bytes
    assert s.kv_budget_bytes == max(0, s.budget_bytes - used)
    if not any(kind.startswith(("sliding", "chunked")) for kind in plan.architecture.kinds):
        assert s.kv_capacity_tokens * s.kv_bytes_per_token <= s.kv_budget_bytes
    assert s.blocks * s.block_bytes <= s.kv_budget_bytes
    assert s.max_concurrency * s.sequence_bytes <= s.kv_budget_bytes
    assert math.isfinite(s.ttft_seconds)
    assert s.tpot_seconds > 0


def refused(document):
    """Why a document is refused; nothing, if it is a plan and can be evaluated."""
    try:
        evaluate(Plan.of(document))
    except PlanError as e:
        return e.issues or [""]
    return []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
FIELDS = [
    (part, field)
    for part, model in Plan.model_fields.items()
    for field in getattr(model.annotation, "model_fields", {})
]


@given(st.dictionaries(st.sampled_from([*Plan.model_fields, "typo"]), JSON, max_size=4))
def test_any_document_is_a_plan_or_a_clear_refusal(document):
    assert all(str(issue).strip() for issue in refused(document))


@given(st.sampled_from(FIELDS), JSON)
def test_any_value_of_any_field_is_accepted_or_named(path, value):
    part, field = path
    assert all(issue.field for issue in refused({part: {field: value}}))


def test_every_precision_is_laid_out_for_every_framework():
    assert {f for f, _ in COPIES} == set(FRAMEWORKS)
    assert {p for _, p in COPIES} == set(PRECISIONS)
    assert all((f, "bf16-mixed") in COPIES for f in FRAMEWORKS)
