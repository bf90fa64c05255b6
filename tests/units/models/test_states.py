"""Layers that keep one state of a sequence, not its tokens: state space models, linear attention.

What transformers' own cache holds of them, what vLLM's pages become for them, and the laws that a
state obeys. Live against transformers, where it is installed, as in CI.
"""

import math

import pytest
from drawn import STATES
from explained import checked
from swept import peaks

from memcore import PlanError
from memcore.errors import Issue
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.families import from_config
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.search.solve import MOST_TOKENS, longest_context
from memcore.serving.cache import room
from memcore.serving.server import Server
from memcore.serving.time import SCAN, decoding, parts
from memcore.tape.kinds import attends, recurs
from memcore.units import GiB
from memcore.words.serving import KV_CACHES, PREFILLS, RUNTIMES
from memcore.words.word import DTYPE_BYTES

WHY = "asks PyTorch itself: pip install '.[oracle]'"
HYBRID = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_chunk_size": 16, "intermediate_size": 64}
DELTA = HYBRID | {
    "num_hidden_layers": 4, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
ROUTED = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
SMALL = {  # of every family whose layers keep states
    "qwen3_next": DELTA | ROUTED | {"intermediate_size": 32, "mlp_only_layers": [1]},
    "qwen3_5_text": DELTA | {"intermediate_size": 32},
    "qwen3_5_moe_text": DELTA | ROUTED,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "vocab_size": 64},
    "mamba2": {
        "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 8, "state_size": 16,
        "n_groups": 2, "vocab_size": 64, "chunk_size": 16, "use_bias": True,
    },
    "bamba": HYBRID | MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "granitemoehybrid": HYBRID | MAMBA | {
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4, "mamba_conv_bias": False,
    },
    "falcon_h1": HYBRID | MAMBA | {"num_hidden_layers": 2, "mamba_d_ssm": 64,
                                   "mamba_rms_norm": True},
    "nemotron_h": HYBRID | {
        "layers_block_type": ["mamba", "moe", "attention", "mlp"], "head_dim": 8,
        "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2,
        "intermediate_size": 64, "chunk_size": 16, "n_routed_experts": 4,
        "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
    },
    "jamba": HYBRID | {
        "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4,
        "mamba_d_state": 8, "intermediate_size": 48,
    },
    "lfm2": HYBRID | {"num_hidden_layers": 3, "full_attn_idxs": [1], "intermediate_size": 48},
    "lfm2_moe": HYBRID | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
    "kimi_linear": HYBRID | {
        "num_hidden_layers": 5, "num_key_value_heads": 4, "kv_lora_rank": 16, "v_head_dim": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "linear_num_heads": 2, "linear_head_dim": 8,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "intermediate_size": 48, "pad_token_id": None,
    },
    "minimax": HYBRID | {"num_hidden_layers": 3, "num_local_experts": 4, "intermediate_size": 16},
}  # fmt: skip
OF_ITS_OWN = ("minimax",)  # its cache in transformers is not theirs
PRESETS = [n for n in catalog.model_names() if (m := catalog.model(n)).recurrence and not m.tower]


def config(family, **more):
    return {"model_type": family} | SMALL[family] | more


def plan_of(model, tp=1, pp=1, gpu="h200-sxm-141gb", **serve):
    return Plan(
        model=model,
        cluster={"gpu": gpu, "gpus": 2 * tp * pp},
        parallel={"tp": tp, "pp": pp},
        train={"seq_len": 3},
        serve=serve,
    )


def served(model, **words):
    return evaluate(plan_of(model, **words)).serve


def test_every_family_with_states_is_small_here():
    assert set(STATES) == set(SMALL)
    assert {catalog.model(n).family for n in PRESETS} == set(SMALL)


# ---- transformers


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason=WHY)
    return pytest.importorskip("transformers", reason=WHY)


