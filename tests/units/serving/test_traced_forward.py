"""The forward of a traced model by itself, in eval mode under torch.no_grad, against PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.traced.file import read
from memcore.plan.plan import Plan

TESTS = Path(__file__).parents[2]
ROWS = json.loads((TESTS / "reference" / "traced_forwards.json").read_text())  # by ask_traced.py


def document(net: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (TESTS / "units" / "models" / f"traced_{net}.json").read_text()
    )
    return found


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_peak_of_a_forward_is_pytorchs(row: dict[str, Any]) -> None:
    given = document(row["net"])
    file = read(given)
    assert file.forward
    assert file.weight_bytes + file.forward.peak_bytes(row["dims"]) == row["peak_bytes"]
    plan = Plan(
        job="serve", model={**given, "dims": row["dims"]}, cluster={"gpus": 1},
        serve={"concurrency": row["dims"]["batch"]},
    )  # fmt: skip
    report = evaluate(plan)
    forward = report.inference
    assert forward
    assert forward.allocated_bytes == pytest.approx(row["peak_bytes"], rel=1e-3)
    assert sum(r.bytes for r in forward.rows) == forward.activation_bytes
    assert forward.latency_seconds > 0
    assert forward.fits
    assert Book(plan, report).chain("inference.allocated_bytes")


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    model = document("unet")

    def asked(batch: int) -> Any:
        plan = Plan(job="serve", model=model, cluster={"gpus": 1}, serve={"concurrency": batch})
        return evaluate(plan).inference

    most = asked(1).max_batch
    assert most > 1
    assert asked(most).fits
    assert not asked(most + 1).fits


def test_a_file_without_a_forward_says_so() -> None:
    old = document("net")
    del old["forward"]
    report = evaluate(Plan(job="serve", model=old))
    assert report.inference is None
    assert any("has no forward: trace it anew" in note for note in report.notes)
