"""Serving against what others logged (presets/evidence/served.toml) and models' own definitions."""

import math
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from streamed import paged
from tables import each

from evidence.served import (
    FIRST,
    GENERATING,
    IMAGES,
    REQUEST,
    ROOM,
    SPEED,
    SPEED_TOLERANCE,
    TOLERANCES,
    compared_served,
    served_table,
)
from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.families import FAMILIES
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.serving.serve import curve, servable, verdict
from memcore.serving.server import Server, chosen
from memcore.serving.time import of_layers
from memcore.stream import simulate
from memcore.tape.kinds import (
    attends,
    is_apart,
    is_coarse,
    is_fine,
    is_reused,
    is_shared,
    is_whole,
)
from memcore.units import GiB
from memcore.words.engines import ENGINES
from memcore.words.serving import RUNTIMES
from memcore.words.stored import KV_DTYPES, WEIGHT_DTYPES


def high():
    return [c for c in compared_served() if c.confidence == "high"]


def of(*what):
    """What `each` asks; nothing is compared where tests are collected."""
    return lambda: [pytest.param(c, id=c.run) for c in high() if c.what in what]


def serve(model, tp=1, **fields):
    gpus = {"gpu": "h200-sxm-141gb", "gpus": tp}
    return evaluate(Plan(model=model, cluster=gpus, parallel={"tp": tp}, serve=fields)).serve


DECODERS = [n for n in catalog.model_names() if servable(catalog.model(n))]


@each("name", DECODERS)
def test_kv_bytes_per_token_are_the_model_s_definition(name):
    m = catalog.model(name)

    def kept(heads: Any) -> int:
        return heads.kv_heads * (heads.head_dim + (heads.value_dim or heads.head_dim))

    seq_len = m.heard or min(4096, m.max_positions)
    train = {"attention": FAMILIES[m.family].attentions[0], "seq_len": seq_len}
    plan = Plan(model=name, train=train)
    if m.kv_rank:
        layers = sum(map(attends, m.kinds)) if m.recurrence else m.layers
        values = layers * (m.kv_rank + m.rotary_dim)
        if m.indexer:  # an 8-bit key and an fp32 scale, of layers that share no other's
            own = sum(not is_shared(kind) for kind in m.kinds) if m.kinds else m.layers
            values += own * (m.indexer.dim + 4) // 2
    elif m.entries:  # keys that are values: of a window, and shares of entries and their keys
        fine, coarse = (sum(map(of, m.kinds)) for of in (is_fine, is_coarse))
        entry, key = 2 * m.head_dim, m.indexer.dim + 4
        shares = fine * (entry + key) / m.entries.fine + coarse * entry / m.entries.coarse
        values = math.ceil(m.layers * entry + shares) / 2
    elif m.kinds:
        keep = [kind for kind in m.kinds if attends(kind) and not is_reused(kind)]
        values = sum(kept(m.heads_apart if is_apart(kind) else m) for kind in keep)
        if m.indexer:  # of blocks: a 16-bit key, of layers that choose
            values += sum(not is_whole(kind) for kind in keep) * m.indexer.dim
    else:
        values = m.layers * kept(m)
    assert Server.of(plan).numbers.serve.kv_bytes_per_token == values * 2


@pytest.mark.parametrize(
    ("engine", "latent"), [("vllm", 656), ("sglang", 656), ("tensorrt-llm", 576)]
)
def test_an_8_bit_latent_that_is_chosen_has_scales_and_16_bit_rotary_numbers(engine, latent):
    """656 bytes of a token in FlashMLA's layout; beside them an indexer's key of 132."""
    s = serve("deepseek-v3.2", 8, engine=engine, kv_dtype="fp8")
    assert s.kv_bytes_per_token == 61 * (latent + 132)


def test_llama_2_70b_for_128_users_of_2048_tokens():
    s = serve("llama-2-70b", prompt_len=1792, output_len=256)
    assert 128 * s.sequence_bytes == 80 * GiB


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_latents_are_on_every_tensor_parallel_rank(tp):
    assert serve("deepseek-v3", tp).kv_bytes_per_token == 61 * 576 * 2 == 70_272


def test_four_kv_heads_on_eight_ranks_are_replicated():
    assert serve("qwen3-235b-a22b", 8).kv_bytes_per_token == 94 * 2 * 128 * 2


@each("run", of("KV per token"))
def test_kv_per_token(run):
    assert abs(run.error) <= TOLERANCES["KV per token"]


