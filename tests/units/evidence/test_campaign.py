"""benchmarks/campaign.py: its jobs are plans, and run apart from Memplan."""

import importlib.util
import json
from pathlib import Path

import pytest

from memcore import Plan

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "campaign.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("campaign", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_jobs_are_plans_with_every_word_and_no_two_are_the_same(script, tmp_path):
    script.write_jobs(tmp_path / "jobs", "h100-sxm-80gb", "", every=True)
    jobs = [json.loads(line) for line in (tmp_path / "jobs").read_text().splitlines()]
    assert len({str(Plan.of(job["short"]).document()) for job in jobs}) == len(jobs) > 70
    trained = [job["plan"]["train"] for job in jobs if "train" in job["plan"]]
    for field in ("attention", "checkpointing", "precision", "adapter", "optimizer"):
        assert len({words[field] for words in trained}) >= 2
    assert all({"seq_len", "allocator", "outputs"} <= words.keys() for words in trained)
    assert {job["plan"]["serve"]["engine"] for job in jobs if "serve" in job["plan"]} == {
        "transformers"
    }


def test_a_job_that_fails_says_why_and_takes_no_other_with_it(script):
    job = {"plan": {"train": {"optimizer": "adamw"}}, "model": {}}
    found = script.result(script.fork(job, "cpu"), 60)
    assert "Error: " in found["failed"]
    assert "campaign.py" in found["where"]
