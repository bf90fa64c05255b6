"""What an engine's log prints as loaded: weights as its kernels want them, and what lies beside."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.link import decode
from memcore.plan.plan import Plan
from memcore.words.stored import STORED_BITS


def serve(model="gpt-oss-120b", gpu="h100-sxm-80gb", **fields):
    return evaluate(Plan.of({"model": model, "cluster": {"gpu": gpu}, "serve": fields})).serve


def test_what_is_loaded_is_weights_and_what_lies_beside_them():
    s = serve("llama-3.1-8b")
    assert s.loaded_bytes == s.weights_bytes + s.table_bytes
    half = serve("llama-3.1-8b", offload_weights=4.0)
    assert half.loaded_bytes == s.loaded_bytes - 4 * 2**30


@pytest.mark.parametrize(
    ("tp", "inner", "hidden"), [(1, 2944, 3072), (2, 1536, 3072), (4, 768, 3072), (8, 384, 3072)]
)
def test_marlin_pads_what_is_left_of_an_expert_after_the_cut(tp, inner, hidden):
    """2,880 over the ranks, in multiples of 128; the hidden size in multiples of 256."""
    rows = serve(weight_dtype="mxfp4", tp=tp, moe_backend="marlin").rows
    added = sum(r.bytes for r in rows if r.name.endswith("padded"))
    bits, each = STORED_BITS["mxfp4"], 2880 // tp
    more = 3 * (inner * hidden - each * 2880) * bits / 8
    more += 2 * (2 * inner + hidden - 2 * each - 2880)  # biases in bf16
    assert added == 36 * 128 * more


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        ("h100-sxm-80gb", "triton"),
        ("a100-sxm-80gb", "marlin"),
        ("rtx-pro-6000-96gb", "marlin"),
        ("b200-sxm-180gb", "trtllm"),
        ("mi300x-192gb", "aiter"),
        ("m4-max-128gb", "plain"),
    ],
)
def test_who_runs_the_experts_follows_from_the_gpu(gpu, word):
    plan = Plan.of({"model": "gpt-oss-20b", "cluster": {"gpu": gpu}})
    assert plan.expert_backend == word
    assert plan.changed("serve.moe_backend", "cutlass").expert_backend == "cutlass"


@pytest.mark.parametrize(
    ("engine", "cache"),
    [("vllm", "paged"), ("llama.cpp", "contiguous"), ("transformers", "dynamic")],
)
def test_an_engine_that_is_named_hands_out_its_own_cache(engine, cache):
    assert Plan.of({"serve": {"engine": engine}}).cache_manager == cache


def test_an_old_link_keeps_its_cache():
    plan, issues = decode({"v": "1", "runtime": "native"})
    assert (plan.engine, plan.cache_manager, issues) == ("llama.cpp", "paged", [])


def test_a_llama_cpp_file_of_experts_has_its_other_matrices_in_eight_bits():
    rows = serve("gpt-oss-20b", weight_dtype="mxfp4", engine="llama.cpp").rows
    kinds = {r.name.rpartition("layers.")[2]: r.dtype for r in rows if r.consumer == "parameters"}
    assert kinds["mlp.experts.down_proj"] == "mxfp4"
    assert kinds["self_attn.q_proj.weight"] == kinds["head.lm_head.weight"] == "Q8_0"
    assert kinds["mlp.router.logits.weight"] == "fp32"
