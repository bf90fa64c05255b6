"""`memplan mcp`: the commands as tools of an agent, by the Model Context Protocol."""

from __future__ import annotations

import argparse
import contextlib
import io
import threading
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field

from memcore.cli.printing import BAD_INPUT
from memcore.errors import refusal, shown

INSTRUCTIONS = """\
Memplan says where each byte of a deep-learning job goes on its GPUs, how long its steps take and \
what to change. It computes; it runs nothing and needs no GPU. Figures have intervals: give them \
as such. Notes say what is not planned: pass them on. A link opens the plan in the app, which \
`memplan app` starts.\
"""
PLAN = """\
A model's name or size (llama-3.1-8b, Qwen/Qwen3-8B, 7B), a worked plan's name, a plan as JSON, \
a link of Memplan's, or the path of a plan, a config.json or a folder of weights\
"""
SETTINGS = """\
Fields as FIELD=VALUE, by their path or last word: gpu=h100-sxm-80gb, gpus=8, micro_batch=4, \
seq_len=8192, train.zero=3, concurrency=64, prompt_len=4096\
"""
JOB = "pretrain, fine-tune, lora, qlora, serve or rl: begin as this job usually does"
GPU = "The accelerator's name, as h100 or RTX 4090"

Plan = Annotated[str, Field(description=PLAN)]
Settings = Annotated[Sequence[str], Field(description=SETTINGS)]
Job = Annotated[str, Field(description=JOB)]
Files = Annotated[Sequence[str], Field(min_length=1, description="Paths on this machine")]
Gpu = Annotated[str, Field(description=GPU)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]

_one_at_a_time = threading.Lock()  # what a command prints is caught for the process


def run(args: argparse.Namespace) -> int:
    if find_spec("mcp") is None:
        raise refusal("", "an agent's tools need the extra: pip install 'memplan[mcp]'")
    server(args.base).run()
    return 0


def server(base: str) -> Any:
    """The server with its tools, whose links begin with the address `base`."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from memcore.version import version

    made = MCPServer("memplan", instructions=INSTRUCTIONS, version=version(), log_level="WARNING")

    at = f"--base={base}"

    def answer(command: str, words: Iterable[str], *options: str) -> str:
        status, text = answered(command, words, *options)
        if status == BAD_INPUT:
            raise ToolError(text)
        return text

    def planned(command: str, plan: str, settings: Sequence[str], job: str, *options: str) -> str:
        """What a command says of a plan, and the plan's link."""
        of = [*(f"--set={each}" for each in settings), *given("job", job)]
        return (
            f"{answer(command, [plan], *of, *options)}\n\nLink: {answer('link', [plan], *of, at)}"
        )

    def evaluate(plan: Plan, settings: Settings = (), job: Job = "") -> str:
        """What a plan needs: memory of a GPU by part, the time of a step, what serving holds and
        how fast it is; intervals, notes, and the first change where it does not fit."""
        return planned("evaluate", plan, settings, job)

    def explain(plan: Plan, number: str = "", settings: Settings = (), job: Job = "") -> str:
        """Why a number of the report is what it is, by its formula, parts and sources, as
        memory.allocated_bytes, time.step_seconds or serve.kv_budget_bytes. Without a number: all
        that can be explained, with their values."""
        if number.startswith("-"):
            raise ToolError(f"{shown(number)} is no number of the report")
        return planned("explain", plan, settings, job, *([number] if number else []))

    def check(files: Files, gpu: Gpu = "", gpus: Count = 0, serving: bool = False) -> str:
        """Whether plans, and files that other programs are given, fit: a line of a table each,
        with its interval and link, below what the answer leaves out or assumes."""
        options = [*given("gpu", gpu), *given("gpus", gpus), *["--serving"] * serving]
        _, text = answered("check", files, *options, at)
        return text

    def read(files: Files, gpu: Gpu = "", gpus: Count = 0, model: str = "") -> str:
        """Files of one job of another program (Trainer, TRL, axolotl, DeepSpeed, Megatron, vLLM,
        SGLang and more; also a config.json beside them) as one plan: its fields, what was assumed
        and what is not planned. The link that it ends with is a plan for the other tools."""
        options = [*given("gpu", gpu), *given("gpus", gpus), *given("model", model)]
        return answer("read", files, *options, at)

    def search(
        plan: Plan,
        settings: Settings = (),
        job: Job = "",
        serve: bool = False,
        users: Count = 0,
        gpus: Annotated[Sequence[str], Field(description="Accelerators to choose from")] = (),
        gpus_at_most: Count = 0,
        keep: Annotated[str, Field(description="training, rounding or anything")] = "",
        by: Annotated[str, Field(description="time, cost or energy")] = "",
        ttft: Annotated[str, Field(description="Most time to the first token, as 500ms")] = "",
        tpot: Annotated[str, Field(description="Most time for each later token, as 50ms")] = "",
    ) -> str:
        """The best of all ways to train a plan on up to so many GPUs (seconds to a minute); with
        serve of all ways to serve so many users at once within a latency."""
        options = [at, *(f"--gpu={each}" for each in gpus), *["--serve"] * serve]
        for name, value in (
            ("users", users), ("gpus-at-most", gpus_at_most), ("keep", keep), ("by", by),
            ("ttft", ttft), ("tpot", tpot),
        ):  # fmt: skip
            options += given(name, value)
        options += [*(f"--set={each}" for each in settings), *given("job", job)]
        return answer("search", [plan], *options)

    for tool in (evaluate, check, search, explain, read):
        made.add_tool(tool, structured_output=False)
    return made


def given(option: str, value: str | int) -> list[str]:
    """An option with its value, where it has one."""
    return [f"--{option}={value}"] if value else []


def answered(command: str, words: Iterable[str], *options: str) -> tuple[int, str]:
    """The status of a command and what it prints: what is told beside the answer first. No word is
    read as an option or as standard input, which the protocol has."""
    from memcore.cli.program import main

    words = list(words)
    if wrong := next((word for word in words if word.startswith("-")), ""):
        return BAD_INPUT, f"{shown(wrong)} is no name and no path"
    out, told = io.StringIO(), io.StringIO()
    with _one_at_a_time, contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        try:
            status = main([command, *words, *options])
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else BAD_INPUT
    return status, "\n".join(filter(None, (told.getvalue().strip(), out.getvalue().strip())))
