"""Placement: where llama.cpp and Ollama put a model that does not fit: over GPUs, and on the CPU.

Read in llama.cpp of October 2026: common/fit.cpp (--fit, on by default, leaves 1 GiB of each GPU
free; experts go to the CPU first, then layers from the front), src/llama-model.cpp (layers are
shared out over all devices; -sm none has all on one), common/arg.cpp (-ot). Ollama of August 2026
starts llama-server: server/sched.go (one GPU where the model fits there, else all; a context by
memory, shortened where it does not fit), server/routes.go (its tiers), llm/llama_server.go (num_gpu
is -ngl).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memcore.errors import PlanError
from memcore.formats.draft import Around, Draft
from memcore.plan.plan import Plan
from memcore.serving.server import Server
from memcore.units import GiB

MARGIN = GiB  # of each GPU stays free: --fit-target
LAYER, NONE, ROW, TENSOR = "layer", "none", "row", "tensor"  # --split-mode
OLLAMA, LLAMA = "Ollama", "--fit"
TIERS = ((47 * GiB, 262_144), (23 * GiB, 32_768), (0, 4096))  # Ollama's context by GPU memory
FEWEST = 2  # layers on the GPU that a plan has at least, the output one of them
ON_CPU = (
    "0: the model is on the CPU alone, and the plan has one layer and the output on the GPU, the "
    "least that is planned"
)
MOST_SHARE = 1e6  # of a part of --tensor-split that is taken for one
MOST_PATTERN = 200  # characters of a pattern that is read
NESTED = re.compile(r"[+*}?]\)\s*[+*{]")  # repeats repeats: it may take forever
EXPERT_TENSORS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
SHARED_EXPERT = "_shexp"
OTHER_TENSORS = (
    *("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    *("attn_qkv", "ssm_out", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
)


def share_out(mode: str, devices: int) -> Callable[[Draft, Around], None]:
    """Decides which GPUs have a part of the model; devices: that a command names, 0: all."""

    def decide(draft: Draft, around: Around) -> None:
        gpus = min(devices or around.gpus, around.gpus)
        if mode == NONE:
            draft.put("serve.pp", 1, "--split-mode", NONE)
            if around.gpus > 1:
                draft.leave("--split-mode", f"none: one of {around.gpus:,} GPUs has all of it")
        elif mode == TENSOR:
            draft.put("serve.tp", gpus, "--split-mode", TENSOR)
            draft.put("serve.pp", 1, "--split-mode", TENSOR)
        elif gpus > 1:
            parts = min(gpus, around.model.layers)
            draft.put("serve.tp", 1, "--split-mode", mode)
            draft.put("serve.pp", parts, "--split-mode", f"{mode}: layers over {parts} GPUs")
            if mode == ROW:
                why = "row: is planned as layers over the GPUs; the cache is on the main one there"
                draft.differ("--split-mode", why)

    return decide


def unequal(parts: Sequence[str]) -> str:
    """Why a split of layers into such parts is not planned, and by how much the fullest differs."""
    why = f"{','.join(parts)}: equal parts of it are planned"
    try:
        shares = [share for part in parts if 0 < (share := float(part)) < MOST_SHARE]
        most = max(shares) / sum(shares)
    except (ValueError, ZeroDivisionError):
        return why
    return (
        f"{why}; the fullest GPU has {most:.0%} of the layers, {most * len(shares):.2f} times that"
    )


def layers_on_gpu(asked: int, key: str) -> Callable[[Draft, Around], None]:
    """Decides how many layers the CPU has: none where all are asked for, and the output."""

    def decide(draft: Draft, around: Around) -> None:
        if asked <= around.model.layers:
            draft.put("serve.gpu_layers", asked, key, asked)

    return decide


def overridden(said: str) -> Callable[[Draft, Around], None]:
    """Decides which experts the CPU has, by --override-tensor's patterns; the first that matches a
    tensor counts."""
    said = said.replace("/.", "\\.")  # a backslash, which a shell's reader takes for a path's
    rules = [rule.rpartition("=")[::2] for rule in said.split(",") if "=" in rule]
    bad = [p for p, _ in rules if len(p) > MOST_PATTERN or NESTED.search(p) or not _compiles(p)]

    def decide(draft: Draft, around: Around) -> None:
        if bad or not rules:
            draft.leave("-ot, --override-tensor", f"{said[:80]}: no pattern that is read")
            return
        patterns = [(re.compile(pattern), place.strip().upper()) for pattern, place in rules]

        def on_cpu(name: str) -> bool:
            found = (place for pattern, place in patterns if pattern.search(name))
            return next(found, "").startswith("CPU")

        layers = range(around.model.layers)
        experts = [sum(on_cpu(f"blk.{i}.{t}.weight") for t in EXPERT_TENSORS) for i in layers]
        shared = around.model.experts
        known = [t for t in OTHER_TENSORS if shared or not t.endswith(SHARED_EXPERT)]
        others = [t for i in layers for t in known if on_cpu(f"blk.{i}.{t}.weight")]
        n = round(sum(experts) / len(EXPERT_TENSORS))
        if n and around.model.experts:
            draft.put("serve.cpu_moe_layers", n, "--override-tensor", f"experts of {n} layers")
        if others:
            draft.differ("-ot, --override-tensor", _stays(others, layers))
        elif not (n and around.model.experts):
            draft.leave("-ot, --override-tensor", f"{said[:80]}: no tensor that is planned has it")

    return decide


def _stays(moved: Sequence[str], layers: Sequence[int]) -> str:
    """That tensors stay on the GPU which the program has on the CPU."""
    counts = [f"{t} of {moved.count(t)}" for t in OTHER_TENSORS if t in moved]
    return (
        f"tensors on the CPU that are no experts stay on the GPU in this plan: {', '.join(counts)} "
        f"of {len(layers)} layers; serve.gpu_layers moves layers with their cache"
    )


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def own_context(draft: Draft, around: Around) -> None:
    """Ollama's context where nobody says one: by the memory of all GPUs."""
    memory = around.gpus * around.gpu.usable_bytes
    tier = next(tokens for least, tokens in TIERS if memory >= least)
    draft.otherwise("serve.max_seq_len", min(tier, around.model.max_positions), "num_ctx")


