"""One forward of a model that generates nothing: its peak as PyTorch has it
(reference/ask_inference.py), the batch that fits, and what is said of it."""

import sys

import asked
import pytest
from explained import checked
from tables import each

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.serving.forward import inference

ROWS = asked.table("inference")
BERT = {"model": "bert-base", "cluster": {"gpu": "h100-sxm-80gb", "gpus": 2}}


def plan(batch, tokens=128, **more):
    return Plan.of(BERT | {"serve": {"concurrency": batch, "prompt_len": tokens, **more}})


@each("row", ROWS)
def test_the_peak_is_that_of_pytorch(row):
    """But for tables of positions, which are views of buffers there."""
    of = {"concurrency": row["batch"], "prompt_len": row.get("tokens", 1)}
    forward = inference(Plan.of({"model": row["config"], "serve": of}))
    assert forward.activation_bytes == pytest.approx(row["peak"], rel=0.001)


def test_the_largest_batch_fits_and_one_more_does_not():
    most = inference(plan(1)).max_batch
    assert inference(plan(most)).fits
    assert not inference(plan(most + 1)).fits


def test_all_gpus_run_a_batch_each():
    forward = inference(plan(256))
    assert forward.samples_per_second == 2 * 256 / forward.latency_seconds
    assert forward.tokens_per_second == 128 * forward.samples_per_second
    assert forward.latency_seconds == forward.gpu_seconds > forward.host_seconds
    assert inference(plan(1)).bound_by == "host"


def test_no_sample_has_more_tokens_than_the_model_takes():
    report = evaluate(plan(4, 4096))
    assert report.inference.tokens == 512
    assert any("4,096 (serve.prompt_len)" in note for note in report.notes)
    assert report.serve is None


def test_weights_of_8_bits_are_an_engine_s():
    report = evaluate(plan(4, weight_dtype="fp8"))
    assert report.inference.weights_bytes == evaluate(plan(4)).inference.weights_bytes
    assert any("are planned in bf16" in note for note in report.notes)


def test_a_decoder_has_no_such_forward():
    assert evaluate(Plan(model="gpt2")).inference is None


def test_every_number_is_explained():
    report = evaluate(plan(32))
    book = Book(plan(32), report)
    checked(book)
    paths = [path for path in book.paths() if path.startswith("inference.")]
    assert {"inference.device_bytes", "inference.latency_seconds"} <= set(paths)
    for path in paths:
        found = book.explain(path)
        assert found.sources or found.formula
        name = path.removeprefix("inference.")
        if "." not in name:
            assert found.value == pytest.approx(getattr(report.inference, name))


@pytest.mark.oracle
def test_pytorch_still_says_so():
    pytest.importorskip("transformers", reason="asks transformers: pip install '.[oracle]'")
    sys.path.insert(0, str(asked.REFERENCE))
    import ask_inference

    ask_inference.main(["5"])
