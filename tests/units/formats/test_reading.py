"""Files of other programs as plans. The texts are written for these tests; which keys and values
they have is as in files that people publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from memcore import PlanError, evaluate
from memcore.formats import MODEL, ReadPlan, Text, hub, kind_of, read_files, text_of
from memcore.formats.failures import failure
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.plan.plan import get

CONFIG = json.dumps(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
)
ZERO_3 = json.dumps(
    {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "reduce_bucket_size": 5e8,
            "sub_group_size": 1e9,
            "zero_hpz_partition_size": 8,
        },
    }
)
SFT = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
max_seq_length: 2048
optim: adamw_torch_fused
attn_implementation: flash_attention_2
per_device_eval_batch_size: 8
learning_rate: 2.0e-5
"""
MEGATRON = """
#!/bin/bash
#SBATCH --nodes=2
GPUS_PER_NODE=8
TP=4
MODEL=(
    --num-layers 24 --hidden-size 2048   # 1.3B
    --num-attention-heads 16
    --ffn-hidden-size 5504
    --swiglu
    --normalization RMSNorm
    --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --vocab-size 32000
)
TRAINING="--micro-batch-size 2 --global-batch-size 128 --seq-length 4096"
TRAINING="$TRAINING --max-position-embeddings 4096 --bf16 --use-distributed-optimizer"
TRAINING="$TRAINING --recompute-granularity selective"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 2 pretrain_gpt.py \\
    ${MODEL[@]} $TRAINING \\
    --tensor-model-parallel-size ${TP} --sequence-parallel \\
    --overlap-grad-reduce
"""

README = """
Start it:
```bash
python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 16 \\
  --context-length 32768 --max-running-requests 56 --mem-fraction-static 0.8
```
"""
LLAMA_CPP = """
./llama-server -m /models/Llama-3.1-8B-Instruct-Q4_K_M.gguf -c 32768 -np 4 -ngl 20 \\
  -ctk q8_0 -ctv q4_0 --mmproj mmproj.gguf
"""
FACTORY = """
stage: sft
finetuning_type: lora
lora_target: all
lora_rank: 8
cutoff_len: 4096
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
deepspeed: examples/deepspeed/ds_z2_config.json
"""
AXOLOTL = """
base_model: NousResearch/Llama-2-7b-hf
load_in_4bit: true
adapter: qlora
bf16: auto
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
lora_r: 32
gradient_accumulation_steps: 4
lora_target_linear: true
optimizer: paged_adamw_32bit
gradient_checkpointing: true
flash_attention: true
"""
TUNE = """
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192}
model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
batch_size: 2
gradient_accumulation_steps: 1
optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
optimizer_in_bwd: True
enable_activation_checkpointing: True
dtype: bf16
"""
TITAN = """
[job]
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = 8
context_parallel_degree = 4
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[optimizer]
early_step_in_backward = true
"""

REGISTRY = """
from torchtitan.trainer import Trainer
raise SystemExit("this is never run")


def llama3_debugmodel() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("debugmodel"))


def base() -> Trainer.Config:
    model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(emulate=True)])
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),
        model_spec=model_spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 8192,
            num_tokens_per_train_step=4 * 4 * 2 * 8192,
            max_context_length=8192,
        ),
        parallelism=ParallelismConfig(context_parallel_degree=8, data_parallel_shard_degree=4),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_70b() -> Trainer.Config:
    config = base()
    config.activation_checkpoint = FullAC.Config()
    config.compile = CompileConfig()
    config.compile.enable = True
    return config
"""
RECIPE = """
def gpt_oss_120b_pretrain_64gpu_config(num_gpus: int = 64) -> ConfigContainer:
    cfg = gpt_oss_120b_pretrain_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.expert_model_parallel_size = 8
    cfg.model.seq_length = 4096
    cfg.model.recompute_granularity = "selective"
    cfg.train.global_batch_size = 1280
    cfg.train.micro_batch_size = 1
    return cfg
"""
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  sequence_parallel: true
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  position_embedding_type: rope
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  share_embeddings_and_output_weights: false
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  hidden_dropout: 0.0
  attention_dropout: 0.0
  optim: {name: distributed_fused_adam}
  data: {micro_batch_size: 9}
"""
POLICY = """
grpo: {num_prompts_per_step: 32}
policy:
  model_name: Qwen/Qwen2.5-7B-Instruct
  train_global_batch_size: 512
  train_micro_batch_size: 2
  max_total_sequence_length: 8192
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, activation_checkpointing: true}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 4}
  generation: {vllm_cfg: {tensor_parallel_size: 4, precision: fp8}}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""
