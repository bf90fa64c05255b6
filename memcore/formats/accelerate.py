"""Accelerate: its YAML, which says who shards and over how many processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from memcore.formats import deepspeed, megatron
from memcore.formats.draft import Draft, Keys, underscored
from memcore.formats.programs import Program

FSDP1 = "FSDP 1's flat parameters are not planned: FSDP 2, which shards each by itself, is"
ACCELERATE = Program("accelerate")
FSDP, MESH, LAUNCH, MEGATRON = (
    Program("accelerate", section) for section in ("fsdp", "mesh", "launch", "megatron")
)
STRATEGIES: Mapping[str, int] = ACCELERATE.table["strategies"]
OF_DEEPSPEED = re.compile(ACCELERATE.table["of_deepspeed"])


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file, or an fsdp_config of its own."""
    return "distributed_type" in values or "compute_environment" in values or _of_fsdp(values)


def _of_fsdp(values: Mapping[str, Any]) -> bool:
    said = {key.removeprefix("fsdp_") for key in values}
    return len(said) >= 2 and said <= FSDP.names["keys"]


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    keys = Keys(values)
    if _of_fsdp(values):
        shards(keys, "", draft)
        return
    draft.ranks = draft.ranks or draft.count(keys, "num_processes")
    draft.nodes = draft.nodes or draft.count(keys, "num_machines")
    kind = str(keys.take("distributed_type") or "NO").upper()
    inner = keys.inner("deepspeed_config")
    # Which of the sections counts (accelerate 1.15's commands/launch.py); others are left over.
    if kind == "DEEPSPEED":
        _deepspeed(inner, draft)
    elif kind == "FSDP":
        shards(keys.inner("fsdp_config"), "", draft)
    elif kind == "MEGATRON_LM":
        half = "fp16" if keys.values.get("mixed_precision") == "fp16" else "bf16"
        _of_megatron(keys.inner("megatron_lm_config"), half, draft)
    elif kind in ("NO", "MULTI_GPU"):
        draft.put("train.framework", "pytorch", "distributed_type", kind)
        draft.put("train.zero", 0, "distributed_type", kind)
    else:
        draft.leave("distributed_type", f"{kind} is not planned")
    ACCELERATE.read(keys, draft)
    if keys.take("mixed_precision") is None:
        draft.otherwise("train.precision", "fp32", "mixed_precision")
    ACCELERATE.read(keys.inner("dynamo_config"), draft, "compiler")
    _mesh(keys.inner("parallelism_config"), draft)
    ACCELERATE.end(keys, draft)


def _of_megatron(given: Keys, half: str, draft: Draft) -> None:
    """Megatron's options, as Accelerate calls them."""
    keys = given.without("megatron_lm_")
    MEGATRON.read(keys, draft)
    known = {theirs: keys.take(ours) for ours, theirs in MEGATRON.renamed.items()}
    said = {name: value for name, value in known.items() if value is not None}
    megatron.arguments(Keys({**said, half: True}), draft)
    MEGATRON.end(keys, draft)


def in_file(given: Mapping[str, str]) -> dict[str, str]:
    """Options of `accelerate launch` as keys of its file, over which they stand (accelerate 1.15:
    commands/launch.py, _validate_launch_command)."""
    found = {}
    for key, value in given.items():
        section = "deepspeed_config." if OF_DEEPSPEED.search(key) else ""
        section = "fsdp_config." if key.startswith("fsdp_") and not section else section
        if kind := LAUNCH.table["switches"].get(key):
            found["distributed_type"] = kind
        else:
            found[section + key] = value
    return found


def launched(given: Mapping[str, Any], draft: Draft) -> None:
    """What `accelerate launch` is told by its own options."""
    keys = Keys(given, underscored)
    if keys.on("use_deepspeed") or {"zero_stage", "deepspeed_config_file"} & given.keys():
        own = {key: value for key, value in given.items() if OF_DEEPSPEED.search(key)}
        _deepspeed(Keys(own, underscored), draft)
    elif keys.on("use_fsdp"):
        inner = {key: value for key, value in given.items() if key.startswith("fsdp_")}
        shards(Keys(inner), "", draft)
    elif keys.on("multi_gpu"):
        draft.put("train.framework", "pytorch", "--multi_gpu", True)
        draft.put("train.zero", 0, "--multi_gpu", True)
    ACCELERATE.read(keys, draft)
    for why, name in LAUNCH.left.items():
        if keys.on(name):
            draft.leave(keys.written(name), why)
    if (file := keys.one("config_file")) is None:
        return
    draft.wants[str(file)] = "Accelerate"
    for pattern, framework in ACCELERATE.table["called"]:
        if named := re.search(pattern, PurePosixPath(str(file)).name.lower()):
            key = "the name of Accelerate's file"
            stage = next((int(each) for each in named.groups() if each), None)
            draft.put("train.framework", framework, key, file)
            if framework != "deepspeed" or stage is not None:
                stage = 0 if framework == "pytorch" else 3 if stage is None else stage
                draft.put("train.zero", stage, key, file)
            return


def _mesh(given: Keys, draft: Draft) -> None:
    """How ranks are shared out."""
    keys = given.without("parallelism_config_")
    MESH.read(keys, draft)
    MESH.end(keys, draft)


def _deepspeed(keys: Keys, draft: Draft) -> None:
    """Accelerate's own names for DeepSpeed's."""
    keys.told = True
    other = keys.take("deepspeed_config_file")
    if other is not None:
        draft.put("train.framework", "deepspeed", "deepspeed_config_file", other)
        draft.wants[str(other)] = "DeepSpeed"
        return
    offloads = {
        f"offload_{what}": {"device": keys.take(f"offload_{what}_device")}
        for what in ("optimizer", "param")
    }
    zero = {"stage": keys.take("zero_stage"), **offloads}
    values = {k: v for k, v in keys.values.items() if k not in keys.taken}
    deepspeed.read({**values, "zero_optimization": zero}, draft)


def shards(given: Keys, words: str, draft: Draft) -> None:
    """What an fsdp_config says, and transformers' `fsdp`, as in 'full_shard auto_wrap offload'."""
    keys = given.without("fsdp_")
    draft.put("train.framework", "fsdp2", "fsdp_config", "FSDP")
    strategy = keys.take("sharding_strategy")
    named = words.upper().split()
    said = next((w for w in (str(strategy).upper(), *named) if w in STRATEGIES), "")
    second = str(keys.take("version") or "1") == "2"
    reshards = keys.take("reshard_after_forward")
    zero = STRATEGIES.get(said, 3)
    if second and reshards is not None:
        zero = 3 if keys.on("reshard_after_forward") else 2
    if said or (second and reshards is not None):
        draft.put("train.zero", zero, "fsdp_sharding_strategy", said or reshards)
    else:
        draft.otherwise("train.zero", zero, "fsdp_sharding_strategy")
    if said.startswith("HYBRID") or said in ("4", "5"):
        FSDP.later(keys, draft)
    if not second:
        draft.leave("fsdp_version", FSDP1)
    if "OFFLOAD" in named:
        keys.values["offload_params"] = True
    FSDP.read(keys, draft)
    if keys.on("activation_checkpointing"):
        # Beside gradient_checkpointing, which is off then, since both together are an error.
        draft.forget("train.checkpointing")
        draft.put("train.checkpointing", "full", "fsdp_activation_checkpointing", True)
    draft.end(keys, FSDP.left, ACCELERATE.harmless)
