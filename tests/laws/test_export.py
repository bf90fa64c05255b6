"""A plan that is written as the files of a program is read back as itself, but for what is told."""

from drawn import divided, plans, served
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from memcore.formats import Text, read_files
from memcore.formats.export import TRAINERS, export, programs
from memcore.plan.plan import Plan, get

# What decides most, and stands in every file of a program.
JOB = {f"train.{name}" for name in ("micro_batch", "seq_len", "grad_accumulation", "framework")}
ALWAYS = {
    "trl": JOB,
    "deepspeed": JOB - {"train.seq_len"} | {"train.zero"},
    "megatron": JOB | {"train.zero"} | {f"parallel.{cut}" for cut in ("tp", "pp", "cp", "ep")},
    "vllm": {f"serve.{name}" for name in ("tp", "max_seq_len", "memory_utilization", "block_size")},
    "sglang": {"serve.tp", "serve.max_seq_len", "serve.memory_utilization"},
    "tensorrt-llm": {f"serve.{name}" for name in ("tp", "max_batched_tokens", "block_size")},
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
    asked(plan, data.draw(st.sampled_from([p for p in programs(plan) if p not in TRAINS])))


def test_a_worked_plan_is_read_back_whole():
    plan = Plan.of({"model": "llama-3-8b", "train": {"optimizer": "adam8bit", "adapter": "none"}})
    again, left = written(plan, "trl")
    assert left == set()
    assert again == plan


@each("name", ("llama-3-8b", "mixtral-8x7b", "qwen2.5-7b", "llama-3.2-1b"))
def test_megatrons_options_describe_the_model(name):
    plan = Plan.of({"model": name, "train": {**MEGATRON, "seq_len": 1024}})
    alone = Text("train.sh", export(plan, "megatron").files["train.sh"])
    found = read_files([alone], gpus=8).plan.architecture
    mine = plan.architecture
    sizes = ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "vocab_size")
    assert [getattr(found, size) for size in sizes] == [getattr(mine, size) for size in sizes]
    assert found.traits.tied_embeddings == mine.traits.tied_embeddings