ENGINE = {
    "version": "1.0.0",
    "pretrained_config": {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_size": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "mapping": {"world_size": 4, "tp_size": 4, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    },
    "build_config": {"max_batch_size": 128, "max_num_tokens": 8192, "max_seq_len": 8192},
}
OPTIONS = """
enable_chunked_prefill: true
kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8, tokens_per_block: 64}
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 3}
enable_attention_dp: true
"""
KUBERNETES = """
apiVersion: v1
kind: Service
metadata: {name: llm}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:latest
          env:
            - {name: MODEL, value: meta-llama/Llama-3.1-8B-Instruct}
            - {name: LENGTH, value: "16384"}
          args: ["--model", "$(MODEL)", "--max-model-len=$(LENGTH)", "--tensor-parallel-size", "2",
                 "--max-num-seqs", "32"]
          resources: {limits: {nvidia.com/gpu: 2}}
"""
CHART = """
{{- if .Values.enabled }}
spec:
  containers:
    - name: {{ .Release.Name }}
      image: {{ .Values.image | default "x" }}
      command: ["/bin/bash", "-c"]
      args:
        - |
          LENGTH=4096
          exec python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B \\
            --context-length $LENGTH --mem-fraction-static 0.8
{{- end }}
"""

# Of each: its name, its text, what the plan then says, and where something is left, a word of it.
ONE: dict[str, tuple[str, dict[str, Any], str]] = {
    "vllm.sh": (
        """
        MODEL=${MODEL:-Qwen/Qwen2.5-72B-Instruct-AWQ}
        # vllm serve something-else
        vllm serve "$MODEL" --tensor-parallel-size 2 --max-model-len 16k \\
            --gpu-memory-utilization 0.92 --max-num-seqs 32 --kv-cache-dtype fp8_e4m3 \\
            --enforce-eager --enable-lora --port 8000
        """,
        {
            "model": "qwen2.5-72b",
            "cluster.gpus": 2,
            "serve.engine": "vllm",
            "serve.tp": 2,
            "serve.max_seq_len": 16000,
            "serve.max_num_seqs": 32,
            "serve.concurrency": 32,
            "serve.memory_utilization": 0.92,
            "serve.kv_dtype": "fp8",
            "serve.weight_dtype": "int4",
            "serve.runtime": "eager",
            "serve.prefill": "chunked",
        },
        "--enable-lora",
    ),
    "vllm.yaml": (
        "model: meta-llama/Llama-3.1-8B\ntensor-parallel-size: 1\nmax-model-len: 8192\n",
        {"model": "llama-3.1-8b", "serve.max_seq_len": 8192, "serve.engine": "vllm"},
        "",
    ),
    "compose.yml": (
        """
services:
  llm:
    image: vllm/vllm-openai:latest
    command:
      - --model
      - openai/gpt-oss-20b
      - --tensor-parallel-size=${TP:-2}
      - --speculative-config
      - '{"method": "eagle3", "num_speculative_tokens": 4}'
""",
        {
            "model": "gpt-oss-20b",
            "serve.tp": 2,
            "serve.draft_model": "eagle",
            "serve.draft_tokens": 4,
        },
        "",
    ),
    "readme.md": (
        README,
        {
            "model": "deepseek-v3",
            "cluster.gpus": 16,
            "serve.engine": "sglang",
            "serve.max_seq_len": 32768,
            "serve.memory_utilization": 0.8,
        },
        "",
    ),
    "llama.sh": (
        LLAMA_CPP,
        {
            "model": "llama-3.1-8b",
            "serve.engine": "llama.cpp",
            "serve.weight_dtype": "q4_k_m",
            "serve.max_seq_len": 8192,
            "serve.concurrency": 4,
            "serve.gpu_layers": 20,
            "serve.kv_dtype": "q8_0",
            "serve.value_dtype": "q4_0",
        },
        "--mmproj",
    ),
    "sft.yaml": (
        SFT,
        {
            "model": "llama-3-8b",
            "cluster.gpus": 1,
            "train.framework": "pytorch",
            "train.zero": 0,
            "train.micro_batch": 2,
            "train.grad_accumulation": 4,
            "train.seq_len": 2048,
            "train.checkpointing": "full",
            "train.reentrant": False,
            "train.precision": "bf16-autocast",
            "train.attention": "flash",
        },
        "per_device_eval_batch_size",
    ),
    "lora.sh": (
        """
        NUM_GPUS=4
        torchrun --nproc_per_node $NUM_GPUS train.py --model_name_or_path huggyllama/llama-30b \\
            --bits 4 --double_quant --lora_r 64 --lora_dropout 0.1 --torch_dtype bfloat16 --bf16 \\
            --per_device_train_batch_size 1 --gradient_checkpointing True \\
            --gradient_accumulation_steps $((64 / (NUM * 1))) --model_max_length 512
        """,
        {
            "model": "llama-30b",
            "cluster.gpus": 4,
            "train.adapter": "qlora",
            "train.lora_rank": 64,
            "train.lora_dropout": 0.1,
            "train.precision": "bf16-pure",
        },
        "--gradient_accumulation_steps",
    ),
    "factory.yaml": (
        FACTORY,
        {
            "model": "qwen2.5-7b",
            "train.framework": "deepspeed",
            "train.zero": 2,
            "train.adapter": "lora",
            "train.lora_targets": "all-linear",
            "train.checkpointing": "full",
            "train.precision": "bf16-mixed",
        },
        "",
    ),
    "axolotl.yml": (
        AXOLOTL,
        {
            "model": "llama-2-7b",
            "train.adapter": "qlora",
            "train.precision": "bf16-pure",
            "train.optimizer": "paged-adamw32bit",
            "train.lora_targets": "all-linear",
            "train.attention": "flash",
        },
        "",
    ),
    "fsdp.yaml": (
        SFT + "fsdp: full_shard auto_wrap\nfsdp_config:\n  backward_prefetch: backward_pre\n",
        {"train.framework": "fsdp2", "train.zero": 3, "train.precision": "bf16-mixed"},
        "fsdp_backward_prefetch",
    ),
    "grpo.yaml": (
        SFT + "num_generations: 8\nmax_completion_length: 1024\nuse_vllm: true\n",
        {
            "together.kind": "grpo",
            "serve.engine": "vllm",
            "serve.memory_utilization": 0.3,
            "serve.output_len": 1024,
        },
        "the prompt comes before it",
    ),
    "dpo.yaml": (SFT + "beta: 0.1\nmax_prompt_length: 512\n", {"together.kind": "none"}, "a pair"),
    "titan.toml": (
        TITAN,
        {
            "model": "llama-3-70b",
            "cluster.gpus": 32,
            "parallel.cp": 4,
            "train.framework": "fsdp2",
            "train.zero": 3,
            "train.precision": "float8-tensorwise",
            "train.kernels": "compile",
            "train.checkpointing": "full",
            "train.checkpoint_every": 2,
        },
        "early_step_in_backward",
    ),
    "registry.py": (
        REGISTRY,
        {
            "model": "llama-3-70b",
            "train.framework": "fsdp2",
            "train.micro_batch": 2,
            "train.seq_len": 8192,
            "train.grad_accumulation": 4,
            "train.checkpointing": "full",
            "train.kernels": "compile",
            "train.precision": "float8-rowwise",
            "train.cross_entropy": "chunked",
            "parallel.cp": 8,
            "cluster.gpus": 32,
        },
        "llama3_70b: is the run that is read",
    ),
    "recipe.py": (
        RECIPE,
        {
            "model": "gpt-oss-120b",
            "cluster.gpus": 64,
            "parallel.pp": 4,
            "parallel.ep": 8,
            "train.framework": "megatron",
            "train.micro_batch": 1,
            "train.grad_accumulation": 80,
            "train.seq_len": 4096,
            "train.precision": "fp8-mixed",
            "train.checkpointing": "selective",
        },
        "the job begins with what it sets, which is not in the file",
    ),
    "tune.yaml": (
        TUNE,
        {
            "model": "llama-3.1-8b",
            "train.adapter": "qlora",
            "train.lora_modules": "q_proj,o_proj,gate_proj,up_proj,down_proj",
            "train.lora_rank": 64,
            "train.framework": "pytorch",
            "train.precision": "bf16-pure",
            "train.optimizer": "paged-adamw8bit",
            "train.cross_entropy": "chunked",
            "train.checkpointing": "full",
            "train.seq_len": 8192,
        },
        "optimizer_in_bwd",
    ),
    "trtllm.sh": (
        (
            "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --tp_size 2 --max_batch_size 64 "
            "--max_num_tokens 4096 --kv_cache_free_gpu_memory_fraction 0.85 --ep_size 2"
        ),
        {
            "model": "llama-3.1-8b",
            "cluster.gpus": 2,
            "serve.engine": "tensorrt-llm",
            "serve.max_num_seqs": 64,
            "serve.max_batched_tokens": 4096,
            "serve.memory_utilization": 0.85,
            "serve.prefill": "whole",
        },
        "",
    ),
    "engine.json": (
        json.dumps(ENGINE),
        {
            "serve.engine": "tensorrt-llm",
            "serve.tp": 4,
            "serve.weight_dtype": "fp8",
            "serve.kv_dtype": "fp8",
            "serve.max_seq_len": 8192,
            "serve.max_num_seqs": 128,
            "serve.memory_utilization": 0.0,
            "cluster.gpus": 4,
            "model.num_key_value_heads": 8,
        },
        "",
    ),
    "deployment.yaml": (
        KUBERNETES,
        {
            "model": "llama-3.1-8b",
            "serve.engine": "vllm",
            "serve.tp": 2,
            "serve.max_seq_len": 16384,
            "serve.max_num_seqs": 32,
        },
        "",
    ),
    "chart.yaml": (
        CHART,
        {"model": "qwen3-8b", "serve.engine": "sglang", "serve.max_seq_len": 4096},
        "",
    ),
    "nemo.yaml": (
        NEMO,
        {
            "cluster.gpus": 32,
            "parallel.tp": 4,
            "parallel.pp": 2,
            "parallel.virtual_stages": 2,
            "parallel.sequence_parallel": True,
            "train.framework": "megatron",
            "train.micro_batch": 1,
            "train.grad_accumulation": 32,
            "train.seq_len": 4096,
            "train.checkpointing": "full",
            "train.zero": 1,
            "train.precision": "bf16-mixed",
            "model.num_key_value_heads": 8,
        },
        "",
    ),
    "rl.yaml": (
        POLICY,
        {
            "model": "qwen2.5-7b",
            "cluster.gpus": 16,
            "together.kind": "grpo",
            "train.framework": "fsdp2",
            "parallel.tp": 2,
            "train.micro_batch": 2,
            "train.grad_accumulation": 32,
            "train.seq_len": 8192,
            "train.checkpointing": "full",
        },
        "",
    ),
    "megatron.sh": (
        MEGATRON,
        {
            "cluster.gpus": 16,
            "cluster.gpus_per_node": 8,
            "parallel.tp": 4,
            "parallel.sequence_parallel": True,
            "train.framework": "megatron",
            "train.zero": 1,
            "train.micro_batch": 2,
            "train.grad_accumulation": 16,
            "train.checkpointing": "selective",
            "train.overlap_grad_reduce": True,
            "train.overlap_param_gather": False,
        },
        "",
    ),
}


def read(*texts: tuple[str, str], **said: Any) -> ReadPlan:
    return read_files([Text(name, content) for name, content in texts], **said)


@pytest.mark.parametrize("name", ONE)
def test_a_file_is_the_plan_that_it_says(name: str) -> None:
    content, wanted, left = ONE[name]
    found = read((name, content))
    plan = found.plan.document()
    assert {path: get(plan, path) for path in wanted} == wanted
    assert found.changed == ()
    assert left in " ".join(map(str, found.left))
    evaluate(found.plan)


@pytest.mark.parametrize(
    ("said", "in_fp32"),
    [
        ("--bf16", True),
        ("--bf16 --grad-reduce-in-bf16", False),
        ("--fp16", False),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", True),
    ],
)
def test_megatron_sums_gradients_in_fp32_for_bf16_alone_unless_told(said, in_fp32) -> None:
    """megatron/training/arguments.py, validate_args."""
    found = read(("a.sh", MEGATRON.replace("--bf16", said)))
    assert found.plan.train.grad_reduce_in_fp32 is in_fp32
    assert not any("grad" in key for key in found.unread)


@pytest.mark.parametrize(
    ("said", "modules", "left"),
    [
        ("", "core_attn", ""),
        ("--recompute-modules core_attn", "core_attn", ""),
        ("--recompute-modules mlp core_attn", "core_attn,mlp", ""),
        ("--recompute-modules layernorm gdn_norm_out", "layernorm", "gdn_norm_out: is not planned"),
        ("--recompute-modules mlp moe_act", "mlp", "the model has no experts for moe_act"),
        ("--recompute-modules moe_act", "", "the model has no experts for moe_act"),
    ],
)
def test_megatron_runs_the_modules_again_that_its_list_has(said, modules, left) -> None:
    """megatron/core/transformer/transformer_config.py: recompute_modules."""
    given = "--recompute-granularity selective"
    found = read(("a.sh", MEGATRON.replace(given, f"{given} {said}")))
    train = found.plan.train
    assert train.checkpointing == ("selective" if modules else "none")
    assert not modules or train.recompute_modules == modules
    told = [str(i) for i in (*found.left, *found.changed) if "recompute" in i.field]
    assert len(told) == bool(left)
    assert left in "".join(told)


FLEX = "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend"
CUTS = "--data-parallel-sharding-strategy"
WHOLE = "full_iteration"
OF_FIELD = {"moe_dispatcher": "dispatcher", "cuda_graphs": "graph", "zero": "strategy"}


@pytest.mark.parametrize(
    ("field", "said", "value", "left"),
    [
        ("moe_dispatcher", "", "alltoall", ""),
        ("moe_dispatcher", "--moe-token-dispatcher-type alltoall", "alltoall", ""),
        ("moe_dispatcher", "--moe-token-dispatcher-type allgather", "alltoall", "allgather"),
        ("moe_dispatcher", "--moe-token-dispatcher-type flex", "deepep", ""),
        ("moe_dispatcher", "--moe-enable-deepep", "deepep", ""),
        ("moe_dispatcher", f"{FLEX} hybridep", "hybridep", ""),
        ("moe_dispatcher", f"{FLEX} ncclep", "alltoall", "ncclep is not planned"),
        ("cuda_graphs", "", "none", ""),
        ("cuda_graphs", "--cuda-graph-impl none --cuda-graph-modules attn", "none", ""),
        ("cuda_graphs", "--cuda-graph-impl transformer_engine", "attn,mlp", ""),
        ("cuda_graphs", "--external-cuda-graph", "attn,mlp", ""),
        ("cuda_graphs", "--enable-cuda-graph --cuda-graph-scope full_iteration", WHOLE, ""),
        ("cuda_graphs", f"--cuda-graph-impl {WHOLE} --cuda-graph-warmup-steps 1", WHOLE, ""),
        ("cuda_graphs", "--cuda-graph-impl local --cuda-graph-modules attn mlp", "attn,mlp", ""),
        ("cuda_graphs", "--cuda-graph-impl transformer_engine --cuda-graph-scope attn", "attn", ""),
        ("cuda_graphs", "--cuda-graph-impl transformer_engine --cuda-graph-modules attn mamba",
         "attn", "mamba: is not planned"),
        ("zero", "--use-distributed-optimizer", 1, ""),
        ("zero", "--use-megatron-fsdp", 0, ""),
        ("zero", f"--use-megatron-fsdp {CUTS} optim", 1, ""),
        ("zero", f"--use-megatron-fsdp {CUTS} optim_grads_params", 3, ""),
        ("zero", f"--use-custom-fsdp {CUTS} optim_grads_params", 3, ""),
        ("zero", f"--use-megatron-fsdp {CUTS} optim_grads", 3, "optim_grads is not planned"),
        ("zero", f"{CUTS} optim_grads_params", 0, ""),
    ],
)  # fmt: skip
def test_an_option_of_megatrons_is_a_field(field, said, value, left) -> None:
    """moe_flex_dispatcher_backend, cuda_graph_impl and cuda_graph_modules of megatron/core/
    transformer/transformer_config.py; distributed/distributed_data_parallel_config.py."""
    line = MEGATRON if field != "zero" else MEGATRON.replace("--use-distributed-optimizer", "")
    found = read(("a.sh", f"{line.strip()} {said}"))
    assert getattr(found.plan.train, field) == value
    told = [str(issue) for issue in found.left if OF_FIELD[field] in issue.field]
    assert len(told) == bool(left)
    assert left in "".join(told)


LAUNCHERS = {
    "torchrun --nproc_per_node 8 --nnodes 2 train.py {}": 16,
    "python -m torch.distributed.launch --nproc_per_node=4 train.py {}": 4,
    "accelerate launch --num_processes 6 train.py {}": 6,
    "deepspeed --num_gpus 2 train.py {}": 2,
    "deepspeed --include localhost:0,1,3 train.py {}": 3,
    "#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:4\nsrun python train.py {}": 16,
    "#SBATCH --nodes=2\n#SBATCH --gpus=16\nsrun python train.py {}": 16,
    "mpirun -np 8 python train.py {} | tail -n 100": 8,
    "head -n 40 log; python train.py {}": 1,
}


@each("command", LAUNCHERS)
def test_a_launcher_says_how_many(command: str) -> None:
    more = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --max_length 512"
    assert read(("run.sh", command.format(more))).plan.cluster.gpus == LAUNCHERS[command]


def test_what_is_not_said_is_told() -> None:
    found = read(("sft.yaml", SFT + "of_nobody: 1\n"))
    assumed = {issue.field: issue.message for issue in found.assumed}
    assert "no file says which" in assumed["cluster.gpu"]
    assert "no file says how many" in assumed["cluster.gpus"]
    assert "llama-3-8b" in assumed["model"]
    assert found.unread == ("of_nobody",)
    alone = {issue.field for issue in read(("zero3.json", ZERO_3), model="gpt2", gpus=8).assumed}
    assert {f"train.{name}" for name in ("precision", "optimizer", "attention")} <= alone
    load = {issue.field for issue in read(("vllm.yaml", ONE["vllm.yaml"][0])).assumed}
    assert "serve.concurrency" in load


def test_files_of_one_job_say_it_together_in_any_order() -> None:
    texts = (("sft.yaml", SFT + "deepspeed: zero3.json\n"), ("zero3.json", ZERO_3))
    ways = [read(*texts, gpus=8), read(*texts[::-1], gpus=8)]
    assert ways[0].plan == ways[1].plan
    train = ways[0].plan.train
    assert (train.framework, train.zero, train.micro_batch) == ("deepspeed", 3, 2)
    assert (train.precision, train.offload_optimizer) == ("bf16-mixed", "cpu")
    assert ways[0].wants == ()
    assert "zero_optimization.zero_hpz_partition_size" in " ".join(map(str, ways[0].left))
    alone = read(texts[0])
    assert alone.wants == ("zero3.json",)


def test_a_config_beside_a_file_is_its_model() -> None:
    found = read(("a.yaml", SFT.replace("Meta-Llama-3-8B", "My-Own")), ("config.json", CONFIG))
    assert found.plan.architecture.hidden_size == 1024
    with pytest.raises(PlanError, match=r"give its config\.json beside the file"):
        read(("a.yaml", SFT.replace("Meta-Llama-3-8B", "My-Own")))
    assert read(("a.yaml", SFT), model="gpt2").plan.model == "gpt2"


def test_what_somebody_says_beside_the_files_counts() -> None:
    plan = read(("sft.yaml", SFT), gpu="rtx-4090-24gb", gpus=2).plan
    assert (plan.cluster.gpu, plan.cluster.gpus) == ("rtx-4090-24gb", 2)


def test_what_cannot_be_together_is_changed_and_told() -> None:
    found = read(("gpt2.yaml", SFT.replace("meta-llama/Meta-Llama-3-8B-Instruct", "gpt2")))
    assert found.plan.train.seq_len == 1024
    (changed,) = found.changed
    assert "1,024 is used in place of 2,048, since" in str(changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not read"),
        ("hello", "not read"),
        ("a: [1, 2", "not read"),
        ("{" * 100_000, "not read"),
        ("x" * 2_000_000, "characters"),
        (MEGATRON.replace("--swiglu", "--swiglu --spec own"), "give the config.json"),
        (MEGATRON.replace("--swiglu", "--swiglu --num-experts 8 --moe-layer-freq 2"), "moe-layer"),
        (MEGATRON.replace("--hidden-size 2048", "--hidden-size 2049"), "hidden_size"),
        (SFT.replace("Meta-Llama-3-8B", "Nothing-8B"), "is no preset"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(content: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read(("x", content))


HEADS = "--num-attention-heads {heads} --swiglu --normalization RMSNorm --disable-bias-linear"
# Of a preset: its sizes as Megatron's options say them.
BY_OPTIONS = {
    "deepseek-v3": "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 "
    f"{HEADS.format(heads=128)} --vocab-size 129280 --multi-latent-attention --q-lora-rank 1536 "
    "--kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
    "--num-experts 256 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-router-topk 8 --moe-layer-freq '([0]*3+[1]*58)' --qk-layernorm",
    "qwen3-30b-a3b": "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 "
    f"{HEADS.format(heads=32)} --group-query-attention --num-query-groups 4 --kv-channels 128 "
    "--vocab-size 151936 --qk-layernorm --num-experts 128 --moe-ffn-hidden-size 768 "
    "--moe-router-topk 8",
    "qwen3-8b": "--num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 "
    f"{HEADS.format(heads=32)} --group-query-attention --num-query-groups 8 --kv-channels 128 "
    "--vocab-size 151936 --qk-layernorm",
}


@each("name", BY_OPTIONS)
def test_options_describe_a_preset(name: str) -> None:
    more = "--untie-embeddings-and-output-weights --position-embedding-type rope --seq-length 4096"
    command = f"pretrain_gpt.py --micro-batch-size 1 --bf16 {more} {BY_OPTIONS[name]}"
    mine = read(("train.sh", command), gpus=8).plan.architecture
    assert parameters(mine) == parameters(catalog.model(name))


def test_a_server_and_its_options_are_one_plan() -> None:
    command = "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --config options.yaml"
    found = read(("options.yaml", OPTIONS), ("serve.sh", command))
    assert found.kinds == {"options.yaml": "TensorRT-LLM", "serve.sh": "tensorrt-llm"}
    serve = found.plan.serve
    assert (serve.tp, serve.kv_dtype, serve.block_size) == (1, "fp8", 64)
    assert (serve.prefill, serve.memory_utilization) == ("chunked", 0.8)
    assert (serve.draft_model, serve.draft_tokens) == ("mtp", 3)
    assert (found.plan.cluster.gpus, found.plan.parallel.ep) == (8, 8)


@pytest.mark.parametrize(
    ("command", "tp", "ep", "gpus"),
    [
        ("vllm serve Qwen/Qwen3-235B-A22B --tensor-parallel-size 8", 8, 1, 8),
        ("vllm serve Qwen/Qwen3-235B-A22B -tp 2 -dp 4 --enable-expert-parallel", 2, 8, 8),
        ("vllm serve Qwen/Qwen3-32B -tp 8 --enable-expert-parallel", 8, 1, 8),
        ("sglang serve --model-path Qwen/Qwen3-235B-A22B --tp 8 --ep 8", 8, 8, 8),
        ("sglang serve --model-path Qwen/Qwen3-235B-A22B --tp 8 --dp 8 --enable-dp-attention",
         1, 8, 8),
        ("sglang serve --model-path Qwen/Qwen3-235B-A22B --tp 8 --dp 4 --enable-dp-attention",
         2, 8, 8),
        ("trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 8 --ep_size 4", 8, 4, 8),
    ],
)  # fmt: skip
def test_experts_of_a_server_are_shared_out(command: str, tp: int, ep: int, gpus: int) -> None:
    """vLLM counts data-parallel ranks beside tensor-parallel ones, SGLang within them
    (FusedMoEParallelConfig.make; ServerArgs.dp_size)."""
    plan = read(("serve.sh", command)).plan
    assert (plan.serving_tp, plan.parallel.ep, plan.cluster.gpus) == (tp, ep, gpus)


def test_sglang_guesses_one_token_less_than_it_checks() -> None:
    """ServerArgs: of a chain, speculative_num_draft_tokens is speculative_num_steps + 1; EAGLE
    without a head of its own is the model's multi-token prediction."""
    command = (
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 "
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4"
    )
    found = read(("serve.sh", command))
    assert (found.plan.serve.draft_model, found.plan.serve.draft_tokens) == ("mtp", 3)
    assert "--m" not in " ".join(map(str, found.left))


HEAD = json.dumps({
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256, "draft_vocab_size": 32_000,
})  # fmt: skip
SERVED = "meta-llama/Llama-3.1-8B-Instruct"
GUESSED = '{"method": "eagle3", "model": "./head", "num_speculative_tokens": 4}'
SGLANG = (
    f"python -m sglang.launch_server --model-path {SERVED} --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path ./head --speculative-num-draft-tokens 5"
)
DRAFTED = (SGLANG, f"vllm serve {SERVED} --speculative-config '{GUESSED}'")


@pytest.mark.parametrize("command", DRAFTED)
def test_a_draft_is_read_where_a_command_names_its_path(command: str) -> None:
    """Its config.json, beside the command or by that name; a word for its kind where neither is
    there."""
    beside = read(("serve.sh", command), ("config.json", HEAD)).plan
    named = read_files(
        [text_of("serve.sh", command.encode())],
        config_of=lambda name: HEAD if name == "./head" else "",
    )
    assert beside == named.plan
    assert beside.draft is not None
    assert (beside.draft.draft.guessed, beside.serve.draft_tokens) == (32_000, 4)
    assert any("the config.json of './head'" in str(i) for i in named.assumed)
    assert read(("serve.sh", command)).plan.serve.draft_model == "eagle"


def test_a_draft_that_nobody_knows_is_asked_for() -> None:
    guessed = '{"model": "me/unknown", "num_speculative_tokens": 4}'
    command = f"vllm serve {SERVED} --speculative-config '{guessed}'"
    found = read(("serve.sh", command))
    assert (found.plan.serve.draft_model, found.plan.serve.draft_tokens) == ("none", 0)
    (left,) = [i for i in found.left if i.field == "speculative decoding"]
    assert left.message == "'me/unknown' is no preset; give its config.json beside the file"


GIB, MIB = 2**30, 2**20
# What programs say when memory runs out, with the bytes asked for, of the GPU, allocated, reserved.
RAN_OUT = {
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 5; 31.75 GiB total "
    "capacity; 28.25 GiB already allocated; 1.95 GiB free; 28.50 GiB reserved in total by "
    "PyTorch)": (2 * GIB, 31.75 * GIB, 28.25 * GIB, 28.5 * GIB),
    "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in "
    "use. Of the allocated memory 22.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by "
    "PyTorch but unallocated.": (22 * MIB, 23.65 * GIB, 22.5 * GIB, 22.75 * GIB),
    "HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacty of 16.00 GiB of "
    "which 0 bytes is free. Of the allocated memory 8.00 GiB is allocated by PyTorch, and 512.00 "
    "MiB is reserved by PyTorch but unallocated.": (432 * MIB, 16 * GIB, 8 * GIB, 8.5 * GIB),
    "Resource exhausted: Out \nof memory while trying to allocate 4096 bytes.": (4096, 0, 0, 0),
    "allocating 512.00 MiB on device 0: cudaMalloc failed: out of memory": (512 * MIB, 0, 0, 0),
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 6442450944 bytes.": (
        6 * GIB,
        0,
        0,
        0,
    ),
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 22.50G of 15.75G hbm. "
    "Exceeded hbm capacity by 6.75G.": (22.5 * GIB, 15.75 * GIB, 0, 0),
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate 24.00GiB with freed_by_count=0": (
        24 * GIB,
        0,
        0,
        0,
    ),
    "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 1073741824": (GIB, 0, 0, 0),
    "ggml_vulkan: Device memory allocation of size 1073741824 failed.": (GIB, 0, 0, 0),
    "ggml_metal_buffer_init: error: failed to allocate buffer, size =  8192.00 MiB": (
        8 * GIB,
        0,
        0,
        0,
    ),
    "Error: model requires more system memory (9.5 GiB) than is available (7.5 GiB)": (
        9.5 * GIB,
        0,
        0,
        0,
    ),
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 40.00 GiB of "
    "which 30.00 GiB is free. 8.00 GiB allowed; Of the allocated memory 7.50 GiB is allocated by "
    "PyTorch, and 0 bytes is reserved by PyTorch but unallocated.": (
        GIB,
        40 * GIB,
        7.5 * GIB,
        7.5 * GIB,
    ),
}


@each("message", RAN_OUT)
def test_a_message_that_memory_ran_out_is_a_measurement(message: str) -> None:
    found = failure(f"step 1\n{message}\n")
    assert found is not None
    mine = (found.asked, found.total, found.allocated, found.reserved)
    assert mine == tuple(map(round, RAN_OUT[message]))
    assert found.needed == found.allocated + found.asked


def test_what_ran_out_is_told_beside_the_plan() -> None:
    message = tuple(RAN_OUT)[1]
    found = read(("sft.yaml", SFT), ("log.txt", message))
    assert found.kinds["log.txt"] == "memory ran out"
    assert [each.asked for each in found.failures] == [22 * MIB]
    on = found.plan.accelerator.usable_bytes
    assert abs(on / (23.65 * GIB) - 1) < 0.005
    assert read(("sft.yaml", SFT), ("log.txt", message), gpu="a40-48gb").plan.cluster.gpu == (
        "a40-48gb"
    )
    with pytest.raises(PlanError, match=r"log.txt: .* give the files of its job beside it"):
        read(("log.txt", message))
    assert failure("all went well, and nothing ran out of memory") is None


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(PlanError, match="UTF-8"):
        text_of("x.bin", b"\xff\xfe\x00")


def test_a_plan_is_no_file_of_another_program() -> None:
    kinds = {
        '{"model": "llama-3.1-8b", "train": {"micro_batch": 2}}': "",
        "{}": "",
        "{": "",
        "llama": "",
        CONFIG: MODEL,
        SFT: "Trainer",
    }
    assert {text: kind_of(Text("", text)) for text in kinds} == kinds


@given(st.sampled_from([content for content, _, _ in ONE.values()]), st.data())
def test_a_damaged_file_never_fails_otherwise(content: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, 40))
    broken = content[:at] + data.draw(st.text(max_size=8)) + content[at + length :]
    try:
        found = read(("broken", broken))
    except PlanError:
        return
    assert found.plan.document()


@given(st.sampled_from([content for content, _, _ in ONE.values()]), st.data())
def test_a_strange_value_never_fails_otherwise(content: str, data: st.DataObject) -> None:
    lines = content.split("\n")
    strange = st.sampled_from(["null", "[]", "{}", "-1", "1e400", "nan", "[[1]]", "9" * 20, '"$X"'])
    for at in data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
        key, sign, _ = lines[at].partition(data.draw(st.sampled_from((":", "=", " "))))
        lines[at] = f"{key}{sign}{data.draw(strange)}"
    try:
        found = read(("strange", "\n".join(lines)))
    except PlanError:
        return
    assert found.plan.document()


# ---- texts


def test_nothing_in_a_yaml_is_built_or_run() -> None:
    assert Text("x", "a: !!python/object/apply:os.system ['true']").document is None
    assert Text("x", "a: 2024-01-01\nb: 1e-4").document == {"a": "2024-01-01", "b": "1e-4"}


def test_variables_of_a_script_are_put_in() -> None:
    script = 'A=1\nB="--x $A"\nB="$B --y ${C:-3}"\nrun $B --z $((A * 4)) --w $UNKNOWN && next'
    assert Text("x", script).commands[-3:-1] == (
        ("run", "--x", "1", "--y", "3", "--z", "4", "--w", "$UNKNOWN"),
        ("next",),
    )


# ---- names


def test_names_on_the_hub_find_their_presets() -> None:
    named = {
        "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
        "unsloth/Meta-Llama-3.1-8B-bnb-4bit": "llama-3.1-8b",
        "NousResearch/Llama-2-7b-chat-hf": "llama-2-7b",
        "/data/models/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4/": "qwen2.5-32b",
        "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
        "lmsys/vicuna-13b-v1.5": "llama-2-13b",
        "openai-community/gpt2-xl": "gpt2-xl",
        "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b-v0.2",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen-1.5b",
        "mistralai/Mistral-Large-3-675B-Instruct-2512": "",
        "Qwen/Qwen3-4B-Thinking-2507": "qwen3-4b",
        "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl-8b",
        "internlm/internlm2_5-7b-chat": "internlm2-7b",
        "BAAI/bge-large-en-v1.5": "bge-large",
        "allenai/Olmo-3-7B-Think": "olmo-3-7b",
        "Qwen/Qwen2.5-7B-Instruct-1M": "",
        "Qwen/Qwen3.6-35B-A3B-FP8": "qwen3.6-35b-a3b",
        "unsloth/Qwen3.6-27B-UD-Q4_K_XL.gguf": "qwen3.6-27b",
        "moonshotai/Kimi-K2-Instruct-0905": "kimi-k2",
        "Qwen3-8B-IQ1_S.gguf": "",
        "nobody/llama": "",
        "": "",
    }
    assert {name: hub.preset(name) for name in named} == named


@each("name", catalog.model_names)
def test_a_preset_is_found_by_its_own_name(name: str) -> None:
    assert hub.preset(name) == name


def test_other_names_lead_to_presets() -> None:
    others = catalog.same_shapes()
    assert set(others.values()) <= set(catalog.model_names())
    assert {name: hub.preset(name) for name in others} == others


def test_a_config_that_was_brought_from_the_hub_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "hub" / "models--some--thing-9B"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0123abc")
    (kept / "snapshots" / "0123abc").mkdir(parents=True)
    config = json.dumps(catalog.model_entry("yi-6b")["config"] | {"num_hidden_layers": 2})
    (kept / "snapshots" / "0123abc" / "config.json").write_text(config)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert hub.cached("some/thing-9B") == config
    assert hub.cached("some/thing") == hub.cached("../hub/some") == hub.cached("thing-9B") == ""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert hub.cached("some/thing-9B") == ""

    started = text_of("serve.sh", b"vllm serve some/thing-9B --max-model-len 4096")
    with pytest.raises(PlanError, match="'some/thing-9B' is no preset: give its"):
        read_files([started])
    found = read_files([started], config_of=lambda name: config)
    assert parameters(found.plan.architecture) < parameters(catalog.model("yi-6b")) / 4
    assert found.assumed[0].message == "the config.json of 'some/thing-9B' on this machine"


def test_the_chosen_model_stands_in_where_no_file_names_one() -> None:
    zero = Text("zero3.json", ZERO_3)
    with pytest.raises(PlanError, match="no file says which model it is"):
        read_files([zero])
    found = read_files([zero], otherwise="qwen2.5-7b")
    assert found.plan.model == "qwen2.5-7b"
    assert found.plan.train.reduce_bucket_size == 500_000_000
    assert str(found.assumed[0]) == "model: Qwen2.5 7B, since no file says which"
    named = read_files([Text("sft.yaml", SFT), zero], otherwise="qwen2.5-7b")
    assert named.plan.model == "llama-3-8b"


def test_a_name_says_how_weights_are_stored() -> None:
    named = {
        "Qwen/Qwen3-32B-FP8": "fp8",
        "x/Llama-3-8B-Instruct-AWQ": "int4",
        "x/Llama-3.1-8B-Instruct-Q4_K_M.gguf": "q4_k_m",
        "nvidia/Kimi-K2-NVFP4": "nvfp4",
        "x/Qwen3.6-27B-Q5_K_S.gguf": "q5_k_s",
        "x/Qwen3.6-27B-UD-Q4_K_XL.gguf": "ud-q4_k_xl",
        "unsloth/Qwen3.6-35B-A3B-MTP-GGUF:Q6_K_XL": "ud-q6_k_xl",
        "x/Llama-3.2-3B-Instruct-Q3_K_XL.gguf": "q3_k_xl",
        "x/gemma-3-27b-it-UD-Q3_K_XL.gguf": "ud-q3_k_xl",
        "bartowski/Qwen_Qwen3-8B-Q6_K_L.gguf": "q6_k_l",
        "x/Llama-3.3-70B-Instruct.i1-IQ4_XS.gguf": "iq4_xs",
        "x/qwen3-14b.q4_k.gguf": "q4_k_m",
        "x/Qwen3.6-27B-IQ1_S.gguf": "",
        "unsloth/gemma-2-9b-bnb-4bit": "nf4-double",
        "Qwen/Qwen3-32B": "",
        "x/Qwen3-32B-AWQ-4bit": "int4",
        "x/Qwen3-32B-AWQ-8bit": "int8",
        "x/Qwen2.5-7B-Instruct-GPTQ-Int3": "int3",
        "x/Qwen2.5-7B-Instruct-gptq-4bit-32g": "int4-g32",
        "x/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "int8",
        "amd/Llama-3.1-8B-Instruct-FP8-KV": "fp8",
        "mlx-community/Qwen3-8B-6bit": "mlx-6bit",
        "x/Qwen3-8B-MLX-8bit": "mlx-8bit",
        "x/Llama-3.1-8B-Instruct-HQQ-4bit": "int4-g64-zeros",
    }
    assert {name: hub.stored(name) for name in named} == named


def test_a_type_that_is_not_planned_is_read_as_the_nearest_and_said() -> None:
    found = read(("run.sh", "llama-server -m /m/Llama-3.1-8B-IQ3_XXS.gguf -c 8192 -ngl 99"))
    assert found.plan.serve.weight_dtype == "q3_k_m"
    assert [(i.field, "q3_k_m is the nearest" in i.message) for i in found.left] == [
        ("IQ3_XXS", True)
    ]


OLDER = """
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 4096
batch_size = 2
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
[experimental]
context_parallel_degree = 2
[optimizer]
name = "AdamW"
"""
AXOLOTL_2 = """
base_model: NousResearch/Llama-3.2-1B
sequence_len: 2048
micro_batch_size: 2
sample_packing: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true, state_dict_type: FULL_STATE_DICT}
context_parallel_size: 2
"""
SINGLE = """
base_model: NousResearch/Llama-3.2-1B
micro_batch_size: 2
adapter: qlora
bnb_config_kwargs: {bnb_4bit_use_double_quant: false}
"""
GROUPS = {"parallel.tp": 2, "parallel.cp": 2, "parallel.shard_group": 4, "cluster.gpus": 32}
KT = "--max-total-tokens 9000 --kt-method AMXINT4 --kt-num-gpu-experts 8"
VLLMS = "vllm serve Qwen/Qwen3-8B"
LANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
SERVES = "llama-server -m Llama-3.1-8B-Instruct-Q4_K_M.gguf -c 16384 -np 4 -ngl 99"
# Each file, what it says of some fields, and what no plan says of it.
SAID = (
    (OLDER, GROUPS, ()),
    (AXOLOTL_2, {"train.zero": 3, "parallel.cp": 2}, ()),
    (SINGLE, {"train.adapter": "qlora-single"}, ()),
    (SFT + "rlhf_type: orpo", {"train.micro_batch": 4}, ("a pair is two sequences",)),
    (SFT + "beta: 0.1", {"train.micro_batch": 4, "train.reference": "loaded"}, ("a pair is",)),
    (SFT + "rlhf_type: kto", {"train.reference": "loaded"}, ("answers are",)),
    (SFT + "use_peft: true\nlora_target_modules: [q_proj, in_proj]",
     {"train.lora_modules": "q_proj"}, ("in_proj",)),
    (SFT + "use_gradient_checkpointing: true", {"train.checkpointing": "full"}, ()),
    (SFT + "tensor_model_parallel_size: 4", {}, ("cutting over GPUs",)),
    (SFT + "freeze_vision_tower: true", {}, ("a tower",)),
    (SERVES, {"serve.weight_dtype": "q4_k_m", "serve.max_seq_len": 4096}, ()),
    (f"{SERVES} -nkvo --cpu-moe", {"serve.offload_kv": "cpu"}, ()),
    (f"{VLLMS} --kv-offloading-size 64", {"serve.offload_kv": "cpu"}, ("64: what runs",)),
    (f"{VLLMS} --kv-offloading-size 0", {"serve.offload_kv": "none"}, ()),
    (f"{LANG} --enable-hierarchical-cache", {"serve.offload_kv": "cpu"}, ()),
    (f"{LANG} --hicache-ratio 4", {"serve.offload_kv": "none"}, ("how large a cache",)),
    (f"{SERVES} -ub 4096", {"serve.max_batched_tokens": 2048}, ()),
    (f"{SERVES} -ctk q8_0", {"serve.kv_dtype": "q8_0", "serve.value_dtype": "fp16"}, ()),
    (f"{SERVES} -ctk q5_1 -ctv iq4_nl",
     {"serve.kv_dtype": "q5_1", "serve.value_dtype": "iq4_nl"}, ()),
    (f"{SERVES} --cache-ram 8192 --swa-full", {}, ("cache-ram", "swa-full")),
    (SERVES.replace("-ngl 99", "-ngl 0"), {"serve.gpu_layers": 2}, ("CPU alone",)),
    (f"{SERVES} -ts 3,1", {"serve.pp": 2}, ("the fullest GPU has 75%",)),
    (f"{SERVES} -ot ffn_up=CPU", {}, ("ffn_up of 32 of 32 layers",)),
    (f"{SERVES} -ot nothing=CPU", {}, ("no tensor that is planned",)),
    ("vllm serve Qwen/Qwen3-8B-FP8 --num-gpu-blocks-override 512", {"serve.weight_dtype": "fp8"},
     ("num-gpu-blocks-override",)),
    (f"python -m sglang.launch_server --model Qwen/Qwen3-8B {KT}", {},
     ("kt-method, --kt-num-gpu", "max-total")),
)  # fmt: skip


@each("content, wanted, left", SAID)
def test_a_key_that_bears_on_memory_or_time_is_read_or_told(content, wanted, left):
    found = read(("job", content))
    plan = found.plan.document()
    assert {path: get(plan, path) for path in wanted} == wanted
    told = "\n".join(map(str, (*found.differs, *found.left)))
    assert not [word for word in left if word not in told], told


def test_older_names_of_deepspeeds_are_read_and_those_of_gpt_neox_are_told():
    older = {"stage": 3, "max_live_parameters": 7, "contiguous_gradients": False}
    values = {"zero_optimization": older, "model-parallel-size": 2, "num-layers": 12}
    found = read(("ds.json", json.dumps(values)), model="llama-3-8b")
    assert found.plan.train.stage3_max_live_parameters == 7
    told = {issue.field for issue in found.left}
    assert told >= {"contiguous_gradients", "model-parallel-size"}


# What servers say whose cache has no room: tokens of a sequence, of the cache; bytes of both.
NO_ROOM = {
    "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that "
    "can be stored in KV cache (3664).": ("vllm", 4096, 3664, 0, 0),
    "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (0.71 GiB). Based on the available "
    "memory, the estimated maximum model length is 5632.": (
        "vllm", 131072, 5632, 16 * GIB, round(0.71 * GIB)),
    "ValueError: No available memory for the cache blocks. Try increasing": ("vllm", 0, 0, 0, 0),
    "max_total_tokens=9 is larger than the profiled value -561981.": ("sglang", 0, 0, 0, 0),
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": (
        "sglang", 0, 0, 0, 0),
    "Free memory on device cuda:0 (11.50/23.50 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 21.15 GiB). Decrease": (
        "vllm", 0, 0, round(21.15 * GIB), round(11.5 * GIB)),
    "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\nThe following "
    "component could not be created: KV cache\nTotal GPU memory (GiB): 79.00\nFree GPU memory "
    "before component creation attempt (GiB): 3.50": ("tensorrt-llm", 0, 0, 0, round(3.5 * GIB)),
}  # fmt: skip