@pytest.mark.oracle
@pytest.mark.parametrize("family", SMALL)
def test_parameters_of_small_models(family, transformers):
    """With flags that presets and defaults have not: biases, a norm behind the state, an MLP."""
    import torch

    from memcore.models.counts import parameters

    made = transformers.AutoConfig.for_model(family, **SMALL[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    assert parameters(from_config(config(family))) == sum(p.numel() for p in model.parameters())


@pytest.mark.oracle
@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", [f for f in SMALL if f not in OF_ITS_OWN])
def test_a_cache_after_a_prefill(family, dtype, tokens, transformers):
    """Keys, values, convolution states and recurrent states of two sequences, to the byte; shorter
    than the convolution too."""
    import torch

    made = transformers.AutoConfig.for_model(family, **SMALL[family])
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=kind).eval()
    cache = transformers.DynamicCache(config=model.config)
    word = "cache_params" if family in ("mamba", "mamba2") else "past_key_values"
    with torch.no_grad():
        model(torch.zeros((2, tokens), dtype=torch.long), use_cache=True, **{word: cache})
    keys = [t for one in cache.layers for t in (getattr(one, "keys", None),
                                                getattr(one, "values", None))]  # fmt: skip
    states = [
        state
        for one in cache.layers
        for kept in (getattr(one, "conv_states", {}), getattr(one, "recurrent_states", {}))
        for state in kept.values()
    ]
    held, kept = (
        sum(t.numel() * t.element_size() for t in of if t is not None) for of in (keys, states)
    )
    s = served(
        config(family), kv_cache="dynamic", weight_dtype=dtype, kv_dtype=dtype,
        prompt_len=tokens - 1, output_len=1,
    )  # fmt: skip
    assert 2 * s.state_bytes_per_sequence == kept > 0
    assert 2 * s.sequence_bytes == held + kept


# ---- vLLM's pages


@pytest.mark.parametrize(
    ("model", "tp", "tokens", "padding"),
    [
        # What vLLM printed at its start: tokens of a block, and by how much a state's page is
        # padded, in per cent to two places.
        # Qwen3-Next 80B-A3B on two H200, vLLM 0.10.2, log of 2025-10-23
        ("qwen3-next-80b-a3b", 2, 544, 1.49),
        # Granite 4.0 H-Small, vLLM 0.11.1rc6, log of 2025-11-14
        ("granite-4.0-h-small", 1, 528, 0.69),
        # Qwen3.5 9B, whose config asks for fp32 states, vLLM 0.19.0, log of 2026-04-07
        ("qwen3.5-9b-text", 1, 528, 0.76),
    ],
)
def test_a_block_holds_as_many_tokens_as_a_state_wants(model, tp, tokens, padding):
    server = Server.of(plan_of(model, tp))
    pages = room(server)
    assert pages.tokens == tokens
    more = pages.page_bytes / pages.state_bytes - 1
    assert round(100 * more, 2) == padding


def test_a_page_in_8_bits_holds_twice_the_tokens():
    """A block of Qwen3.5 9B with an fp8 cache has 1,056 tokens; its states stay as they are."""
    wide, narrow = (served("qwen3.5-9b-text", kv_dtype=d) for d in ("bf16", "fp8"))
    assert (wide.block_tokens, narrow.block_tokens) == (528, 1056)
    assert wide.block_bytes == narrow.block_bytes
    assert wide.state_bytes_per_sequence == narrow.state_bytes_per_sequence


def test_a_block_that_is_asked_for_is_a_multiple():
    assert served("qwen3-next-80b-a3b", tp=2, block_size=64).block_tokens == 576
    assert served("qwen3-next-80b-a3b", tp=2, block_size=8).block_tokens == 544


def test_groups_of_pages():
    """Qwen3-Next: 12 layers attend and 36 keep a state, in groups of 12."""
    plan = plan_of("qwen3-next-80b-a3b", 2, prompt_len=262_143, output_len=1)
    pages = room(server := Server.of(plan))
    assert (pages.group, pages.full, pages.recurrent) == (12, 1, 3)
    assert server.numbers.serve.blocks_per_sequence == math.ceil(262_144 / 544) + 3


@pytest.mark.parametrize(("dtype", "tokens"), [("auto", 528), ("fp32", 528), ("bf16", 272)])
def test_the_dtype_of_states_is_a_word_of_the_plan(dtype, tokens):
    """Qwen3.5 9B's config asks for fp32; vLLM's --mamba-ssm-cache-dtype says otherwise."""
    s = served("qwen3.5-9b-text", state_dtype=dtype)
    assert s.block_tokens == tokens
    assert {row.dtype for row in s.rows if row.name == "recurrent state"} == {
        "bf16" if dtype == "bf16" else "fp32"
    }


def test_a_block_of_nemotron_s():
    """672 tokens with states in 16 bits (https://github.com/vllm-project/vllm/issues/24280). Since
    then vLLM takes fp32 where the config is silent (NemotronHForCausalLMConfig), as we do."""
    assert served("nemotron-nano-9b-v2", state_dtype="bf16").block_tokens == 672
    assert served("nemotron-nano-9b-v2").block_tokens == 1312


def test_a_dtype_that_an_engine_has_not_is_named():
    with pytest.raises(PlanError, match=r"serve\.state_dtype.*serve\.kv_cache to paged"):
        plan_of("mamba2-780m", state_dtype="bf16", kv_cache="dynamic")
    assert served("mamba2-780m", state_dtype="fp32", kv_cache="dynamic")
    assert served("llama-3-8b", state_dtype="bf16", kv_cache="dynamic")  # which keeps none


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"offload_kv": "cpu"}, "serve.offload_kv"),
        ({"draft_tokens": 2, "draft_model": "mamba2-780m"}, "serve.draft_model"),
    ],
)
def test_what_is_not_planned_with_states_is_named(words, field):
    with pytest.raises(PlanError) as caught:
        plan_of("granite-4.0-h-tiny", **words)
    assert field in [issue.field for issue in caught.value.issues]
    document = plan_of("granite-4.0-h-tiny").document()
    document["serve"] |= words
    fitted, issues = repair(document)
    assert issues
    assert evaluate(fitted).serve


