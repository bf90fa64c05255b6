"""DeepSpeed: its JSON. Names are DeepSpeed's own; 'auto' is left to the arguments beside it, or
filled in from the model as transformers and Accelerate do.

Sources: DeepSpeed 0.19's DeepSpeedZeroConfig; transformers' HfTrainerDeepSpeedConfig
(trainer_config_finalize).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memcore.formats.draft import AUTO, Around, Draft, Keys
from memcore.formats.programs import Program

DEEPSPEED, ZERO = Program("deepspeed"), Program("deepspeed", "zero")
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
    if "bfloat16" in keys.values:  # of versions before
        keys.values.setdefault("bf16", keys.values.pop("bfloat16"))
    DEEPSPEED.read(keys, draft)
    draft.share_out(keys, "train_batch_size")
    draft.later.append(_at_once)
    zero = keys.inner("zero_optimization")
    ZERO.read(zero, draft, "counts")
    by_width = [name for name in FROM_WIDTH if zero.values.get(name) == AUTO]
    if by_width:
        draft.later.append(functools.partial(_by_width, by_width))
    ZERO.read(zero, draft)
    _offloaded(zero, draft)
    draft.end(zero, ZERO.left, DEEPSPEED.harmless)
    DEEPSPEED.end(keys, draft)


def _by_width(names: Sequence[str], draft: Draft, around: Around) -> None:
    """Sizes that the file leaves to the model."""
    for name in names:
        value = FROM_WIDTH[name](around.model.hidden_size)
        draft.put(f"train.{name}", value, f"zero_optimization.{name}", f"auto: {value}")


def _offloaded(zero: Keys, draft: Draft) -> None:
    """What rests in host memory or on NVMe."""
    for key in ("offload_optimizer", "offload_param"):
        inner = zero.inner(key)
        if key == "offload_param" and draft.fields.get("train.zero", 0) < STAGE_OF_PARAMETERS:
            if inner.take("device") is not None:
                draft.leave(key, "DeepSpeed offloads parameters under ZeRO 3 alone")
            continue
        if inner.take("device") is not None:
            ZERO.read(inner, draft, key)
            said = inner.take("pin_memory") is not None
            if said and draft.fields.get(PINNED) != inner.on("pin_memory"):
                draft.leave(inner.written("pin_memory"), "is planned as offload_optimizer's")
        draft.end(inner, ZERO.left, DEEPSPEED.harmless)
    older = [("cpu_offload", "optimizer"), ("cpu_offload_params", "parameters")]
    for key, path in older[: 1 + (draft.fields.get("train.zero", 0) >= STAGE_OF_PARAMETERS)]:
        if zero.on(key):
            draft.put(f"train.offload_{path}", "cpu", key, True)