@each("message", NO_ROOM)
def test_a_server_without_room_says_what_its_cache_holds(message):
    found = failure(message)
    mine = (found.engine, found.longest, found.room, found.asked, found.free)
    assert mine == NO_ROOM[message]
    plan = read(("log", message), model="llama-3-8b").plan.serve
    assert (plan.engine, plan.max_seq_len) == (found.engine, found.longest)


STRANGE = (
    ("", "is empty"),
    ("import torch\nprint(1)\n", "is Python"),
    ("#!/bin/bash\necho hello\n", "is a script"),
    ("a: 1\nb: 2\n", "has keys of no known program: 'a', 'b'"),
    ("| PyTorch CUDA memory summary, device ID 0 |", "says what a run held, and no job"),
    ("FROM ubuntu:22.04\nRUN make\n", "is of no known kind"),
)


@each("content, why", STRANGE)
def test_a_text_of_no_known_kind_is_told_why_in_one_line(content, why):
    with pytest.raises(PlanError) as refused:
        read(("job", content))
    (issue,) = refused.value.issues
    assert why in issue.message
    assert "\n" not in str(issue)


MODELFILE = """
FROM llama3.1:8b-instruct-q8_0
PARAMETER num_ctx 16384
PARAMETER num_gpu 20
SYSTEM you answer in verse
ADAPTER ./verse.gguf
"""