def fitted(plan: Plan, draft: Draft) -> Plan:
    """The plan as the program places it by itself, told in the draft."""
    changes: Mapping[str, Any] = {}
    alone = _with(plan, {"serve.pp": 1}) if draft.places == OLLAMA else None
    if alone and plan.serving_pp > 1 and _fits(alone):
        plan = alone
        draft.tell("serve.pp", OLLAMA, "one GPU has room for all of it")
    if not draft.places or _fits(plan):
        return plan
    if draft.places == OLLAMA and "serve.max_seq_len" in draft.defaults:
        for _, tokens in TIERS[1:]:
            shorter = _with(plan, {"serve.max_seq_len": tokens})
            if tokens < plan.serve.max_seq_len and shorter:
                plan = shorter
                draft.tell("serve.max_seq_len", OLLAMA, f"{tokens:,}, as the longer does not fit")
                if _fits(plan):
                    return plan
    layers, experts = plan.architecture.layers, "serve.cpu_moe_layers"
    every = _with(plan, {experts: layers}) if plan.architecture.experts else None
    if _fits(every):
        n = _most(1, layers, lambda n: not _fits(_with(plan, {experts: n - 1})))
        changes, text = (
            {experts: n},
            f"experts of {n} of {layers} layers on the CPU, so that it fits",
        )
    else:
        base = every or plan
        on_gpu = "serve.gpu_layers"
        n = _most(0, layers, lambda n: not n or _fits(_with(base, {on_gpu: n})))
        if not n:
            return plan
        of_experts = {experts: layers} if every else {}
        changes = {on_gpu: n, **of_experts}
        text = f"{n} of {layers + 1} layers on the GPU, so that it fits"
    placed = _with(plan, changes)
    if placed is None:
        return plan
    draft.tell(next(iter(changes)), draft.places, text)
    return placed


def _with(plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    try:
        return plan.with_changes(changes)
    except PlanError:
        return None


def _fits(plan: Plan | None) -> bool:
    """Whether it leaves as much of each GPU free as the program does."""
    if plan is None:
        return False
    numbers = Server.of(plan).numbers.serve
    asked = plan.serve.concurrency * numbers.sequence_bytes
    return bool(numbers.free_bytes - numbers.score_bytes - asked >= MARGIN)


def _most(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number for which it holds, as it does for `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
