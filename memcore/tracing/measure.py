"""Measure: real steps of a plan on this machine, and what PyTorch counts of them.

On a GPU PyTorch's allocator counts bytes. A CPU's does not, so that there its profiler does: each
allocation and release of a step, from the building of the model on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells each start otherwise

import torch

from memcore.errors import refusal

PHASES = ("forward", "backward", "optimizer")
WARM = 2  # steps before those that are timed: the optimizer's states are made in the first


@dataclass(slots=True)
class Steps:
    """What steps took on one device.

    seconds    by phase, the median of the steps
    allocated  bytes by phase, at its peak
    reserved_bytes, device_bytes    of PyTorch's allocator, and of all that the process has; 0 on a
                                    CPU
    """

    device: str
    parameters: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    allocated: dict[str, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    device_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)


def free_bytes(device: str) -> int:
    """What a process can have of the device's memory now."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    with open("/proc/meminfo") as file:
        said = dict(line.split(":") for line in file)
    return int(said["MemAvailable"].split()[0]) * 1024


def device_here() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def steps_of(config: Mapping[str, Any], words: Mapping[str, Any], device: str, count: int) -> Steps:
    """Runs so many steps of the model of a config.json, with random weights and tokens, as the
    fields of a plan's training say. Raises PlanError where transformers has no such model."""
    cuda, before = device == "cuda", 0
    found = Steps(torch.cuda.get_device_name() if cuda else "CPU", versions=_versions())
    if cuda:
        before = torch.cuda.mem_get_info()[0]
        if words["allocator"] == "expandable":
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    counted = _on_gpu if cuda else _OnCpu()
    model, optimizer = counted(lambda: _made(config, words, device))[0]
    found.parameters = sum(p.numel() for p in model.parameters())
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = torch.randint(0, vocabulary, (words["micro_batch"], words["seq_len"]), device=device)
    autocast = words["precision"] == "bf16-autocast"
    loss: Any = None

    def forward() -> None:
        nonlocal loss
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss

    def backward() -> None:
        nonlocal loss
        loss.backward()
        loss = None

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step(run: Callable[[str, Callable[[], None]], None]) -> None:
        for _ in range(words["grad_accumulation"]):
            run("forward", forward)
            run("backward", backward)
        run("optimizer", update)

    def counts(phase: str, ran: Callable[[], None]) -> None:
        _, peak = counted(ran)
        found.allocated[phase] = max(peak, found.allocated.get(phase, 0))

    taken: list[dict[str, float]] = []

    def times(phase: str, ran: Callable[[], None]) -> None:
        started = time.perf_counter()
        ran()
        if cuda:
            torch.cuda.synchronize()
        taken[-1][phase] = taken[-1].get(phase, 0) + time.perf_counter() - started

    for _ in range(WARM):
        found.allocated.clear()
        step(counts)
    for _ in range(count):
        taken.append({})
        step(times)
    found.seconds = {phase: statistics.median(each[phase] for each in taken) for phase in PHASES}
    if cuda:
        found.reserved_bytes = torch.cuda.max_memory_reserved()
        found.device_bytes = before - torch.cuda.mem_get_info()[0]
    return found


def _made(config: Mapping[str, Any], words: Mapping[str, Any], device: str) -> tuple[Any, Any]:
    """The model, and its optimizer."""
    transformers: Any = importlib.import_module("transformers")
    pure = words["precision"] == "bf16-pure"
    attention = "eager" if words["attention"] == "eager" else "sdpa"
    try:
        settings = transformers.AutoConfig.for_model(**config)
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(
                settings,
                attn_implementation=attention,
                dtype=torch.bfloat16 if pure else torch.float32,
            )
    except (ValueError, KeyError, ImportError) as e:
        said = str(e).partition("\n")[0][:200]
        raise refusal("model", f"transformers builds no language model of it: {said}") from None
    model.train()
    if words["checkpointing"] == "full":
        warnings.simplefilter("ignore", FutureWarning)  # of its new name, which older ones lack
        model.gradient_checkpointing_enable({"use_reentrant": False})
    kinds: Mapping[str, Callable[[], Any]] = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), 1e-5, fused=True),
        "adamw-foreach": lambda: torch.optim.AdamW(model.parameters(), 1e-5, foreach=True),
        "sgd": lambda: torch.optim.SGD(model.parameters(), 1e-5),
        "sgd-momentum": lambda: torch.optim.SGD(model.parameters(), 1e-5, momentum=0.9),
    }
    return model, kinds[words["optimizer"]]()


def _versions() -> dict[str, str]:
    found = {"CUDA": torch.version.cuda} if torch.version.cuda else {}
    for package in ("torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _on_gpu(ran: Callable[[], Any]) -> tuple[Any, int]:
    """What a function returns, and the most that was allocated while it ran."""
    torch.cuda.reset_peak_memory_stats()
    returned = ran()
    torch.cuda.synchronize()
    return returned, torch.cuda.max_memory_allocated()


class _OnCpu:
    """The same by the profiler, which counts what is allocated and released while it runs."""

    def __init__(self) -> None:
        self.bytes = 0  # that are allocated, since the first function began

    def __call__(self, ran: Callable[[], Any]) -> tuple[Any, int]:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            returned = ran()
        peak = self.bytes
        events = recorded.profiler.kineto_results.events()
        for event in sorted(events, key=lambda each: each.start_ns()):
            if event.name() == "[memory]":
                self.bytes += event.nbytes()
                peak = max(peak, self.bytes)
        return returned, peak
