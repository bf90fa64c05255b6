"""Jobs: what people want to run, each as the fields of a plan that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# As Hugging Face's Trainer runs adapters with bf16=True, whole on every GPU: LoRA over weights in
# 16 bits; QLoRA under autocast, as what is not quantized is fp32 then. Its compute_loss returns the
# loss alone, so that no outputs are kept.
TRAINER = {
    "train.framework": "pytorch",
    "train.zero": 0,
    "train.precision": "bf16-pure",
    "train.outputs": "freed",
}
# What an engine beside a trainer takes of a GPU: verl's default (rollout.gpu_memory_utilization).
SHARES = {"serve.memory_utilization": 0.5}
KIND = ("train.adapter", "together.kind")  # the fields that make a job what it is
JOBS: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {"train.adapter": "none", "run.tokens": 1_000_000_000_000},
    "fine-tune": {"train.adapter": "none", "run.tokens": 100_000_000},
    "lora": {"train.adapter": "lora"} | TRAINER,
    "qlora": {"train.adapter": "qlora"} | TRAINER | {"train.precision": "bf16-autocast"},
    "serve": {},
    "rl": {"together.kind": "grpo"} | SHARES,
}
SERVE = "serve"
BOTH = (None, "rl")  # jobs, or none named, that train and serve; all others train
