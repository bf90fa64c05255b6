"""Each field of a plan as an axis: plans in which it has a meaning, and values that it may have."""

import itertools

from memcore.errors import PlanError
from memcore.plan.plan import Plan, field_of, get, limits_of, words_of

MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1, "grad_accumulation": 4}
DEEPSPEED = {"framework": "deepspeed", "zero": 3}
SMALL = "llama-3.2-1b"
BASES = (
    {"model": SMALL},
    {"model": SMALL, "parallel": {"tp": 2, "pp": 2}, "train": MEGATRON},
    {"model": SMALL, "train": DEEPSPEED | {"offload_optimizer": "nvme", "loader_workers": 2}},
    {
        "model": SMALL,
        "train": DEEPSPEED
        | {"optimizer": "adamw", "offload_optimizer": "cpu", "offload_parameters": "nvme"},
    },
    {"model": "qwen3-30b-a3b", "train": MEGATRON, "parallel": {"ep": 4}},
    {"model": "qwen3-30b-a3b", "train": MEGATRON | {"checkpointing": "selective"}},
    {"model": SMALL, "train": {"adapter": "lora", "adapter_dtype": "base", "lora_dropout": 0.1}},
    {
        "model": SMALL,
        "cluster": {"gpus": 1},
        "train": {
            "adapter": "qlora",
            "precision": "bf16-pure",
            "framework": "pytorch",
            "zero": 0,
        },
    },
    {"model": "llava-1.5-7b", "train": {"seq_len": 2048}, "serve": {"prompt_len": 2048}},
    {"model": "qwen2.5-vl-3b-vision"},
    {"model": "t5-base", "train": {"attention": "eager"}},
    {"model": SMALL, "train": {"frozen": "lower", "trained_layers": 2, "checkpoint_every": 2}},
    {"model": SMALL, "together": {"kind": "grpo", "engine_tp": 2}},
    {"model": SMALL, "serve": {"prefill": "disaggregated", "max_seq_len": 4096}},
    {"model": "gpt-oss-20b", "cluster": {"gpus": 1}, "serve": {"engine": "llama.cpp"}},
    {"model": "gpt-oss-20b", "cluster": {"gpus": 1}, "serve": {"engine": "vllm"}},
    {"model": SMALL, "serve": {"engine": "vllm", "draft_model": "eagle", "draft_tokens": 3}},
    {"model": SMALL, "serve": {"engine": "vllm", "kv_cache": "contiguous", "turns": 3}},
    {"model": SMALL, "run": {"price_per_gpu_hour": 2.0, "target_days": 3}},
    {"model": "mamba-2.8b"},
    {"model": SMALL, "train": MEGATRON | {"checkpointing": "selective"}},
    {
        "model": "qwen3-30b-a3b",
        "cluster": {"gpus": 16},
        "parallel": {"ep": 8},
        "train": MEGATRON | {"checkpointing": "none"},
    },
    {
        "model": "qwen2.5-7b",
        "cluster": {"gpus": 1},
        "train": {
            "framework": "pytorch",
            "zero": 0,
            "precision": "bf16-pure",
            "optimizer": "sgd",
            "gradients": "freed",
        },
    },
    {"model": SMALL, "train": {"framework": "deepspeed", "zero": 2, "grad_accumulation": 2}},
    {
        "model": SMALL,
        "cluster": {"gpus": 16},
        "parallel": {"tp": 2, "sequence_parallel": True},
        "train": MEGATRON | {"zero": 0, "overlap_param_gather": False},
    },
    {
        "model": SMALL,
        "parallel": {"tp": 2, "sequence_parallel": True},
        "train": {"framework": "fsdp2", "kernels": "compile"},
    },
    {
        "model": SMALL,
        "cluster": {"gpus": 8},
        "parallel": {
            "pp": 2,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
        "train": MEGATRON,
    },
    {
        "model": "gpt2",
        "cluster": {"gpus": 1},
        "train": {"framework": "pytorch", "zero": 0, "optimizer": "sgd", "seq_len": 1024},
    },
    {"model": "deepseek-v3", "cluster": {"gpus": 256}, "parallel": {"ep": 8}, "train": MEGATRON},
    {"model": "dlrm-dcnv2", "train": {"table_cache": 0.2}},
    {"model": "resnet-50", "train": {"frozen": "modules", "frozen_modules": "conv1"}},
    {"model": SMALL, "serve": {"draft_model": "llama-3.2-1b", "draft_tokens": 3}},
)
NAMES = {
    "model": ["qwen2.5-0.5b", "gpt2", "llama-3-8b"],
    "cluster.gpu": ["l4-24gb", "mi300x-192gb", "h200-sxm-141gb"],
    "cluster.node": [None, "cloud-l4", "dgx-a100"],
    "train.cuda_graphs": ["attn", "attn,mlp"],
    "train.frozen_modules": ["layer1", "layer1,layer2"],
    "train.lora_modules": ["q_proj", "k_proj,o_proj"],
    "serve.moe_backend": ["marlin", "plain"],
    "train.recompute_modules": ["core_attn", "core_attn,layernorm", "moe_act,core_attn"],
}


def bases():
    """Plans that are one after another tried for a field; what is none today is left out."""
    for document in BASES:
        try:
            yield Plan.of(document)
        except PlanError:
            continue


def values_of(plan, path):
    """The plan's own value of a field and some others, small and large ones."""
    own = get(plan, path)
    if path in NAMES:
        return [own, *(n for n in NAMES[path] if n != own)]
    if words := words_of(path):
        return [own, *(word for word in words if word != own)]
    kind = field_of(path).annotation
    if kind is bool:
        return [own, not own]
    assert kind in (int, float), path
    low, high = limits_of(path)
    some = (low, low + 1, 2, 3, 8, 64, 1000, own + 1, 2 * own, own // 2, high)
    every = dict.fromkeys(kind(n) for n in some if low <= n <= high and n != own)
    return [own, *every]


def allowed(plan, path, most):
    """Of these values the own one and as many others as `most` that the plan may have."""
    own, *others = values_of(plan, path)

    def may(value):
        try:
            plan.changed(path, value)
        except PlanError:
            return False
        return True

    return [own, *itertools.islice(filter(may, others), most)]