def test_a_modelfile_is_what_llama_cpp_is_given():
    found = read(("Modelfile", MODELFILE))
    plan = found.plan
    assert (plan.model, found.kinds) == ("llama-3.1-8b", {"Modelfile": "Ollama"})
    serve = plan.serve
    assert (serve.engine, serve.weight_dtype, serve.kv_dtype) == ("llama.cpp", "q8_0", "fp16")
    assert (serve.max_seq_len, serve.gpu_layers, serve.concurrency) == (16384, 20, 1)
    assert [issue.field for issue in found.left] == ["ADAPTER"]


RECIPE_OF_64 = """
from recipes import gpt_oss_120b_pretrain_config

def gpt_oss_120b_pretrain_64gpu_h100_bf16_config():
    cfg = gpt_oss_120b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.expert_model_parallel_size = 8
    cfg.train.global_batch_size = 1280
    cfg.train.micro_batch_size = 1
    cfg.model.recompute_modules = ["layernorm", "moe_act"]
    cfg.model.recompute_granularity = "selective"
    return cfg
"""


def test_what_a_recipe_begins_with_is_told_with_the_keys_that_are_taken_otherwise():
    found = read(("gpt_oss.py", RECIPE_OF_64))
    plan = found.plan
    assert (plan.cluster.gpus, plan.train.grad_accumulation) == (64, 80)
    train = plan.train
    assert (train.checkpointing, train.recompute_modules) == ("selective", "moe_act,layernorm")
    told = {issue.field: issue.message for issue in found.left}
    assert "recompute_modules" not in told
    base = told["gpt_oss_120b_pretrain_config()"]
    assert "taken as Megatron's own: seq_length, context_parallel_size" in base
    assert "micro_batch_size" not in base