def test_heads_of_states_must_be_shared_out_whole():
    """Qwen3-Next's 16 attention heads and 32 of states; Falcon-H1 7B's 24 divide by 3, 12 by 8."""
    with pytest.raises(PlanError, match=r"128 heads of a layer's state do not divide by tp 5"):
        plan_of("nemotron-nano-9b-v2", tp=5)


def test_a_sweep_of_what_does_not_train_is_nan():
    cells = peaks(
        plan_of("mamba2-780m", tp=2), {"train.micro_batch": [1, 2], "train.seq_len": [128]}
    )
    assert cells.shape == (2, 1)
    assert all(math.isnan(c) for c in cells.flat)


def test_a_state_that_forgets_by_channel_is_in_fp32():
    """Kimi Linear under vLLM (MambaStateShapeCalculator.kda_state_shape, kda_state_dtype): three
    tokens of 3 x 4,096 channels in 16 bits, 32 matrices of 128 x 128 in 32; seven latents of 576
    numbers for a token."""
    s = served("kimi-linear-48b")
    assert s.state_bytes_per_sequence == 20 * (3 * 3 * 4096 * 2 + 32 * 128 * 128 * 4)
    assert s.kv_bytes_per_token == 7 * 576 * 2


def test_lightning_attention_keeps_a_matrix_for_each_head():
    """MiniMax-Text-01 on eight GPUs (MambaStateShapeCalculator.linear_attention_state_shape): eight
    heads of each, in the dtype of the weights; one of eight heads of keys in ten layers."""
    s = served("minimax-text-01", tp=8)
    assert s.state_bytes_per_sequence == 70 * 8 * 128 * 128 * 2
    assert s.kv_bytes_per_token == 10 * 2 * 128 * 2


@pytest.mark.parametrize(("name", "kernel"), [("kimi-linear-48b", "chunk_kda"),
                                              ("minimax-m1-80k", "lightning")])  # fmt: skip
def test_what_is_served_alone_says_why_it_is_not_trained(name, kernel):
    notes = " ".join(evaluate(plan_of(name, tp=8)).notes)
    assert "planned as a server alone" in notes
    assert kernel in notes


# ---- laws


@pytest.mark.parametrize("cache", KV_CACHES)
@pytest.mark.parametrize("family", SMALL)
def test_a_state_is_as_large_however_long_its_sequence(family, cache):
    short, long = (
        served(config(family), kv_cache=cache, prompt_len=n, output_len=1, max_seq_len=n + 1)
        for n in (1, 4000)
    )
    assert short.state_bytes_per_sequence == long.state_bytes_per_sequence > 0
    assert (long.sequence_bytes > short.sequence_bytes) == any(
        map(attends, from_config(config(family)).kinds)
    )


