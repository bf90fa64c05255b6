"""Keys: the short names that a link has for a plan's fields, and their frozen defaults."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from memcore.plan.plan import put

VERSION = 1


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a link: the plan's field it stands for and its frozen default."""

    path: str
    default: Any


# Version 1. Never edit a default here: add a version.
KEYS = {
    "gpus": Key("cluster.gpus", 8),
    "pernode": Key("cluster.gpus_per_node", 8),
    "tp": Key("parallel.tp", 1),
    "pp": Key("parallel.pp", 1),
    "cp": Key("parallel.cp", 1),
    "ep": Key("parallel.ep", 1),
    "etp": Key("parallel.etp", 1),
    "hsdp": Key("parallel.shard_group", 0),
    "sp": Key("parallel.sequence_parallel", False),
    "vs": Key("parallel.virtual_stages", 1),
    "sched": Key("parallel.schedule", "1f1b"),
    "mb": Key("train.micro_batch", 1),
    "seq": Key("train.seq_len", 4096),
    "imgs": Key("train.images", 1),
    "tgt": Key("train.target_len", 128),
    "accum": Key("train.grad_accumulation", 1),
    "fw": Key("train.framework", "fsdp2"),
    "zero": Key("train.zero", 3),
    "overlap": Key("train.overlap_comm", "auto"),
    "bucket": Key("train.reduce_bucket_size", 500_000_000),
    "live": Key("train.stage3_max_live_parameters", 1_000_000_000),
    "reuse": Key("train.stage3_max_reuse_distance", 1_000_000_000),
    "prefetch": Key("train.stage3_prefetch_bucket_size", 50_000_000),
    "persist": Key("train.stage3_param_persistence_threshold", 100_000),
    "subgroup": Key("train.sub_group_size", 1_000_000_000),
    "adapter": Key("train.adapter", "none"),
    "rank": Key("train.lora_rank", 16),
    "targets": Key("train.lora_targets", "attention"),
    "loradrop": Key("train.lora_dropout", 0.0),
    "adtype": Key("train.adapter_dtype", "fp32"),
    "mtp": Key("train.mtp_layers", 0),
    "imb": Key("train.imbalance", 1.0),
    "frozen": Key("train.frozen", "none"),
    "trained": Key("train.trained_layers", 1),
    "embgrad": Key("train.embedding_gradient", "dense"),
    "ema": Key("train.ema", "none"),
    "prec": Key("train.precision", "bf16-mixed"),
    "opt": Key("train.optimizer", "adamw"),
    "ckpt": Key("train.checkpointing", "full"),
    "ckptn": Key("train.checkpoint_every", 1),
    "alloc": Key("train.allocator", "expandable"),
    "estop": Key("train.early_stop", "auto"),
    "grads": Key("train.gradients", "freed"),
    "kernels": Key("train.kernels", "hf"),
    "attn": Key("train.attention", "flash"),
    "loss": Key("train.cross_entropy", "eager"),
    "offopt": Key("train.offload_optimizer", "none"),
    "offpar": Key("train.offload_parameters", "none"),
    "offact": Key("train.offload_activations", "none"),
    "optbufs": Key("train.offload_optimizer_buffers", 4),
    "parbufs": Key("train.offload_param_buffers", 5),
    "parbuf": Key("train.offload_param_buffer_size", 100_000_000),
    "parincpu": Key("train.offload_param_max_in_cpu", 1_000_000_000),
    "workers": Key("train.loader_workers", 0),
    "ahead": Key("train.loader_prefetch", 2),
    "pinmem": Key("train.loader_pin_memory", False),
    "wdtype": Key("serve.weight_dtype", "bf16"),
    "kvdtype": Key("serve.kv_dtype", "bf16"),
    "state": Key("serve.state_dtype", "auto"),
    "kvcache": Key("serve.kv_cache", "paged"),
    "conc": Key("serve.concurrency", 64),
    "prompt": Key("serve.prompt_len", 1024),
    "output": Key("serve.output_len", 256),
    "simgs": Key("serve.images", 1),
    "block": Key("serve.block_size", 16),
    "memutil": Key("serve.memory_utilization", 0.9),
    "batched": Key("serve.max_batched_tokens", 8192),
    "runtime": Key("serve.runtime", "graphs"),
    "prefill": Key("serve.prefill", "whole"),
    "draft": Key("serve.draft_tokens", 0),
    "accept": Key("serve.draft_acceptance", 0.7),
    "drafter": Key("serve.draft_model", "none"),
    "offw": Key("serve.offload_weights", 0.0),
    "offkv": Key("serve.offload_kv", "none"),
    "tokens": Key("run.tokens", 1_000_000_000),
    "price": Key("run.price_per_gpu_hour", 0.0),
    "watts": Key("run.watts_per_gpu", 0.0),
    "pue": Key("run.pue", 1.0),
    "with": Key("together.kind", "none"),
    "enginetp": Key("together.engine_tp", 1),
    "asleep": Key("together.asleep", "all"),
    "trainer": Key("together.trainer", "stays"),
    "ref": Key("together.reference", "gpu"),
    "reward": Key("together.reward", "none"),
    "rollouts": Key("together.rollouts", 64),
    "arrive": Key("serve.arrivals", "poisson"),
    "rate": Key("serve.arrival_rate", 12.0),
    "reqs": Key("serve.requests", 1000),
    "lengths": Key("serve.lengths", "lognormal"),
    "pcv": Key("serve.prompt_cv", 1.0),
    "ocv": Key("serve.output_cv", 1.0),
    "prefix": Key("serve.shared_prefix", 0),
    "maxlen": Key("serve.max_seq_len", 0),
    "seed": Key("serve.seed", 0),
    "stp": Key("serve.tp", 0),
    "spp": Key("serve.pp", 0),
    "slottft": Key("serve.target_ttft", 0.0),
    "slotpot": Key("serve.target_tpot", 0.0),
}
MODEL, GPU, NODE = "llama-3-8b", "h100-sxm-80gb", None
# A preset's name (with '~revision'), or an object compressed. `size` is a standard model.
OBJECTS = {
    "model": "model",
    "size": "model",
    "config": "model",
    "gpu": "cluster.gpu",
    "gpudef": "cluster.gpu",
    "node": "cluster.node",
    "nodedef": "cluster.node",
}
PIN = "pin"  # a second plan to compare with, as a query inside the query
KNOWN = ("v", *OBJECTS, *KEYS, PIN)
FIELDS = {key.path: name for name, key in KEYS.items()}


def literal_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def frozen_defaults() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_defaults_text())
    return found


@functools.cache
def _defaults_text() -> str:
    document: dict[str, Any] = {
        "version": 1,
        "model": MODEL,
        "cluster": {"gpu": GPU, "node": NODE},
        "parallel": {},
        "train": {},
        "serve": {},
        "together": {},
        "run": {},
    }
    for key in KEYS.values():
        put(document, key.path, key.default)
    return json.dumps(document)