def test_the_file_that_nemo_rls_begins_with_is_told():
    policy = {"megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 2}}
    text = json.dumps({"defaults": "../base.yaml", "policy": policy})
    found = read(("grpo.yaml", text), model="llama-3-8b")
    assert "what '../base.yaml' sets" in str(found.left[0])
    assert not {"policy", "megatron_cfg"} & {*found.unread}


SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

LENGTH = 4096
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", quantization_config=bits, attn_implementation="flash_attention_2",
    dtype=torch.bfloat16)
adapter = LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"])
settings = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8,
                     max_length=LENGTH, bf16=True, optim="paged_adamw_8bit")
SFTTrainer(model, args=settings, peft_config=adapter).train()
"""


def test_a_script_in_python_is_what_its_calls_say():
    found = read(("train.py", SCRIPT))
    train = found.plan.train
    assert (found.plan.model, found.kinds) == ("llama-3.1-8b", {"train.py": "Trainer"})
    assert (train.micro_batch, train.grad_accumulation, train.seq_len) == (2, 8, 4096)
    assert (train.adapter, train.lora_rank, train.lora_modules) == ("qlora", 32, "q_proj,v_proj")
    assert (train.optimizer, train.attention) == ("paged-adamw8bit", "flash")
    assert train.checkpointing == "full"  # as TRL does where nobody says it
    versions = "train.unquantized_dtype"  # differs among versions of TRL, which is told
    assert [issue.field for issue in found.left] == [versions]
    computed = read(("train.py", SCRIPT.replace("bf16=True", "bf16=has_bf16(), fp16=None")))
    assert {issue.field for issue in computed.left} == {"bf16", versions}


AWARE = "--use-precision-aware-optimizer"
IN_BF16 = "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-grads-dtype bf16"


@pytest.mark.parametrize(
    ("said", "optimizer", "left"),
    [
        ("", "adamw", 0),
        (f"{AWARE} {IN_BF16}", "adamw-aware", 0),
        (AWARE, "adamw", 1),
        (f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", "adamw", 1),
        (f"{AWARE} {IN_BF16} --main-params-dtype fp16", "adamw", 1),
    ],
)
def test_megatrons_moments_of_fewer_bits(said, optimizer, left) -> None:
    """megatron/core/optimizer/optimizer_config.py: use_precision_aware_optimizer."""
    given = f"--use-distributed-optimizer {said}"
    found = read(("a.sh", MEGATRON.replace("--use-distributed-optimizer", given)))
    assert "--use-distributed-optimizer" in MEGATRON
    assert found.plan.train.optimizer == optimizer
    assert sum("bf16" in issue.message for issue in found.left) == left
    assert not any("dtype" in key or "aware" in key for key in found.unread)


def test_a_recipe_of_megatron_bridge_says_what_moments_it_has() -> None:
    told = """
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.optimizer.exp_avg_sq_dtype = torch.bfloat16
    return cfg
