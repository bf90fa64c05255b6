"""What benchmarks of servers print and write, read back."""

from __future__ import annotations

import json

import pytest

from memcore.errors import PlanError
from memcore.formats.benches import Bench, bench_in, bench_of
from memcore.plan.plan import Plan

PLAN = Plan.of(
    {
        "model": "llama-3.1-70b",
        "cluster": {"gpu": "h100-sxm-80gb", "gpus": 2},
        "parallel": {"tp": 2},
        "serve": {"engine": "vllm", "weight_dtype": "fp8", "concurrency": 32, "output_len": 512},
    }
)


def printed(title: str, *lines: tuple[str, object]) -> str:
    """Lines as vLLM and SGLang print them, in a log."""
    rows = [f"{f'{name}:':<40} {value}" for name, value in lines]
    return "\n".join(["INFO 11-26 it begins", f"{f' {title} ':=^50}", *rows, "=" * 50, ""])


def vllm(token: float = 14.0) -> str:
    return printed(
        "Serving Benchmark Result",
        ("Successful requests", 320),
        ("Maximum request concurrency", 32),
        ("Benchmark duration (s)", "81.30"),
        ("Total input tokens", 327_040),
        ("Total generated tokens", 163_840),
        ("Output token throughput (tok/s)", "2015.25"),
        ("Peak output token throughput (tok/s)", "2400.00"),
        ("Mean TTFT (ms)", "900.10"),
        ("P99 TTFT (ms)", "1500.00"),
        ("Mean TPOT (ms)", token),
        ("P99 TPOT (ms)", "15.10"),
        ("Mean ITL (ms)", "13.99"),
    )


SGLANG = printed(
    "Serving Benchmark Result",
    ("Backend", "sglang"),
    ("Traffic request rate", "inf"),
    ("Max request concurrency", 16),
    ("Successful requests", 80),
    ("Total input tokens", 81_920),
    ("Total generated tokens", 20_480),
    ("Total generated tokens (retokenized)", 20_400),
    ("Output token throughput (tok/s)", "905.10"),
    ("Concurrency", "15.62"),
    ("Mean TTFT (ms)", "210.5"),
    ("Mean TPOT (ms)", "16.5"),
    ("Mean ITL (ms)", "16.6"),
)
TRTLLM = """\
===========================================================
= REQUEST DETAILS
===========================================================
Number of requests:             512
Number of concurrent requests:  63.9000
Average Input Length (tokens):  1000.0000
Average Output Length (tokens): 500.0000
TP Size:                2
===========================================================
= PERFORMANCE OVERVIEW
===========================================================
Request Throughput (req/sec):                     6.1000
Total Output Throughput (tokens/sec):             3050.0000
Per GPU Output Throughput (tps/gpu):              1525.0000
"""
STREAMED = """\
Average time-to-first-token [TTFT] (ms):          410.2500
Average time-per-output-token [TPOT] (ms):        20.1250
"""
PERF_CSV = """\
Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,250.50",900.00,1700.00,1690,1600,1500,1400,1200,1000
Time To Second Token (ms),30.00,20.00,40.00,40,39,38,35,30,25
Inter Token Latency (ms),18.25,17.00,20.00,20,19.9,19.5,19,18,17.5
Output Sequence Length,256.00,250,260,260,259,258,257,256,255
Input Sequence Length,2048.00,2048,2048,2048,2048,2048,2048,2048,2048

Metric,Value
Output Token Throughput (per sec),840.00
"""
PERF_TABLE = """\
┃            Statistic ┃   avg ┃   min ┃   max ┃
│ Time To First Token (ms) │ 16.26 │ 12.39 │ 17.25 │
│ Inter Token Latency (ms) │ 1.85 │ 1.55 │ 2.04 │
"""


def document(**said: object) -> str:
    return json.dumps({"date": "20261126", "model_id": "meta-llama/Llama-3.1-70B", **said})


OF_VLLM = {
    "completed": 320, "total_input_tokens": 327_040, "total_output_tokens": 163_840,
    "output_throughput": 2015.25, "max_concurrency": 32, "request_rate": "inf",
    "mean_ttft_ms": 900.1, "mean_tpot_ms": 14.0, "mean_itl_ms": 13.99, "itls": [[0.1]],
}  # fmt: skip
OF_TRTLLM = {
    "engine": {"model": "meta-llama/Llama-3.1-70B"},
    "world_info": {"tp_size": 2, "pp_size": 1},
    "request_info": {"num_requests": 512, "avg_num_concurrent_requests": 63.9,
                     "avg_input_length": 1000.0, "avg_output_length": 500.0},
    "performance": {"system_output_throughput_tok_s": 3050.0},
    "streaming_metrics": {"avg_ttft_ms": 410.25, "avg_tpot_ms": 20.125},
}  # fmt: skip
OF_PERF = {
    "input_config": {"endpoint": {"type": "chat"}, "loadgen": {"concurrency": 8}},
    "time_to_first_token": {"unit": "ms", "avg": 1250.5, "p50": 1200.0},
    "inter_token_latency": {"unit": "ms", "avg": 18.25},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 840.0},
    "input_sequence_length": {"unit": "tokens", "avg": 2048.0},
    "output_sequence_length": {"unit": "tokens", "avg": 256.0},
}  # fmt: skip
LLAMA = """\
| model         |     size | params | backend | ngl |           test |            t/s |
| ------------- | -------: | -----: | ------- | --: | -------------: | -------------: |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA    |  99 |          pp512 | 5120.00 ± 30.1 |
| llama 8B Q4_K | 4.58 GiB | 8.03 B | CUDA    |  99 |          tg128 |  125.00 ± 0.20 |
"""
OF_LLAMA = [
    {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 5120.0},
    {"n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ts": 125.0},
]
SERVED = (0.014, 0.9001, 2015.25, 1022.0, 512.0, 32.0)
PERF = (0.01825, 1.2505, 840.0, 2048.0, 256.0)
GGML = (0.008, 0.1, 0.0, 512, 128, 1)