# What misses, and by how much: on AMD vLLM logs the whole device (test_allocator.py).
MISSED = {"vLLM: weights of Gemma 3 27B on an MI300X": -0.0068}


@each("run", of("weights"))
def test_weights(run):
    if run.run in MISSED:
        assert run.remark
        assert run.error == pytest.approx(MISSED[run.run], abs=0.0005)
    else:
        assert abs(run.error) <= run.tolerance


HYBRID = ("blocks", "blocks of a sequence", "tokens of a block", "sequences")


@each("run", of(*HYBRID))
def test_a_hybrid_cache(run):
    """Gemma 3 27B: 52 sliding and 10 full layers in groups of ten. Qwen3-Next: 12 that attend and
    36 that keep a state, whose page is as large as attention's; Granite 4 and Qwen3.5 alike."""
    assert abs(run.error) <= run.tolerance


CLOSER = {  # runs that are held closer than others of their kind, by their names in the table
    # experts, padded as their backend pads them
    **dict.fromkeys(["gpt-oss-120b-h100-weights", "gpt-oss-120b-marlin-weights"], 0.003),
    # files of llama.cpp
    **dict.fromkeys(["gpt-oss-20b-gguf", "q25-7b-q8_0", "l3-8b-q4_k_m"], 0.001),
    **dict.fromkeys(["l3-70b-q5_k_m", "l3-70b-q6_k", "l3-70b-q8_0"], 0.001),
    "q3n-h200x2-tokens": 0.03,  # room of a log that was told no limit
    "q3-32b-sglang-tokens": 0.05,  # room of SGLang
}


@each("name", CLOSER)
def test_some_runs_are_held_closer(name):
    named = [run["id"] for run in served_table()["runs"]]
    assert abs(compared_served()[named.index(name)].error) <= CLOSER[name]


@each("run", lambda: [c for c in compared_served() if c.what in (IMAGES, ROOM)])
def test_a_tower_is_profiled(run):
    """Gemma 3 27B: as many images, and as much room beside the weights, as vLLM logged."""
    assert abs(run.error) <= run.tolerance


def test_weights_of_an_encoder_decoder():
    (run,) = [c for c in compared_served() if c.what == "weights" and "T5" in c.run]
    assert abs(run.error) <= run.tolerance


@pytest.mark.parametrize("used_for", [("check", "tuned"), ("check",)])
def test_room_is_right_in_the_median(used_for):
    errors = {
        c.run: abs(c.error) for c in high() if c.what == "KV tokens" and c.used_for in used_for
    }
    assert len(errors) >= 8
    assert median(errors.values()) <= TOLERANCES["KV tokens"], errors


@pytest.mark.parametrize("confidence", ["high", "medium"])
def test_what_is_allocated_while_generating(confidence):
    """litgpt, and transformers with prompts of up to 30,720 tokens: weights, cache, activations."""
    runs = [c for c in compared_served() if c.what == GENERATING and c.confidence == confidence]
    assert len(runs) >= 9
    assert median(abs(c.error) for c in runs) <= 0.02
    assert all(abs(c.error) <= c.tolerance or c.remark for c in runs)


@pytest.mark.parametrize(
    ("model", "word", "gib"),
    [
        # quantize's own README, of Llama 7B and 3.1 8B, in GiB to two places.
        ("llama-2-7b", "q4_0", 3.56),
        ("llama-2-7b", "q3_k_m", 3.07),
        ("llama-2-7b", "q4_k_m", 3.80),
        ("llama-2-7b", "q5_k_m", 4.45),
        ("llama-2-7b", "q6_k", 5.15),
        ("llama-3.1-8b", "q4_k_s", 4.36),
        ("llama-3.1-8b", "q4_k_m", 4.58),
    ],
)
def test_mixtures_of_llama_cpp(model, word, gib):
    s = serve(model, weight_dtype=word, kv_cache="contiguous")
    assert s.weights_bytes / GiB == pytest.approx(gib, rel=0.003)