@pytest.mark.parametrize("name", PRESETS)
def test_states_follow_from_the_config(name):
    """One layer's: (kernel - 1) x channels, and heads x width x state."""
    model, s = catalog.model(name), served(name)
    r, layers = model.recurrence, sum(map(recurs, model.kinds))
    convolution = (r.kernel - 1) * (r.heads * r.head_dim + 2 * r.groups * r.state) * 2
    state = r.heads * r.head_dim * r.state * DTYPE_BYTES[r.dtype or "bf16"]
    assert s.state_bytes_per_sequence == layers * (convolution + state)
    rows = [row for row in s.rows if row.consumer == "states"]
    assert sum(row.bytes_each for row in rows) == s.state_bytes_per_sequence


@pytest.mark.parametrize("tp", [2, 4])
def test_heads_are_shared_out(tp):
    """Each rank has its heads' states; of eight groups each has some, of one each has it."""
    whole, part = (served("nemotron-nano-9b-v2", tp=n).state_bytes_per_sequence for n in (1, tp))
    assert tp * part == whole
    alone, cut = (served("granite-4.0-h-small", tp=n).state_bytes_per_sequence for n in (1, tp))
    replicated = 36 * (tp - 1) * 2 * 128 * 3 * 2  # B and C of the one group, on every other rank
    assert tp * cut == alone + replicated


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_stage_holds_the_states_of_its_own_layers(pp):
    s = served("mamba-codestral-7b", pp=pp)
    assert s.state_bytes_per_sequence * pp == served("mamba-codestral-7b").state_bytes_per_sequence


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_sequence_holds_adds_up(name):
    """Blocks, times their bytes: keys and values, states, and what both leave of their pages."""
    s = served(name, tp=2 if "80b" in name else 1)
    assert s.sequence_bytes == s.blocks_per_sequence * s.block_bytes
    rows = [row for row in s.rows if row.consumer in ("kv_cache", "states")]
    assert sum(row.bytes_each for row in rows) == s.sequence_bytes
    assert s.max_concurrency == s.blocks // s.blocks_per_sequence
    assert 0 <= s.wasted_bytes_per_sequence < s.sequence_bytes


def test_guesses_cost_a_state_each():
    """With three guesses a layer holds four states, and three tokens more of the convolution."""
    model = "qwen3-next-80b-a3b"
    plain, guessed = (served(model, tp=2, draft_tokens=n) for n in (0, 3))
    r, layers = catalog.model(model).recurrence, 36
    state = r.heads * r.head_dim * r.state * 2 // 2
    channels = (r.heads * r.head_dim + 2 * r.groups * r.state) // 2
    assert plain.state_bytes_per_sequence == layers * (state + channels * 3 * 2)
    assert guessed.state_bytes_per_sequence == 4 * layers * (state + channels * 6 * 2)


# ---- time


def test_a_step_reads_and_writes_every_state_of_each_sequence():
    """Mamba-2 decodes: the scans' traffic grows by twice a state for each sequence."""
    server = Server.of(plan_of("mamba-codestral-7b"))
    state = 64 * server.state_bytes(server.amounts(1, 1))
    one, nine = (
        sum(p.time.hbm_bytes for p in parts(server, n, 1, 1.0, n) if p.kind == SCAN) for n in (1, 9)
    )
    assert (nine - one) / 8 == pytest.approx(2 * state, rel=0.03)  # and their inputs and results


def test_a_longer_context_does_not_slow_what_has_no_attention():
    near, far = (served("mamba-codestral-7b", prompt_len=n) for n in (100, 100_000))
    assert near.tpot_seconds == far.tpot_seconds
    near, far = (served("qwen3-next-80b-a3b", tp=2, prompt_len=n) for n in (100, 100_000))
    assert near.tpot_seconds < far.tpot_seconds


def test_a_chunked_scan_does_the_products_that_its_kernels_do():
    """Mamba-2, one sequence of 512 tokens in spans of 256: of a layer C B^T for each of 8 groups,
    half of its product with x for each head, and the state written and read."""
    server = Server.of(plan_of("mamba-codestral-7b"))
    found = [p for p in parts(server, 1, 512, 512, 1) if p.kind == SCAN]
    flops = 2 * 8 * 256 * 128 + 128 * 256 * 64 + 4 * 128 * 64 * 128
    assert sum(p.time.flops for p in found) == 64 * 512 * flops


