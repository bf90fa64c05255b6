"""A plan that is written as the files of a program is read back as itself, but for what is told."""

import pytest
from drawn import divided, plans, served
from hypothesis import given, reject
from hypothesis import strategies as st
from tables import each

from memcore import PlanError
from memcore.formats import Text, read_files
from memcore.formats.export import TRAINERS, export, programs
from memcore.plan.plan import Plan, get

# What decides most, and stands in every file of a program.
JOB = {f"train.{name}" for name in ("micro_batch", "seq_len", "grad_accumulation", "framework")}
ALWAYS = {
    "trl": JOB,
    "axolotl": JOB,
    "torchtitan": JOB | {f"parallel.{cut}" for cut in ("tp", "pp", "cp", "ep")},
    "deepspeed": JOB - {"train.seq_len"} | {"train.zero"},
    "megatron": JOB | {"train.zero"} | {f"parallel.{cut}" for cut in ("tp", "pp", "cp", "ep")},
    "vllm": {f"serve.{name}" for name in ("tp", "max_seq_len", "memory_utilization", "block_size")},
    "sglang": {"serve.tp", "serve.max_seq_len", "serve.memory_utilization"},
    "tensorrt-llm": {f"serve.{name}" for name in ("tp", "max_batched_tokens", "block_size")},
    "llama.cpp": {"serve.concurrency", "serve.max_seq_len", "serve.gpu_layers"},
}
MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1}
TRAINS = {program for names in TRAINERS.values() for program in names}


def written(plan, program):
    """The files, read again, and the fields that are told not to be in them."""
    exported = export(plan, program)
    texts = [Text(name, content) for name, content in exported.files.items()]
    again = read_files(texts, gpu=plan.cluster.gpu, gpus=plan.cluster.gpus).plan
    return again, {issue.field for issue in exported.left}


def asked(plan, program):
    """What decides most comes back, and all else that does not is told."""
    again, left = written(plan, program)
    assert not left & ALWAYS[program]
    always = {path: get(plan, path) for path in ALWAYS[program]}
    assert {path: get(again, path) for path in always} == always


@given(st.one_of(plans(), divided()), st.data())
def test_a_training_that_is_written_is_read_back(plan, data):
    asked(plan, data.draw(st.sampled_from([p for p in programs(plan) if p in TRAINS])))


@given(served(), st.data())
def test_a_server_that_is_written_is_read_back(plan, data):
    try:  # a load beyond the positions that a model has learned is no server's
        plan = plan.changed("job", "serve")
    except PlanError:
        reject()
    asked(plan, data.draw(st.sampled_from([p for p in programs(plan) if p not in TRAINS])))


def test_a_worked_plan_is_read_back_whole():
    plan = Plan.of({"model": "llama-3-8b", "job": "train", "train": {
        "optimizer": "adam8bit", "adapter": "none", "cross_entropy": "chunked",
        "allocator": "native"}})  # fmt: skip
    again, left = written(plan, "trl")
    assert left == set()
    assert again == plan


TITAN = {"framework": "fsdp2", "zero": 3, "precision": "bf16-mixed", "attention": "sdpa"}
DIVIDED = (
    {},
    {"parallel": {"tp": 2, "sequence_parallel": True}, "train": {"checkpointing": "full"}},
    {"parallel": {"pp": 2}, "train": {"zero": 2, "grad_accumulation": 8}},
    {"parallel": {"cp": 2}, "train": {"kernels": "compile", "cross_entropy": "chunked"}},
    {"parallel": {"shard_group": 4}, "train": {"precision": "float8-rowwise", "seq_len": 8192,
                                              "kernels": "compile"}},
    {"train": {"offload_parameters": "cpu", "offload_optimizer": "cpu"}},
)  # fmt: skip


@each("model", ("llama-3.1-8b", "qwen3-32b"))
@each("change", DIVIDED)
def test_a_run_of_torchtitans_says_the_whole_plan(model, change):
    parallel, train = change.get("parallel", {}), TITAN | change.get("train", {})
    plan = Plan.of({"model": model, "parallel": parallel, "train": train})
    again, left = written(plan, "torchtitan")
    assert left == set()
    assert (again.train, again.parallel) == (plan.train, plan.parallel)


