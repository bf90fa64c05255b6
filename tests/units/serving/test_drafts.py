"""Who guesses tokens: EAGLE heads and multi-token prediction beside smaller models."""

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan


def report(model, tp=1, **fields):
    gpus = {"gpu": "h200-sxm-141gb", "gpus": tp}
    serve = {"tp": tp, "draft_tokens": 3, **fields}
    plan = Plan.of({"model": model, "cluster": gpus, "train": {"seq_len": 1}, "serve": serve})
    return plan, evaluate(plan)


def draft(model, word, tp=1):
    (row,) = (r for r in report(model, tp, draft_model=word)[1].serve.rows if "draft" in r.name)
    return row.bytes


@pytest.mark.parametrize(
    ("model", "d", "f", "heads", "kv_heads", "dim"),
    [
        ("llama-3.1-8b", 4096, 14336, 32, 8, 128),
        ("phi-4", 5120, 17920, 40, 10, 128),
        ("qwen3-8b", 4096, 12288, 32, 8, 128),
        ("qwen3-32b", 5120, 25600, 64, 8, 128),
    ],
)
def test_an_eagle_head_has_the_weights_of_a_published_one(model, d, f, heads, kv_heads, dim):
    """SpecForge's LlamaForCausalLMEagle3 (specforge/modeling/draft/llama3_eagle.py) with the sizes
    of its configs for these models: a layer that reads embedding and hidden state, three states
    joined, 32,000 tokens of its own; the embedding is the model's."""
    attention = 2 * d * (heads + 2 * kv_heads) * dim + heads * dim * d
    norms = 4 * d  # of the embedding, the states, the MLP and the end
    head = attention + 3 * d * f + 3 * d * d + 32_000 * d + norms
    assert draft(model, "eagle") == 2 * head


def test_multi_token_prediction_of_deepseek_v3():
    """A layer of the model with all of its experts in 8 bits, and a matrix that joins the last
    hidden state with a token's embedding: 11.5 billion weights that are not shared, as the model's
    own table says (README_WEIGHTS.md: 14B, with embedding and head of 0.9B each)."""
    d, experts = 7168, 257 * 3 * 7168 * 2048
    here = draft("deepseek-v3", "mtp", tp=8)
    assert here * 8 == pytest.approx(11.5e9, rel=0.2)
    assert here > experts / 8 + 2 * 2 * d * d


def test_multi_token_prediction_of_mimo():
    """The tensors of XiaomiMiMo/MiMo-7B-Base have 7,833,409,536 numbers; those that predict one
    token further are not of the model that is trained."""
    assert draft("mimo-7b", "mtp") == 2 * (7_833_409_536 - 7_622_619_136)


@pytest.mark.parametrize(
    ("model", "word", "tp", "more"),
    [
        ("llama-3.1-8b", "eagle", 1, 2 * 8 * 128 * 2),
        ("deepseek-v3", "mtp", 8, 576 * 2),
        ("gpt-oss-120b", "eagle", 1, 2 * 8 * 64 * 2),
    ],
)
def test_the_cache_of_one_layer_more(model, word, tp, more):
    plain = report(model, tp, draft_tokens=0)[1].serve
    assert report(model, tp, draft_model=word)[1].serve.kv_bytes_per_token == (
        plain.kv_bytes_per_token + more
    )


def test_a_head_guesses_faster_than_a_model():
    """The same guesses, as often right: a head costs a layer, a small model sixteen."""
    of = {
        word: report("llama-3.1-8b", draft_model=word)[1].serve
        for word in ("none", "eagle", "llama-3.2-1b")
    }
    steps = [of[word].tpot_seconds for word in ("none", "eagle", "llama-3.2-1b")]
    assert steps == sorted(steps)
    assert of["eagle"].tokens_per_step == pytest.approx((1 - 0.7**4) / (1 - 0.7))


@pytest.mark.parametrize(
    ("model", "word", "tp"), [("llama-3.1-8b", "eagle", 1), ("deepseek-v3", "mtp", 8)]
)
def test_heads_are_explained(model, word, tp):
    plan, found = report(model, tp, draft_model=word)
    book = Book(plan, found)
    for name in ("table_bytes", "kv_bytes_per_token", "tpot_seconds", "kv_budget_bytes"):
        assert book.explain(f"serve.{name}").value == pytest.approx(getattr(found.serve, name))


def test_heads_of_models_with_states_are_refused():
    with pytest.raises(PlanError, match=r"serve\.draft_model.*states"):
        report("qwen3-next-80b-a3b", 4, draft_model="mtp")
