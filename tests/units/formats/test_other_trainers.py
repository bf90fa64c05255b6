"""Files of verl, OpenRLHF, ms-swift and GPT-NeoX as plans."""

import pytest

from memcore.errors import PlanError
from memcore.formats import read_files
from memcore.formats.texts import Text


def found(content, name="job.sh", **words):
    return read_files([Text(name, content)], gpu="h100-sxm-80gb", **words)


VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
  data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
  actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \\
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5 \\
  actor_rollout_ref.ref.fsdp_config.param_offload=True \\
  +actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
  trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
VERL_FILE = """
data: {max_prompt_length: 512, max_response_length: 512, train_batch_size: 256}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B, lora_rank: 32}
  actor:
    strategy: fsdp2
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 4096
    ppo_mini_batch_size: 64
    ulysses_sequence_parallel_size: 1
    fsdp_config: {reshard_after_forward: false}
  rollout:
    name: sglang
    prompt_length: ${data.max_prompt_length}
    log_prob_use_dynamic_bsz: ${actor_rollout_ref.actor.use_dynamic_bsz}
    free_cache_engine: false
critic: {ppo_epochs: 1}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""


def test_verl_s_command():
    read = found(VERL)
    train, together = read.plan.train, read.plan.together
    assert set(read.kinds.values()) == {"verl"}
    assert (read.plan.cluster.gpus, read.plan.cluster.gpus_per_node) == (16, 8)
    assert (train.framework, train.zero, train.precision) == ("fsdp2", 3, "bf16-mixed")
    assert (train.seq_len, train.micro_batch, train.checkpointing) == (1536, 32, "full")
    # an update has 256 prompts with 5 answers, over 16 GPUs: 1,280 is no multiple of 512
    assert any(issue.field == "global batch" for issue in read.left)
    assert (together.kind, together.engine_tp, together.rollouts) == ("grpo", 2, 320)
    assert (together.reference, together.trainer, together.asleep) == ("host", "host", "all")
    assert read.plan.serve.memory_utilization == 0.6


def test_verl_s_file_with_what_stands_elsewhere_in_it():
    read = found(VERL_FILE, "ppo.yaml")
    train = read.plan.train
    assert (train.zero, train.micro_batch, train.adapter) == (2, 4, "lora")
    assert train.grad_accumulation == 2
    assert (read.plan.together.kind, read.plan.together.asleep) == ("ppo", "nothing")
    assert read.plan.serve.engine == "sglang"
    assert not any("$" in key for key in read.unread)


def test_verl_with_megatron():
    words = " ".join(
        f"actor_rollout_ref.actor.megatron.{key}={value}"
        for key, value in {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2,
                           "override_transformer_config.recompute_granularity": "full"}.items()
    )  # fmt: skip
    path = "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.model.path=Qwen/Qwen3-8B"
    plan = found(f"python -m verl.trainer.main_ppo {path} {words} trainer.nnodes=1").plan
    assert (plan.train.framework, plan.train.checkpointing) == ("megatron", "full")
    assert (plan.parallel.tp, plan.parallel.pp) == (4, 2)


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "[]"])
def test_what_is_no_number_is_said(value):
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    assert key in [i.field for i in found(VERL.replace(f"{key}=32", f"{key}={value}")).left]


OPENRLHF = """deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --max_len 4096 \\
  --train_batch_size 256 --micro_train_batch_size 2 --pretrain meta-llama/Meta-Llama-3-8B \\
  --zero_stage 3 --adam_offload --flash_attn --gradient_checkpointing --packing_samples
"""
RAY = """python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
  --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.6 \\
  --vllm_enable_sleep --pretrain Qwen/Qwen2.5-7B-Instruct --micro_train_batch_size 2 \\
  --train_batch_size 128 --rollout_batch_size 128 --n_samples_per_prompt 8 \\
  --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 3 --gradient_checkpointing \\
  --advantage_estimator group_norm --init_kl_coef 0 --colocate_all_models
