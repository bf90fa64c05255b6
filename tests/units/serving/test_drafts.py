"""Who guesses tokens: EAGLE heads and multi-token prediction beside smaller models."""

import json

import asked
import pytest
from tables import each

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.link import decode, encode, query_text
from memcore.plan.plan import Plan, value_text
from memcore.serving.server import Server
from memcore.serving.time import DRAFT, decoding


def report(model, tp=1, **fields):
    gpus = {"gpu": "h200-sxm-141gb", "gpus": tp}
    serve = {"tp": tp, "draft_tokens": 3, **fields}
    train = {"seq_len": 1024 if model.endswith("-vision") else 1}  # room for an image
    plan = Plan.of({"model": model, "cluster": gpus, "train": train, "serve": serve})
    return plan, evaluate(plan)


def draft(model, word, tp=1, **fields):
    (row,) = (
        r for r in report(model, tp, draft_model=word, **fields)[1].serve.rows if "draft" in r.name
    )
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


def test_heads_of_eagle_for_models_with_states_are_refused():
    with pytest.raises(PlanError, match=r"serve\.draft_model.*states"):
        report("qwen3-next-80b-a3b", 4, draft_model="eagle")


# vllm 0.33, models/qwen3_5_mtp.py: a layer of full attention with its gate, what joins two hidden
# states, and six norms; the embedding and the head are the model's.
LAYER_OF_QWEN = 5120 * (2 * 6144 + 2 * 1024 + 6144) + 3 * 5120 * 17408
IN_16_BITS = 2 * 5120**2 + 2 * 256 + 5 * 5120


@pytest.mark.parametrize("model", ["qwen3.6-27b", "qwen3.6-27b-vision"])
@pytest.mark.parametrize(("stored", "each"), [("bf16", 2), ("nvfp4", 2), ("fp8", 1)])
def test_multi_token_prediction_of_a_hybrid_is_a_layer_of_attention(model, stored, each):
    """0.79 GiB in 16 bits, which a checkpoint in 4 bits has it in (nvidia/Qwen3.6-27B-NVFP4)."""
    size = draft(model, "mtp", weight_dtype=stored)
    assert size == pytest.approx(each * LAYER_OF_QWEN + 2 * IN_16_BITS, rel=1e-3)


# -- files of drafts ------------------------------------------------------------------------------

FILES = asked.table("drafts")
CONFIGS = {row["name"]: row["config"] for row in FILES}


@each("row", FILES)
def test_parameters_are_those_of_the_class_that_trains_it(row):
    """SpecForge's own classes on the meta device (reference/ask_drafts.py)."""
    assert parameters(from_config(row["config"])) == row["parameters"]


@each("row", FILES)
def test_a_draft_given_as_a_model_says_its_parameters_and_where_it_belongs(row):
    with pytest.raises(PlanError) as e:
        Plan.of({"model": row["config"]})
    assert f"of {row['parameters']:,} parameters" in str(e.value)
    assert "serve.draft_model" in str(e.value)


@pytest.mark.parametrize(
    ("model", "name", "own", "layers", "kv"),
    [
        # A head has the model's embedding, which is not loaded twice; a block draft has none.
        ("llama-3-8b", "llama3-8B-eagle3", 950_026_240 - 128_256 * 4096, 1, 8 * 128),
        ("qwen3-4b", "qwen3-4b-dspark", 615_221_249, 5, 8 * 128),
        ("qwen3-8b", "qwen3-8b-domino", 1_104_561_408, 5, 8 * 128),
    ],
)
def test_the_weights_and_the_cache_of_a_file(model, name, own, layers, kv):
    plain = report(model, draft_tokens=0)[1].serve
    found = report(model, draft_model=CONFIGS[name])[1].serve
    (row,) = (r for r in found.rows if "draft" in r.name)
    assert row.bytes == 2 * own
    assert found.kv_bytes_per_token == plain.kv_bytes_per_token + layers * 2 * kv * 2


def test_a_head_of_a_narrower_width_has_its_own_embedding():
    """Of EAGLE-3 heads only those as wide as their model have its table (SGLang's set_embed)."""
    config = CONFIGS["changed: eagle_t"]
    (row,) = (r for r in report("qwen3-32b", draft_model=config)[1].serve.rows if "draft" in r.name)
    assert row.bytes == 2 * 962_624_512


