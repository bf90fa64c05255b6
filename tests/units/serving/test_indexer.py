"""DeepSeek-V3.2, GLM-5 and MiniMax-M3: what a server keeps of a token for the indexers that choose
tokens, and what their scores and the attention to what they chose take."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan
from memcore.serving.server import Server
from memcore.serving.time import ATTENTION, INDEX, LAYERS, decoding, forward, mixing, parts, seconds
from memcore.stream.clock import Clock

GLM = {"model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78}
V32 = {"model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61}
SHARED = (["full"] * 3 + ["shared"] * 3) + (["full"] + ["shared"] * 3) * 18  # GLM-5.2
CHOOSE = [0] * 3 + [1] * 57
M3 = {
    "model_type": "minimax_m3",
    "hidden_size": 6144,
    "num_hidden_layers": 60,
    "moe_layer_freq": CHOOSE,
    "sparse_attention_config": {"sparse_attention_freq": CHOOSE},
}
LATENT = 512 + 64
KEY = 128 + 4  # 8 bits a number, and a scale


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (GLM, 743_911_199_232),
        (GLM | {"indexer_types": SHARED}, 743_377_000_704),
        (V32, 671_877_929_216),
        (M3, 426_174_565_632),
    ],
)
def test_parameters_of_published_models(config, count):
    """As transformers has them on the meta device."""
    assert parameters(from_config(config)) == count


@pytest.mark.parametrize(
    ("config", "layers", "indexers"),
    [(GLM, 78, 78), (GLM | {"indexer_types": SHARED}, 78, 21), (V32, 61, 61)],
)
@pytest.mark.parametrize(("word", "latent"), [("bf16", 2 * LATENT), ("fp8", 512 + 4 * 4 + 2 * 64)])
def test_a_token_in_the_cache(config, layers, indexers, word, latent):
    serve = {"kv_dtype": word, "weight_dtype": "fp8"}
    plan = Plan(model=config, cluster={"gpu": "gb200-186gb", "gpus": 16}, parallel={"tp": 16},
                serve=serve)  # fmt: skip
    served = evaluate(plan).serve
    assert served.kv_bytes_per_token == layers * latent + indexers * KEY


@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (4, 1), (8, 1)])
def test_a_token_in_the_cache_of_minimax_m3(tp, heads):
    """Keys and values of four heads in 60 layers, and in 57 one indexer's key of 128 numbers in 16
    bits (vllm/models/minimax_m3/common/indexer.py), which every rank keeps."""
    plan = Plan(model=M3, cluster={"gpu": "gb200-186gb", "gpus": 8}, parallel={"tp": tp},
                serve={"weight_dtype": "nvfp4", "engine": "vllm"})  # fmt: skip
    served = evaluate(plan).serve
    assert served.kv_bytes_per_token == 60 * 2 * heads * 128 * 2 + 57 * 128 * 2


def test_the_first_layer_has_none_to_share_with():
    with pytest.raises(PlanError, match="indexer_types: the first layer has none"):
        from_config(GLM | {"indexer_types": ["shared"] * 78})


# --- seconds -------------------------------------------------------------------------------------

TOP = 2048


def server(model=V32, prompt=65_536, **words):
    return Server.of(Plan(
        model=model, cluster={"gpu": "h200-sxm-141gb", "gpus": 8}, parallel={"tp": 8},
        serve={"weight_dtype": "fp8", "prompt_len": prompt, "output_len": 512, "concurrency": 4}
        | words,
    ))  # fmt: skip


def times(s, batch, tokens, context):
    return {p.kind: p.time for p in mixing(s, batch, tokens, context)}


@pytest.mark.parametrize("context", [100, TOP, 4096, 100_000])
def test_a_step_reads_every_key_of_an_indexer_and_the_latents_that_it_chose(context):
    """DeepSeek-V3.2, section 2.1: 64 heads of 128 score each token, and 2,048 are attended to."""
    found = times(server(), 3, 1, context)
    chosen = min(context, TOP)
    assert found[ATTENTION].hbm_bytes == pytest.approx(3 * 61 * chosen * LATENT * 2)
    assert found[ATTENTION].flops == pytest.approx(3 * 61 * chosen * 16 * 2 * (LATENT + 512))
    assert found[INDEX].hbm_bytes == 3 * 61 * context * (KEY + 8)
    assert found[INDEX].flops == 3 * 61 * context * 64 * 128 * 2


@pytest.mark.parametrize("context", [1000, 100_000])
def test_a_step_of_minimax_m3_reads_blocks_and_of_three_layers_everything(context):
    """57 layers choose 16 blocks of 128 tokens, three see all; of 8 ranks each has one head of
    keys, 8 of queries, and one of the indexer's four, which writes a score for each block."""
    s = server(M3, engine="vllm")
    found = times(s, 2, 1, context)
    seen = 3 * context + 57 * min(context, TOP)
    assert found[ATTENTION].hbm_bytes == pytest.approx(2 * seen * 2 * 128 * 2)
    assert found[ATTENTION].flops == pytest.approx(2 * seen * 8 * 2 * 2 * 128)
    assert found[INDEX].flops == 2 * 57 * context * 128 * 2
    assert found[INDEX].hbm_bytes == pytest.approx(2 * 57 * context * (128 * 2 + 8 / 128))