"""


def test_openrlhf_s_fine_tuning_by_both_sets_of_names():
    read = found(OPENRLHF)
    assert set(read.kinds.values()) == {"OpenRLHF"}
    train = read.plan.train
    assert (train.framework, train.zero, train.offload_optimizer) == ("deepspeed", 3, "cpu")
    assert (train.seq_len, train.micro_batch, train.grad_accumulation) == (4096, 2, 16)
    assert any(issue.field == "--packing_samples" for issue in read.left)
    names = {"max_len": "data.max_len", "train_batch_size": "train.batch_size",
             "micro_train_batch_size": "train.micro_batch_size", "pretrain":
             "actor.model_name_or_path", "zero_stage": "ds.zero_stage", "adam_offload":
             "ds.adam_offload", "gradient_checkpointing": "actor.gradient_checkpointing_enable",
             "packing_samples": "ds.packing_samples"}  # fmt: skip
    later = OPENRLHF.replace(" --flash_attn", "")
    for name, other in names.items():
        later = later.replace(f"--{name} ", f"--{other} ").replace(f"--{name}\n", f"--{other}\n")
    assert found(later).plan == read.plan


def test_openrlhf_s_policy_and_engine_on_the_same_gpus():
    read = found(RAY)
    together = read.plan.together
    assert (together.kind, together.engine_tp, together.rollouts) == ("grpo", 2, 128)
    assert (together.reference, together.asleep, together.trainer) == ("none", "all", "stays")
    assert read.plan.train.seq_len == 4096
    apart = found(RAY.replace("--colocate_all_models", ""))
    assert apart.plan.together.kind == "none"
    assert any("GPUs of their own" in issue.message for issue in apart.left)


def test_pairs_of_openrlhf_have_a_frozen_reference():
    """Of which it has a copy beside adapters too (openrlhf 0.11.2: cli/train_dpo.py)."""
    command = OPENRLHF.replace("train_sft", "train_dpo")
    read = found(command)
    assert read.plan.train.reference == "16-bit"
    assert any("a pair is two sequences" in issue.message for issue in read.left)
    adapted = found(f"{command.rstrip()} --lora_rank 16")
    assert any("its reference is a copy" in issue.message for issue in adapted.left)


VERL_SFT = """torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
  data.train_files=train.parquet data.micro_batch_size_per_gpu=4 data.max_length=2048 \\
  model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct model.lora_rank=32 optim.lr=1e-4 \\
  model.target_modules=all-linear ulysses_sequence_parallel_size=2 trainer.total_epochs=1
"""


def test_fine_tuning_by_verl():
    read = found(VERL_SFT)
    plan = read.plan
    assert set(read.kinds.values()) == {"verl"}
    assert (plan.train.framework, plan.train.zero, plan.train.adapter) == ("fsdp2", 3, "lora")
    assert (plan.train.micro_batch, plan.train.seq_len, plan.train.lora_rank) == (4, 2048, 32)
    assert (plan.cluster.gpus, plan.train.checkpointing) == (8, "full")
    assert plan.together.kind == "none"
    assert not read.unread
    dynamic = VERL_SFT.replace("data.micro_batch_size_per_gpu=4", "data.use_dynamic_bsz=True")
    dynamic = dynamic.replace("data.max_length", "data.max_token_len_per_gpu=8192 data.max_length")
    assert found(dynamic).plan.train.micro_batch == 4


SWIFT = """NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1,2,3 swift sft \\
  --model Qwen/Qwen2.5-7B-Instruct --train_type lora --torch_dtype bfloat16 \\
  --lora_rank 16 --max_length 4096 --deepspeed zero3 \\
  --gradient_accumulation_steps 4 --attn_impl flash_attn
