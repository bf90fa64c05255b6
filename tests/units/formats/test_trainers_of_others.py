"""What trainers are told beside sizes: methods, adapters, plugins, and who else runs."""

import json

import pytest

from memcore.formats import read_files
from memcore.formats.texts import Text, text_of
from memcore.plan.plan import get


def found(content, name="job.yaml", **words):
    return read_files([Text(name, content)], gpu="h100-sxm-80gb", **words)


AXOLOTL = "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 2\n"
FACTORY = (
    "model_name_or_path: {}\nstage: sft\nfinetuning_type: {}\ncutoff_len: 1024\n"
    "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true\n"
)
GRPO = """
model_name_or_path: Qwen/Qwen3-8B
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
max_prompt_length: 512
max_completion_length: 1024
num_generations: 8
use_vllm: true
vllm_gpu_memory_utilization: 0.4
vllm_tensor_parallel_size: 2
beta: 0.04
"""
SECOND = """
model: Qwen/Qwen3-0.6B
model_class: llm
dist_config:
  name: fsdp2
train_dataset: data/demo.yaml
micro_batch_size: 2
cutoff_len: 2048
kernel_config: {name: liger_kernel}
peft_config: {name: lora, r: 16, lora_alpha: 32, target_modules: all}
quant_config: {name: bnb, quantization_bit: 4}
"""
PATTERN = r"model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj"
COMPILES = (
    "distributed_type: MULTI_GPU\nnum_processes: 2\n"
    "dynamo_config: {dynamo_backend: INDUCTOR}\nmixed_precision: bf16\n"
)
ONE = {
    "axolotl's plugin does what its key says": (
        AXOLOTL + "plugins:\n- axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n",
        {"train.cross_entropy": "chunked"},
        "",
    ),
    "a plugin whose key is off": (
        AXOLOTL
        + "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
        + "cut_cross_entropy: false\n",
        {"train.cross_entropy": "eager"},
        "",
    ),
    "axolotl's GRPO": (
        AXOLOTL
        + "rl: grpo\ntrl: {num_generations: 4, max_completion_length: 512, use_vllm: true}\n"
        + "vllm: {gpu_memory_utilization: 0.5}\n",
        {"together.kind": "grpo", "serve.memory_utilization": 0.5, "serve.output_len": 512},
        "",
    ),
    "a method that no plan has": (
        AXOLOTL + "rl: ebft\ntrl: {num_generations: 4, max_completion_length: 128}\n",
        {"together.kind": "none"},
        "rl: ebft is not planned",
    ),
    "an adapter that no plan has": (
        AXOLOTL + "adapter: llama-adapter\n",
        {"train.adapter": "lora"},
        "llama-adapter is planned as lora",
    ),
    "fused adapters of each kind": (
        AXOLOTL + "adapter: lora\nlora_qkv_kernel: true\nlora_o_kernel: true\n",
        {},
        "lora_qkv_kernel, lora_o_kernel",
    ),
    "adapters by a pattern": (
        AXOLOTL + f"adapter: lora\nlora_target_modules: '{PATTERN}'\n",
        {"train.lora_modules": "up_proj,down_proj,q_proj,v_proj"},
        "",
    ),
    "activations that FSDP drops": (
        AXOLOTL
        + "gradient_checkpointing: false\nfsdp: [full_shard]\n"
        + "fsdp_config: {fsdp_activation_checkpointing: true}\n",
        {"train.checkpointing": "full"},
        "",
    ),
    "Megatron under LLaMA-Factory": (
        FACTORY.format("Qwen/Qwen3-30B-A3B", "full")
        + "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\n"
        + "expert_model_parallel_size: 2\nrecompute_granularity: full\n",
        {
            "train.framework": "megatron",
            "parallel.tp": 2,
            "parallel.pp": 2,
            "parallel.ep": 2,
            "train.checkpointing": "full",
            "train.micro_batch": 1,
            "train.seq_len": 1024,
        },
        "",
    ),
    "a base that is stored in few bits": (
        FACTORY.format("TheBloke/Llama-2-7B-GPTQ", "lora"),
        {"train.adapter": "qlora-single", "model": "llama-2-7b"},
        "stored in int4",
    ),
    "a base of bitsandbytes'": (
        FACTORY.format("unsloth/Qwen2.5-7B-bnb-4bit", "lora") + "quantization_method: bnb\n",
        {"train.adapter": "qlora"},
        "",
    ),
    "the last layers": (
        FACTORY.format("Qwen/Qwen3-8B", "freeze") + "freeze_trainable_layers: 3\n",
        {"train.frozen": "lower", "train.trained_layers": 3, "train.adapter": "none"},
        "",
    ),
    "orthogonal adapters": (
        FACTORY.format("Qwen/Qwen3-8B", "oft"),
        {"train.adapter": "lora"},
        "oft is planned as lora",
    ),
    "who makes rollouts": (
        GRPO,
        {
            "together.kind": "grpo",
            "together.engine_tp": 2,
            "together.rollouts": 32,
            "together.reference": "gpu",
            "serve.memory_utilization": 0.4,
            "serve.prompt_len": 512,
            "serve.output_len": 1024,
            "train.seq_len": 1536,
        },
        "",
    ),
    "rollouts on other GPUs": (
        GRPO + "vllm_mode: server\n",
        {"together.kind": "grpo"},
        "vllm_mode: rollouts on GPUs of their own",
    ),
    "what the name of DeepSpeed's file says": (
        AXOLOTL + "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n",
        {"train.zero": 3, "train.offload_optimizer": "cpu", "train.offload_parameters": "cpu"},
        "",
    ),
    "axolotl's batch of several micro-batches": (
        AXOLOTL + "batch_size: 8\n",
        {"train.grad_accumulation": 4, "train.micro_batch": 2},
        "",
    ),
    "an fsdp_config of its own": (
        (
            '{"fsdp_transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"], '
            '"activation_checkpointing": true, "fsdp_reshard_after_forward": false, "version": 2}'
        ),
        {"train.framework": "fsdp2", "train.zero": 2, "train.checkpointing": "full"},
        "",
    ),
    "LLaMA-Factory's second form": (
        SECOND,
        {
            "model": "qwen3-0.6b",
            "train.adapter": "qlora",
            "train.lora_rank": 16,
            "train.lora_targets": "all-linear",
            "train.micro_batch": 2,
            "train.seq_len": 2048,
            "train.checkpointing": "full",
        },
        "",
    ),
    "its DeepSpeed": (
        SECOND.replace(
            "name: fsdp2", "name: deepspeed\n  config_file: ds_z3_config.json"
        ).partition("peft_config")[0],
        {"train.framework": "deepspeed", "train.zero": 3, "train.kernels": "liger"},
        "",
    ),
    "what Accelerate compiles": (
        COMPILES,
        {"train.kernels": "compile", "cluster.gpus": 2},
        "",
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_a_key_is_read_or_told(name):
    content, wanted, left = ONE[name]
    read = found(content, model="" if "model" in content else "llama-3.1-8b")
    plan = read.plan.document()
    assert {path: get(plan, path) for path in wanted} == wanted
    assert left in " ".join(map(str, read.left))


TRAINS = " --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 1024"


@pytest.mark.parametrize(
    ("command", "pairs", "left"),
    [
        ("trl dpo", True, "a pair is two sequences"),
        ("trl reward", True, "a pair is two sequences"),
        ("trl sft", False, ""),
        ("accelerate launch --num_processes 4 examples/scripts/dpo.py", True, "a pair"),
        ("python scripts/run_orpo.py", True, "a pair"),
        ("python train_kto.py", False, "answers are sequences"),
        ("python examples/online_dpo.py", False, "online_dpo is not planned"),
        ("python adopt.py", False, ""),
    ],
)
def test_a_command_s_name_says_what_is_trained_towards(command, pairs, left):
    read = found(command + TRAINS, "job.sh")
    assert read.plan.train.micro_batch == (4 if pairs else 2)
    assert left in " ".join(map(str, read.left))
    assert not any("num_processes" in key for key in read.unread)


def test_an_option_that_turns_one_off_is_read():
    read = found(
        "trl sft" + TRAINS + " --no_gradient_checkpointing --no_dataloader_pin_memory", "a"
    )
    assert (read.plan.train.checkpointing, read.plan.train.loader_pin_memory) == ("none", False)


def test_a_class_of_python_says_what_is_trained_towards():
    read = found(
        "from trl import DPOConfig, DPOTrainer\n"
        "args = DPOConfig(per_device_train_batch_size=2, max_length=1024, bf16=True)\n"
        'DPOTrainer(model="Qwen/Qwen3-8B", args=args)\n',
        "train.py",
    )
    assert (read.plan.model, read.plan.train.micro_batch) == ("qwen3-8b", 4)


UNSLOTH = """
import torch
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Qwen3-8B", max_seq_length=1024 * 2, dtype=None, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(
    model, r=16, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing="unsloth")
args = SFTConfig(
    per_device_train_batch_size=2, bf16=torch.cuda.is_bf16_supported(),
    fp16=not torch.cuda.is_bf16_supported(),
    gradient_checkpointing_kwargs=dict(use_reentrant=False))
"""


def test_a_notebook_is_its_code():
    cells = [
        {"cell_type": "markdown", "source": ["# title"]},
        {"cell_type": "code", "source": ["%cd x\n", "!pip install unsloth"]},
        {"cell_type": "code", "source": UNSLOTH.splitlines(keepends=True)},
    ]
    text = text_of("Train.ipynb", json.dumps({"cells": cells, "nbformat": 4}).encode())
    read = read_files([text])
    assert (read.plan.model, read.plan.train.lora_rank) == ("qwen3-8b", 16)
    cells = [{"cell_type": "code", "source": "!trl sft" + TRAINS}]
    text = text_of("Train.ipynb", json.dumps({"cells": cells}).encode())
    assert read_files([text]).plan.train.micro_batch == 2
    assert text_of("Broken.ipynb", b"[1]").content == "[1]"


def test_unsloths_scripts_are_read():
    read = found(UNSLOTH, "train.py")
    train = read.plan.train
    assert (read.plan.model, train.adapter, train.lora_rank) == ("qwen3-8b", "qlora", 16)
    assert (train.seq_len, train.precision, train.reentrant) == (2048, "bf16-pure", False)
    assert (train.checkpointing, train.offload_activations) == ("full", "cpu")
    assert any(issue.field == "unsloth" for issue in read.left)


MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
    "--vocab-size 32000 --swiglu --normalization RMSNorm --position-embedding-type rope "
    "--micro-batch-size 1 --seq-length 512 --bf16 "
)
TOLD = {
    "megatron": (
        *("--fp32-residual-connection", "--first-last-layers-bf16", "--fp8-output-proj"),
        *("--first-last-layers-bf16", "--keep-fp8-transpose-cache", "--delay-wgrad-compute"),
        *(
            "--reuse-grad-buf-for-mxfp8-param-ag",
            "--use-precision-aware-optimizer",
            "--fsdp-double-buffer",
        ),
        *("--moe-shared-expert-overlap", "--tp-comm-overlap-disable-qkv", "--no-rope-fusion"),
        *("--cpu-offloading-num-layers 2", "--moe-paged-stash", "--moe-latent-size 64"),
        *(
            "--attention-output-gate",
            "--perform-rl-step",
            "--ddp-bucket-size 1000",
            "--use-nccl-ub",
        ),
        *("--freeze-all-layers", "--variable-seq-lengths", "--cross-entropy-loss-fusion"),
    ),
    "zero": (
        *('"reduce_scatter": false', '"memory_efficient_linear": false', '"mics_shard_size": 4'),
        *('"zero_quantized_weights": true', '"zeropp_loco_param": {"a": 1}'),
    ),
    "deepspeed": (
        *('"torch_autocast": {"enabled": true}', '"bf16": {"bf16_master_weights_and_grads": true}'),
        *('"elasticity": {"enabled": true}', '"data_efficiency": {"enabled": true}'),
    ),
    "axolotl": (
        *("chunked_cross_entropy: true", "dp_replicate_size: 2", "tiled_mlp: true", "fp8: true"),
        *("selective_checkpointing: true", "spectrum_top_fraction: 0.5", "kd_trainer: true"),
        *("embeddings_skip_upcast: true", "peft_layers_to_transform: [1, 2]", "use_mora: true"),
        *("overrides_of_model_config: {num_hidden_layers: 2}", "expert_parallel_size: 2"),
    ),
    "factory": (
        *("use_adam_mini: true", "use_llama_pro: true", "mixture_of_depths: load", "use_kt: true"),
        *("upcast_layernorm: true", "rope_scaling: yarn", "resize_vocab: true", "shift_attn: true"),
    ),
    "llama.cpp": (
        *("--kv-unified", "--rpc host:1", "-ctkd q8_0", "--ctx-checkpoints 4"),
        *("--mmproj x.gguf", "-ot x=CPU", "--cache-ram 100", "-ts 1,2"),
    ),
    "vllm": (
        *("--compilation-config {}", "-O3", "--enable-prefix-caching", "--hf-overrides {}"),
        *("--kv-offloading-size 10", "--enable-dbo", "--mm-processor-cache-gb 1"),
        *("--cudagraph-capture-sizes 1", "--max-loras 2"),
    ),
    "sglang": (
        *("--json-model-override-args {}", "--max-prefill-tokens 9", "--moe-dense-tp-size 1"),
        *("--hicache-ratio 2", "--mamba-full-memory-ratio 0.5", "--enable-torch-compile"),
    ),
}
STARTS = {
    "megatron": MEGATRON + "{}",
    "zero": '{{"zero_optimization": {{"stage": 2, {}}}}}',
    "deepspeed": '{{"zero_optimization": {{"stage": 2}}, {}}}',
    "axolotl": AXOLOTL + "{}\n",
    "factory": FACTORY.format("Qwen/Qwen3-8B", "lora") + "{}\n",
    "llama.cpp": "llama-server -m Qwen3-8B-Q4_K_M.gguf {}",
    "vllm": "vllm serve Qwen/Qwen3-8B {}",
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3-8B {}",
}


@pytest.mark.parametrize(
    ("kind", "said"), [(kind, said) for kind, keys in TOLD.items() for said in keys]
)
def test_a_key_that_no_plan_says_is_told(kind, said):
    named = kind in ("zero", "deepspeed")
    read = found(STARTS[kind].replace("{}", said, 1).replace("{{", "{").replace("}}", "}"),
                 "a.json" if named else "a.sh", model="qwen3-8b" if named else "")  # fmt: skip
    key = said.split()[0].strip('-":').replace("-", "_")
    told = (*read.left, *read.differs)
    assert any(key in issue.field.replace("-", "_") or (key in ("bf16",) and "bf16" in issue.field)
               for issue in told), [str(issue) for issue in told]  # fmt: skip


TITAN = (
    '[job]\ndump_folder = "out"\n[model]\nname = "llama3"\nflavor = "8B"\n'
    "[training]\nlocal_batch_size = 1\n[parallelism]\n"
    "data_parallel_shard_degree = -1\n[checkpoint]\nenable = {}\ninterval = 250\n{}\n"
)
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --bf16 {}\n"
)


@pytest.mark.parametrize(
    ("name", "content", "steps", "kept"),
    [  # transformers and Megatron keep all unless they are told; torchtitan ten
        ("job.yaml", FACTORY.format("Qwen/Qwen3-8B", "full") + "save_steps: 500\n", 500, 0),
        ("job.yaml", AXOLOTL + "save_steps: 100\nsave_total_limit: 3\n", 100, 3),
        ("job.yaml", AXOLOTL + "save_total_limit: 3\n", 0, 3),
        ("job.yaml", AXOLOTL, 0, 2),
        ("run.sh", MEGATRON.format("--save-interval 1000"), 1000, 0),
        ("run.sh", MEGATRON.format(""), 0, 2),
        ("job.toml", TITAN.format("true", "keep_latest_k = 5"), 250, 5),
        ("job.toml", TITAN.format("true", ""), 250, 10),
        ("job.toml", TITAN.format("false", ""), 0, 2),
    ],
)
def test_checkpoints_are_saved_as_often_as_files_say(name, content, steps, kept):
    run = found(content, name).plan.run
    assert (run.save_steps, run.save_total_limit) == (steps, kept)
