"""The share of memory as each engine means it, and the sequences that it makes room for."""

import pytest

from memcore.evaluate import evaluate
from memcore.hardware import constants
from memcore.plan.plan import Plan, facts, get
from memcore.units import GB


def plan(gpu="h100-sxm-80gb", **fields):
    return Plan.of({"model": "llama-3.1-8b", "cluster": {"gpu": gpu}, "serve": fields})


def serve(gpu="h100-sxm-80gb", **fields):
    return evaluate(plan(gpu, **fields)).serve


def test_of_sglang_it_is_weights_and_cache_alone():
    s = serve(engine="sglang", memory_utilization=0.9)
    usable = plan().accelerator.usable_bytes
    budget = int((usable - constants.CUDA_CONTEXT.middle) * 0.9)
    assert s.budget_bytes == budget
    assert s.kv_budget_bytes == budget - s.loaded_bytes
    assert s.outside_bytes > s.activation_bytes


SGLANG_LEAVES = {  # ServerArgs._handle_gpu_memory_settings of SGLang 0.5: MiB that are for neither
    # metadata, 1.5 for each token of a chunk, 2 for each sequence of graphs, 128 for each GPU
    ("rtx-4090-24gb", 1, 2048): 512 + 3_072 + 2 * 24 + 128,
    ("h100-sxm-80gb", 1, 8192): 512 + 12_288 + 2 * 256 + 128,
    ("h100-sxm-80gb", 4, 8192): 512 + 12_288 + 2 * 512 + 4 * 128,
    ("h100-sxm-80gb", 1, 2048): 10 * 1024,  # no less on a GPU of more than 60 GiB
}


@pytest.mark.parametrize("of", SGLANG_LEAVES)
def test_sglang_leaves_what_its_forwards_need(of):
    gpu, tp, tokens = of
    there = plan(gpu, engine="sglang", max_batched_tokens=tokens).changed("cluster.gpus", tp)
    there = there.changed("serve.tp", tp)
    left = 1 - SGLANG_LEAVES[of] * 2**20 / there.accelerator.usable_bytes
    assert evaluate(there).serve.memory_share == pytest.approx(left)
    said = [note for note in evaluate(there).notes if "SGLang leaves" in note]
    assert not said


def test_a_chunk_that_sglang_would_not_take_by_itself_is_said():
    asked = evaluate(plan("rtx-4090-24gb", engine="sglang", max_batched_tokens=8192))
    assert any("reads 2,048 tokens at once" in note for note in asked.notes)
    assert asked.serve.memory_share < 0.5


OWN_TOKENS = {
    # vLLM's EngineArgs.get_batch_defaults of its server: by memory, and the A100 by its name
    ("vllm", "h100-sxm-80gb"): 8192,
    ("vllm", "a100-sxm-80gb"): 2048,
    ("vllm", "l4-24gb"): 2048,
    # SGLang's ServerArgs._handle_gpu_memory_settings
    ("sglang", "rtx-4090-24gb"): 2048,
    ("sglang", "a6000-48gb"): 4096,
    ("sglang", "h200-sxm-141gb"): 8192,
    ("sglang", "b200-sxm-180gb"): 16_384,
    # TensorRT-LLM's BuildConfig.max_num_tokens, and --ubatch-size of llama.cpp's server
    ("tensorrt-llm", "h100-sxm-80gb"): 8192,
    ("llama.cpp", "rtx-4090-24gb"): 512,
}


@pytest.mark.parametrize("of", OWN_TOKENS, ids=" ".join)
def test_a_forward_has_as_many_tokens_as_the_engine_takes_by_itself(of):
    engine, gpu = of
    own = serve(gpu, engine=engine)
    assert own.batched_tokens == OWN_TOKENS[of]
    said = serve(gpu, engine=engine, max_batched_tokens=OWN_TOKENS[of])
    assert own == said


def test_every_other_engine_takes_nine_tenths_where_nobody_says_a_share():
    for engine in ("auto", "vllm", "vllm-v0", "tensorrt-llm"):
        assert serve(engine=engine) == serve(engine=engine, memory_utilization=0.9)


