"""Layers with heads of their own: Gemma 4's that see all tokens, MiMo-V2-Flash's with a window."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan

GEMMA, MIMO = "gemma-4-26b-a4b-text", "mimo-v2-flash"
# Numbers of a token by layer: of keys and values, Gemma's 25 with a window and 5 without, MiMo's
# 39 with twice the heads of its 9 without, whose keys are 192 wide and values 128.
KEPT = {
    GEMMA: (25, 2 * 8 * 256, 5, 2 * 2 * 512, 1024),
    MIMO: (39, 8 * (192 + 128), 9, 4 * (192 + 128), 129),
}


def config(name, **more):
    return catalog.model_entry(name)["config"] | more


def served(name, gpus=1, **fields):
    cluster = {"gpu": "h200-sxm-141gb", "gpus": gpus}
    own = {"tp": gpus, "prompt_len": 3000, "output_len": 100, "weight_dtype": "bf16", **fields}
    plan = Plan.of({"model": name, "cluster": cluster, "train": {"seq_len": 1}, "serve": own})
    return plan, evaluate(plan)


def test_text_and_tower_are_what_transformers_counts():
    """Gemma4ForConditionalGeneration of google/gemma-4-26B-A4B: 25,805,933,872 parameters."""
    tower = {
        "model_type": "gemma4_vision", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 72, "patch_size": 16, "position_embedding_size": 10_240,
    }  # fmt: skip
    whole = {"model_type": "gemma4", "text_config": config(GEMMA), "vision_config": tower}
    model = from_config(whole)
    assert f"{25_805_933_872 - parameters(model):,} parameters" in model.notes[-1]


@pytest.mark.parametrize("name", KEPT)
def test_each_kind_of_layer_caches_what_it_keeps(name):
    part, windowed, whole, full, window = KEPT[name]
    tp = 4 if name == MIMO else 1
    heads = tp if name == MIMO else 1
    found = served(name, 8 if name == MIMO else 1, tp=tp)[1].serve
    assert found.kv_bytes_per_token == 2 * (part * windowed + whole * full) // heads
    least = served(name, 8 if name == MIMO else 1, tp=tp, kv_cache="dynamic")[1].serve
    tokens = 3000 + 100
    kept = 2 * (part * windowed * (window - 1) + whole * full * tokens) // heads
    assert least.sequence_bytes == kept


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("cache", ["paged", "contiguous", "dynamic"])
def test_their_numbers_are_explained(name, cache):
    plan, found = served(name, 8 if name == MIMO else 1, kv_cache=cache)
    book = Book(plan, found)
    for number in ("kv_bytes_per_token", "sequence_bytes", "wasted_bytes_per_sequence",
                   "tpot_seconds", "ttft_seconds"):  # fmt: skip
        explained = book.explain(f"serve.{number}").value
        assert explained == pytest.approx(getattr(found.serve, number))


def test_pages_of_both_kinds_have_as_many_bytes():
    """A layer of Gemma 4's that sees all keeps half of what one with a window does: a block of its
    pages has as many of the others for half of the tokens."""
    found = served(GEMMA)[1].serve
    layers, tokens = 5, found.block_tokens
    assert found.block_bytes == layers * tokens * 2 * 2 * 2 * 512
    whole, part = -(-3100 // tokens), -(-min(1024 - 1 + 8192, 3100) // tokens) + 1
    assert found.blocks_per_sequence == whole + 2 * 5 * part


def test_layers_of_mimo_are_as_its_own_pattern_says():
    pattern = [0, 1, 1, 0]
    small = config(MIMO, num_hidden_layers=4, hybrid_layer_pattern=pattern, moe_layer_freq=[0] * 4)
    kinds = from_config(small).kinds
    assert [kind.startswith("sliding") for kind in kinds] == [bool(n) for n in pattern]
    assert all(kind.endswith("-dense") for kind in kinds)
    with pytest.raises(PlanError, match=r"model\.hybrid_layer_pattern: must be a list of 0 and 1"):
        from_config(config(MIMO, hybrid_layer_pattern=[0, 2]))
    with pytest.raises(PlanError, match=r"model\.swa_head_dim"):
        from_config(config(MIMO, swa_head_dim=64))


SMALL = {"hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4}


def test_layers_that_read_keys_of_others_have_none_of_their_own():
    """E2B: of 35 layers the first 15 have keys; 12 of them slide."""
    plan = Plan(model="gemma-4-e2b-text")
    model = plan.architecture
    assert sum(kind.endswith("-reused") for kind in model.kinds) == 20
    assert [i for i, kind in enumerate(model.kinds) if kind.endswith("-stored")] == [13, 14]
    per_token = 12 * 2 * 256 * 2 + 3 * 2 * 512 * 2
    assert evaluate(plan).serve.kv_bytes_per_token == per_token


@pytest.mark.parametrize(
    ("own", "key"),
    [
        ({"hidden_size_per_layer_input": 0}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 28}, "num_kv_shared_layers"),
        ({"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input"),
    ],
)
def test_other_small_gemma_4_are_refused_by_their_key(own, key):
    small = config(GEMMA, **SMALL)
    small["vocab_size_per_layer_input"] = small.get("vocab_size", 262_144)
    from_config(small)
    with pytest.raises(PlanError, match=rf"model\.{key}"):
        from_config(small | own)
