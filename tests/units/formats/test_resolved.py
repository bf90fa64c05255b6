"""What a file means to the program that it is for, beside what is read of it.

Two tables of outside truth: tests/reference/formats.json, which the programs' own classes wrote
(ask_formats.py), and SOURCES below, whose figures stand in the code of programs that do not install
here. In both a row has a small file and what the program makes of it, defaults among it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tables import each

from memcore.formats import ReadPlan, Text, read_files
from memcore.plan.plan import get

ASKED = json.loads(
    (Path(__file__).parents[2] / "reference" / "formats.json").read_text(encoding="utf-8")
)
SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": ASKED["hidden_size"],
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
}
OPTIM = {"adamw_torch_fused": "adamw", "adafactor": "adafactor"}


def read(content: str, **said: Any) -> ReadPlan:
    config = Text("config.json", json.dumps(SMALL))
    return read_files([Text("file", content), config], **said)


def halves(resolved: dict[str, Any], bf16: str) -> str:
    """The precision behind two switches."""
    return bf16 if resolved["bf16"] else "fp16-mixed" if resolved["fp16"] else "fp32"


def of_trainer(resolved: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "train.micro_batch", resolved["per_device_train_batch_size"]
    yield "train.grad_accumulation", resolved["gradient_accumulation_steps"]
    yield "train.checkpointing", "full" if resolved["gradient_checkpointing"] else "none"
    yield "train.optimizer", OPTIM[resolved["optim"]]
    yield "train.loader_workers", resolved["dataloader_num_workers"]
    yield "train.loader_pin_memory", resolved["dataloader_pin_memory"]
    yield "train.precision", halves(resolved, "bf16-autocast")
    if "max_length" in resolved:
        yield "train.seq_len", resolved["max_length"]
    if "lora_r" in resolved:
        yield "train.lora_rank", resolved["lora_r"]
        yield "train.lora_dropout", resolved["lora_dropout"]


def of_deepspeed(resolved: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if "fp16" in resolved:
        yield "train.precision", halves(resolved, "bf16-mixed")
    if "train_micro_batch_size_per_gpu" in resolved:
        yield "train.micro_batch", resolved["train_micro_batch_size_per_gpu"]
        yield "train.grad_accumulation", resolved["gradient_accumulation_steps"]
    yield "train.zero", resolved["stage"]
    for name in ("reduce_bucket_size", "sub_group_size"):
        if name in resolved:
            yield f"train.{name}", resolved[name]
    for name in ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters"):
        for key in (name, f"stage3_{name}"):
            if key in resolved:
                yield f"train.stage3_{name}", resolved[key]
    for key, field in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if given := resolved.get(key):
            yield f"train.offload_{field}", given["device"]
    if given := resolved.get("offload_param"):
        for name in ("buffer_size", "max_in_cpu"):
            yield f"train.offload_param_{name}", given[name]
        yield "train.offload_param_buffers", given["buffer_count"]


def of_accelerate(resolved: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kinds = {"MULTI_GPU": "pytorch", "FSDP": "fsdp2", "DEEPSPEED": "deepspeed"}
    yield "train.framework", kinds[resolved["distributed_type"]]
    yield "cluster.gpus", resolved["num_processes"]
    if resolved["num_machines"] > 1:
        yield "cluster.gpus_per_node", resolved["num_processes"] // resolved["num_machines"]
    half = resolved["mixed_precision"]
    yield "train.precision", f"{half}-mixed" if half else "fp32"


KINDS = {
    **dict.fromkeys(("transformers", "SFTConfig", "GRPOConfig", "DPOConfig"), of_trainer),
    **dict.fromkeys(("deepspeed", "transformers, deepspeed"), of_deepspeed),
    "accelerate": of_accelerate,
}


@each("row", [row for row in ASKED["rows"] if row["by"] in KINDS], ids=lambda row: row["by"])
def test_a_file_means_what_its_program_says(row: dict[str, Any]) -> None:
    of_model = {"model_name_or_path": "x"} if KINDS[row["by"]] is of_trainer else {}
    gpus = {} if row["by"] == "accelerate" else {"gpus": ASKED["ranks"]}
    found = read(yaml.safe_dump(row["file"] | of_model), **gpus)
    plan = found.plan.document()
    wanted = dict(KINDS[row["by"]](row["resolved"]))
    # A field that no plan says is told.
    left = {issue.field for issue in found.left}
    assert {path: get(plan, path) for path in wanted if path not in left} == {
        path: value for path, value in wanted.items() if path not in left
    }
    assert left & wanted.keys() <= {"train.precision"}
    assert found.changed == ()


def test_an_adapter_without_figures_is_as_peft_has_it() -> None:
    (row,) = (row for row in ASKED["rows"] if row["by"] == "peft")
    content = "model_name_or_path: x\nuse_lora: true\nper_device_train_batch_size: 1\n"
    train = read(content).plan.train
    assert (train.lora_rank, train.lora_dropout) == (
        row["resolved"]["r"],
        row["resolved"]["lora_dropout"],
    )


# ---- figures from code

FACTORY = """
model_name_or_path: x
stage: sft
cutoff_len: 4096
bf16: true
gradient_accumulation_steps: 2
"""
AXOLOTL = "base_model: x\nadapter: lora\nlora_r: 8\ngradient_accumulation_steps: 2\n"
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
{training}
[parallelism]
{parallelism}
[optimizer]
name = "AdamW"
"""
MEGATRON = """
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --swiglu --normalization RMSNorm --position-embedding-type rope \\
  --vocab-size 32000 --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 {more}
"""
TUNE = """
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj']
batch_size: 2
fsdp_reshard_after_forward: false
optimizer: {_component_: torch.optim.AdamW}
dtype: bf16
"""
# Of each file: where its figures stand, the file, who else is told, and what the program makes of
# it.
SOURCES: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    (
        (
            "LLaMA-Factory ff6d4d12 (2026-08): hparams/finetuning_args.py (finetuning_type lora, "
            "lora_rank 8, lora_target all), model_args.py (use_reentrant_gc), adapter.py (fp32 "
            "adapters, a base in the compute dtype)"
        ),
        FACTORY,
        {},
        {
            "train.adapter": "lora",
            "train.lora_rank": 8,
            "train.lora_dropout": 0.0,
            "train.lora_targets": "all-linear",
            "train.seq_len": 4096,
            "train.micro_batch": 8,
            "train.checkpointing": "full",
            "train.reentrant": True,
            "train.precision": "bf16-pure",
            "train.adapter_dtype": "fp32",
        },
    ),
    (
        "the same: cutoff_len 2048, 4 bits with double quantization",
        (
            "model_name_or_path: x\nfinetuning_type: lora\nquantization_bit: 4\nbf16: true\n"
            "use_reentrant_gc: false\n"
        ),
        {},
        {"train.seq_len": 2048, "train.adapter": "qlora", "train.reentrant": False},
    ),
    (
        "trl 1.16 by its command: SFTConfig's max_length, recomputation, bf16",
        "trl sft --model_name_or_path x --gradient_accumulation_steps 2",
        {},
        {
            "train.seq_len": 1024,
            "train.checkpointing": "full",
            "train.precision": "bf16-autocast",
            "train.micro_batch": 8,
        },
    ),
    (
        (
            "axolotl 067b021c (2026-07): utils/schemas/config.py (sequence_len 512, bf16 auto, a "
            "worker for each GPU that prefetches 256), training.py (micro_batch_size 1), "
            "utils/config/__init__.py (torch_dtype follows bf16)"
        ),
        AXOLOTL,
        {"gpus": 4},
        {
            "train.micro_batch": 1,
            "train.seq_len": 512,
            "train.precision": "bf16-pure",
            "train.checkpointing": "none",
            "train.optimizer": "adamw",
            "train.lora_dropout": 0.0,
            "train.loader_workers": 4,
            "train.loader_prefetch": 256,
            "train.loader_pin_memory": True,
        },
    ),
    (
        (
            "the same: gradient_checkpointing without its kwargs is reentrant; older switches are "
            "words of attn_implementation"
        ),
        AXOLOTL + "gradient_checkpointing: true\neager_attention: true\n",
        {},
        {"train.reentrant": True, "train.attention": "eager"},
    ),
    (
        (
            "torchtitan 9810191b^ (2026-02): config/job_config.py (local_batch_size 8, seq_len "
            "2048, selective 2, fused)"
        ),
        TITAN.format(training="steps = 10", parallelism="data_parallel_shard_degree = 8"),
        {},
        {
            "train.micro_batch": 8,
            "train.seq_len": 2048,
            "train.checkpointing": "full",
            "train.checkpoint_every": 2,
            "train.optimizer": "adamw",
            "train.precision": "bf16-mixed",
            "train.attention": "sdpa",
            "train.zero": 3,
            "cluster.gpus": 8,
        },
    ),
    (
        (
            "the same: a pipeline cuts the local batch into microbatches of 1, and does not "
            "reshard by default; weights and optimizer rest in host memory"
        ),
        TITAN.format(
            training="local_batch_size = 4\nenable_cpu_offload = true",
            parallelism="pipeline_parallel_degree = 2\ndata_parallel_shard_degree = 4",
        ),
        {},
        {
            "train.micro_batch": 1,
            "train.grad_accumulation": 4,
            "train.zero": 2,
            "train.offload_parameters": "cpu",
            "train.offload_optimizer": "cpu",
            "cluster.gpus": 8,
        },
    ),
    (
        "the same: training.dtype bfloat16 keeps parameters, gradients and states in bf16",
        TITAN.format(training='dtype = "bfloat16"', parallelism="tensor_parallel_degree = 1"),
        {"gpus": 8},
        {"train.precision": "bf16-pure"},
    ),
    (
        (
            "torchtune bd2a0fc7 (2026-04): models/llama3_1/_model_builders.py (lora_rank 8), "
            "recipes/lora_finetune_distributed.py (fsdp_reshard_after_forward)"
        ),
        TUNE,
        {"gpus": 2},
        {
            "train.lora_rank": 8,
            "train.zero": 2,
            "train.precision": "bf16-pure",
            "train.attention": "sdpa",
        },
    ),
    (
        (
            "Megatron-LM d98e8a64 (2026-08): training/arguments.py validate_args: no sequence "
            "parallelism without tensor parallelism, stages with the embedding and the loss"
        ),
        MEGATRON.format(
            more="--bf16 --global-batch-size 16 --sequence-parallel "
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4"
        ),
        {},
        {
            "parallel.sequence_parallel": False,
            "parallel.virtual_stages": 4,
            "train.precision": "bf16-mixed",
            "train.grad_accumulation": 4,
        },
    ),
    (
        "the same: num_layers plus embedding and loss are shared out",
        MEGATRON.format(
            more="--bf16 --global-batch-size 16 --pipeline-model-parallel-size 2 "
            "--num-layers-per-virtual-pipeline-stage 4 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split"
        ).replace("--num-layers 32", "--num-layers 30"),
        {},
        {
            "parallel.virtual_stages": 4,
            "parallel.account_for_embedding_in_pipeline_split": True,
            "parallel.account_for_loss_in_pipeline_split": True,
        },
    ),
    (
        (
            "the same: grouped queries have one group (--num-query-groups 1), SwiGLU's width is "
            "8/3 of the hidden size in multiples of 64"
        ),
        MEGATRON.format(more="--bf16 --group-query-attention"),
        {"own": True},
        {"model.num_key_value_heads": 1, "model.intermediate_size": 10_880},
    ),
    (
        "the same: expert tensor parallelism is tensor parallelism's",
        MEGATRON.format(
            more="--bf16 --num-experts 8 --tensor-model-parallel-size 2 --sequence-parallel "
            "--ffn-hidden-size 14336 --expert-model-parallel-size 2"
        ),
        {"own": True},
        {"parallel.etp": 2, "model.num_experts_per_tok": 2},
    ),
    (
        (
            "vLLM 2026: EngineArgs.get_batch_defaults (OPENAI_API_SERVER: 8,192 tokens on 70 GiB "
            "and more), CacheConfig.gpu_memory_utilization 0.92, human_readable_int"
        ),
        "vllm serve x --max-model-len 16k",
        {"gpu": "h100-sxm-80gb"},
        {
            "batched_tokens": 8192,
            "serve.memory_utilization": 0.92,
            "serve.max_seq_len": 16_000,
            "serve.prefill": "chunked",
        },
    ),
    (
        "the same on an A100, which it knows by name, and with weights in host memory",
        "vllm serve x --max-model-len 8K --cpu-offload-gb 4",
        {"gpu": "a100-sxm-80gb"},
        {
            "batched_tokens": 2048,
            "serve.max_seq_len": 8192,
            "serve.offload_weights": 4.0,
        },
    ),
    (
        ("SGLang 0.5: ServerArgs._handle_gpu_memory_settings on 24 GB: chunks of 2,048 tokens"),
        "python -m sglang.launch_server --model-path x",
        {"gpu": "rtx-4090-24gb"},
        {
            "batched_tokens": 2048,
            "serve.memory_utilization": 0.0,
        },
    ),
    (
        "llama.cpp 2026: tools/server/README.md (--ubatch-size 512, --cache-type-k f16)",
        "llama-server -m x.gguf -c 8192",
        {},
        {
            "batched_tokens": 512,
            "serve.kv_dtype": "fp16",
            "serve.max_seq_len": 8192,
        },
    ),
)


@each("row", SOURCES, ids=lambda row: row[0][:40])
def test_a_file_means_what_its_programs_code_says(
    row: tuple[str, str, dict[str, Any], dict[str, Any]],
) -> None:
    _, content, said, wanted = row
    said = dict(said)
    own = said.pop("own", False) or "--num-layers" in content
    found = read_files([Text("file", content)], **said) if own else read(content, **said)
    plan = found.plan.document()
    decided = {"batched_tokens": found.plan.batched_tokens}  # which the program does by itself
    assert {p: decided[p] if p in decided else get(plan, p) for p in wanted} == wanted
    assert found.changed == ()