"""


def test_swift_s_command_and_file():
    read = found(SWIFT)
    assert set(read.kinds.values()) == {"ms-swift"}
    train = read.plan.train
    assert (train.framework, train.zero, train.adapter) == ("deepspeed", 3, "lora")
    assert (train.lora_rank, train.lora_targets, train.lora_dropout) == (16, "all-linear", 0.05)
    assert (train.micro_batch, train.checkpointing, train.attention) == (1, "full", "flash")
    assert read.plan.cluster.gpus == 4
    words = {"tuner_type": "full", "model": "Qwen/Qwen2.5-7B-Instruct", "max_length": 2048,
             "per_device_train_batch_size": 2}  # fmt: skip
    full = found("\n".join(f"{k}: {v}" for k, v in words.items()), "sft.yaml").plan.train
    assert (full.adapter, full.precision, full.micro_batch) == ("none", "bf16-pure", 2)
    other = found(SWIFT.replace("--train_type lora", "--train_type adalora"))
    assert any("adalora is planned as lora" in issue.message for issue in other.left)


def test_megatron_by_swift():
    read = found(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --max_length 8192 "
        "--tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 16 "
        "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    )
    plan = read.plan
    assert (plan.train.framework, plan.train.zero, plan.train.seq_len) == ("megatron", 1, 8192)
    assert (plan.parallel.tp, plan.cluster.gpus, plan.train.grad_accumulation) == (2, 8, 4)


def test_adapters_of_megatron_by_swift():
    start = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --train_type "
    train = found(f"{start}lora --lora_rank 32 --tensor_model_parallel_size 2").plan.train
    assert (train.framework, train.adapter, train.lora_rank) == ("megatron", "lora", 32)
    assert (train.lora_targets, train.lora_dropout) == ("all-linear", 0.05)
    narrow = found(f"{start}lora --target_modules linear_qkv linear_proj").plan.train
    assert narrow.lora_targets == "attention-all"


NEOX = """{
  "pipe-parallel-size": 1, "model-parallel-size": 1, "num-layers": 12, "hidden-size": 768,
  "num-attention-heads": 12, "seq-length": 2048, "max-position-embeddings": 2048,
  "norm": "layernorm", "pos-emb": "rotary", "rotary_pct": 0.25, "no-weight-tying": True,
  "gpt_j_residual": True, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 1},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "checkpoint-activations": True, "fp16": {"enabled": True},
}
"""


def test_gpt_neox_s_file():
    read = found(NEOX, "160M.yml")
    assert set(read.kinds.values()) == {"GPT-NeoX"}
    model, train = read.plan.architecture, read.plan.train
    assert (model.family, model.layers, model.vocab_size) == ("gpt_neox", 12, 50_304)
    assert (model.rotary_dim, model.traits.tied_embeddings) == (16, False)
    assert (train.framework, train.zero, train.checkpointing) == ("deepspeed", 1, "full")
    assert (train.micro_batch, train.grad_accumulation, train.seq_len) == (4, 2, 2048)
    assert any("50,304" in issue.message for issue in read.left)
    of_20b = NEOX.replace('"norm"', '"tokenizer_type": "HFTokenizer", "norm"')
    assert found(of_20b, "160M.yml").plan.architecture.vocab_size == 50_432
    cut = found(NEOX.replace('parallel-size": 1', 'parallel-size": 2'), "160M.yml")
    assert any("works on 4 times" in issue.message for issue in cut.left)
    assert (cut.plan.parallel.tp, cut.plan.parallel.pp) == (1, 1)


def test_what_gpt_neox_cuts_is_said_not_to_be_planned():
    read = found(NEOX.replace('"pipe-parallel-size": 1', '"pipe-parallel-size": 4'), "20B.yml")
    assert read.plan.parallel.pp == 1
    assert any("pipe-parallel-size" in issue.field for issue in read.left)


@pytest.mark.parametrize(("key", "value"), [("pos-emb", "alibi"), ("norm", "scalenorm")])
def test_a_gpt_neox_of_no_family_is_refused_by_its_key(key, value):
    usual = {"pos-emb": "rotary", "norm": "layernorm"}[key]
    with pytest.raises(PlanError, match=key):
        found(NEOX.replace(f'"{key}": "{usual}"', f'"{key}": "{value}"'), "x.yml")