# Files as their publishers give them, in GB: Qwen_Qwen3-4B, Qwen_Qwen3-8B, Meta-Llama-3.1-8B and
# Llama-3.3-70B in bartowski's pages; Qwen2.5-32B and 14B in RichardErkhov's (without an importance
# matrix); gemma-2-2b in unsloth/gemma-2-it-GGUF; Qwen3.5 in
# unsloth's, as ggml-org/Llama-macOS pull request 63 lists them; Qwen3.6-27B in mradermacher's, as
# sokann/Qwen3.6-27B-GGUF-5.076bpw and ggufbench/Qwen3.6-27B-4bpw-16GB-VRAM give their GiB.
PUBLISHED = {
    "qwen3-4b": {"q8_0": 4.28, "q6_k": 3.31, "q6_k_l": 3.40, "q5_k_m": 2.89, "q5_k_l": 2.98,
                 "q5_k_s": 2.82, "q4_k_m": 2.50, "q4_k_l": 2.59, "q4_k_s": 2.38},
    "qwen3-8b": {"q8_0": 8.71, "q6_k_l": 7.03, "q6_k": 6.73, "q5_k_l": 6.24, "q2_k": 3.28},
    "llama-3.1-8b": {"q6_k": 6.60, "q3_k_m": 4.02, "iq4_xs": 4.45},
    "llama-3.3-70b": {"q8_0": 74.98, "q6_k": 57.89, "q5_k_l": 50.60, "q5_k_m": 49.95,
                      "q5_k_s": 48.66, "q4_k_l": 43.30, "q4_k_m": 42.52, "q4_k_s": 40.35,
                      "q3_k_xl": 38.06, "iq4_xs": 37.90, "q3_k_l": 37.14,
                      "q3_k_m": 34.27, "q3_k_s": 30.91},
    "qwen2.5-32b": {"q4_0": 18.6, "q3_k_l": 17.2, "q3_k_m": 15.9, "q3_k_s": 14.4, "q2_k": 12.3},
    "qwen2.5-14b": {"q3_k_l": 7.92, "q3_k_m": 7.34, "q3_k_s": 6.66, "q2_k": 5.77},
    "gemma-2-2b": {"q8_0": 2.78, "q6_k": 2.15, "q5_k_m": 1.92, "q4_k_m": 1.71, "q3_k_m": 1.46},
    "qwen3.5-27b": {"q8_0": 28.6},
    "qwen3.5-35b-a3b": {"q8_0": 36.9},
    "qwen3.5-122b-a10b": {"q8_0": 129.9},
    "qwen3.5-397b-a17b": {"q8_0": 421.5},
    "qwen3.6-27b": {"q4_k_m": 15.401 * GiB / 1e9, "iq4_xs": 14.036 * GiB / 1e9},
}  # fmt: skip


# Dynamic files whose sizes no number was chosen by: Qwen3.5-27B in lmstudio-ai/lmstudio-bug-tracker
# issue 1594, Qwen3.8-27B in sudoingX/qwen38-mtp pull request 74 (with its drafts' layer).
HELD_OUT = {
    "qwen3.5-27b": {"q2_k_xl": 11.2, "q3_k_xl": 14.4, "q4_k_xl": 17.6, "q5_k_xl": 20.2,
                    "q6_k_xl": 25.7, "q8_k_xl": 35.5},
    "qwen3.6-27b": {"q4_k_xl": 17.559},
}  # fmt: skip


@pytest.mark.parametrize("model", HELD_OUT)
def test_dynamic_files_are_within_what_is_told(model):
    for word, gigabytes in HELD_OUT[model].items():
        s = serve(model, weight_dtype=f"ud-{word}", kv_cache="contiguous")
        told = WEIGHT_DTYPES[f"ud-{word}"].dynamic
        assert told
        assert told.least < gigabytes * 1e9 / s.weights_bytes < told.most + 0.001, word


@pytest.mark.parametrize("model", PUBLISHED)
def test_files_have_the_bytes_that_their_publishers_give(model):
    """A file has a header and a vocabulary besides: up to 0.01 GB."""
    for word, gigabytes in PUBLISHED[model].items():
        s = serve(model, weight_dtype=word, kv_cache="contiguous")
        assert s.weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.003, abs=0.011), word


def test_experts_alone_are_in_four_bits_where_the_scheme_says_so():
    """gpt-oss-120b is published as 60.8 GiB."""
    s = serve("gpt-oss-120b", weight_dtype="mxfp4")
    assert s.weights_bytes / GiB == pytest.approx(60.8, rel=0.002)
    rows = {r.name: r.dtype for r in s.rows}
    assert rows["layers.mlp.experts.down_proj"] == "mxfp4"
    assert rows["layers.self_attn.q_proj.weight"] == rows["head.lm_head.weight"] == "bf16"