def test_layers_that_share_a_choice_score_nothing():
    found = times(server(GLM | {"indexer_types": SHARED}, engine="vllm"), 1, 1, 10_000)
    assert found[INDEX].flops == 21 * 10_000 * 32 * 128 * 2
    assert found[ATTENTION].hbm_bytes == 78 * TOP * LATENT * 2


def test_a_prompt_scores_all_pairs_and_attends_to_those_that_were_chosen():
    n = 65_536
    found = times(server(), 1, n, n)
    assert found[INDEX].flops == 61 * n * n / 2 * 64 * 128 * 2
    pairs = TOP * TOP / 2 + (n - TOP) * TOP
    assert found[ATTENTION].flops == pytest.approx(61 * pairs * 16 * 2 * (LATENT + 512))
    assert found[ATTENTION].hbm_bytes == 61 * n * LATENT * 2  # together they choose all


def test_scores_are_counted_once():
    """Those of new tokens among each other are among those of the cache."""
    layers = [p for p in parts(server(), 1, 4096, 4096, 1) if p.kind == LAYERS]
    assert not [p.time.name for p in layers if "scores" in p.time.name]


def test_an_indexer_pays_off_with_long_contexts_alone():
    """Against DeepSeek-V3, whose other layers are the same."""
    v3 = V32 | {"model_type": "deepseek_v3"}

    def step(model, prompt):
        return seconds(decoding(server(model, prompt), 4))

    assert step(V32, 1024) > step(v3, 1024)
    assert step(V32, 32_768) < step(v3, 32_768)
    assert step(V32, 131_072 - 512) - step(V32, 32_768) < 0.25 * (
        step(v3, 131_072 - 512) - step(v3, 32_768)
    )


@pytest.mark.parametrize("model", [V32, GLM | {"indexer_types": SHARED}, M3])
def test_the_stream_has_the_same_seconds(model):
    s = server(model, engine="vllm")
    clock, context, n = Clock.of(s.plan), 50_000, 4
    attention = sum(o.seconds for o in forward(s, n, 1, context, n)
                    if o.name in {p.time.name for p in mixing(s, n, 1, context)})  # fmt: skip
    assert sum(clock.load(n * context, n * TOP)) == pytest.approx(attention, rel=1e-6)
    alone, start, now = clock.mixed(0, 0, 0, []), 40_000, 8_000
    chunk = sum(o.compute_seconds for o in times(s, 1, now, start + now / 2).values())
    more = clock.mixed(0, 0, 0, [(start, now)]) - clock.mixed(0, 0, 0, [(0, now)])
    first = sum(o.compute_seconds for o in times(s, 1, now, now).values())
    assert alone > 0
    assert more == pytest.approx(chunk - first, rel=0.01)
