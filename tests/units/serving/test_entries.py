"""DeepSeek-V4: what a server keeps of a sequence in windows, compressed entries and indexers' keys,
and what attention to them takes."""

import pytest
from explained import checked

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan
from memcore.serving.entries import layout_of
from memcore.serving.server import Server
from memcore.serving.time import ATTENTION, INDEX, mixing
from memcore.stream.clock import Clock
from memcore.units import GiB

PRO, FLASH = "deepseek-v4-pro", "deepseek-v4-flash"
MILLION = 1 << 20
TOP = 1024
KEY = 128 + 4  # 8 bits a number, and a scale


def plan(model, **serve):
    return Plan(
        model=model, cluster={"gpu": "h200-sxm-141gb", "gpus": 8}, train={"seq_len": 512},
        serve={"tp": 8, "prompt_len": 65_536, "output_len": 512, "concurrency": 4} | serve,
    )  # fmt: skip


@pytest.mark.parametrize(("model", "count"), [(PRO, 1_572_997_179_491), (FLASH, 284_332_230_231)])
def test_parameters_of_published_models(model, count):
    """As transformers has them on the meta device."""
    assert parameters(catalog.model(model)) == count


@pytest.mark.parametrize(("model", "said"), [(PRO, 9.62), (FLASH, 6.72)])
def test_a_million_tokens_in_16_bits(model, said):
    """9.62 GiB of a sequence of DeepSeek-V4-Pro (vllm.ai/blog/deepseek-v4); by the same formula
    6.72 GiB of Flash."""
    asked = plan(model, kv_cache="contiguous", kv_dtype="bf16", max_seq_len=MILLION)
    assert evaluate(asked).serve.sequence_bytes / GiB == pytest.approx(said, abs=0.005)


def test_groups_of_pages_are_those_that_vllm_has():
    """Of DeepSeek-V4-Flash in 8 bits, as vLLM's get_kv_cache_configs made them
    (vllm-project/vllm issue 54703)."""
    layout = layout_of(catalog.model(FLASH), 8, 43, 21, 20)
    assert [(g.tokens, len(g.pages), g.bytes) for g in layout.groups] == [
        (256, 62, 1_002_240),
        (64, 22, 823_680),
        (64, 21, 786_240),
        (4, 42, 870_912),
        (8, 20, 656_640),
    ]


def test_blocks_of_a_sequence_are_those_that_vllm_asks_for():
    """vLLM of June 2026 wanted 6.66 GiB for one sequence of 30,000 tokens of DeepSeek-V4-Flash, and
    in 5.44 GiB found room for 13,528 tokens (vllm-project/vllm issue 44376)."""
    asked = plan(FLASH, engine="vllm", kv_dtype="fp8", prompt_len=29_000, output_len=1000,
                 max_batched_tokens=16_384)  # fmt: skip
    served = evaluate(asked).serve
    assert served.blocks_per_sequence == 6800
    assert served.blocks_per_sequence * served.block_bytes / GiB == pytest.approx(6.66, abs=0.005)
    # While it generates: 118 blocks of entries, 2 x 3 of windows, 3 and 17 of states.
    assert served.sequence_bytes == (118 + 6 + 3 + 17) * served.block_bytes
    read = served.blocks - served.blocks_per_sequence
    assert served.max_concurrency == 1 + read // (118 + 6 + 3 + 17)
    layout = Server.of(asked).layout
    assert layout
    blocks = sum(group.most(13_528, 16_384) for group in layout.groups)
    assert blocks * layout.block_bytes / GiB == pytest.approx(5.44, abs=0.005)


def test_a_token_in_the_cache():
    """30 layers have an entry and a key of four tokens, 31 an entry of 128, and 61 a window: 584
    bytes for 512 numbers, of which 64 are turned and in 16 bits."""
    served = evaluate(plan(PRO, engine="vllm", kv_dtype="fp8")).serve
    window = 61 * 512
    assert served.kv_bytes_per_token == pytest.approx(
        window + 30 * (584 + KEY) / 4 + 31 * 584 / 128, abs=1
    )


@pytest.mark.parametrize("words", [{"kv_cache": "dynamic"}, {"engine": "vllm"}])
def test_a_cache_is_explained_to_its_bytes(words):
    asked = plan(FLASH, kv_dtype="bf16", **words)
    report = evaluate(asked)
    rows = [r for r in report.serve.rows if r.consumer == "kv_cache"]
    assert [r.name for r in rows] == ["kv cache", "compressed entries", "keys of indexers"]
    assert sum(r.bytes_each for r in rows) == report.serve.sequence_bytes
    checked(Book(asked, report))


