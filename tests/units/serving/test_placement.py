"""Where and how an engine keeps keys, values, layers and experts."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.words.stored import KV_DTYPES


def serve(model="qwen2.5-7b", gpu="rtx-4090-24gb", **fields):
    return evaluate(Plan.of({"model": model, "cluster": {"gpu": gpu}, "serve": fields})).serve


@pytest.mark.parametrize(("keys", "values"), [("q8_0", "q4_0"), ("fp16", "q8_0"), ("fp8", "bf16")])
def test_keys_and_values_have_dtypes_of_their_own(keys, values):
    """4 heads of 128 in each of 28 layers, keys and values apart."""
    s = serve(kv_dtype=keys, value_dtype=values, engine="llama.cpp", concurrency=1)
    assert (
        s.kv_bytes_per_token == 28 * 4 * 128 * (KV_DTYPES[keys].bits + KV_DTYPES[values].bits) / 8
    )
    assert serve(kv_dtype=keys, value_dtype=keys) == serve(kv_dtype=keys)
    swapped = serve(kv_dtype=values, value_dtype=keys, engine="llama.cpp", concurrency=1)
    assert swapped.kv_bytes_per_token == s.kv_bytes_per_token


def test_two_dtypes_of_the_cache_are_explained():
    fields = {"kv_dtype": "q8_0", "value_dtype": "q4_0", "engine": "llama.cpp"}
    plan = Plan.of({"model": "qwen2.5-7b", "cluster": {"gpus": 1}, "serve": fields})
    report = evaluate(plan)
    found = Book(plan, report).explain("serve.kv_bytes_per_token")
    assert found.value == report.serve.kv_bytes_per_token


def test_latents_have_one_dtype():
    fields = {"cluster": {"gpus": 8}, "serve": {"tp": 8, "value_dtype": "q4_0"}}
    plan = Plan.of({"model": "deepseek-v3", **fields})
    assert plan.value_dtype == "bf16"
    assert evaluate(plan).serve.kv_bytes_per_token == 61 * 576 * 2


OSS = {"model": "gpt-oss-120b", "cluster": {"gpu": "rtx-3090-24gb", "gpus": 1}}
ALONE = {"engine": "llama.cpp", "concurrency": 1, "max_seq_len": 4096, "prompt_len": 16}
EXPERTS = 128 * 3 * 2880 * 2880 * 4.25 / 8  # bytes of those of one layer


def placed(**fields):
    plan = Plan.of({**OSS, "train": {"seq_len": 1}, "serve": ALONE | fields})
    return plan, evaluate(plan)


@pytest.mark.parametrize("layers", [12, 28, 36])
def test_experts_on_the_host_leave_the_gpu_alone(layers):
    """llama.cpp's --n-cpu-moe: the experts of the first layers; keys and values stay."""
    _, all_here = placed(cpu_moe_layers=0)
    _, report = placed(cpu_moe_layers=layers)
    s = report.serve
    assert s.offloaded_bytes == all_here.serve.offloaded_bytes + layers * EXPERTS
    assert s.loaded_bytes == all_here.serve.loaded_bytes - layers * EXPERTS
    assert s.kv_bytes_per_token == all_here.serve.kv_bytes_per_token


def test_the_cpu_reads_the_experts_that_a_token_chooses():
    """Four of 128 in each layer, from DRAM: that is what a token waits for, and no more than that:
    over PCIe they would all be copied."""
    plan, report = placed(cpu_moe_layers=36)
    read = 36 * EXPERTS * 4 / 128 / (plan.node.dram_bandwidth * constants.HOST_READ.middle)
    assert read < report.serve.tpot_seconds < read + 0.02
    faster = plan.changed("cluster.node", plan.node.model_dump() | {"dram_bandwidth": 250e9})
    assert evaluate(faster).serve.tpot_seconds < report.serve.tpot_seconds / 2


def test_layers_on_the_host_keep_their_cache_there():
    """llama.cpp's -ngl: the last so many layers are on the GPU, the output as one of them."""
    _, whole = placed(cpu_moe_layers=36)
    _, part = placed(gpu_layers=10)
    assert part.serve.kv_bytes_per_token == whole.serve.kv_bytes_per_token * 9 / 36
    rest = part.serve.weights_bytes - part.serve.offloaded_bytes
    head = 201_088 * 2880 * 8.5 / 8  # as large as the embedding, which the host has
    assert rest == pytest.approx(9 / 36 * (part.serve.weights_bytes - 2 * head) + head, rel=1e-4)
    assert placed(gpu_layers=9)[1].serve.tpot_seconds > placed(gpu_layers=12)[1].serve.tpot_seconds


@pytest.mark.parametrize("fields", [{"cpu_moe_layers": 30}, {"gpu_layers": 9}])
@pytest.mark.parametrize("prompt", [16, 2048])
def test_what_the_cpu_takes_is_explained(fields, prompt):
    plan, report = placed(**fields, prompt_len=prompt)
    book = Book(plan, report)
    for path in ("decode_step", "prefill_step", "offloaded_bytes", "kv_budget_bytes"):
        found = book.explain(f"serve.{path}")
        if hasattr(report.serve, path):
            assert found.value == getattr(report.serve, path)


@pytest.mark.parametrize("field", ["gpu_layers", "cpu_moe_layers"])
def test_only_llama_cpp_computes_on_the_cpu(field):
    with pytest.raises(PlanError, match=rf"serve.{field}.*llama.cpp alone"):
        Plan.of({"model": "gpt-oss-20b", "serve": {field: 4}})


def test_what_is_on_the_host_is_said():
    _, report = placed(cpu_moe_layers=36)
    assert any("57.3 GiB of weights lie in the host's memory" in note for note in report.notes)


@pytest.mark.parametrize("field", ["gpu_layers", "cpu_moe_layers"])
def test_a_host_without_memory_of_its_own_computes_no_layers(field):
    """A card in a host whose only memory is another chip's."""
    serve = {"engine": "llama.cpp", field: 2}
    cluster = {"gpu": "rtx-4090-24gb", "gpus": 1}
    with pytest.raises(PlanError, match=f"serve.{field}: .* set it to 0"):
        evaluate(Plan.of({"cluster": {**cluster, "node": "jetson"}, "serve": serve}))
    own = Plan.of({"cluster": {"gpu": "jetson-orin-agx-64gb", "gpus": 1}, "serve": serve})
    assert evaluate(own).serve.tpot_seconds > 0
