"""An agent's tools, asked by the protocol's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memcore import Plan, evaluate
from memcore.cli.link import link_to
from memcore.units import bytes_text

mcp = pytest.importorskip("mcp")
ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("evaluate", "check", "search", "explain", "read")
BASE = "https://plans.example/"


def asked(*calls: tuple[str, dict[str, Any]]) -> tuple[Any, Sequence[tuple[bool, str]]]:
    """The tools that a server lists, and of each call whether it failed and its text."""

    async def talk() -> Any:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        words = ["-m", "memcore.cli", "mcp", "--base", BASE]
        server = mcp.StdioServerParameters(command=sys.executable, args=words, env=env)
        async with mcp.Client(server, read_timeout_seconds=120) as client:
            tools = await client.list_tools()
            answers = [await client.call_tool(name, values) for name, values in calls]
            return tools.tools, [(a.is_error, a.content[0].text) for a in answers]

    with ThreadPoolExecutor(1) as apart:  # a browser of another test may have this thread's loop
        return apart.submit(asyncio.run, talk()).result()


def test_the_tools_answer_as_the_commands_do(tmp_path: Path, memplan: Any) -> None:
    served = {"model": "llama-3-8b", "version": 1}
    (tmp_path / "plan.json").write_text(json.dumps(served))
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-8B --max-model-len 8192\n")
    plan, script = str(tmp_path / "plan.json"), str(tmp_path / "serve.sh")
    settings = ["micro_batch=64", "checkpointing=none"]
    tools, answers = asked(
        ("evaluate", {"plan": "llama-3-8b", "settings": settings}),
        ("check", {"files": [plan, script], "gpu": "h200", "gpus": 1}),
        ("explain", {"plan": plan, "number": "memory.allocated_bytes"}),
        ("read", {"files": [script], "gpu": "l40s", "gpus": 1}),
        ("search", {"plan": "qwen3-8b", "serve": True, "users": 8, "gpus": ["l40s-48gb"]}),
    )
    assert {tool.name for tool in tools} == {*TOOLS}
    assert all(tool.description and tool.input_schema for tool in tools)
    assert not any(failed for failed, _ in answers), answers
    evaluated, checked, explained, read, searched = (text for _, text in answers)
    large = Plan.of(served).with_changes({"train.micro_batch": 64, "train.checkpointing": "none"})
    report = evaluate(large)
    assert report.memory
    assert " to ".join(map(bytes_text, report.memory.device_bytes)) in evaluated
    assert "Next step: " in evaluated
    assert evaluated.endswith(f"Link: {link_to([large], BASE)}")
    assert checked.count(f"({BASE}") == 2
    assert "H200" in checked
    words = ("explain", plan, "memory.allocated_bytes")
    assert memplan(*words).out.strip() in explained
    assert f"\n{BASE}" in read
    assert f"The best as a link: {BASE}" in searched
    assert "gpu=l40s-48gb" in searched


def test_what_is_wrong_is_said_and_nothing_becomes_an_option(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    _, answers = asked(
        ("evaluate", {"plan": "llama-3-8c"}),
        ("evaluate", {"plan": "-"}),
        ("evaluate", {"plan": "7B", "settings": ["micro_batch=none"]}),
        ("evaluate", {"plan": "7B", "job": "dream"}),
        ("explain", {"plan": "7B", "number": "--json"}),
        ("read", {"files": [str(tmp_path / "missing.yaml")]}),
        ("check", {"files": ["7B", f"--summary={summary}"]}),
        ("evaluate", {"plan": "7B"}),
    )
    *wrong, checked, last = answers
    assert all(failed for failed, _ in wrong), wrong
    for (_, text), word in zip(
        wrong, ("llama-3-8c", "-", "micro_batch", "dream", "--json", "no such file"), strict=True
    ):
        assert word in text
        assert "Traceback" not in text
    assert "--summary" in checked[1]
    assert not summary.exists()
    assert not last[0]
