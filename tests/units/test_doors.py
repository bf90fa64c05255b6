"""What others put into their workflows: the action and the hook run `memplan check` as they say."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FITS: dict[str, Any] = {"model": "llama-3-8b", "version": 1}
OVER = {**FITS, "train": {"micro_batch": 64, "checkpointing": "none"}}


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Runs a script in a folder with two plans, where `memplan` is this project's."""
    for name, plan in (("fits", FITS), ("over", OVER)):
        (tmp_path / f"{name}.json").write_text(json.dumps(plan))
    command = tmp_path / "bin" / "memplan"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m memcore.cli "$@"\n'
    )
    command.chmod(0o755)

    def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": "summary.md", **env}
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path)

    return run


def test_the_action_judges_files_and_keeps_the_summary(shell: Any, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    step = action["runs"]["steps"][-1]
    assert {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]} == {*step["env"].values()}
    assert "${{" not in step["run"]
    good = shell(step["run"], FILES="fits.json", OPTIONS="")
    assert (good.returncode, "::error" in good.stdout) == (0, False)
    bad = shell(step["run"], FILES="*.json", OPTIONS="--gpu h200 --gpus 8")
    assert bad.returncode == 1
    assert "::error file=over.json" in bad.stdout
    assert "H200" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    sly = shell(step["run"], FILES="fits.json; touch sly", OPTIONS="$(touch sly)")
    assert sly.returncode == 2
    assert not (tmp_path / "sly").exists()


def test_the_hook_judges_the_files_that_it_is_given(shell: Any) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert shlex.split(hook["entry"]) == ["memplan", "check"]
    assert shell(f"{hook['entry']} fits.json").returncode == 0
    assert shell(f"{hook['entry']} fits.json over.json").returncode == 1
