"""Engines: which one a plan means, and what it decides."""

from itertools import pairwise

import pytest
from explained import checked
from streamed import paged

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.link import decode
from memcore.plan.plan import Plan
from memcore.serving.server import Server, chosen
from memcore.serving.time import of_running, parts, rates_of
from memcore.stream import simulate
from memcore.tape.dims import CHOSEN
from memcore.words.engines import ENGINES
from memcore.words.serving import RUNTIMES


@pytest.mark.parametrize(
    ("runtime", "engine"),
    [
        ("graphs", "vllm"),
        ("compiled", "gpt-fast"),
        ("native", "llama.cpp"),
        ("eager", "transformers"),
    ],
)
def test_an_old_link_names_no_engine_and_its_runtime_says_which(runtime, engine):
    plan, issues = decode({"v": "1", "runtime": runtime})
    assert (plan.engine, plan.runtime, issues) == (engine, runtime, [])


@pytest.mark.parametrize("word", ENGINES)
def test_an_engine_that_is_named_has_its_own_runtime(word):
    plan = Plan.of({"serve": {"engine": word}})
    assert plan.engine == word
    assert plan.runtime == ENGINES[word].runtime in RUNTIMES


def test_graphs_can_be_left_out_of_an_engine():
    assert Plan.of({"serve": {"engine": "sglang", "runtime": "eager"}}).runtime == "eager"


# -- closed loops ---------------------------------------------------------------------------------

H100 = {"gpu": "h100-sxm-80gb", "gpus": 2}


def on_a_card(**serve):
    cluster = {"gpu": "rtx-4090-24gb", "gpus": 1}
    return Plan.of({"model": "llama-3.1-8b", "cluster": cluster, "serve": serve})


def loop(concurrency=32, **serve):
    words = {"engine": "vllm", "arrivals": "closed", "prompt_len": 1024, "output_len": 512}
    return Plan.of(
        {
            "model": "qwen3-32b",
            "cluster": H100,
            "parallel": {"tp": 2},
            "serve": {**words, "concurrency": concurrency, **serve},
        }
    )


def test_in_a_closed_loop_prompts_of_others_are_felt_in_each_token():
    s, alone = evaluate(loop()).serve, evaluate(loop(arrivals="poisson")).serve
    assert s.tpot_seconds > 1.2 * alone.tpot_seconds
    assert s.ttft_seconds > alone.ttft_seconds
    steps = 512 * s.tpot_seconds + s.ttft_seconds - s.first_seconds
    assert s.request_seconds == pytest.approx(steps, rel=0.05)


def test_a_closed_loop_of_one_waits_for_nobody():
    s, alone = evaluate(loop(1)).serve, evaluate(loop(1, arrivals="poisson")).serve
    assert s.tpot_seconds == pytest.approx(alone.tpot_seconds, rel=0.02)


def test_more_in_a_closed_loop_give_more_and_wait_longer():
    found = [evaluate(loop(n)).serve for n in (1, 4, 16, 64, 256)]
    for a, b in pairwise(found):
        assert b.tokens_per_second > a.tokens_per_second
        assert b.tpot_seconds > a.tpot_seconds
        assert b.ttft_seconds > a.ttft_seconds


def test_what_a_closed_loop_says_is_what_its_stream_says():
    plan = loop(lengths="fixed", requests=400, max_seq_len=2048, prefill="chunked")
    stream = paged(plan)
    s = evaluate(plan).serve
    assert stream.tokens_per_second == pytest.approx(s.tokens_per_second, rel=0.15)
    assert stream.concurrency_peak == 32
    assert stream.tpot.mean == pytest.approx(s.tpot_seconds, rel=0.15)


