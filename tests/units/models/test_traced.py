"""Model files: expressions, reading, hostile files, and what the engine makes of one."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from asked import asked_anew
from hostile_files import mutated

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.traced.expression import ExpressionError, Sum, parse
from memcore.models.traced.file import read
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan, get

FILE = Path(__file__).parent / "traced_net.json"  # a net of 30 lines, as `memplan trace` wrote it


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12*batch*height + 4", 12 * 3 * 7 + 4),
        ("floor(height + 1, 2)*batch - 5", 4 * 3 - 5),
        ("mod(height, 4)", 3),
        ("max(batch, height) - max(-batch, -height)", 7 + 3),
        ("-(batch - height)*2", 8),
        ("2*(batch + 1)*(height - 1)", 2 * 4 * 6),
        (17, 17),
    ],
)
def test_an_expression_has_its_value(text: str | int, value: int) -> None:
    found = parse(text)
    assert found.value({"batch": 3, "height": 7}) == value
    assert parse(str(found)) == found  # what is written says the same


@pytest.mark.parametrize(
    "text",
    ["", "batch +", "2**3", "__import__('os')", "floor(1)", "floor(4, 0)",
     "(" * 50 + "1" + ")" * 50, "a.b", "1" * 30, "batch*" * 20 + "1",
     "+".join(f"x{i}" for i in range(300)), None, 1.5, True,
     "(a+b)*(a+b)*(a+b)*(a+b)*(a+b)*(a+b)*(a+b)*(a+b)*(a+b)", "x" * 5000],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: Any) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_random_sums_survive_writing_and_reading() -> None:
    draw = random.Random(5)

    def made(depth: int) -> Sum:
        if depth == 0 or draw.random() < 0.3:
            return draw.choice([Sum.name("a"), Sum.name("b"), Sum.number(draw.randrange(-9, 9))])
        first, second = made(depth - 1), made(depth - 1)
        kind = draw.randrange(4)
        if kind == 0:
            return first + second
        if kind == 1:
            return first * second
        if kind == 2:
            return Sum.function("max", first, second)
        return Sum.function("floor", first, Sum.number(draw.randrange(1, 9)))

    for _ in range(200):
        found = made(3)
        again = parse(str(found))
        for sizes in ({"a": 2, "b": 3}, {"a": 11, "b": 1}):
            assert again.value(sizes) == found.value(sizes)


def test_a_file_says_what_pytorch_said_at_sizes_not_traced() -> None:
    file = read(document())
    assert file.checks
    for check in file.checks:
        variant = file.variant(check.sizes)
        assert file.elements == check.parameters
        assert variant.saved_bytes(check.sizes) == check.saved_bytes
        assert file.peak_bytes(check.sizes) == check.peak_bytes
        assert variant.broken(check.sizes) == []


WORKSPACE = 67_108_864  # cuBLAS's, which a trace on a CPU has not


@pytest.mark.parametrize("framework", ["pytorch", "fsdp2"])
def test_the_engine_plans_it_as_pytorch_measured(framework: str) -> None:
    given = document()
    for check in given["checks"]:
        batch = check["dims"]["batch"]
        if batch == 1:
            continue  # the engine has the variant of several samples alone
        zero = {} if framework == "fsdp2" else {"zero": 0}
        plan = Plan(
            model={**given, "dims": check["dims"]},
            cluster={"gpus": 1},
            train={"micro_batch": batch, "precision": "bf16-pure", "framework": framework,
                   "checkpointing": "none", **zero},
        )  # fmt: skip
        report = evaluate(plan)
        memory, time = report.memory, report.time
        assert memory
        assert time
        assert report.parameters == check["parameters"]
        assert memory.saved_for_backward_bytes == check["saved_bytes"]
        states = memory.consumers["optimizer_states"] + WORKSPACE
        assert memory.allocated_bytes - states == pytest.approx(check["peak_bytes"], rel=0.01)
        assert time.step_seconds > 0


REFERENCE = Path(__file__).parents[2] / "reference"
ROWS = json.loads((REFERENCE / "traced.json").read_text())  # by reference/ask_traced.py


def checkpointed_plan(row: dict[str, Any], **train: Any) -> Plan:
    """A net of reference/traced_nets.py with a checkpoint around each unit."""
    given = json.loads((FILE.parent / f"traced_{row['net']}.json").read_text())
    words = {"micro_batch": row["dims"]["batch"], "checkpointing": "full", "framework": "pytorch",
             "precision": "bf16-pure", "zero": 0, **train}  # fmt: skip
    return Plan(model={**given, "dims": row["dims"]}, cluster={"gpus": 1}, train=words)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_checkpointing_by_block_keeps_what_pytorch_keeps(row: dict[str, Any]) -> None:
    memory = evaluate(checkpointed_plan(row)).memory
    assert memory
    assert memory.saved_for_backward_bytes == row["saved_bytes"]
    states = memory.consumers["optimizer_states"] + WORKSPACE
    assert memory.allocated_bytes - states == pytest.approx(row["peak_bytes"], rel=0.01)


SHARDED = json.loads((REFERENCE / "sharded.json").read_text())  # by reference/ask_sharded.py


@pytest.mark.parametrize("row", SHARDED, ids=str)
def test_fsdp2_of_blocks_has_pytorchs_peak(row: dict[str, Any]) -> None:
    words = {"checkpointing": "none", "framework": "fsdp2", "zero": 3}
    plan = checkpointed_plan(row, **words).with_changes({"cluster.gpus": row["ranks"]})
    memory = evaluate(plan).memory
    assert memory
    assert memory.allocated_bytes - WORKSPACE == pytest.approx(row["peak_bytes"], rel=1e-3)


def test_checkpointing_costs_a_forward_more() -> None:
    times = [
        time for word in ("none", "full")
        if (time := evaluate(checkpointed_plan(ROWS[0], checkpointing=word)).time)
    ]  # fmt: skip
    again = [sum(o.seconds for o in t.operations if o.phase == "recompute") for t in times]
    assert again[0] == 0
    assert again[1] > 0


def test_a_file_that_does_not_say_what_runs_again_is_not_checkpointed() -> None:
    given = document()
    for block in given["variants"][0]["blocks"]:
        del block["again"]
    with pytest.raises(PlanError, match=r"^train\.checkpointing.*trace it anew"):
        Plan(model=given, train={"checkpointing": "full"})
    assert Plan(model=given).train.checkpointing == "none"


def test_each_tensor_of_a_trace_that_gpus_share_out_is_explained() -> None:
    plan = Plan(model=document(), cluster={"gpus": 8}, train={"framework": "fsdp2", "zero": 3})
    book = Book(plan, evaluate(plan))
    assert book.chain("memory.allocated_bytes")
    assert book.explain("memory.consumers.parameters").parts


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_shares_out_a_trace_as_any_model(zero: int) -> None:
    """Under ZeRO a GPU has weights in 16 bits, of which fp32 copies and two moments are shared out,
    on the host where they are offloaded."""
    words = {"framework": "deepspeed", "zero": zero, "precision": "bf16-mixed"}
    model = json.loads((FILE.parent / "traced_unet.json").read_text())
    kept, moved = (
        evaluate(Plan(model=model, cluster={"gpus": 4}, train={**words, "offload_optimizer": tier}))
        for tier in ("none", "cpu")
    )
    n = kept.parameters
    assert kept.memory
    assert moved.memory
    weights = 2 * n * (1.25 if zero == 3 else 1)  # stage 3 keeps these small ones whole besides
    assert kept.memory.consumers["parameters"] == pytest.approx(weights, rel=0.05)
    assert kept.memory.consumers["optimizer_states"] == pytest.approx(12 * n / 4, rel=0.05)
    assert moved.memory.consumers["optimizer_states"] == 0
    assert moved.memory.tiers["dram"] >= 12 * n


@pytest.mark.oracle
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_pytorch_still_says_so(row: dict[str, Any]) -> None:
    assert asked_anew("ask_traced", row["net"], row["dims"]) == row


def test_sizes_that_the_trace_was_not_made_for_are_told() -> None:
    given = document()
    given["variants"][0]["guards"] = [["mod(height, 8)", "==", "0"]]
    given["dims"]["height"] = 252
    assert any("mod(height, 8) == 0" in note for note in evaluate(Plan(model=given)).notes)
    given["dims"]["height"] = 256
    assert not any("mod(height, 8)" in note for note in evaluate(Plan(model=given)).notes)
    given["dims"]["height"] = 0
    with pytest.raises(PlanError, match=r"model\.dims\.height"):
        Plan(model=given)


@pytest.mark.parametrize(
    "other",
    [{"train": {"precision": "fp32"}}, {"parallel": {"tp": 2}},
     {"train": {"checkpointing": "selective"}}, {"train": {"adapter": "qlora"}}],
)  # fmt: skip
def test_what_a_trace_has_not_is_refused(other: dict[str, Any]) -> None:
    (section,) = other
    (field,) = other[section]
    with pytest.raises(PlanError, match=rf"^{section}\.{field}: (?!unknown)"):
        Plan(model=document(), **other)


def test_a_dimension_moves_what_is_planned() -> None:
    given = document()

    def activations(height: int) -> int:
        dims = {**given["dims"], "height": height}
        memory = evaluate(Plan(model={**given, "dims": dims})).memory
        assert memory
        return memory.saved_for_backward_bytes

    assert activations(512) == pytest.approx(2 * activations(256), rel=0.01)


def test_a_changed_file_is_planned_or_refused_clearly_and_soon() -> None:
    """As benchmarks/fuzz_model_files.py does by the hundred thousand."""
    draw = random.Random(36)
    refused = 0
    for _ in range(150):
        given = mutated(document(), draw)
        began = time.process_time()
        refused += len(message := _refusal(given)) > 0
        assert len(message) < 1500
        assert time.process_time() - began < 1
    assert refused > 75


def _refusal(given: Any) -> str:
    """What is said of a file that is refused, of one that is planned ''."""
    try:
        evaluate(Plan(model=given))
    except PlanError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("value", [None, [], 3, "x", {"memplan_model_file": 2}])
def test_what_is_no_model_file_is_refused(value: Any) -> None:
    with pytest.raises(PlanError):
        read(value)


@pytest.mark.parametrize(
    "text",
    ["(batch+height+1)*(batch+width+2)*(height+width+3)+" * 80 + "{}",
     "floor(" * 11 + "batch" + ",7)" * 11 + "*batch+{}",
     "max(batch,height)*floor(height,3)*(batch+height)+" * 70 + "{}"],
)  # fmt: skip
def test_a_file_of_long_expressions_is_refused_soon(text: str) -> None:
    """As many of them, each another, as a file of 4 MB has."""
    given = document()
    row = given["variants"][0]["blocks"][0]["storages"][0]
    many = 4_000_000 // len(text)
    rows = [[*row[:2], [text.format(i)], *row[3:]] for i in range(many)]
    given["variants"][0]["blocks"][0]["storages"] = rows
    began = time.process_time()
    with pytest.raises(PlanError, match=r"model\.variants\.0"):
        read(given)
    assert time.process_time() - began < 2  # half of that is what a busy machine adds


def test_a_config_json_is_no_model_file_whatever_it_calls_itself() -> None:
    with pytest.raises(PlanError, match="architecture 'traced' is no family"):
        Plan.of({"model": {"model_type": "traced", "hidden_size": 64, "num_hidden_layers": 2}})


# ---- a preset that was traced


def test_a_traced_preset_has_sizes_that_a_plan_may_change() -> None:
    usual = Plan(model="resnet-50")
    larger = usual.changed("model.dims.height", 448)
    assert get(usual, "model.dims.height") == 224
    assert larger.model == {"preset": "resnet-50", "dims": {"height": 448}}
    assert larger.changed("model.dims.height", 224).model == "resnet-50"
    peaks = [memory.allocated_bytes for p in (usual, larger) if (memory := evaluate(p).memory)]
    assert peaks[1] > peaks[0]


def test_a_link_holds_the_sizes_of_a_traced_preset() -> None:
    plan = Plan(model="resnet-50").changed("model.dims.width", 320)
    assert encode(plan, short=True)["model"] == "resnet-50~1~width.320"
    assert decode(encode(plan)) == (plan, [])
    back, issues = decode({**encode(plan), "model": "resnet-50~1~width.0"})
    assert back.model == "resnet-50"
    assert "model.dims.width" in issues[0].field


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ({"preset": "resnet-5"}, "did you mean 'resnet-50'"),
        ({"preset": "resnet-50", "dims": {"heigth": 3}}, "resnet-50 has height, width"),
        ({"preset": "resnet-50", "dims": {"batch": 3}}, "train.micro_batch"),
        ({"preset": "resnet-50", "dims": {"height": 1.5}}, "whole number"),
        ({"preset": "resnet-50", "dims": 5}, "must be an object"),
        ({"preset": ["resnet-50"]}, "no traced preset"),
    ],
)
def test_sizes_that_a_traced_preset_has_not_are_refused(model: Any, where: str) -> None:
    with pytest.raises(PlanError, match=where):
        Plan(model=model)


def test_a_model_without_tokens_counts_samples() -> None:
    plan = Plan(model="resnet-50", train={"micro_batch": 32}, cluster={"gpus": 1})
    time = evaluate(plan).time
    assert time
    assert plan.architecture.unit == "samples"
    assert time.tokens_per_second == pytest.approx(32 / time.step_seconds)
    with pytest.raises(PlanError, match="has no tokens"):
        Plan(model="resnet-50", train={"seq_len": 4096})
