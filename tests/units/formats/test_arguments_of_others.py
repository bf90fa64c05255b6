"""Arguments of other programs: what these do where nobody says one, by their own sources, and
which arguments are passed over."""

import pytest

from memcore.formats import read_files
from memcore.formats.texts import Text
from memcore.plan.plan import get

TRAINS = "model_name_or_path: Qwen/Qwen3-8B\ngradient_accumulation_steps: 2\nnum_train_epochs: 1\n"
FACTORY = "model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\ncutoff_len: 2048\n"
SERVES = "vllm serve Qwen/Qwen3-8B "
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B "
OFFLINE = "from vllm import LLM\nllm = LLM(model='Qwen/Qwen3-8B', max_model_len=4096)\n"


def found(content, **words):
    return read_files([Text("a", content)], **{"gpu": "h100-sxm-80gb", **words})


CHUNKED, FUSED = {"train.cross_entropy": "chunked"}, {"train.cross_entropy": "fused"}
# What a file says, the fields that it becomes, and GPUs beside it.
ROWS = {
    # trl 1.16, sft_trainer.py and dpo_trainer.py: add_fused_lm_head
    "trl: no logits": ("trl sft --model_name_or_path Qwen/Qwen3-8B --bf16", CHUNKED, {}),
    # trl 1.16, GRPOConfig
    "trl: answers": (
        "trl grpo --model_name_or_path Qwen/Qwen3-8B --bf16",
        {"together.kind": "grpo", "serve.output_len": 512, "train.seq_len": 512},
        {},
    ),
    "trl: what a model is loaded with": (
        """trl sft --model_name_or_path Qwen/Qwen3-8B --model_init_kwargs \\
        '{"attn_implementation": "flash_attention_2", "torch_dtype": "bfloat16"}'""",
        {"train.attention": "flash", "train.precision": "bf16-pure"},
        {},
    ),
    # liger_kernel 0.8, apply_liger_kernel_to_*: the head's loss is one of its defaults
    "liger": (
        TRAINS + "use_liger_kernel: true\n",
        CHUNKED | {"train.kernels": "liger"},
        {},
    ),
    "liger, told otherwise": (
        TRAINS + "use_liger_kernel: true\n"
        "liger_kernel_config: {fused_linear_cross_entropy: false, cross_entropy: true}\n",
        FUSED,
        {},
    ),
    # LLaMA-Factory 0.9.5, model_utils/liger_kernel.py: require_logits of all but pt and sft
    "factory: liger": (FACTORY + "stage: sft\nenable_liger_kernel: true\n", CHUNKED, {}),
    "factory: liger of pairs": (
        FACTORY + "stage: dpo\nenable_liger_kernel: true\n",
        {"train.cross_entropy": "eager"},
        {},
    ),
    # transformers 5.24, TrainingArguments
    "transformers: today's name": (
        TRAINS + "activation_checkpointing: true\n"
        "activation_checkpointing_kwargs: {every_n_layers: 2, offload: true}\n",
        {
            "train.checkpointing": "full",
            "train.checkpoint_every": 2,
            "train.offload_activations": "cpu",
        },
        {},
    ),
    "transformers: a compiler": (
        TRAINS + "torch_compile_backend: inductor\n",
        {"train.kernels": "compile"},
        {},
    ),
    "transformers: fsdp": (
        TRAINS + "bf16: true\nfsdp: true\nfsdp_config: {cpu_offload: true}\n",
        {"train.framework": "fsdp2", "train.zero": 3, "train.offload_parameters": "cpu"},
        {"gpus": 8},
    ),
    # ms-swift 4.6, trainers/arguments.py
    "swift: sixteen sequences": (
        "swift sft --model Qwen/Qwen3-8B --tuner_type lora --per_device_train_batch_size 1",
        {"train.grad_accumulation": 2},
        {"gpus": 8},
    ),
    # vLLM 0.33, EngineArgs.get_batch_defaults: UsageContext.LLM_CLASS
    "vllm: without clients": (OFFLINE, {"serve.max_batched_tokens": 16384}, {}),
    "vllm: the same of a small one": (
        OFFLINE,
        {"serve.max_batched_tokens": 8192},
        {"gpu": "l40s-48gb"},
    ),
    "vllm: on a large GPU": (
        SERVES,
        {"serve.max_batched_tokens": 16384},
        {"gpu": "b200-sxm-180gb"},
    ),
    "vllm: short names": (
        SERVES + """-tp 2 -dp 2 -n 2 -sc '{"method": "ngram", "num_speculative_tokens": 4}'""",
        {"serve.tp": 2, "cluster.gpus": 4, "cluster.gpus_per_node": 2, "serve.draft_tokens": 4},
        {},
    ),
    "vllm: experts": (
        "vllm serve Qwen/Qwen3-30B-A3B -tp 2 -ep",
        {"serve.tp": 2, "parallel.ep": 2},
        {},
    ),
    "vllm: a draft in three options": (
        SERVES + "--spec-method ngram --spec-tokens 2",
        {"serve.draft_tokens": 2},
        {},
    ),
    # DeepSpeed 0.19, runtime/constants.py: BFLOAT16_OLD
    "deepspeed: an older name": (
        (
            '{"train_micro_batch_size_per_gpu": 2, "bfloat16": {"enabled": true}, '
            '"zero_optimization": {"stage": 2}}'
        ),
        {"train.precision": "bf16-mixed"},
        {"gpus": 8, "model": "qwen3-8b"},
    ),
    # Accelerate 1.15, accelerate launch
    "accelerate: checkpoints in host memory": (
        (
            "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config: "
            "{fsdp_version: 2, fsdp_activation_checkpointing: true, "
            "fsdp_activation_checkpointing_offload: true}\n"
        ),
        {"train.checkpointing": "full", "train.offload_activations": "cpu"},
        {"model": "qwen3-8b"},
    ),
    # torchtune 0.6, training/activations.py
    "torchtune: every second layer": (
        (
            "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\nbatch_size: 2\n"
            "ac_mode: selective\nac_option: 2\n"
        ),
        {"train.checkpointing": "full", "train.checkpoint_every": 2},
        {},
    ),
    # OpenRLHF 0.11, cli/train_ppo_ray.py
    "openrlhf: one at once": (
        (
            "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B "
            "--actor.num_gpus_per_node 8 --train.colocate_all"
        ),
        {"train.micro_batch": 1},
        {},
    ),
    # verl 0.9, trainer/config/actor
    "verl: weights in 16 bits": (
        (
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
            "actor_rollout_ref.model.lora.rank=32 actor_rollout_ref.actor.fsdp_config.fsdp_size=-1 "
            "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16 "
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
        ),
        {"train.precision": "bf16-pure", "train.lora_rank": 32},
        {},
    ),
    # LMDeploy 0.18, cli/utils.py
    "lmdeploy: its sizes": (
        "lmdeploy serve api_server Qwen/Qwen3-8B --tp 1",
        {"serve.block_size": 64, "serve.max_batched_tokens": 8192},
        {"gpu": "l40s-48gb"},
    ),
    "llama.cpp: one file of several": (
        (
            "llama-server -hf bartowski/Qwen_Qwen3-8B-GGUF -hff Qwen_Qwen3-8B-Q6_K.gguf -c 8192 "
            "-ngl 99"
        ),
        {"serve.weight_dtype": "q6_k", "serve.max_seq_len": 8192},
        {"model": "qwen3-8b"},
    ),
    "sglang: pages": (SGLANG + "--page-size 64", {"serve.block_size": 64}, {}),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_program_does_is_planned(name):
    content, wanted, words = ROWS[name]
    plan = found(content, **words).plan
    assert {path: get(plan, path) for path in wanted} == wanted


# What programs do anyway, which is told of only where a file says otherwise.
USUAL = {
    SGLANG: (
        *("--swa-full-tokens-ratio 0.8", "--max-loras-per-batch 8", "--moe-a2a-backend none"),
        *("--max-prefill-tokens 16384", "--schedule-conservativeness 1.0", "--cpu-offload-gb 0"),
    ),
    SERVES: ("--runner generate", "--max-loras 1", "--performance-mode balanced", "--port 8000"),
    TRAINS: ("tensor_parallel_size: 1", "train_sampling_strategy: random", "video_fps: 2.0"),
}


@pytest.mark.parametrize(("start", "said"), [(a, b) for a, many in USUAL.items() for b in many])
def test_what_a_program_does_anyway_is_not_told(start, said):
    plain, read = found(start), found(f"{start}{said}\n")
    assert (read.plan, read.left, read.unread) == (plain.plan, plain.left, plain.unread)


def test_an_argument_of_no_program_is_told_and_a_harmless_one_is_not():
    read = found(SERVES + "--api-key x --download-dir y --max-model-length 4096\n")
    assert read.unread == ("--max-model-length",)
    assert found(TRAINS + "weight_decay: 0.1\nweight_decai: 0.1\n").unread == ("weight_decai",)


OTHERWISE = {
    SERVES: (
        *("--disable-sliding-window", "--offload-group-size 4", "--no-async-scheduling"),
        *("--limit-mm-per-prompt '{\"image\": 4}'", "--attention-backend FLASHINFER"),
    ),
    SGLANG: ("--disable-overlap-schedule", "--attention-backend fa3", "--device cpu"),
    TRAINS: (
        *("label_smoothing_factor: 0.1", "accelerator_config: {split_batches: true}"),
        *(
            "device_map: balanced",
            "use_cpu: true",
            "tf32: true",
            "train_sampling_strategy: by_length",
        ),
        *("layer_replication: [[0, 4]]", "bias: all", "additional_target: lm_head"),
    ),
}


@pytest.mark.parametrize(("start", "said"), [(a, b) for a, many in OTHERWISE.items() for b in many])
def test_what_moves_memory_or_time_and_no_plan_says_is_told(start, said):
    told = {issue.field for issue in found(start).left}
    assert {issue.field for issue in found(f"{start}{said}\n").left} - told