@pytest.mark.parametrize(
    ("at_once", "prompt", "output"), [(8, 1024, 512), (32, 1024, 512), (64, 512, 1024)]
)
def test_requests_of_sglang_come_in_waves(at_once, prompt, output):
    """It reads prompts before it generates: of equal lengths all end together and ask together, so
    that each waits for half of the others; lengths that differ by a tenth bring them apart, so that
    the first token comes in about half the time or less."""
    words = {"engine": "sglang", "prefill": "whole", "requests": 10 * at_once}
    words |= {"prompt_len": prompt, "output_len": output, "max_seq_len": 8192}
    apart = {"lengths": "lognormal", "prompt_cv": 0.1, "output_cv": 0.1}
    first = []
    for lengths in ({"lengths": "fixed"}, apart):
        plan = loop(at_once, **words, **lengths)
        simulated = paged(plan).ttft.mean
        s = evaluate(plan).serve
        assert s.ttft_seconds == pytest.approx(simulated, rel=0.2)
        checked(Book(plan, evaluate(plan)))
        first.append(simulated)
    together, scattered = first
    assert together > 1.8 * scattered


def test_an_engine_that_mixes_has_no_waves():
    of = {
        engine: Server.of(loop(engine=engine, lengths="fixed")).numbers.serve
        for engine in ("vllm", "sglang")
    }
    assert of["vllm"].joining_tokens == 1024
    assert of["sglang"].joining_tokens == 8192  # as many as a step takes
    prompt = Server.of(loop(1, engine="sglang")).numbers.serve.prefill_step
    assert 16 * prompt < 32 * of["sglang"].interruption_seconds <= 32 * prompt


STEADY = {"arrivals": "burst", "prompt_len": 512, "output_len": 256, "concurrency": 100}
STEADY |= {"lengths": "lognormal", "prompt_cv": 0.5, "output_cv": 0.5, "max_seq_len": 4096}