def test_whole_experts_are_shared_out():
    """Over eight ranks each has an eighth of the experts, whole, and of the rest what tp cuts."""
    plan = Plan(model="mixtral-8x7b", cluster={"gpus": 8}, parallel={"tp": 8, "ep": 8})
    both = [evaluate(p).serve for p in (plan, plan.changed("parallel.ep", 1))]
    assert both[0].weights_bytes == both[1].weights_bytes
    stacked = next(r for r in both[0].rows if r.name.endswith("experts.down_proj"))
    assert str(stacked.shape).startswith("EXPERTS/EP 1 x D 4,096 x EXPERT_F 14,336")


def test_a_window_keeps_no_more_than_it_sees():
    """Half of Gemma 2's layers see 4,096 tokens."""
    long, short = (
        serve(
            "gemma-2-9b", kv_cache="contiguous", prompt_len=n - 1, output_len=1, max_seq_len=n
        ).sequence_bytes
        for n in (8192, 4096)
    )
    assert long == 1.5 * short


def test_a_contiguous_cache_reserves_the_longest_sequence_that_is_let_in():
    """Llama 2 7B keeps 512 KiB of a token: 57.5 GiB hold 115 sequences of 1,024 tokens, but 28 of
    the model's 4,096. A page, and what grows, is taken for what is there."""

    def found(cache, longest):
        plan = Plan(
            model="llama-2-7b",
            cluster={"gpus": 1},
            serve={"prompt_len": 512, "output_len": 512, "kv_cache": cache, "max_seq_len": longest},
        )
        return evaluate(plan).serve

    for cache in ("paged", "dynamic"):
        assert {found(cache, n).max_concurrency for n in (0, 1024, 4096)} == {115}
        assert found(cache, 0).reserved_tokens == 0
    fitting = {n: found("contiguous", n) for n in (0, 1024, 2048, 4096)}
    assert [s.max_concurrency for s in fitting.values()] == [28, 115, 57, 28]
    assert [s.reserved_tokens for s in fitting.values()] == [4096, 1024, 2048, 4096]
    for s in fitting.values():
        assert s.sequence_bytes == s.reserved_tokens * 512 * 1024
        assert s.wasted_bytes_per_sequence == (s.reserved_tokens - 768) * 512 * 1024
        assert s.kv_capacity_tokens == fitting[0].kv_capacity_tokens


def test_a_server_has_ranks_of_its_own():
    """TP 1 to 8 of Llama 3.3 70B on eight H100 took the training step from 5.55 to 1.16 s; the
    server's own leaves it."""
    base = Plan(model="llama-3.3-70b", serve={"concurrency": 8})
    own = base.with_changes({"serve.tp": 4, "serve.pp": 2})
    shared = base.with_changes({"parallel.tp": 4, "parallel.pp": 2})
    before, alone, both = map(evaluate, (base, own, shared))
    assert alone.time == before.time
    assert alone.memory == before.memory
    assert both.time.step_seconds != before.time.step_seconds
    assert alone.serve == both.serve
    assert (alone.serve.tp, alone.serve.pp, alone.serve.gpus_per_replica) == (4, 2, 8)
    assert (before.serve.tp, before.serve.pp) == (1, 1)
    assert curve(own) == curve(shared)
    runs = [simulate(p.changed("serve.requests", 20)).runs for p in (own, shared)]
    assert runs[0] == runs[1]


def test_an_engine_beside_a_trainer_has_the_server_s_ranks():
    base = Plan(model="llama-3-8b", together={"kind": "grpo"}, train={"seq_len": 512})
    own = base.changed("serve.tp", 4)
    named = base.changed("together.engine_tp", 4)
    assert evaluate(own).together == evaluate(named).together != evaluate(base).together
    with pytest.raises(PlanError, match=r"serve\.tp.*divide"):
        own.changed("cluster.gpus", 6)


@pytest.mark.parametrize(
    ("fields", "field"), [({"tp": 3}, "tp"), ({"tp": 16}, "tp"), ({"pp": 33}, "pp")]
)
def test_ranks_that_cannot_share_a_model_are_refused_by_name(fields, field):
    with pytest.raises(PlanError, match=rf"serve\.{field}.*0 is as many as in training"):
        Plan(model="llama-3-8b", serve=fields)


def test_the_link_carries_the_server_s_ranks():
    plan = Plan(serve={"tp": 4, "pp": 2})
    assert {"stp": "4", "spp": "2"}.items() <= encode(plan, short=True).items()
    assert decode(encode(plan))[0] == plan
    assert decode({"tp": "4"})[0].serving_tp == 4  # a link that knows none means training's


