"""LoRA beside the linear layers of a traced model, and modules that are frozen, against PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asked import asked_anew

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.traced.file import ModelFile, read
from memcore.models.traced.tuned import LowRank, adapted, tuned
from memcore.plan.plan import Plan

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "reference"
ROWS = json.loads((REFERENCE / "traced_adapters.json").read_text())  # by ask_traced_adapters.py
WORKSPACE = 67_108_864  # cuBLAS's, which a trace on a CPU has not


def document(net: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"traced_{net}.json").read_text())
    return found


def as_trained(row: dict[str, Any]) -> ModelFile:
    """The file of a row's net as the row trains it."""
    net, layers, rank, dtype, dropout, frozen = row["case"]
    file = read(document(net))
    words = {"base": "bf16"}.get(dtype, dtype)
    chosen = adapted(file, "", tuple(layers))
    how = LowRank(chosen, rank, words, dropout > 0) if layers else None
    return tuned(file, tuple(frozen), how)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_file_says_what_pytorch_keeps_of_what_is_trained(row: dict[str, Any]) -> None:
    file = as_trained(row)
    assert file.variants[0].saved_bytes(row["dims"]) == row["saved_bytes"]
    assert file.peak_bytes(row["dims"]) == row["peak_bytes"]


@pytest.mark.parametrize("row", [r for r in ROWS if r["case"][1]], ids=str)
def test_the_engine_plans_adapters_as_pytorch_measured(row: dict[str, Any]) -> None:
    net, layers, rank, dtype, dropout, _ = row["case"]
    words = {"adapter": "lora", "lora_modules": ",".join(layers), "lora_rank": rank,
             "adapter_dtype": dtype, "lora_dropout": dropout, "precision": "bf16-pure",
             "framework": "pytorch", "zero": 0, "checkpointing": "none", "outputs": "freed",
             "micro_batch": row["dims"]["batch"]}  # fmt: skip
    plan = Plan(model={**document(net), "dims": row["dims"]}, cluster={"gpus": 1}, train=words)
    report = evaluate(plan)
    memory = report.memory
    assert memory
    assert memory.saved_for_backward_bytes == row["saved_bytes"]
    states = memory.consumers["optimizer_states"] + WORKSPACE
    dims = row["dims"]
    image = 2 * 3 * dims["batch"] * dims["height"] * dims["width"]  # which nothing saves now
    held = memory.allocated_bytes - states + image
    assert held == pytest.approx(row["peak_bytes"], rel=0.01)
    trained = sum(p.elements for p in as_trained(row).parameters if p.trained)
    size = 4 if dtype == "fp32" else 2
    moments = pytest.approx(2 * size * trained, abs=1_000)  # and a count of steps each
    assert memory.consumers["optimizer_states"] == moments
    assert Book(plan, report).chain("memory.allocated_bytes")


@pytest.mark.parametrize("row", [r for r in ROWS if r["case"][5]], ids=str)
def test_the_engine_plans_frozen_modules_as_pytorch_measured(row: dict[str, Any]) -> None:
    net, frozen, dims = row["case"][0], ",".join(row["case"][5]), row["dims"]
    words = {
        "frozen": "modules",
        "frozen_modules": frozen,
        "precision": "bf16-pure",
        "zero": 0,
        "framework": "pytorch",
        "checkpointing": "none",
        "micro_batch": dims["batch"],
    }
    plan = Plan(model={**document(net), "dims": dims}, cluster={"gpus": 1}, train=words)
    report = evaluate(plan)
    memory = report.memory
    assert memory
    assert memory.saved_for_backward_bytes == row["saved_bytes"]
    image = 0
    if "stem" in row["case"][5]:  # nothing saves the image then
        image = (
            2 * 3 * dims["batch"] * dims["height"] * dims["width"] * (64 if net == "unet" else 1)
        )
    held = memory.allocated_bytes - memory.consumers["optimizer_states"] - WORKSPACE + image
    assert held == pytest.approx(row["peak_bytes"], rel=0.01)
    trained = sum(p.elements for p in as_trained(row).parameters if p.trained)
    assert report.trainable_parameters == trained
    assert Book(plan, report).chain("trainable_parameters")


@pytest.mark.parametrize(
    ("names", "said"),
    [("stemm", "no module 'stemm'; did you mean"), ("none", "names no module"),
     ("stem,blocks,head", "nothing is left to train")],
)  # fmt: skip
def test_modules_that_cannot_be_frozen_are_refused(names: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan(model=document("net"), train={"frozen": "modules", "frozen_modules": names})
    with pytest.raises(PlanError, match="of traced models only"):
        Plan(model="gpt2", train={"frozen": "modules", "frozen_modules": "h"})


def test_checkpointed_blocks_keep_their_inputs_under_adapters_too() -> None:
    def saved(word: str) -> int:
        words = {"adapter": "lora", "lora_modules": "up,down", "checkpointing": word,
                 "precision": "bf16-pure", "framework": "pytorch", "zero": 0}  # fmt: skip
        memory = evaluate(Plan(model=document("net"), cluster={"gpus": 1}, train=words)).memory
        assert memory
        return int(memory.saved_for_backward_bytes)

    assert saved("full") < saved("none")


@pytest.mark.parametrize(
    ("targets", "layers"),
    [("attention", ["query", "value"]), ("all-linear", None), ("attention-all", [])],
)
def test_targets_are_layers_of_the_file(targets: str, layers: list[str] | None) -> None:
    file = read(document("attends"))
    found = adapted(file, targets, ())
    names = {path.rpartition(".")[2] for path in found}
    every = {"query", "key", "value", "out", "scale", "gate", "up", "down", "head"}
    assert names == (every if layers is None else set(layers))


def test_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(PlanError, match=r"lora_modules.*no linear layer 'upp'; did you mean"):
        Plan(model=document("net"), train={"adapter": "lora", "lora_modules": "upp"})
    with pytest.raises(PlanError, match=r"lora_targets.*lora_modules names others"):
        Plan(model=document("net"), train={"adapter": "lora", "lora_targets": "attention"})
    old = document("net")
    for block in old["variants"][0]["blocks"]:
        block["storages"] = [row[:9] for row in block["storages"]]
    with pytest.raises(PlanError, match=r"train\.adapter.*trace it anew"):
        Plan(model=old, train={"adapter": "lora"})


@pytest.mark.oracle
@pytest.mark.parametrize("row", ROWS[::3], ids=str)
def test_pytorch_still_says_so(row: dict[str, Any]) -> None:
    assert asked_anew("ask_traced_adapters", row["case"], row["dims"]) == row