@pytest.mark.parametrize("prefill", ["whole", "chunked"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
@pytest.mark.parametrize("pp", [1, 2])
def test_evaluate_and_simulate_say_the_same_of_what_a_server_can_do(engine, prefill, pp):
    plan = Plan.of(
        {
            "model": "qwen3-32b",
            "cluster": H100,
            "parallel": {"tp": 2 // pp, "pp": pp},
            "serve": {"engine": engine, "prefill": prefill, "requests": 800, **STEADY},
        }
    )
    per_second = evaluate(plan).serve.tokens_per_second
    assert per_second == pytest.approx(paged(plan).tokens_per_second, rel=0.12)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_pipeline_has_a_batch_in_each_stage(engine):
    """Two stages do nearly twice as much as one pass at a time, which is what llama.cpp does."""
    words = {"prefill": "chunked"} | STEADY
    two = {"gpu": "h100-sxm-80gb", "gpus": 2}
    many = {
        pp: evaluate(
            Plan.of(
                {
                    "model": "llama-3.1-8b",
                    "cluster": two,
                    "parallel": {"tp": 1, "pp": pp},
                    "serve": {"engine": engine, **words},
                }
            )
        ).serve.tokens_per_second
        for pp in (1, 2)
    }
    assert 1.3 < many[2] / many[1] <= 2


def test_a_load_beyond_what_a_server_can_do_is_named():
    plan = loop(arrivals="poisson", prefill="chunked", requests=200)
    most = evaluate(plan).serve.tokens_per_second / 512
    over = plan.changed("serve.arrival_rate", round(1.4 * most, 3))
    words = "this load is 1.4 times what the server can do: waiting grows without end"
    assert any(words in note for note in evaluate(over).notes)
    stream = simulate(over)
    assert stream.load == pytest.approx(1.4, rel=0.01)
    assert words[1:] in stream.notes[0]
    under = plan.changed("serve.arrival_rate", round(0.7 * most, 3))
    assert not any(
        "without end" in note for note in (*evaluate(under).notes, *simulate(under).notes)
    )
    assert simulate(under).load == pytest.approx(0.7, rel=0.01)
    assert simulate(over.changed("serve.arrivals", "burst")).load is None


def test_tensorrt_llm_lets_in_only_who_can_end():
    """GUARANTEED_NO_EVICT: requests wait where vLLM's are put out, and are read again."""
    words = {"arrivals": "burst", "lengths": "fixed", "requests": 300, "prompt_len": 128}
    more = {"output_len": 2048, "concurrency": 512, "max_seq_len": 2176, "prefill": "chunked"}

    others, sure = (
        paged(loop(engine=engine, **words, **more)) for engine in ("vllm", "tensorrt-llm")
    )
    assert others.preemptions > 100 > sure.preemptions == 0
    assert sure.completed == 300
    assert sure.concurrency_peak < others.concurrency_peak


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_where_memory_is_short_a_loop_says_what_its_stream_says(engine):
    """19 of 2,048 tokens fit on the card, and 25 at half of their output: TensorRT-LLM alone runs
    no more than can end."""
    words = {"engine": engine, "prompt_len": 1024, "output_len": 1024, "max_seq_len": 8192}
    words |= {"concurrency": 64, "requests": 384, "lengths": "fixed", "arrivals": "closed"}
    plan = on_a_card(**words)
    s = evaluate(plan).serve
    stream = paged(plan)
    sure = ENGINES[engine].sure
    assert (s.running > s.max_concurrency) is not sure
    assert s.ttft_seconds == pytest.approx(stream.ttft.mean, rel=0.2)
    assert s.tokens_per_second == pytest.approx(stream.tokens_per_second, rel=0.1)
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("prompt", "output"), [(1024, 256), (1024, 1024), (1024, 4096), (512, 4096)]
)
def test_where_sequences_are_put_out_as_much_is_read_again_as_is_generated(engine, prompt, output):
    """Memory is full, so that each token takes the place of one that is put out, whatever the
    lengths."""
    words = {"engine": engine, "prompt_len": prompt, "output_len": output, "max_seq_len": 8192}
    words |= {"concurrency": 96, "requests": 576, "lengths": "fixed", "arrivals": "closed"}
    plan = on_a_card(**words)
    s, server = evaluate(plan).serve, Server.of(plan)
    stream = paged(plan)
    again = stream.recomputed_tokens / stream.completed
    assert again == pytest.approx(output, rel=0.15)
    assert server.numbers.serve.again_tokens == output
    assert s.tokens_per_second == pytest.approx(stream.tokens_per_second, rel=0.1)
    checked(Book(plan, evaluate(plan)))


def test_a_replica_of_fewer_lets_nobody_wait():
    """Of 64 that are asked for a card runs 26; a replica that is asked for 8 runs these alone."""
    words = {"engine": "vllm", "prompt_len": 1024, "output_len": 1024, "max_seq_len": 8192}
    words |= {"arrivals": "closed"}
    many, few = (Server.of(on_a_card(**words, concurrency=n, max_num_seqs=64)) for n in (64, 8))
    assert many.numbers.serve.waiting > 32
    found, alone = of_running(many, 8).serve, few.numbers.serve
    assert found.ttft_seconds == pytest.approx(alone.ttft_seconds, rel=0.02)
    assert found.tpot_seconds == pytest.approx(alone.tpot_seconds, rel=0.02)


def test_where_all_have_room_nothing_is_read_again():
    roomy = {"engine": "vllm", "arrivals": "closed", "concurrency": 4}
    sure = {"engine": "tensorrt-llm", "arrivals": "closed", "concurrency": 512}
    for words in (roomy, sure):
        numbers = Server.of(on_a_card(**words)).numbers.serve
        assert numbers.again_tokens is None
        assert numbers.out_sequences is None


def test_tokens_of_a_step_choose_some_of_the_same_experts():
    """Of 128 experts one token chooses 8, and 16 tokens fewer than the 83 of chance."""
    server = Server.of(Plan.of({"model": "qwen3-235b-a22b", "serve": {"engine": "vllm"}}))
    one, some, every = (server.amounts(n, 1).elements((CHOSEN,)) for n in (1, 16, 4096))
    assert (one, every) == (8, 128)
    assert 40 < some < chosen(128, 8, 16) == 83


def test_experts_that_a_bias_balances_are_chosen_as_at_random():
    """DeepSeek-V3 and GLM-4.5 add a bias to each score that keeps experts equally loaded."""
    for model, experts, top in (("deepseek-v3", 256, 8), ("glm-4.5", 160, 8)):
        server = Server.of(Plan.of({"model": model, "serve": {"engine": "vllm"}}))
        assert server.amounts(16, 1).elements((CHOSEN,)) == chosen(experts, top, 16)


@pytest.mark.parametrize(("model", "waits"), [("qwen3-32b", "prompts"), ("deepseek-v3", "latent")])
def test_a_step_that_reads_prompts_waits_longer_between_kernels(model, waits):
    server = Server.of(Plan.of({"model": model, "serve": {"engine": "vllm"}}))
    reads, decodes = (
        next(p.time.seconds for p in parts(server, 1, tokens, 1024, 1) if p.kind == "launch")
        for tokens in (1024, 1)
    )
    layers = server.plan.architecture.layers
    assert reads - decodes == pytest.approx(layers * getattr(server.kernels, waits).middle)


# -- experts shared out ---------------------------------------------------------------------------


def shared_out(tp, ep, gpus=8):
    return Plan.of(
        {
            "model": "qwen3-235b-a22b",
            "cluster": {"gpu": "h200-sxm-141gb", "gpus": gpus},
            "parallel": {"tp": tp, "ep": ep},
            "serve": {"engine": "sglang", "weight_dtype": "fp8"},
        }
    )


def experts(tp, ep, gpus=8):
    return evaluate(shared_out(tp, ep, gpus)).serve


def test_experts_cut_by_tensor_or_by_expert_or_by_both_weigh_the_same():
    both = [experts(4, ep, 4).weights_bytes for ep in (1, 2, 4)]
    assert both[0] == pytest.approx(both[1]) == pytest.approx(both[2])


def test_where_attention_is_data_parallel_rows_go_to_their_experts():
    """Each GPU has whole attention and an eighth of the experts, and all-to-alls join them."""
    plan = shared_out(1, 8)
    server = Server.of(plan)
    assert server.expert_replicas == 8
    kinds = [p.kind for p in parts(server, 8, 1, 1000, 8)]
    assert "exchange" in kinds
    assert "link" not in kinds
    assert experts(1, 8).weights_bytes < experts(1, 1, 1).weights_bytes / 5


# -- what llama.cpp does to a prompt --------------------------------------------------------------


def moved(kind, **words):
    plan = Plan.of(
        {
            "model": "llama-3-8b",
            "cluster": {"gpu": words.pop("gpu", "rtx-4090-24gb"), "gpus": 1},
            "serve": {"engine": "llama.cpp", "concurrency": 1, "kv_dtype": "fp16"} | words,
        }
    )
    steps = Server.of(plan).numbers.serve
    return [sum(p.weights for p in s if p.kind == kind) for s in (steps.prefill, steps.decode)]


def test_narrow_weights_are_written_out_for_each_part_of_a_prompt():
    """4-bit blocks of 32 have 4.5 bits: read once, and written in 16. Apple's kernels need not."""
    layers = 32 * 4096 * (6144 + 4096 + 3 * 14_336)
    reads, generates = moved("unpack", weight_dtype="q4_0", prompt_len=1024)
    assert reads == pytest.approx(layers * (4.5 / 8 + 2), rel=0.05)
    assert generates == 0
    assert moved("unpack", weight_dtype="fp16", prompt_len=1024) == [0, 0]
    assert moved("unpack", weight_dtype="q4_0", gpu="m2-ultra-192gb") == [0, 0]


def test_scores_of_a_prompt_go_through_memory():
    """512 tokens a step, each with those before: 32 heads of 32 layers, 20 bytes a score."""
    reads, generates = moved("scores", weight_dtype="fp16", prompt_len=512)
    assert reads == 32 * 32 * 512 * 512 * 20
    assert generates == 0


def test_boards_add_products_in_16_bits_faster_than_in_32():
    """RTX 4090: 330 TFLOP/s in fp16, 165 with sums in 32 bits; the same chip's RTX 6000: 364."""
    one, other = (
        rates_of(Server.of(Plan.of({"cluster": {"gpu": gpu}, "serve": {"engine": "llama.cpp",
                           "weight_dtype": "fp16"}}))).products(16)[0]
        for gpu in ("rtx-4090-24gb", "rtx-6000-ada-48gb")
    )  # fmt: skip
    assert one / other == pytest.approx(330.3 / 364.2, rel=0.01)


@pytest.mark.parametrize("prompt", [512, 2000])
def test_a_prompt_under_llama_cpp_is_explained(prompt):
    words = {"engine": "llama.cpp", "weight_dtype": "q4_k_m", "prompt_len": prompt}
    plan = Plan.of({"cluster": {"gpu": "rtx-4090-24gb", "gpus": 1}, "serve": words})
    checked(Book(plan, evaluate(plan)))


# -- every number is explained --------------------------------------------------------------------


@pytest.mark.parametrize("word", ENGINES)
def test_every_number_of_an_engine_is_explained(word):
    plan = Plan.of({"serve": {"engine": word, "arrivals": "closed", "concurrency": 16}})
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize(("tp", "ep"), [(4, 1), (4, 2), (1, 8)])
@pytest.mark.parametrize("prefill", ["whole", "chunked", "disaggregated"])
def test_every_number_of_shared_out_experts_is_explained(tp, ep, prefill):
    plan = Plan.of(
        {
            "model": "gpt-oss-120b",
            "cluster": {"gpu": "b200-sxm-180gb", "gpus": 8},
            "parallel": {"tp": tp, "ep": ep},
            "serve": {
                "engine": "tensorrt-llm",
                "weight_dtype": "mxfp4",
                "arrivals": "closed",
                "prefill": prefill,
            },
        }
    )
    checked(Book(plan, evaluate(plan)))


# -- how sure a time is ---------------------------------------------------------------------------


@pytest.mark.parametrize("word", ENGINES)
@pytest.mark.parametrize("arrivals", ["poisson", "closed"])
def test_every_time_of_a_server_is_an_interval(word, arrivals):
    s = evaluate(Plan.of({"serve": {"engine": word, "arrivals": arrivals}})).serve
    first, token = s.ttft_range, s.tpot_range
    assert first[0] < s.ttft_seconds < first[1]
    assert 0.75 * s.tpot_seconds < token[0] < s.tpot_seconds < token[1] < 1.5 * s.tpot_seconds


@pytest.mark.parametrize(
    ("engine", "weights", "cache", "said"),
    [
        ("vllm", "nvfp4", "bf16", True), ("sglang", "nvfp4", "bf16", True),
        ("vllm", "nvfp4", "fp8", False), ("vllm", "fp8", "bf16", False),
        ("auto", "nvfp4", "bf16", False),
    ],
)  # fmt: skip
def test_a_checkpoint_in_nvfp4_has_a_cache_in_fp8(engine, weights, cache, said):
    words = {"engine": engine, "weight_dtype": weights, "kv_dtype": cache}
    plan = Plan.of({"cluster": {"gpu": "b200-sxm-180gb", "gpus": 1}, "serve": words})
    assert any("most checkpoints in NVFP4" in note for note in evaluate(plan).notes) == said


def test_where_nothing_fits_there_is_no_interval():
    s = evaluate(Plan.of({"model": "llama-3.1-405b", "serve": {"tp": 1}})).serve
    assert s.tpot_range is s.ttft_range is None