def test_no_position_ends_what_has_none():
    answer = longest_context(plan_of("mamba2-780m"))
    assert answer.limit == "range"
    assert answer.value == MOST_TOKENS + 256


@pytest.mark.parametrize(
    ("model", "times"),
    [
        ("qwen3-next-80b-a3b", 2 * 48),
        ("falcon-h1-7b", 3 * 44),
        ("nemotron-nano-9b-v2", 56),
        ("mamba-codestral-7b", 64),
        ("llama-3-8b", 2 * 32),
    ],
)
def test_ranks_sum_after_each_part_of_a_layer(model, times):
    (link,) = [p for p in decoding(Server.of(plan_of(model, 2)), 1) if p.kind == "link"]
    assert link.time.runs == times


def test_only_layers_that_attend_read_the_cache():
    server = Server.of(plan_of("qwen3-next-80b-a3b", 2))
    (attention,) = [p for p in decoding(server, 1) if p.kind == "attention"]
    assert attention.time.runs == 12


# ---- what is said


@pytest.mark.parametrize("cache", KV_CACHES)
@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "mamba2-780m", "nemotron-3-nano-30b-a3b"])
def test_every_number_is_explained(name, cache):
    plan = plan_of(name, 2, kv_cache=cache, draft_tokens=2 * (cache == "paged"),
                   runtime=sorted(RUNTIMES)[0], prefill=sorted(PREFILLS)[0])  # fmt: skip
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("name", ["falcon-h1-7b", "granite-4.0-h-tiny"])
@pytest.mark.parametrize("prefill", PREFILLS)
def test_every_number_is_explained_however_prompts_are_read(name, prefill):
    plan = plan_of(name, prefill=prefill, kv_dtype="fp8")
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize(
    ("family", "bad", "field"),
    [
        ("qwen3_next", {"layer_types": ["linear_attention", "rnn", "full_attention", 3]},
         "layer_types"),
        ("qwen3_next", {"layer_types": ["linear_attention"]}, "layer_types"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_value_heads"),
        ("qwen3_5_text", {"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype"),
        ("mamba2", {"num_heads": 7}, "num_heads"),
        ("mamba2", {"n_groups": 3}, "num_heads"),
        ("bamba", {"attn_layer_indices": "all"}, "attn_layer_indices"),
        ("bamba", {"mamba_n_heads": 7}, "mamba_n_heads"),
        ("granitemoehybrid", {"mamba_d_head": 7}, "mamba_d_head"),
        ("falcon_h1", {"mamba_d_ssm": "wide"}, "mamba_d_ssm"),
        ("nemotron_h", {"layers_block_type": []}, "layers_block_type"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX"},
         "hybrid_override_pattern"),
        ("nemotron_h", {"num_hidden_layers": 9}, "num_hidden_layers"),
        ("nemotron_h", {"moe_latent_size": "wide"}, "moe_latent_size"),
        ("nemotron_h", {"mamba_ssm_cache_dtype": 32}, "mamba_ssm_cache_dtype"),
    ],
)  # fmt: skip
def test_a_bad_config_is_named(family, bad, field):
    with pytest.raises(PlanError) as caught:
        from_config(config(family, **bad))
    assert f"model.{field}" in [issue.field for issue in caught.value.issues]
    assert all(isinstance(issue, Issue) and issue.message for issue in caught.value.issues)


def test_a_text_model_inside_another_is_opened():
    whole = {"model_type": "qwen3_5", "text_config": config("qwen3_5_text"), "vision_config": {}}
    opened, alone = from_config(whole), from_config(config("qwen3_5_text"))
    assert (opened.family, opened.sizes) == (alone.family, alone.sizes)
    assert any("is left out: 453,650,672 parameters" in note for note in opened.notes)


def test_a_log_of_vllm_s():
    """Qwen3-Next on two H200: 44.59 GiB of cache, 262,144 tokens 14.77 times."""
    s = served("qwen3-next-80b-a3b", tp=2, prompt_len=262_143, output_len=1)
    blocks = int(44.59 * GiB) // s.block_bytes
    assert round(blocks / s.blocks_per_sequence, 2) == 14.77
