"""DeepSeek-V3.2 and GLM-5: what a server keeps of a token for the indexers that choose tokens."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan

GLM = {"model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78}
V32 = {"model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61}
SHARED = (["full"] * 3 + ["shared"] * 3) + (["full"] + ["shared"] * 3) * 18  # GLM-5.2
LATENT = 512 + 64
KEY = 128 + 4  # 8 bits a number, and a scale


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (GLM, 743_911_199_232),
        (GLM | {"indexer_types": SHARED}, 743_377_000_704),
        (V32, 671_877_929_216),
    ],
)
def test_parameters_of_published_models(config, count):
    """As transformers has them on the meta device."""
    assert parameters(from_config(config)) == count


@pytest.mark.parametrize(
    ("config", "layers", "indexers"),
    [(GLM, 78, 78), (GLM | {"indexer_types": SHARED}, 78, 21), (V32, 61, 61)],
)
@pytest.mark.parametrize(("word", "width"), [("bf16", 2), ("fp8", 1)])
def test_a_token_in_the_cache(config, layers, indexers, word, width):
    serve = {"kv_dtype": word, "weight_dtype": "fp8"}
    plan = Plan(model=config, cluster={"gpu": "gb200-186gb", "gpus": 16}, parallel={"tp": 16},
                serve=serve)  # fmt: skip
    served = evaluate(plan).serve
    assert served.kv_bytes_per_token == layers * LATENT * width + indexers * KEY


def test_the_first_layer_has_none_to_share_with():
    with pytest.raises(PlanError, match="indexer_types: the first layer has none"):
        from_config(GLM | {"indexer_types": ["shared"] * 78})