def test_a_report_says_what_is_reserved():
    plan = Plan(model="llama-2-7b", cluster={"gpus": 1}, serve={"kv_cache": "contiguous"})
    notes = " ".join(evaluate(plan).notes)
    assert "reserves 4,096 tokens" in notes
    assert "serve.max_seq_len" in notes
    assert "reserves" not in " ".join(evaluate(plan.changed("serve.kv_cache", "paged")).notes)


def test_a_simulated_stream_has_as_many_sequences_as_the_reservation_leaves():
    plan = Plan(
        model="llama-2-7b",
        cluster={"gpus": 1},
        serve={
            "prompt_len": 512,
            "output_len": 512,
            "concurrency": 1000,
            "arrivals": "burst",
            "lengths": "fixed",
            "requests": 200,
            "kv_cache": "contiguous",
            "max_seq_len": 2048,
        },
    )
    runs = {r.strategy: r.concurrency_peak for r in simulate(plan).runs}
    assert runs["max"] == evaluate(plan).serve.max_concurrency == 57
    assert runs["paged"] >= evaluate(plan.changed("serve.kv_cache", "paged")).serve.max_concurrency


def test_the_worked_serving_plan_shows_what_a_reservation_costs():
    plan = Plan.of(catalog.plan_entries()["llama-2-70b-serving-128x2048"]["plan"])
    paged, reserved = (
        evaluate(plan.changed("serve.kv_cache", cache)).serve for cache in ("paged", "contiguous")
    )
    assert paged.fits
    assert not reserved.fits
    assert reserved.max_concurrency < 0.6 * paged.max_concurrency


def test_a_report_says_what_a_window_lets_go_of_and_what_lies_beside_the_budget():
    """Gemma 3 27B at 4,096 tokens: 256 blocks of its full layers, and 6 x 65 of the others."""
    base = {"model": "gemma-3-27b-text", "train": {"seq_len": 512}}
    plan = Plan(**base, serve={"prompt_len": 4095, "output_len": 1})
    assert f"holds {(256 + 6 * 65) * 1_310_720 / 2**20:.0f} MiB" in " ".join(evaluate(plan).notes)
    crowded = evaluate(plan.changed("serve.memory_utilization", 0.99))
    assert "CUDA context" in " ".join(crowded.notes)
    assert "CUDA context" not in " ".join(evaluate(Plan()).notes)


def test_four_bits_of_cache_are_four_and_a_half():
    whole, small = (serve("llama-3-8b", kv_dtype=d).kv_bytes_per_token for d in ("bf16", "int4"))
    assert small / whole == 4.5 / 16


# -- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [("high",), ("high", "medium")])
@pytest.mark.parametrize("used_for", [("check", "tuned"), ("check",)])
def test_speeds_are_right_in_the_median(used_for, confidence):
    """Batch-1 decoding and prefill with five engines, on four kinds of GPU."""
    errors = {
        c.run: abs(c.error)
        for c in compared_served()
        if c.what in (SPEED, REQUEST, FIRST)
        and c.used_for in used_for
        and c.confidence in confidence
    }
    assert len(errors) >= 20
    assert median(errors.values()) <= SPEED_TOLERANCE, errors


def test_what_speed_misses_has_its_reason():
    for c in compared_served():
        assert abs(c.error) <= c.tolerance or c.remark, c.run