def test_files_of_llama_cpp_are_served_by_it_where_no_engine_is_named():
    for word in ("q4_k_m", "q8_0"):
        assert serve(weight_dtype=word) == serve(weight_dtype=word, engine="llama.cpp")
        assert serve(weight_dtype=word, engine="vllm") != serve(weight_dtype=word)
    there = plan(weight_dtype="q4_k_m", gpu_layers=20)
    drawn = facts("serve.gpu_layers").when
    assert drawn(lambda path: get(there.document(), path), there.architecture)
    assert evaluate(there).serve.offloaded_bytes


def test_of_tensorrt_llm_it_is_what_the_weights_leave():
    whole, half = (serve(engine="tensorrt-llm", memory_utilization=f) for f in (1.0, 0.5))
    assert half.kv_budget_bytes == whole.kv_budget_bytes // 2
    assert half.budget_bytes == whole.budget_bytes


@pytest.mark.parametrize("engine", ["llama.cpp", "transformers"])
def test_others_have_none(engine):
    few, most = (serve(engine=engine, memory_utilization=f) for f in (0.1, 0.9))
    assert few.kv_budget_bytes == most.kv_budget_bytes
    assert few.budget_bytes == plan().accelerator.usable_bytes


def test_an_engine_that_is_not_named_counts_as_before():
    assert serve(runtime="native").budget_bytes == int(plan().accelerator.usable_bytes * 0.9)


@pytest.mark.parametrize(
    ("gpu", "engine", "limit"),
    [
        ("h100-sxm-80gb", "auto", 256),
        ("h100-sxm-80gb", "vllm", 1024),
        ("h200-sxm-141gb", "vllm", 1024),
        ("a100-sxm-80gb", "vllm", 256),
        ("l4-24gb", "vllm", 256),
        ("h100-sxm-80gb", "vllm-v0", 256),
        ("h100-sxm-80gb", "sglang", 64),
        ("h100-sxm-80gb", "llama.cpp", 64),
    ],
)
def test_the_engine_s_own_default(gpu, engine, limit):
    assert serve(gpu, engine=engine).sequence_limit == limit
    assert serve(gpu, engine=engine, concurrency=4096).sequence_limit == 4096
    assert serve(gpu, engine=engine, max_num_seqs=8).sequence_limit == 8


def test_few_that_are_served_make_no_more_room():
    """The engine's limit sizes its activations; the load does not: 4 GB for Llama 3 on an H100."""
    one, many = (serve(engine="vllm", concurrency=n) for n in (1, 512))
    assert one.kv_budget_bytes == many.kv_budget_bytes
    told = serve(engine="vllm", concurrency=1, max_num_seqs=64)
    assert 4 * GB < told.kv_budget_bytes - one.kv_budget_bytes < 6 * GB


def test_where_no_engine_is_named_none_of_a_large_gpu_is_meant():
    """Logs of SGLang and of vLLM V0 on H100, as plans that name neither: 1,024 sequences took half
    and a quarter of their cache."""
    gpu = {"gpu": "h100-sxm-80gb", "gpus": 1}
    sglang = Plan.of({"model": "qwen3-32b", "cluster": gpu, "serve": {"concurrency": 256}})
    assert abs(evaluate(sglang).serve.kv_capacity_tokens / 39078 - 1) <= 0.10


def test_no_more_run_than_the_engine_schedules():
    s = serve(concurrency=64, max_num_seqs=16)
    assert s.running == 16
    report = evaluate(plan(concurrency=64, max_num_seqs=16))
    assert any("serve.max_num_seqs" in note for note in report.notes)


BLOCKS = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}


@pytest.mark.parametrize("word", BLOCKS)
def test_a_cache_of_llama_cpp_takes_its_blocks(word):
    """Bytes of 32 values: the blocks of ggml/src/ggml-common.h."""
    whole = serve(engine="llama.cpp", kv_dtype="fp16").kv_bytes_per_token
    narrow = serve(engine="llama.cpp", kv_dtype=word).kv_bytes_per_token
    assert narrow * 64 == whole * BLOCKS[word]