def test_a_model_that_torchtitan_has_not_is_not_written_for_it():
    plan = Plan.of({"model": "mixtral-8x7b", "train": TITAN})
    assert "torchtitan" not in programs(plan)
    with pytest.raises(PlanError, match="model: 'torchtitan' does not run a model"):
        export(plan, "torchtitan")


ALONE = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}
TUNED = (
    {**ALONE, "adapter": "qlora", "lora_rank": 16},
    {**ALONE, "adapter": "qlora-single", "lora_targets": "all-linear"},
    {**ALONE, "adapter": "lora", "lora_modules": "q_proj,v_proj", "lora_dropout": 0.05},
    {**ALONE, "kernels": "liger", "cross_entropy": "chunked", "offload_activations": "cpu"},
    {"framework": "fsdp2", "zero": 3, "precision": "bf16-mixed", "kernels": "compile"},
    {"framework": "deepspeed", "zero": 2, "precision": "bf16-mixed", "offload_optimizer": "cpu"},
)


@each("train", TUNED)
def test_axolotls_file_says_the_whole_plan(train):
    plan = Plan.of({"model": "llama-3-8b", "train": train})
    again, left = written(plan, "axolotl")
    assert left == set()
    assert again.train == plan.train


SLOTS = (
    {"weight_dtype": "q4_k_m", "kv_dtype": "q8_0", "max_seq_len": 8192, "concurrency": 4},
    {"weight_dtype": "q8_0", "gpu_layers": 20, "concurrency": 1},
    {"offload_kv": "cpu", "max_batched_tokens": 2048},
    {"draft_model": "llama-3.2-1b", "draft_tokens": 5},
)


@each("serve", SLOTS)
def test_llama_cpps_command_says_the_whole_server(serve):
    given = {"engine": "llama.cpp", "prefill": "whole", "kv_dtype": "fp16", **serve}
    document = {"model": "llama-3-8b", "cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}}
    plan = Plan.of({**document, "serve": given})
    again, left = written(plan, "llama.cpp")
    assert left == set()
    same = {*given} - {"prefill"}
    mine = {name: getattr(plan.serve, name) for name in same}
    assert {name: getattr(again.serve, name) for name in same} == mine


@each("engine", ("vllm", "sglang"))
def test_a_second_tier_is_written_and_read(engine):
    plan = Plan.of({"model": "llama-3-8b", "serve": {"engine": engine, "offload_kv": "cpu"}})
    again, _ = written(plan, engine)
    assert again.serve.offload_kv == "cpu"


@each("name", ("llama-3-8b", "mixtral-8x7b", "qwen2.5-7b", "llama-3.2-1b"))
def test_megatrons_options_describe_the_model(name):
    plan = Plan.of({"model": name, "train": {**MEGATRON, "seq_len": 1024}})
    alone = Text("train.sh", export(plan, "megatron").files["train.sh"])
    found = read_files([alone], gpus=8).plan.architecture
    mine = plan.architecture
    sizes = ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "vocab_size")
    assert [getattr(found, size) for size in sizes] == [getattr(mine, size) for size in sizes]
    assert found.traits.tied_embeddings == mine.traits.tied_embeddings


def test_megatrons_optimizer_of_fewer_bits_is_written_and_read():
    plan = Plan.of({"model": "llama-3-8b", "train": {**MEGATRON, "optimizer": "adamw-aware"}})
    again, _ = written(plan, "megatron")
    assert again.train.optimizer == "adamw-aware"


@each("engine, same", (("sglang-0.5.15", True), ("vllm-v0", False)))
def test_an_older_version_of_a_server_is_written_or_told(engine, same):
    plan = Plan.of({"model": "llama-3-8b", "job": "serve", "serve": {"engine": engine}})
    again, left = written(plan, engine.partition("-")[0])
    assert (again.serve.engine == engine, "serve.engine" in left) == (same, not same)


@each("engine", ("vllm", "llama.cpp"))
def test_an_option_of_a_server_is_written_once(engine):
    serve = {"engine": engine, "prefill": "whole", "offload_kv": "cpu"}
    words = (
        export(Plan.of({"model": "llama-3-8b", "serve": serve}), engine).files["serve.sh"].split()
    )
    options = [word for word in words if word.startswith("--")]
    assert len(options) == len({*options})
