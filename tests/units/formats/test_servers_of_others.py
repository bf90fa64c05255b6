"""Servers as people start them: in containers, from Python, from an INI, of engines not planned."""

import pytest

from memcore.errors import PlanError
from memcore.formats import read_files
from memcore.formats.texts import Text
from memcore.plan.plan import get


def found(content, name="job.sh", **words):
    return read_files([Text(name, content)], gpu="h100-sxm-80gb", **words)


COMPOSE = """
services:
  one:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    entrypoint: ["bash", "-c"]
    command: ["/app/llama-server -m /models/Qwen3-8B-Q4_K_M.gguf --ctx-size 32768 --jinja"]
"""
OF_ENVIRONMENT = """
services:
  one:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    environment:
      LLAMA_ARG_MODEL: /models/Qwen3-8B-Q4_K_M.gguf
      LLAMA_ARG_CTX_SIZE: 32768
      LLAMA_ARG_N_PARALLEL: 4
"""
STACK = """
servingEngineSpec:
  modelSpec:
  - name: one
    modelURL: Qwen/Qwen3-8B
    vllmConfig: {maxModelLen: 16384, tensorParallelSize: 2, extraArgs: [--kv-cache-dtype, fp8]}
"""
RAY = """
applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: mine, model_source: Qwen/Qwen3-8B}
      engine_kwargs: {tensor_parallel_size: 2, max_model_len: 8192}
"""
PYTHON = """
import argparse
from vllm import LLM
parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=4)
args = parser.parse_args()
LENGTH = 4 * 1024
llm = LLM("Qwen/Qwen3-32B", tensor_parallel_size=args.tp, max_model_len=LENGTH, quantization=which)
"""
TENSORRT = """
from tensorrt_llm import LLM
from tensorrt_llm.llmapi import KvCacheConfig
llm = LLM(model="Qwen/Qwen3-8B", kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.7))
"""
INI = """
version = 1
[*]
ctx-size = 16384
cache-type-k = q8_0
cache-type-v = q8_0

[small]
hf = unsloth/Qwen3-8B-GGUF:Q4_K_M

[large]
model = /models/gpt-oss-20b.gguf
"""
ONE = {
    "compose.yaml": (COMPOSE, {"serve.max_seq_len": 32_768, "serve.weight_dtype": "q4_k_m"}, ""),
    "environment.yaml": (
        OF_ENVIRONMENT,
        {"serve.max_seq_len": 8192, "serve.concurrency": 4, "serve.engine": "llama.cpp"},
        "",
    ),
    "stack.yaml": (
        STACK,
        {"serve.max_seq_len": 16_384, "serve.tp": 2, "serve.kv_dtype": "fp8", "model": "qwen3-8b"},
        "",
    ),
    "ray.yaml": (RAY, {"serve.tp": 2, "serve.max_seq_len": 8192, "model": "qwen3-8b"}, ""),
    "kserve.yaml": (
        (
            "kind: InferenceService\nspec:\n  predictor:\n    model:\n"
            "      modelFormat: {name: huggingface}\n"
            "      args: [--model_name=mine, --model_id=Qwen/Qwen3-8B, --max-model-len=8192]\n"
        ),
        {"model": "qwen3-8b", "serve.max_seq_len": 8192},
        "",
    ),
    "factory.yaml": (
        (
            "model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen3\ninfer_backend: vllm\n"
            "vllm_gpu_util: 0.8\nadapter_name_or_path: saves/x\n"
        ),
        {
            "serve.engine": "vllm",
            "serve.max_seq_len": 4096,
            "serve.memory_utilization": 0.8,
            "serve.tp": 1,
        },
        "adapter_name_or_path",
    ),
    "sglang.yaml": (
        "model-path: Qwen/Qwen3-8B\ntp-size: 2\nmem-fraction-static: 0.8\n",
        {"serve.engine": "sglang", "serve.tp": 2, "serve.memory_utilization": 0.8},
        "",
    ),
    "offline.py": (PYTHON, {"serve.tp": 4, "serve.max_seq_len": 4096}, "$quantization"),
    "tensorrt.py": (
        TENSORRT,
        {"serve.engine": "tensorrt-llm", "serve.memory_utilization": 0.7},
        "",
    ),
    "models.ini": (
        INI,
        {"serve.max_seq_len": 16_384, "serve.kv_dtype": "q8_0", "model": "qwen3-8b"},
        "the file has others: large",
    ),
    "tgi.sh": (
        (
            "docker run --gpus all ghcr.io/huggingface/text-generation-inference:3 --model-id "
            "Qwen/Qwen3-8B --num-shard 2 --max-input-tokens 3072 --max-total-tokens 4096"
        ),
        {"serve.tp": 2, "serve.max_seq_len": 4096, "serve.prompt_len": 3072},
        "TGI: its own engine is not planned",
    ),
    "tgi.yaml": (
        (
            "services:\n  a:\n    image: ghcr.io/huggingface/text-generation-inference\n"
            "    environment: [MODEL_ID=Qwen/Qwen3-8B, NUM_SHARD=4]\n"
        ),
        {"serve.tp": 4, "model": "qwen3-8b"},
        "TGI",
    ),
    "lmdeploy.sh": (
        (
            "lmdeploy serve api_server Qwen/Qwen3-8B --tp 2 --quant-policy 8 --session-len 32768 "
            "--cache-max-entry-count 0.5"
        ),
        {"serve.tp": 2, "serve.kv_dtype": "int8", "serve.max_seq_len": 32_768},
        "is a share of what weights leave",
    ),
    "older.sh": (
        "vllm serve Qwen/Qwen3-8B --speculative-model ngram --num-speculative-tokens 4",
        {"serve.draft_tokens": 4},
        "",
    ),
    "dotted.sh": (
        (
            "vllm serve Qwen/Qwen3-8B --speculative-config.method eagle3 "
            "--speculative-config.num_speculative_tokens 4"
        ),
        {"serve.draft_model": "eagle", "serve.draft_tokens": 4},
        "",
    ),
    "llama-swap.yaml": (
        (
            "models:\n  one:\n    cmd: >\n      /opt/llama-server --port 9\n"
            "      -m /models/Qwen3-8B-Q8_0.gguf\n      -c 8192\n"
        ),
        {"serve.max_seq_len": 8192, "serve.weight_dtype": "q8_0"},
        "",
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_a_server_is_the_plan_that_it_says(name):
    content, wanted, left = ONE[name]
    read = found(content, name)
    plan = read.plan.document()
    assert {path: get(plan, path) for path in wanted} == wanted
    assert left in " ".join(map(str, read.left))


def test_other_servers_of_a_file_are_told():
    read = found("vllm serve Qwen/Qwen3-8B --max-model-len 8192\nvllm serve Qwen/Qwen3-32B\n")
    assert read.plan.model == "qwen3-8b"
    assert any("Qwen/Qwen3-32B" in issue.message for issue in read.left)


def test_other_commands_that_train_are_told():
    one = "python a.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size {}\n"
    read = found(one.format(2) + one.format(4))
    assert read.plan.train.micro_batch == 2
    assert any("first of 2 that train" in issue.message for issue in read.left)


def test_a_command_that_is_printed_is_no_other():
    one = "python a.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size {}\n"
    read = found(f'echo "{one.format("$B")[:-1]}"\n{one.format(2)}')
    assert read.plan.train.micro_batch == 2
    assert not any("that train" in issue.message for issue in read.left)


@pytest.mark.parametrize("kind", ["draft-mtp 5", "draft-mtp5"])
def test_a_number_behind_who_guesses_is_told(kind):
    read = found(f"llama-server -m Qwen3-8B-Q4_K_M.gguf --spec-type {kind}")
    assert any("5" in issue.message for issue in read.left)


def test_names_that_a_model_is_served_by_are_no_values_that_are_passed_over():
    read = found("vllm serve Qwen/Qwen3-8B --served-model-name a b --max-model-len 4096 8192")
    assert [issue.field for issue in read.left] == ["--max-model-len"]


def test_the_batch_of_all_ranks_may_be_said_twice():
    command = "deepspeed pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
    command += "--seq-length 64 --micro-batch-size 1 --global-batch-size 8 --vocab-size 100"
    config = Text("ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}')
    read = read_files([Text("a.sh", command), config])
    assert "--global-batch-size" not in read.unread


def test_a_file_of_options_that_a_server_names_is_wanted_and_read_beside_it():
    start = "vllm serve Qwen/Qwen3-8B --config more.yaml"
    assert found(start).wants == ("more.yaml",)
    more = Text("more.yaml", "max-model-len: 4096\ntensor-parallel-size: 2\n")
    read = read_files([Text("a.sh", start), more])
    assert (read.wants, read.plan.serve.max_seq_len, read.plan.serve.tp) == ((), 4096, 2)


def test_a_file_of_an_export_is_refused():
    text = "model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen3\nexport_dir: out\n"
    with pytest.raises(PlanError, match="export_dir: the file is of an export"):
        found(text, "export.yaml")
