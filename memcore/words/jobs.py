"""Jobs: what people want to run, each as the fields of a plan that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# As Hugging Face's Trainer runs adapters: the weights that are not trained in 16 or 4 bits, whole
# on every GPU.
TRAINER = {"train.framework": "pytorch", "train.zero": 0, "train.precision": "bf16-pure"}
KIND = ("train.adapter", "together.kind")  # the fields that make a job what it is
JOBS: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {"train.adapter": "none", "run.tokens": 1_000_000_000_000},
    "fine-tune": {"train.adapter": "none", "run.tokens": 100_000_000},
    "lora": {"train.adapter": "lora"} | TRAINER,
    "qlora": {"train.adapter": "qlora"} | TRAINER,
    "rl": {"together.kind": "grpo"},
}
