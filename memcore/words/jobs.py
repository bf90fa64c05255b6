"""Jobs: what people want to run, each as the fields of a plan that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.words.word import Word, table

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
KIND = ("job", "train.adapter", "together.kind")  # the fields that make a job what it is
ANY, TRAIN, SERVE, RL = "any", "train", "serve", "rl"
# What a plan is about, as its field `job` says; RL follows from together.kind.
ABOUT: Mapping[str, Word] = table("about", Word)
VIEWS = {SERVE: "serve", RL: "together"}  # the page of the app that opens for it, if not the first
JOBS: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {"job": TRAIN, "train.adapter": "none", "run.tokens": 1_000_000_000_000},
    "fine-tune": {"job": TRAIN, "train.adapter": "none", "run.tokens": 100_000_000},
    "lora": {"job": TRAIN, "train.adapter": "lora"} | TRAINER,
    "qlora": {"job": TRAIN, "train.adapter": "qlora"}
    | TRAINER
    | {"train.precision": "bf16-autocast"},
    SERVE: {"job": SERVE},
    RL: {"job": TRAIN, "together.kind": "grpo"} | SHARES,
}