@pytest.mark.parametrize(
    ("text", "figures", "engine"),
    [
        (vllm(), SERVED, ""),
        (document(**OF_VLLM), SERVED, ""),
        (SGLANG, (0.0165, 0.2105, 905.1, 1024.0, 256.0, 16.0), ""),
        (document(**OF_VLLM, random_range_ratio=1.0) + "\n", SERVED, ""),
        (TRTLLM + STREAMED, (0.020125, 0.41025, 3050.0, 1000.0, 500.0, 63.9), "tensorrt-llm"),
        (json.dumps(OF_TRTLLM), (0.020125, 0.41025, 3050.0, 1000.0, 500.0, 63.9), "tensorrt-llm"),
        (TRTLLM, (0.0, 0.0, 3050.0, 1000.0, 500.0, 63.9), "tensorrt-llm"),
        (json.dumps(OF_PERF), (*PERF, 8.0), ""),
        (PERF_CSV, (*PERF, 0.0), ""),
        (PERF_TABLE, (0.00185, 0.01626, 0.0, 0.0, 0.0, 0.0), ""),
        (LLAMA, GGML, "llama.cpp"),
        (json.dumps(OF_LLAMA), GGML, "llama.cpp"),
        ("\n".join(map(json.dumps, OF_LLAMA)), GGML, "llama.cpp"),
        ("n_prompt,n_gen,n_depth,avg_ts\n512,0,0,5120.0\n0,128,0,125.0\n", GGML, "llama.cpp"),
    ],
)
def test_what_each_program_says(text: str, figures: tuple[float, ...], engine: str) -> None:
    found = bench_in(text)
    assert found is not None
    names = ("token", "first", "rate", "prompt", "output", "at_once")
    assert tuple(getattr(found, name) for name in names) == pytest.approx(figures)
    assert found.engine == engine


@pytest.mark.parametrize(
    "text",
    ["", "hello", "{", "[1, 2]", '{"a": 1}', '{"mean_ttft_ms": "fast"}', "Mean TPOT (ms): -"],
)
def test_what_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="vllm bench serve"):
        bench_of(text.encode())


def test_lines_may_have_something_before_them_and_a_text_may_be_long() -> None:
    before = "".join(f"bench-0  | {line}\n" for line in vllm().splitlines())
    assert bench_in(before) == bench_in(vllm())
    assert bench_in("\n" * 500_000 + "|" * 100_000 + " " * 100_000) is None


def test_several_results_are_refused() -> None:
    for text in (vllm() + vllm(15.0), "\n".join([document(**OF_VLLM)] * 2),
                 json.dumps([*OF_LLAMA, OF_LLAMA[0] | {"n_prompt": 1024}])):  # fmt: skip
        with pytest.raises(PlanError, match="2 results"):
            bench_in(text)
    assert bench_in(vllm() + vllm()) == bench_in(vllm())  # a log that says it twice


def test_the_load_is_the_benchmarks() -> None:
    """But for tokens that a tokenizer adds; as many requests at all times."""
    found, told = Bench("x", 0.014, 0.9, 2000.0, 1022.0, 512.0, 48.0).of(PLAN)
    assert (found.token, found.first, found.rate) == (0.014, 0.9, 0.0)
    assert found.plan == PLAN.with_changes({"serve.arrivals": "closed", "serve.concurrency": 48})
    assert [issue.field for issue in told] == ["serve.concurrency"]
    assert "48" in told[0].message


def test_what_of_the_load_is_not_said_is_told() -> None:
    told = Bench("genai-perf", 0.014, prompt=1024.0).of(PLAN)[1]
    assert [issue.field for issue in told] == ["serve.output_len", "serve.concurrency"]
    assert "does not say it" in told[0].message
    assert Bench("", 0.014).of(PLAN)[1] == []  # somebody says the figures of this very plan
    llama = Plan.of({"serve": {"engine": "llama.cpp", "weight_dtype": "q4_k_m"}})
    bench = bench_in(LLAMA)
    assert bench is not None
    assert "each by itself" in bench.of(llama)[1][-1].message


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"engine": "tensorrt-llm"}, "serve.engine"),
        ({"tp": 8}, "serve.tp"),
        ({"model": "meta-llama/Llama-3.1-8B-Instruct"}, "model"),
    ],
)
def test_another_server_than_the_plans_is_refused(said: dict[str, object], field: str) -> None:
    with pytest.raises(PlanError) as raised:
        Bench("x", 0.014, **said).of(PLAN)
    assert [issue.field for issue in raised.value.issues] == [field]
    Bench("x", 0.014, model="meta-llama/Llama-3.1-70B-Instruct", tp=2).of(PLAN)