def test_a_head_of_the_models_shape_is_the_word_eagle():
    config = CONFIGS["llama3-8B-eagle3"]
    files, word = (report("llama-3-8b", draft_model=d)[1].serve for d in (config, "eagle"))
    assert files.weights_bytes == word.weights_bytes
    assert files.tpot_seconds == word.tpot_seconds


def test_a_block_is_guessed_in_one_forward():
    """A DFlash draft reads its weights and its model's head once a step, whatever it guesses."""
    few, many = (
        report("qwen3-8b", draft_model=CONFIGS["qwen3-8b-domino"], draft_tokens=n) for n in (3, 15)
    )
    (one, other) = (
        next(p.time for p in decoding(Server.of(plan), 1) if p.kind == DRAFT)
        for plan, _ in (few, many)
    )
    assert one.runs == other.runs == 1
    assert one.seconds == pytest.approx(other.seconds, rel=0.1)


@pytest.mark.parametrize(
    ("model", "name", "fields", "says"),
    [
        ("qwen3-32b", "llama3-8B-eagle3", {}, "hidden states of 4,096, and the model's have 5,120"),
        ("qwen3-8b", "qwen3-8b-domino", {"draft_tokens": 16}, "a block, of 15 at most"),
        ("qwen3-4b", "qwen3-4b-dspark", {"draft_tokens": 8}, "a block, of 7 at most"),
        ("llama-3-8b", "llama3-8B-eagle3", {"tp": 3}, "do not divide by tp 3"),
    ],
)
def test_a_draft_that_does_not_fit_its_model_is_refused(model, name, fields, says):
    with pytest.raises(PlanError, match=says):
        report(model, draft_model=CONFIGS[name], **fields)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_hidden_layers", 2, "must be 1, not 2"),
        ("attention_bias", True, "not known yet"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "must name 3 layers"),
    ],
)
def test_a_head_whose_layers_differ_by_engine_is_refused(key, value, says):
    with pytest.raises(PlanError, match=says):
        report("llama-3-8b", draft_model=CONFIGS["llama3-8B-eagle3"] | {key: value})


def test_a_whole_models_file_is_no_draft():
    llama = CONFIGS["llama3-8B-eagle3"] | {"architectures": ["LlamaForCausalLM"]}
    with pytest.raises(PlanError, match=r"serve\.draft_model.*whole model"):
        report("llama-3-8b", draft_model=llama)


def test_a_link_and_a_document_have_the_file():
    plan, _ = report("qwen3-4b", draft_model=CONFIGS["qwen3-4b-dspark"])
    assert decode(dict(encode(plan))) == (plan, [])
    assert "DSpark" not in query_text(encode(plan, short=True))  # compressed
    assert Plan.of(json.loads(json.dumps(plan.document()))) == plan
    assert value_text("serve.draft_model", plan.serve.draft_model) == "DSpark draft, 2,560 wide"
    again = plan.with_changes({"serve.draft_model": CONFIGS["qwen3-4b-dspark"]})
    assert again == plan


@pytest.mark.parametrize(("model", "name"), [("llama-3-8b", "llama3-8B-eagle3"),
                                             ("qwen3-8b", "qwen3-8b-domino")])  # fmt: skip
def test_files_of_drafts_are_explained(model, name):
    plan, found = report(model, draft_model=CONFIGS[name])
    book = Book(plan, found)
    for number in ("table_bytes", "kv_bytes_per_token", "tpot_seconds", "kv_budget_bytes"):
        assert book.explain(f"serve.{number}").value == pytest.approx(getattr(found.serve, number))


def test_llama_cpp_has_the_drafts_own_types():
    """Weights of the draft's own file; its cache is in fp16 whatever the model's is."""
    fields = {"engine": "llama.cpp", "weight_dtype": "q4_k_m", "draft_model": "qwen3-0.6b"}

    def drafting(**more):
        return Server.of(report("qwen3-8b", kv_dtype="q8_0", **fields, **more)[0]).draft.plan

    assert drafting().serve.weight_dtype == "q4_k_m"
    own = drafting(draft_weight_dtype="q8_0").serve
    assert (own.weight_dtype, own.kv_dtype, own.value_dtype) == ("q8_0", "fp16", "same")