@pytest.mark.parametrize(("model", "gigabytes"), [(FLASH, 156.1)])
def test_weights_are_those_of_the_published_file(model, gigabytes):
    """Experts in mxfp4, other matrices in fp8, some in 16 bits: a GGUF file that has every tensor
    as published, without the layer that predicts a second token, is 156.1 GB
    (huggingface.co/6ms/DeepSeek-V4-Flash-MXFP4-GGUF)."""
    asked = Plan(model=model, cluster={"gpu": "gb200-186gb", "gpus": 1}, train={"seq_len": 512})
    assert evaluate(asked).serve.weights_bytes == pytest.approx(gigabytes * 1e9, rel=2e-3)


# --- seconds -------------------------------------------------------------------------------------


def times(server, batch, tokens, context):
    return {p.kind: p.time for p in mixing(server, batch, tokens, context)}


@pytest.mark.parametrize("context", [128, 1000, 4096, 100_000])
def test_a_step_reads_windows_and_the_entries_that_it_sees(context):
    found = times(Server.of(plan(PRO, engine="vllm", kv_dtype="bf16")), 3, 1, context)
    seen = 61 * min(context, 128) + 30 * min(context / 4, TOP) + 31 * context / 128
    assert found[ATTENTION].hbm_bytes == pytest.approx(3 * seen * 512 * 2)
    assert found[ATTENTION].flops == pytest.approx(3 * seen * 16 * 2 * (512 + 512))
    assert found[INDEX].hbm_bytes == pytest.approx(3 * 30 * context / 4 * (KEY + 8))
    assert found[INDEX].flops == pytest.approx(3 * 30 * context / 4 * 64 * 128 * 2)


def test_a_prompt_sees_what_its_tokens_see_one_by_one():
    n = 32_768
    found = times(Server.of(plan(PRO, engine="vllm")), 1, n, n)
    tokens = range(1, n + 1)
    seen = sum(61 * min(t, 128) + 30 * min(t / 4, TOP) + 31 * t / 128 for t in tokens)
    assert found[ATTENTION].flops == pytest.approx(seen * 16 * 2 * 1024, rel=0.001)
    assert found[INDEX].flops == pytest.approx(sum(tokens) * 30 / 4 * 64 * 128 * 2, rel=0.001)


@pytest.mark.parametrize("context", [8192, 65_536, 500_000])
def test_a_clock_runs_as_the_step_does_behind_a_whole_choice(context):
    server = Server.of(plan(PRO, engine="vllm"))
    found, clock = times(server, 1, 1, context), Clock.of(server.plan)
    ours = clock.context.of(context, min(context, clock.window))
    bandwidth = sum(t.seconds for t in found.values())
    assert ours == pytest.approx(bandwidth, rel=0.01)


# --- what is refused -----------------------------------------------------------------------------

SMALL = {"model_type": "deepseek_v4", "hidden_size": 512, "num_hidden_layers": 4}


def test_layers_are_read_in_the_words_of_each_file():
    types = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
             "sliding_attention"]  # fmt: skip
    experts = ["hash_moe", "hash_moe", "moe", "moe"]
    words = {"layer_types": types, "mlp_layer_types": experts, "partial_rotary_factor": 0.125}
    own = {"compress_ratios": [0, 4, 128, 0, 0], "num_hash_layers": 2, "qk_rope_head_dim": 64}
    assert from_config(SMALL | words, "one") == from_config(SMALL | own, "one")
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64}
    older = {"compress_rate_csa": 8, "compress_rate_hca": 64}
    assert from_config(SMALL | {"compress_rates": rates}, "one") == from_config(
        SMALL | older, "one"
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_key_value_heads", 4, "one key and value is of all heads"),
        ("n_shared_experts", 2, "not known yet"),
        ("scoring_func", "softmax", "not known yet"),
        ("compress_ratios", [0, 8, 128, 0], "must be a list of 0, 4, 128"),
        ("compress_ratios", [0, 4], "names 2 layers"),
        ("layer_types", ["full_attention"] * 4, "must be a list of sliding_attention"),
        ("index_head_dim", 32, "at least the dimensions that turn, 64"),
        ("o_groups", 3, None),
        ("partial_rotary_factor", 2, "must be a share of a head"),
    ],
)
def test_what_is_not_planned_names_its_field(key, value, said):
    field = "num_attention_heads" if key == "o_groups" else key
    with pytest.raises(PlanError, match=rf"model\.{field}: .*{said or 'does not divide'}"):
        from_config(SMALL | {key: value})


def test_heads_that_draft_are_refused():
    with pytest.raises(PlanError, match=r"serve\.draft_model: .*compressed entries"):
        plan(PRO, draft_tokens=2, draft_model="mtp")


def test_training_is_planned_with_data_parallelism():
    with pytest.raises(PlanError, match=r"parallel\.tp"):
        Plan(model=FLASH, cluster={"gpus": 16}, parallel={"tp": 2}, train={"seq_len": 512})
