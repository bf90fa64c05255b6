"""Nothing in silence: a key that nobody knows, and a value that nobody understands, are told."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from memcore.errors import PlanError
from memcore.formats import read_files
from memcore.formats.reading import DOCUMENTS
from memcore.formats.texts import Text

STRANGE = "zorble_quux"
FILES: dict[str, dict[str, Any]] = {
    "GPT-NeoX": {
        "num-layers": 24,
        "hidden-size": 1024,
        "num-attention-heads": 16,
        "seq-length": 2048,
        "max-position-embeddings": 2048,
        "pos-emb": "rotary",
        "train_micro_batch_size_per_gpu": 4,
    },
    "DeepSpeed": {
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
    },
    "Accelerate": {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True},
        "mixed_precision": "bf16",
        "num_processes": 4,
    },
    "verl": {
        "actor_rollout_ref": {
            "model": {"path": "Qwen/Qwen3-8B"},
            "actor": {"strategy": "fsdp2", "ppo_micro_batch_size_per_gpu": 2},
            "rollout": {"name": "vllm", "gpu_memory_utilization": 0.5},
        },
        "data": {"max_prompt_length": 512, "max_response_length": 512},
        "trainer": {"n_gpus_per_node": 8, "nnodes": 1},
    },
    "NeMo": {
        "model": {"micro_batch_size": 1, "tensor_model_parallel_size": 2},
        "trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"},
    },
    "torchtitan": {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"local_batch_size": 1, "seq_len": 8192},
        "parallelism": {"data_parallel_shard_degree": -1},
        "activation_checkpoint": {"mode": "full"},
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
        "batch_size": 2,
        "dtype": "bf16",
        "enable_activation_checkpointing": True,
        "optimizer": {"_component_": "torch.optim.AdamW"},
        "tokenizer": {"max_seq_len": 2048},
    },
    "ms-swift": {
        "model": "Qwen/Qwen3-8B",
        "tuner_type": "lora",
        "per_device_train_batch_size": 1,
        "torch_dtype": "bfloat16",
        "max_length": 2048,
    },
    "LLaMA-Factory": {
        "model_name_or_path": "Qwen/Qwen3-8B",
        "template": "qwen3",
        "infer_backend": "vllm",
        "vllm_maxlen": 4096,
    },
    "Trainer": {
        "model_name_or_path": "Qwen/Qwen3-8B",
        "per_device_train_batch_size": 2,
        "bf16": True,
        "max_seq_length": 2048,
    },
    "TensorRT-LLM": {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8},
        "max_batch_size": 16,
        "tensor_parallel_size": 2,
        "enable_chunked_prefill": True,
    },
    "SGLang": {
        "model-path": "Qwen/Qwen3-8B",
        "mem-fraction-static": 0.8,
        "tp-size": 2,
        "context-length": 8192,
    },
    "vLLM": {
        "model": "Qwen/Qwen3-8B",
        "tensor_parallel_size": 2,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.9,
    },
}
# What names a thing, or decides which program it is: an unknown one is refused, or another's.
NAMES = {"name", "flavor", "_component_", "model", "path", "model-path", "model_name_or_path"}
NAMES |= {"template", "infer_backend"}
# verl's sections of data and of its trainer have many keys of neither memory nor time.
LOOSE = {("verl", "data"), ("verl", "trainer")}
COMMANDS = {
    "OpenRLHF": "python3 -m openrlhf.cli.train_sft --pretrain Qwen/Qwen3-8B "
    "--micro_train_batch_size 2 --max_len 2048 --zero_stage 2",
    "ms-swift": "swift sft --model Qwen/Qwen3-8B --per_device_train_batch_size 1 --max_length 2048",
    "slime": "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --actor-num-nodes 1 "
    "--actor-num-gpus-per-node 8 --rollout-batch-size 32 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 4096 --colocate --rollout-num-gpus-per-engine 2",
    "Megatron": "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000",
    "Trainer": "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path Qwen/Qwen3-8B "
    "--per_device_train_batch_size 2 --bf16 True --optim adamw_torch",
    "vllm": "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192 "
    "--gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --max-num-seqs 64",
    "sglang": "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 2 "
    "--context-length 8192 --mem-fraction-static 0.8 --kv-cache-dtype fp8_e5m2",
    "tensorrt-llm": "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 32 --max_seq_len 8192",
    "llama.cpp": "llama-server -m Qwen3-8B-Q4_K_M.gguf -ngl 99 -c 8192 --cache-type-k q8_0 "
    "-ub 512 -np 2 --flash-attn on",
    "TGI": "text-generation-launcher --model-id Qwen/Qwen3-8B --num-shard 2 "
    "--max-input-tokens 4096 --max-total-tokens 8192",
    "LMDeploy": "lmdeploy serve api_server Qwen/Qwen3-8B --tp 2 --session-len 8192",
}
MODELS = {"--pretrain", "--model", "--hf-checkpoint", "--model_name_or_path", "--model-path"}
MODELS |= {"-m", "--model-id"}


def told(text: str, name: str) -> str:
    """All that reading says is not read, not planned or changed, or why it is refused."""
    try:
        found = read_files([Text(name, text)], otherwise="llama-3.1-8b", gpu="h100-sxm-80gb")
    except PlanError as e:
        return str(e).lower()
    return " | ".join([*map(str, (*found.left, *found.changed)), *found.unread]).lower()


def paths(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a document that has a value, with its sections."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from paths(value, (*before, key))
        else:
            yield (*before, key)


def changed(values: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """The document with a strange value at a path, as JSON."""
    other = copy.deepcopy(dict(values))
    part = other
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = STRANGE
    return json.dumps(other)


def test_every_reader_of_documents_is_here() -> None:
    assert [name for name, _, _ in DOCUMENTS if name not in FILES] == []


@pytest.mark.parametrize("kind", FILES)
def test_a_key_that_nobody_knows_is_told(kind: str) -> None:
    sections = {path[:-1] for path in paths(FILES[kind])} - {
        (section,) for reader, section in LOOSE if reader == kind
    }
    for section in sections:
        assert STRANGE in told(changed(FILES[kind], (*section, STRANGE)), "job.json"), section


@pytest.mark.parametrize("kind", FILES)
def test_a_value_that_nobody_understands_is_told(kind: str) -> None:
    for path in paths(FILES[kind]):
        if path[-1] not in NAMES:
            said = told(changed(FILES[kind], path), "job.json")
            assert STRANGE in said or path[-1].lower() in said, path


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_option_that_nobody_knows_is_told(kind: str) -> None:
    said = told(f"{COMMANDS[kind]} --{STRANGE} 7", "run.sh")
    assert STRANGE in said.replace("-", "_")


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_options_value_that_nobody_understands_is_told(kind: str) -> None:
    words = COMMANDS[kind].split()
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        if before.startswith("-") and word[0] != "-" and before not in {*MODELS, "-m"}:
            text = " ".join((*words[:at], STRANGE, *words[at + 1 :]))
            assert STRANGE in told(text, "run.sh"), before
