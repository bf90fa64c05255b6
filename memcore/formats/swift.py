"""ms-swift: `swift sft` and `swift rlhf`, which are built on transformers' Trainer, and `megatron
sft`, as commands and as YAML.

Source: swift/arguments and docs/source_en/Instruction/Command-line-parameters.md (3.9 and 4.0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats import launchers, megatron, trainer
from memcore.formats.draft import (
    Around,
    Draft,
    Keys,
    names,
    underscored,
)
from memcore.formats.programs import Program
from memcore.formats.texts import options

JOBS = ("sft", "pt", "rlhf")
TYPES = ("tuner_type", "train_type", "sft_type")
TUNERS = ("lora", "full", "none")
OFFLOADED = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
MEGATRON = Program("ms-swift", "megatron")


def starts(command: Sequence[str]) -> bool:
    """Whether a command starts one of these."""
    return bool(_tool(command))


def _tool(command: Sequence[str]) -> str:
    """'swift' or 'megatron', whose command it is; '' for any other."""
    for word, job in itertools.pairwise(command):
        name = word.rpartition("/")[2]
        if name in ("swift", "megatron") and job in JOBS:
            return name
    run = any(word.endswith(tuple(f"swift/cli/{job}.py" for job in JOBS)) for word in command)
    return "swift" if run else ""


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says: of each GPU that it sees where it starts Megatron, and else of one."""
    own = _tool(command) == "megatron"
    each = max(1, launchers.devices(command)) if own else 1
    draft.ranks = max(draft.ranks, each * max(1, draft.nodes))
    (_megatron if own else read)(options(command)[1], draft)


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the Trainer is told."""
    own = trainer.SWIFT.rename(values)
    tuner = str(own["finetuning_type"])
    if tuner not in TUNERS:
        draft.leave(underscored("tuner_type"), f"{tuner} is planned as lora")
        own["finetuning_type"] = "lora"
    stage = str(own.get("deepspeed", ""))
    if stage[:4] == "zero" and stage[4:5] in "0123" and not stage.endswith(".json"):
        zero: dict[str, Any] = {"stage": int(stage[4])}
        own["deepspeed"] = {"zero_optimization": zero | (OFFLOADED if "offload" in stage else {})}
    slept = own.pop("sleep_level", None)
    if slept is not None:
        own["vllm_enable_sleep_mode"] = str(slept) not in ("0", "none")
    rolls = str(own.get("rlhf_type")).lower() == "grpo"
    moves = [name for name in ("offload_model", "offload_optimizer") if rolls and name in own]
    away = [name for name in moves if str(own.pop(name)).lower() == "true"]
    if rolls:
        draft.otherwise(
            "serve.memory_utilization", ROLLOUT_SHARE, underscored("vllm_gpu_memory_utilization")
        )
    trainer.read(own, draft, underscored, ("swift",))
    if away:
        draft.put("together.trainer", "host", underscored(away[0]), True)
    if rolls and own.get("beta") is None:
        draft.fields["together.reference"] = "gpu"
        draft.tell("together.reference", underscored("beta"), f"not said: {BETA}")
    draft.later.append(_accumulates)


# Of GRPO, where nobody says them (ms-swift's Command-line-parameters, of 2026).
BETA, ROLLOUT_SHARE = 0.04, 0.9
SEQUENCES = 16  # of a step over all ranks, where nobody says how many micro-batches it has


def _accumulates(draft: Draft, around: Around) -> None:
    """Micro-batches where nobody says them (trainers/arguments.py)."""
    each = draft.fields.get("train.micro_batch", 1) * around.gpus
    name = "gradient_accumulation_steps"
    draft.otherwise("train.grad_accumulation", math.ceil(SEQUENCES / each), underscored(name))


def _megatron(given: Mapping[str, Any], draft: Draft) -> None:
    """What Megatron is told: its own options, but for the model, which is a checkpoint of
    transformers."""
    own = MEGATRON.rename(given)
    draft.model = draft.model or str(own.pop("model", "") or own.pop("load", ""))
    tuner = str(next((own.pop(name) for name in TYPES if name in own), "full"))
    adapted = ("lora_rank", "lora_dropout", "target_modules", "lora_alpha", "merge_lora")
    lora = Keys({name: own.pop(name) for name in adapted if name in own}, underscored)
    if tuner != "full":
        key = underscored("tuner_type")
        if tuner != "lora":
            draft.leave(key, f"{shown(tuner)} is planned as lora")
        draft.put("train.adapter", "lora", key, tuner)
        draft.put("train.adapter_dtype", "base", key, "as the weights")
        trainer.SWIFT.read(lora, draft, "adapter")
        megatron.adapt(draft, set(names(lora.take("target_modules"))), "--target_modules")
    dtype = str(given.get("torch_dtype", "bfloat16"))
    half = "fp16" if dtype == "float16" else "bf16"
    if dtype not in ("float16", "bfloat16"):
        draft.leave(underscored("torch_dtype"), f"{shown(dtype)} is planned in bf16")
    own |= {half: True}
    megatron.told(Keys(own, underscored), draft)