"""
    found = read(("gpt_oss.py", RECIPE_OF_64.replace("    return cfg\n", told)))
    assert found.plan.train.optimizer == "adamw-aware"


BRIDGE = """
model:
  hf_model_id: Qwen/Qwen3-30B-A3B
  tensor_model_parallel_size: 1
  expert_model_parallel_size: 8
train:
  micro_batch_size: 1
  global_batch_size: 8
  seq_length: 4096
"""


NO_LORA = ("none", 16, "attention")


@pytest.mark.parametrize(
    ("section", "read_as"),
    [
        ("", NO_LORA),
        (
            "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8\n",
            ("lora", 8, "all-linear"),
        ),
        (
            "peft:\n  scheme: LoRA\n  target_modules: [linear_qkv, linear_proj]\n",
            ("lora", 32, "attention-all"),
        ),
        (
            "peft: {scheme: lora, lora_tuning: {adapter_dim: 4, target_modules: [attention_qkv]}}",
            ("lora", 4, "attention"),
        ),
        ("peft:\n  enabled: false\n  dim: 8\n", NO_LORA),
        (
            "peft:\n  _target_: megatron.bridge.peft.dora.DoRA\n  dim: 8\n",
            ("none", 16, "attention"),
        ),
    ],
)
def test_nemos_adapters(section, read_as) -> None:
    """Megatron-Bridge's peft/lora.py, NeMo 1.23's megatron_gpt_finetuning_config.yaml."""
    found = read(("job.yaml", BRIDGE + section))
    train = found.plan.train
    assert (train.adapter, train.lora_rank, train.lora_targets) == read_as
    assert any(issue.field == "peft" for issue in found.left) == ("DoRA" in section)
    assert not {"dim", "dropout", "target_modules"} & set(found.unread)


def test_an_adapter_that_no_plan_has_is_read_as_lora():
    mixture = "base_model: Qwen/Qwen3-30B-A3B\nadapter: qlora\nload_in_4bit: true\n"
    found = read(("job.yaml", f"{mixture}micro_batch_size: 2\nsequence_len: 2048\n"))
    assert found.plan.train.adapter == "lora"
    assert any("stacked experts" in issue.message for issue in found.changed)


GUESSES = '{"model": "gpt2", "num_speculative_tokens": 3}'
DRAFTED = f"vllm serve Qwen/Qwen3-8B --speculative-config '{GUESSES}'"


@each("command", ("vllm serve gpt2", DRAFTED))
def test_the_usual_load_lies_within_what_a_model_and_its_draft_have_learned(command):
    found = read(("serve.sh", command), gpu="h100-sxm-80gb")
    assert (found.plan.serve.prompt_len, found.plan.serve.output_len) == (768, 256)
    assert any("768 in and 256 out" in issue.message for issue in found.assumed)
    assert not found.changed
