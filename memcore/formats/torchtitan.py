"""torchtitan: its TOML, which forks and older checkouts have.

Source: torchtitan/config/job_config.py, distributed/parallel_dims.py and activation_checkpoint.py
of 0.2.2, and of attention models/common/config_utils.py of August 2026.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue
from memcore.formats.draft import Around, Draft, Keys, names
from memcore.formats.programs import Program
from memcore.words.training import ATTENTION as WORDS

TITAN = Program("torchtitan")
MODELS: Mapping[str, str] = TITAN.table["models"]


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    sections = {"parallelism", "experimental", "activation_checkpoint", "job", "optimizer"}
    return "training" in values and "model" in values and len(sections & values.keys()) >= 2


def model_of(values: Mapping[str, Any]) -> str:
    """What the file calls the model; of a flavour that has a preset, that."""
    section = values.get("model")
    model = section if isinstance(section, Mapping) else {}
    flavour = f"{model.get('name') or ''} {model.get('flavor') or ''}".strip()
    return MODELS.get(flavour.lower(), flavour)


def _gathered(values: Mapping[str, Any]) -> dict[str, Any]:
    """A document whose degrees stand in one section: older files have them under [training] and
    [experimental]."""
    found = {n: dict(v) for n, v in values.items() if isinstance(v, Mapping)}
    parallel = found.setdefault("parallelism", {})
    for name in ("experimental", "training"):
        for key in [*found.get(name, ())]:
            if key.endswith("_degree") or key.startswith("pipeline_parallel_"):
                parallel.setdefault(key, found[name].pop(key))
    return found


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    values = _gathered(values)
    keys = Keys(values)
    model, training, parallel, saved, compiled = (
        keys.inner(name) for name in ("model", "training", "parallelism", "checkpoint", "compile")
    )
    draft.model = draft.model or model_of(values)
    model.take("name", "flavor")
    TITAN.read(keys, draft)
    if saved.on("enable") or saved.on("enable_checkpoint"):
        TITAN.read(saved, draft, "checkpoint")
        draft.keeps_checkpoints(10, "checkpoint.keep_latest_k")
    _attention(model, draft)
    draft.share_out(training, "global_batch_size")
    if draft.fields.get("parallel.pp", 1) > 1:
        _pieces(parallel, draft)
    cut = draft.fields.get("parallel.tp", 1) > 1
    if parallel.take("enable_sequence_parallel") is not None:
        cut = cut and parallel.on("enable_sequence_parallel")
    draft.put("parallel.sequence_parallel", cut, "tensor parallelism's plan")
    key = "enable_async_tensor_parallel"
    if any([parallel.on(key), compiled.on(key)]):
        draft.put("train.async_tp", cut, f"parallelism.{key}", True)
    degree = ("data_parallel_shard_degree", "data_parallel_degree")
    shard = parallel.take(*degree)
    sharded = draft.count(parallel, *degree)  # 0: all that is left
    replicas = draft.count(parallel, "data_parallel_replicate_degree") or 1
    others = 1
    for name in ("tp", "pp", "cp"):
        others *= draft.fields.get(f"parallel.{name}", 1)
    if replicas > 1 and sharded:
        draft.put("parallel.shard_group", sharded, "parallelism.data_parallel_shard_degree", shard)
    elif replicas > 1:
        draft.later.append(functools.partial(_shared_out, replicas, others))
    if sharded > 0:
        draft.ranks = sharded * replicas * others
    _converted(model, keys, draft)
    TITAN.read(keys, draft, "precision")
    for name in values:
        TITAN.end(keys.inner(name), draft)


def _shared_out(replicas: int, others: int, draft: Draft, around: Around) -> None:
    """The ranks that share a parameter: all that each of the replicas has left."""
    key = "parallelism.data_parallel_replicate_degree"
    group, rest = divmod(around.gpus, replicas * others)
    if rest or not group:
        draft.leave(key, f"{replicas} replicas are not planned: {around.gpus} GPUs are no multiple")
    else:
        draft.put("parallel.shard_group", group, key, replicas)


def _attention(model: Keys, draft: Draft) -> None:
    """The kernel of attention, and which of them is planned as another."""
    key = "model.attn_backend"
    said = draft.fields.get("train.attention")
    kernel = model.values.get("attn_backend")
    if said and kernel and kernel != said:
        meant = WORDS[said].label
        draft.leave(key, f"{kernel} is planned as {meant}, which keeps the same tensors")


def _pieces(keys: Keys, draft: Draft) -> None:
    """A pipeline cuts the sequences of a rank into micro-batches, and its looped schedules give
    each rank two stages."""
    local = draft.fields.pop("train.micro_batch", 8)
    each = draft.count(keys, "pipeline_parallel_microbatch_size") or 1
    key = "parallelism.pipeline_parallel_microbatch_size"
    draft.put("train.micro_batch", each, key)
    if not draft.batch and local % each == 0:
        draft.put("train.grad_accumulation", local // each, "training.local_batch_size", local)
    looped = str(keys.values.get("pipeline_parallel_schedule") or "").lower()
    if looped in TITAN.names["looped"]:
        draft.put("parallel.virtual_stages", 2, "parallelism.pipeline_parallel_schedule", looped)


def _converted(model: Keys, keys: Keys, draft: Draft) -> None:
    """Products of fewer bits."""
    converters = names(model.take("converters"))
    newer = "quantize" in keys.values
    eight = keys.inner("quantize").inner("linear") if newer else keys
    inner = eight.inner("float8")
    recipe = str(inner.take("recipe_name") or "tensorwise").lower()
    if any("float8" in c.lower() for c in converters):
        kind = "float8-rowwise" if recipe.startswith("rowwise") else "float8-tensorwise"
        draft.put("train.precision", kind, "model.converters", converters)
    for mark, what in TITAN.table["unplanned"].items():
        if named := [c for c in converters if mark in c.lower()]:
            bf16 = "bf16 is, with more bytes and less speed than the run has"
            issue = Issue("model.converters", f"{', '.join(named)}: {what} is not planned: {bf16}")
            draft.left.insert(0, issue)