def bound(plan):
    """Seconds to read every weight that a step needs, and the cache, at the datasheet's rate."""
    s = evaluate(plan).serve
    read = sum(r.bytes for r in s.rows if r.consumer == "parameters" and "embed" not in r.name)
    cache = s.kv_bytes_per_token * (plan.serve.prompt_len + plan.serve.output_len // 2)
    return (read + cache) / plan.accelerator.memory_bandwidth


@each("runtime", RUNTIMES)
@each("weights", WEIGHT_DTYPES)
def test_bandwidth_is_never_beaten(weights, runtime):
    models = {
        "a100-sxm-80gb": "llama-3-8b",
        "h200-sxm-141gb": "llama-3-8b",
        "t4-16gb": "llama-3.2-1b",
    }
    for gpu, model in models.items():
        plan = Plan(
            model=model, cluster={"gpu": gpu, "gpus": 1},
            serve={"weight_dtype": weights, "runtime": runtime, "concurrency": 1},
        )  # fmt: skip
        assert evaluate(plan).serve.tpot_seconds >= bound(plan)


WAVES = 0.9  # tiles of a product are whole: at some sizes a wave of them is nearly empty


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_more_sequences_are_slower_each_and_faster_together(kv):
    points = curve(Plan(serve={"kv_dtype": kv}))
    each = [p.tpot_seconds for p in points]
    assert each == sorted(each)
    together = [p.tokens_per_second for p in points]
    assert all(b > WAVES * a for a, b in pairwise(together))
    assert {p.fits for p in points} == {True, False}
    assert points[0].running == 1


def arithmetic_takes_most(server, sequences):
    """Whether arithmetic takes most of the seconds that a step's products take."""
    products = [p.time for p in of_layers(server, sequences, 1) if p.time.flops]
    slow = sum(o.seconds for o in products if o.bound_by == "compute")
    return slow > sum(o.seconds for o in products) / 2


def test_decoding_turns_compute_bound():
    """Where a product's FLOPs per byte pass what the GPU has of them: 2 FLOPs per weight of two
    bytes and token, so at about the ratio of the two rates."""
    plan = Plan()
    server = Server.of(plan)
    gpu, reached = plan.accelerator, server.kernels
    share = reached.products[""]["bf16"].middle / reached.bandwidth.middle
    turns = gpu.flops["bf16"] * share / gpu.memory_bandwidth
    assert not arithmetic_takes_most(server, int(0.9 * turns))
    assert arithmetic_takes_most(server, math.ceil(1.1 * turns))


def test_a_draft_gives_what_leviathan_says():
    plain = Plan(serve={"concurrency": 1})
    drafted = plain.changed("serve.draft_tokens", 4)
    a, b = evaluate(plain).serve, evaluate(drafted).serve
    assert b.tokens_per_step == pytest.approx((1 - 0.7**5) / (1 - 0.7))
    assert b.tpot_seconds < a.tpot_seconds / 2  # checking five tokens reads the weights once
    with_model = evaluate(drafted.changed("serve.draft_model", "llama-3.2-1b")).serve
    assert b.tpot_seconds < with_model.tpot_seconds < a.tpot_seconds
    assert with_model.table_bytes - b.table_bytes == 2_471_628_800  # 1.2 billion weights
    assert with_model.kv_bytes_per_token - b.kv_bytes_per_token == 16 * 2 * 8 * 64 * 2


def test_a_prompt_in_pieces_waits_longer_and_stalls_others_less():
    whole = Plan(serve={"prompt_len": 16_384, "max_batched_tokens": 2048})
    a, b = (evaluate(whole.changed("serve.prefill", word)).serve for word in ("whole", "chunked"))
    assert b.prefill_steps == 9  # of 2,048 less the 64 that generate
    assert b.ttft_seconds > a.ttft_seconds
    assert b.stall_seconds < a.stall_seconds / 3
    apart = evaluate(whole.changed("serve.prefill", "disaggregated")).serve
    assert apart.stall_seconds == apart.tpot_seconds
    assert apart.ttft_seconds - apart.transfer_seconds == a.ttft_seconds
    moved = 16_384 * 131_072
    assert apart.transfer_seconds == pytest.approx(moved / (450e9 * 0.75))


def test_what_is_offloaded_crosses_pcie():
    plan = Plan(serve={"concurrency": 1})
    away = evaluate(plan.changed("serve.offload_weights", 4.0)).serve
    here = evaluate(plan).serve
    assert away.kv_budget_bytes - here.kv_budget_bytes == 4 * GiB
    pcie = min(plan.accelerator.pcie_bandwidth, plan.node.pcie_bandwidth) * 0.75
    assert away.tpot_seconds - here.tpot_seconds == pytest.approx(4 * GiB / pcie)
    words = {"serve.kv_cache": "contiguous", "serve.offload_kv": "cpu"}
    here, host = (evaluate(plan.with_changes({**words, "serve.offload_kv": word})).serve
                  for word in ("none", "cpu"))  # fmt: skip
    assert host.kv_capacity_tokens > here.kv_capacity_tokens
    assert host.tpot_seconds >= here.tpot_seconds


def test_what_runs_has_its_cache_on_the_gpu():
    """A second tier makes no room for what runs; what was computed before comes from it."""
    plan = Plan(serve={"prompt_len": 16_384, "prefix_hits": 0.75, "concurrency": 4})
    tier = evaluate(plan.changed("serve.offload_kv", "cpu"))
    here, there = evaluate(plan).serve, tier.serve
    assert there.kv_budget_bytes == here.kv_budget_bytes
    assert there.max_concurrency == here.max_concurrency
    assert there.tpot_seconds == here.tpot_seconds
    pcie = min(plan.accelerator.pcie_bandwidth, plan.node.pcie_bandwidth) * 0.75
    back = 12_288 * 131_072 / pcie
    assert there.ttft_seconds - here.ttft_seconds == pytest.approx(back)
    assert there.tokens_per_second < here.tokens_per_second
    assert there.host_room_bytes == 0.9 * plan.node.dram_bytes // 8
    assert any("12,288 tokens of a prompt" in note for note in tier.notes)
    alone = evaluate(plan.with_changes({"serve.prefix_hits": 0.0, "serve.offload_kv": "cpu"}))
    assert any("Nothing is computed less" in note for note in alone.notes)


@pytest.mark.parametrize(("tokens", "experts"), [(1, 8), (2, 16), (16, 83), (10_000, 128)])
def test_few_tokens_read_few_experts(tokens, experts):
    """128 experts of which each token takes 8: at random, a second token takes 7.5 others."""
    assert chosen(128, 8, tokens) == experts
    assert chosen(0, 0, tokens) == 0


# -- small machines -------------------------------------------------------------------------------


def on(gpu, model="llama-3.1-8b", **fields):
    plan = Plan(
        model=model, cluster={"gpu": gpu, "gpus": 1, "gpus_per_node": 1},
        serve={"concurrency": 1, "prompt_len": 1024, "output_len": 256, "runtime": "native",
               "kv_cache": "contiguous", "max_seq_len": 1280, "max_batched_tokens": 512, **fields},
    )  # fmt: skip
    return evaluate(plan).serve


def test_what_a_practitioner_knows_of_small_machines():
    """With a context of 1,280 tokens, as the model's own limit is beyond most of them."""
    assert not on("phone-8gb", weight_dtype="q4_k_m").fits  # 4.6 GiB in an app's 4 GiB
    assert on("phone-8gb", "llama-3.2-1b", weight_dtype="q4_k_m").fits
    assert not on("rtx-4060-laptop-8gb").fits  # 15 GiB in 8
    assert on("rtx-4060-laptop-8gb", weight_dtype="q4_k_m").fits
    assert on("m4-16gb", weight_dtype="q4_k_m").fits
    assert not on("m4-16gb", "qwen2.5-32b", weight_dtype="q4_k_m").fits
    assert on("jetson-thor-128gb", "llama-3.3-70b", weight_dtype="q4_k_m").fits


def test_the_operating_system_has_its_share_of_one_memory():
    engine = {"engine": "llama.cpp"}
    with_os, without = (
        on(gpu, **engine).overhead_bytes for gpu in ("jetson-thor-128gb", "rtx-4060-laptop-8gb")
    )
    assert with_os - without == pytest.approx(1.6 * GiB, abs=2)


def test_a_chip_without_cuda_has_no_context_of_it():
    assert on("m4-16gb").overhead_bytes == on("phone-8gb").overhead_bytes == 0


@pytest.mark.parametrize("gpu", ["m4-16gb", "jetson-orin-nano-8gb", "phone-12gb"])
def test_there_is_nowhere_to_offload_to_from_one_memory(gpu):
    for field, value in (("offload_weights", 1.0), ("offload_kv", "cpu")):
        with pytest.raises(PlanError, match=f"serve.{field}"):
            on(gpu, "llama-3.2-1b", **{field: value})


def test_a_window_of_one_token_drops_nothing():
    """transformers keeps [-window + 1:], which is [0:] then."""
    config = {
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "sliding_window": 1,
    }  # fmt: skip
    kept = [
        evaluate(Plan(model=model, serve={"kv_cache": "dynamic"})).serve.sequence_bytes
        for model in (config, config | {"sliding_window": None}, config | {"sliding_window": 2})
    ]
    assert kept[0] == kept[1] > kept[2]


# -- how many generate at once, and when nothing fits ---------------------------------------------

LOAD = {"prefill": "chunked", "runtime": "graphs", "output_len": 256}
NODE = {"gpu": "b200-sxm-180gb", "gpus": 8}


def felt_by(concurrency=64, prompt=1024, **fields):
    serve = {**LOAD, "concurrency": concurrency, "prompt_len": prompt, "tp": 8, **fields}
    return evaluate(Plan(model="yi-6b", cluster=NODE, serve=serve)).serve


@pytest.mark.parametrize("prefill", ["whole", "chunked"])
def test_the_first_token_comes_no_earlier_with_more_sequences_or_a_longer_prompt(prefill):
    many = [*(1, 64, 500, 1000, 1500, 1638, 1639, 2000), *(4000, 8191, 8192, 8193, 10_000)]
    seen = [felt_by(n, prefill=prefill).ttft_seconds for n in many]
    assert all(b >= a for a, b in pairwise(seen))
    assert seen[-1] == seen[-2]  # beyond what a step has room for they wait
    for n in (64, 1000, 10_000):
        lengths = (1, 100, 1024, 2048, 4096, 8192)
        found = [felt_by(n, prompt=p, prefill=prefill) for p in lengths]
        each = ENGINES["vllm"].sequence.middle  # of longer prompts fewer sequences run at once
        point_errors = [s.ttft_seconds + each * (n - s.running) for s in found]
        assert all(b >= a for a, b in pairwise(point_errors))


def test_no_more_sequences_generate_at_once_than_a_step_has_tokens():
    """vLLM refuses more (SchedulerConfig: max_num_batched_tokens >= max_num_seqs); and of 8,192
    tokens a step, prompts of 1,024 for outputs of 256 take four fifths."""
    assert felt_by(200, prefill="whole", max_batched_tokens=64).running == 64
    assert felt_by(200, prefill="whole", max_batched_tokens=64, draft_tokens=3).running == 16
    assert felt_by(10_000).running == 8192 // 5
    assert felt_by(64).running == 64
    plan = Plan(model="yi-6b", cluster=NODE, serve={**LOAD, "tp": 8, "concurrency": 10_000})
    notes = " ".join(evaluate(plan).notes)
    assert "speeds are of 1,638 sequences" in notes
    assert "serve.max_batched_tokens" in notes
    assert "speeds are of" not in " ".join(evaluate(plan.changed("serve.concurrency", 64)).notes)


def test_a_simulated_stream_generates_as_many_at_once_as_a_step_leaves():
    """In steady state of chunked prefill: 64 tokens a step, prompts of 30 for outputs of 30."""
    lengths = {"prompt_len": 30, "output_len": 30, "lengths": "fixed", "arrivals": "burst"}
    serve = {**LOAD, **lengths, "concurrency": 64, "max_batched_tokens": 64, "requests": 2000}
    plan = Plan(model="llama-3.2-1b", cluster={"gpus": 1}, serve=serve)
    assert evaluate(plan).serve.running == 32
    run = paged(plan)
    steps = 2000 * 30 / run.iterations  # tokens that come out of one
    assert steps == pytest.approx(32, rel=0.05)


SPEEDS = (
    *("prefill_steps", "transfer_seconds", "tower_seconds", "ttft_seconds", "tpot_seconds"),
    *("stall_seconds", "tokens_per_second", "prefill_bound_by", "decode_bound_by"),
)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cluster": {"gpus": 1}}, "nothing is left for the KV cache"),
        (
            {"cluster": {"gpus": 4}, "serve": {"tp": 4, "prompt_len": 1_000_000}},
            "one sequence needs",
        ),
    ],
)
def test_where_nothing_fits_no_speeds_are_claimed(fields, why):
    plan = Plan(model="llama-3.3-70b", **fields)
    report = evaluate(plan)
    assert report.serve.max_concurrency == report.serve.running == 0
    assert [getattr(report.serve, name) for name in SPEEDS] == [None] * len(SPEEDS)
    assert not set(SPEEDS) & set(report.to_dict()["serve"])
    assert why in " ".join(report.notes)
    book = Book(plan, report)
    assert not [name for name in SPEEDS if book.explained(f"serve.{name}")]
    assert book.explain("serve.running").value == 0
    assert why in verdict(report.serve, plan)


def test_what_fits_in_part_says_whose_speeds_are_given():
    plan = Plan(model="llama-3-8b", serve={"concurrency": 10_000})
    report = evaluate(plan)
    s = report.serve
    assert 0 < s.max_concurrency == s.running < 10_000
    assert not s.fits
    assert f"speeds are of {s.running:,} sequences" in " ".join(report.notes)
    assert f"{s.max_concurrency:,} fit" in verdict(s, plan)
