"""Real steps beside their plan, and what grew from one run to another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from memcore import PlanError
from memcore.cli import main, measure
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}


def test_a_case_answers_what_the_issue_form_asks() -> None:
    """All but whether it may be published, which its author says."""
    path = ROOT / ".github" / "ISSUE_TEMPLATE" / "measured.yml"
    asked = [each["attributes"]["label"] for each in yaml.safe_load(path.read_text())["body"]]
    assert list(measure.FORM) == asked[:-1]


def test_two_runs_say_what_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, peak in (("a.json", 1000), ("b.json", 1500)):
        stats = {"allocated_bytes.all.peak": peak * 2**20, "allocated_bytes.all.current": 2**20}
        stats |= {"reserved_bytes.all.peak": 2**31, "reserved_bytes.all.current": 2**31}
        (tmp_path / name).write_text(json.dumps(stats))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert main(["snapshot", *files, "--json"]) == 0
    rows = {row["name"]: row["grew"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"allocated": 500 * 2**20, "reserved": 0}
    assert main(["snapshot", *files]) == 0
    assert "+500 MiB" in capsys.readouterr().out
    assert main(["snapshot", *files[::-1]]) == 0
    assert "-500 MiB" in capsys.readouterr().out


@pytest.mark.oracle
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_steps_on_a_cpu_are_printed_beside_their_plan(
    checkpointing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """End to end. A CPU's kernels are others than a GPU's, so that bytes are about the plan's."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    fields = ("seq_len=256", "micro_batch=2", "precision=fp32", f"checkpointing={checkpointing}")
    words = [word for each in fields for word in ("--set", each)]
    case = tmp_path / "case.md"
    command = ["measure", str(tmp_path), *words, "--device", "cpu", "--steps", "2"]
    assert main([*command, "--out", str(case), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["number"]: row for row in found["rows"]}
    allocated = rows["memory.allocated_bytes"]
    assert allocated["planned"] == pytest.approx(allocated["measured"], rel=0.25)
    states = found["allocated"]["optimizer"]  # weights, gradients, and two states of AdamW
    assert states == pytest.approx(4 * 4 * parameters(), rel=0.05)
    took = [
        rows[f"time.phases.{name}"]["measured"] for name in ("forward", "backward", "optimizer")
    ]
    assert rows["time.step_seconds"]["measured"] == pytest.approx(sum(took))
    text = case.read_text()
    assert re.findall(r"^### (.+)$", text, re.M) == list(measure.FORM)
    assert "memory.allocated_bytes" in text
    assert "torch" in text


def parameters() -> int:
    from memcore.models.counts import parameters
    from memcore.plan.models import resolve_model

    return parameters(resolve_model(TINY))


def test_what_does_not_fit_here_is_run_with_fewer_layers() -> None:
    train = {"framework": "pytorch", "zero": 0}
    model = {**TINY, "hidden_size": 1024}
    plan = Plan.of({"model": model, "cluster": {"gpus": 1}, "train": train})
    needed = evaluate(plan).memory.device_bytes[1]
    fitting = measure.fitting(plan, needed)  # of which a tenth stays free
    assert fitting.architecture.layers < plan.architecture.layers
    with pytest.raises(PlanError, match="set fewer tokens"):
        measure.fitting(plan, 2**20)
