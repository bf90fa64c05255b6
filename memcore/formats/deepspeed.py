"""DeepSpeed: its JSON. Names are DeepSpeed's own; 'auto' is left to the arguments beside it, or
filled in from the model as transformers and Accelerate do.

Sources: DeepSpeed 0.19's DeepSpeedZeroConfig; transformers' HfTrainerDeepSpeedConfig
(trainer_config_finalize).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memcore.formats.found import (
    AUTO,
    Around,
    Draft,
    Keys,
    UnsaidError,
    containing,
    flag,
    positive,
    whole,
)

MASTERS = "masters and states in 16 bits are not planned"
# Keys of bf16 and fp16 that move memory.
OF_MASTERS = (
    "bf16_master_weights_and_grads",
    "fp16_master_weights_and_grads",
    "bf16_optimizer_states",
)
LEFT = {
    "ZenFlow is not planned": "zenflow",
    "autotuning changes the plan by itself": "autotuning",
    "tensor parallelism is not planned for DeepSpeed": "tensor_parallel",
    "compression is not planned": "compression_training quantize_training",
    "a dtype of accumulated gradients of its own is not planned": "data_types",
    "sparse attention is not planned": "sparse_attention",
    "compiled layers are not planned for DeepSpeed": "compile",
    "sequences cut by heads are not planned": "sequence_parallel_size",
    "pipelines are not planned for DeepSpeed": "pipeline",
    "DeepSpeed's own experts are not planned": "moe",
    "is not planned": "activation_offload* zero_allow_comm_data_type_fp32",
    "gradients are sent in the dtype of the weights here": "communication_data_type",
    "its engine of generation is not planned": "hybrid_engine",
    "PyTorch's autocast under DeepSpeed is not planned: its own casts are": "torch_autocast",
    "Apex is not planned": "amp",
    "the batch may change by itself": "elasticity",
    "sparse gradients of embeddings are not planned": "sparse_gradients",
    "every sequence is taken to be as long as it may be": "data_efficiency curriculum_learning",
    "GPT-NeoX's own keys are not read: give the model, and set train and parallel": (
        "pipe-parallel-size pipe_parallel_size model-parallel-size model_parallel_size"
    ),
}
LEFT_OF_ZERO = {
    "ZeRO++ is not planned": (
        "zero_hpz_partition_size=1 zero_quantized_weights zero_quantized_gradients "
        "zero_quantized_nontrainable_weights zeropp_loco_param"
    ),
    "MiCS is not planned": "mics_shard_size",
    "an optimizer that is offloaded in part is not planned": "ratio=1.0",
    "ZenFlow is not planned": "zenflow",
    "gradients shared out in turn are not planned": "round_robin_gradients",
    "SuperOffload is not planned": "super_offload",
    "modules gathered as one are not planned": (
        "stage3_module_granularity_threshold=0 leaf_module"
    ),
    "weights are kept whole by their own size alone here": "stage3_model_persistence_threshold",
    "weights are gathered as they are by default": "stage3_use_all_reduce_for_fetch_params",
    "Muon's momentum is kept as other states are": "save_muon_momentum_buffer_in_memory",
    "gradients are reduced as without it": "use_multi_rank_bucket_allreduce=true",
    "NVMe is as fast as the node's here": "aio",
}
HARMLESS = containing(
    *("trace_cache", "sanity_checks", "legacy_stage1", "alignment", "allgather_sequential"),
    *("pipeline_read", "pipeline_write", "fast_init", "cpuadam", "disable_python_gc"),
    *("dataloader_drop_last", "gradient_allreduce_op", "use_data_before", "graph_harvesting"),
    *("buffer_size", "max_in_cpu"),
    *("contiguous_gradients", "allgather_bucket_size", "allgather_partitions"),
    *("gather_16bit_weights", "gather_fp16_weights", "nvme_path", "ignore_unused"),
    *("load_from_fp32", "steps_per_print", "gradient_clipping", "scheduler", "wall_clock"),
    *("zero_allow_untested", "comms_logger", "tensorboard", "wandb", "csv_monitor"),
    *("flops_profiler", "dump_state", "zero_force_ds_cpu", "checkpoint", "reduce_scatter"),
    *("prescale", "predivide", "scale_window", "loss_scale", "scale_power", "hysteresis"),
    *("opt_level", "params", "contiguous_memory"),
)
COUNTS = (
    *("reduce_bucket_size", "sub_group_size", "stage3_max_live_parameters"),
    *("stage3_max_reuse_distance", "stage3_prefetch_bucket_size"),
    "stage3_param_persistence_threshold",
)
# What transformers and Accelerate put in place of 'auto', from the width of the hidden states.
FROM_WIDTH: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda width: width * width,
    "stage3_prefetch_bucket_size": lambda width: int(0.9 * width * width),
    "stage3_param_persistence_threshold": lambda width: 10 * width,
}
STAGE_OF_PARAMETERS = 3
PINNED = "train.offload_pin_memory"


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    return bool({"zero_optimization", "train_micro_batch_size_per_gpu"} & values.keys())


def _at_once(draft: Draft, around: Around) -> None:
    """A batch of all ranks alone is one micro-batch (deepspeed 0.19.8: runtime/config.py,
    _set_batch_related_parameters)."""
    steps = {"train.micro_batch", "train.grad_accumulation"}
    if draft.batch and not steps & (draft.fields.keys() | draft.defaults.keys()):
        draft.put("train.grad_accumulation", 1, "gradient_accumulation_steps", "not said: 1")


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    keys = Keys(values)
    draft.put("train.framework", "deepspeed", "zero_optimization", "DeepSpeed's file")
    draft.read(keys, "train.micro_batch", positive, "train_micro_batch_size_per_gpu")
    draft.read(keys, "train.grad_accumulation", positive, "gradient_accumulation_steps")
    draft.batch = draft.batch or draft.count(keys, "train_batch_size")
    draft.later.append(_at_once)
    if "bfloat16" in keys.values:  # of versions before
        keys.values.setdefault("bf16", keys.values.pop("bfloat16"))
    for half in ("bf16", "fp16"):
        switch = keys.inner(half)
        if any(switch.on(name) for name in OF_MASTERS):
            draft.leave(half, MASTERS)
        if switch.take("enabled") is not None and switch.on("enabled"):
            draft.put("train.precision", f"{half}-mixed", f"{half}.enabled", True)
    zero = keys.inner("zero_optimization")
    if draft.read(zero, "train.zero", whole, "stage") is None:
        draft.put("train.zero", 0, "zero_optimization.stage", "not said")
    for name in COUNTS:  # which older files have without what they begin with
        draft.read(zero, f"train.{name}", whole, name, name.removeprefix("stage3_"))
    by_width = [name for name in FROM_WIDTH if zero.values.get(name) == AUTO]
    if by_width:
        draft.later.append(functools.partial(_by_width, by_width))
    if not any(keys.values.get(half) for half in ("bf16", "fp16")):
        draft.otherwise("train.precision", "fp32", "bf16.enabled, fp16.enabled")
    draft.read(zero, "train.overlap_comm", _word, "overlap_comm")
    _offloaded(zero, draft)
    recomputed = keys.inner("activation_checkpointing")
    if recomputed.on("cpu_checkpointing"):
        draft.put("train.offload_activations", "cpu", "activation_checkpointing.cpu_checkpointing")
    if recomputed.on("partition_activations"):
        draft.leave("activation_checkpointing.partition_activations", "is not planned")
    kind = str(keys.inner("optimizer").take("type") or "").lower()
    if kind in ("adam", "adamw", "fusedadam"):
        draft.put("train.optimizer", "adamw", "optimizer.type", kind)
    elif kind in ("lion", "sgd", "muon"):
        draft.put("train.optimizer", kind, "optimizer.type", kind)
    elif kind:
        draft.leave("optimizer.type", f"{kind} has no word in a plan")
    if zero.values.get("contiguous_gradients") is False:
        draft.leave("contiguous_gradients", "gradients are copied into one buffer here")
    for name in ("reduce_scatter", "memory_efficient_linear"):
        if zero.values.get(name) is False:
            draft.leave(f"zero_optimization.{name}", "is planned as it is by default: on")
    draft.end(zero, LEFT_OF_ZERO, HARMLESS)
    draft.end(keys, LEFT, HARMLESS)


def _by_width(names: Sequence[str], draft: Draft, around: Around) -> None:
    """Sizes that the file leaves to the model."""
    for name in names:
        value = FROM_WIDTH[name](around.model.hidden_size)
        draft.put(f"train.{name}", value, f"zero_optimization.{name}", f"auto: {value}")


def _word(value: Any) -> str:
    return "on" if flag(value) else "off"


def _offloaded(zero: Keys, draft: Draft) -> None:
    """What rests in host memory or on NVMe."""
    for key, path, buffers in (
        ("offload_optimizer", "train.offload_optimizer", "train.offload_optimizer_buffers"),
        ("offload_param", "train.offload_parameters", "train.offload_param_buffers"),
    ):
        inner = zero.inner(key)
        if key == "offload_param" and draft.fields.get("train.zero", 0) < STAGE_OF_PARAMETERS:
            if inner.take("device") is not None:
                draft.leave(key, "DeepSpeed offloads parameters under ZeRO 3 alone")
            continue
        if draft.read(inner, path, _place, "device") in ("cpu", "nvme"):
            draft.read(inner, buffers, positive, "buffer_count")
            pinned = draft.read(inner, PINNED, flag, "pin_memory")
            if pinned is not None and pinned != draft.fields[PINNED]:
                draft.leave(inner.written("pin_memory"), "is planned as offload_optimizer's")
            draft.otherwise(PINNED, True, inner.written("pin_memory"))
            if key == "offload_param":
                for name in ("buffer_size", "max_in_cpu"):
                    draft.read(inner, f"train.offload_param_{name}", whole, name)
        draft.end(inner, LEFT_OF_ZERO, HARMLESS)
    older = [("cpu_offload", "optimizer"), ("cpu_offload_params", "parameters")]
    for key, path in older[: 1 + (draft.fields.get("train.zero", 0) >= STAGE_OF_PARAMETERS)]:
        if zero.on(key):
            draft.put(f"train.offload_{path}", "cpu", key, True)


def _place(value: Any) -> str:
    if str(value) not in ("cpu", "nvme"):
        raise UnsaidError("is neither cpu nor nvme")
    return str(value)
