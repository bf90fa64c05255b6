"""What a config.json says besides sizes: its class, its quantisation, keys that nobody knows.

Counts are transformers' (5.23.0, on the meta device).
"""

import pytest

from memcore import Plan, PlanError, evaluate
from memcore.evaluate import parameters
from memcore.families import FAMILIES, from_config
from memcore.model import CAUSAL, CLASSIFICATION, EMBEDDING, MASKED

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def of_class(name, **more):
    return LLAMA | {"architectures": [name]} | more


# -- architectures --------------------------------------------------------------------------------

DRAFTS = ("LlamaForCausalLMEagle3", "DFlashDraftModel", "DSparkDraftModel", "DominoDraftModel")


@pytest.mark.parametrize("name", [*DRAFTS, "LlamaForTokenClassification", "Qwen2ForCausalLM"])
def test_a_class_that_is_not_planned_is_refused_by_name(name):
    with pytest.raises(PlanError, match=rf"model\.architectures: '{name}' is not planned") as e:
        from_config(of_class(name))
    assert "LlamaForCausalLM (causal)" in str(e.value)


def test_code_of_its_own_is_not_taken_for_the_family():
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnLlama"}}
    silent = {key: value for key, value in LLAMA.items() if key != "architectures"}
    with pytest.raises(PlanError, match="'OwnLlama' is not planned"):
        from_config(silent | code)
    assert from_config(LLAMA | code).head == CAUSAL


@pytest.mark.parametrize("named", [{}, [1], 7])
def test_an_architecture_that_is_no_name_is_refused(named):
    if named:
        with pytest.raises(PlanError, match=r"model\.architectures"):
            from_config(LLAMA | {"architectures": named})
    else:
        assert from_config(LLAMA | {"architectures": named}).head == CAUSAL


COUNTS = [  # class, its keys, head, parameters
    ("LlamaForCausalLM", {}, CAUSAL, 1_692_928),
    ("LlamaForCausalLM", {"tie_word_embeddings": True}, CAUSAL, 1_436_928),
    ("LlamaModel", {}, EMBEDDING, 1_436_928),
    ("LlamaForSequenceClassification", {}, CLASSIFICATION, 1_437_440),
    ("LlamaForSequenceClassification", {"num_labels": 1}, CLASSIFICATION, 1_437_184),
    ("LlamaForSequenceClassification", {"id2label": {"0": "a", "1": "b", "2": "c"}},
     CLASSIFICATION, 1_437_696),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more", "head", "count"), COUNTS)
def test_a_class_has_its_own_parameters(name, more, head, count):
    model = from_config(of_class(name, **more))
    assert (model.head, parameters(model)) == (head, count)


def test_every_family_names_its_classes():
    heads = {CAUSAL, MASKED, CLASSIFICATION, EMBEDDING}
    for family in FAMILIES.values():
        assert family.classes
        assert set(family.classes.values()) <= heads


def saved(config, **train):
    train = {"checkpointing": "none", "precision": "bf16-pure", "attention": "eager"} | train
    return evaluate(
        Plan(model=config, cluster={"gpus": 1}, train={"micro_batch": 3, "seq_len": 24} | train)
    ).memory


def test_logits_are_those_of_the_head():
    """A language model keeps logits of every token; a classifier those of each sequence's last;
    an embedding model none."""
    language, classes, none = (
        saved(of_class(name)).saved_for_backward_bytes
        for name in ("LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaModel")
    )
    tokens, vocabulary, width, batch = 3 * 24, 1000, 256, 3
    logp, labels = 4 * tokens * vocabulary, 8 * tokens
    assert language - none == 2 * tokens * width + logp + labels + 4
    # the score's input, which rows and tokens are kept, log-probabilities, labels, a weight
    assert classes - none == 2 * tokens * width + 2 * 8 * batch + 2 * batch * 2 + 8 * batch + 2


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaModel"])
def test_a_model_without_a_language_model_s_head_generates_nothing(name):
    report = evaluate(Plan(model=of_class(name)))
    assert report.memory
    assert report.serve is None
    assert any("generates nothing" in note for note in report.notes)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"parallel": {"tp": 2}}, "parallel.tp"),
        ({"train": {"cross_entropy": "fused"}}, "train.cross_entropy"),
        ({"train": {"adapter": "lora"}}, "train.adapter"),
        ({"train": {"frozen": "lower"}}, "train.frozen"),
    ],
)
def test_what_is_not_known_of_other_heads_is_refused(words, field):
    with pytest.raises(PlanError, match=field.replace(".", r"\.")):
        Plan(model=of_class("LlamaForSequenceClassification"), **words)


def test_other_heads_are_those_of_transformers():
    """Parameters of each class that is no language model, against transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {
        key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type")
    }
    compared = 0
    for family in ("llama", "qwen3", "gemma2", "gpt_neox", "opt", "bloom", "mixtral", "phi3"):
        for name, head in FAMILIES[family].classes.items():
            if head not in (CLASSIFICATION, EMBEDDING):
                continue
            kind = getattr(transformers, name)
            config = kind.config_class(**sizes, num_labels=3, pad_token_id=0)
            with torch.device("meta"):
                count = sum(p.numel() for p in kind(config).parameters())
            document = config.to_dict() | {"architectures": [name]}
            assert parameters(from_config(document)) == count, name
            compared += 1
    assert compared == 16


# -- keys that are not there, and keys that nobody knows ------------------------------------------


@pytest.mark.parametrize(
    ("key", "other"), [("hidden_size", "hidden_dim"), ("num_hidden_layers", "n_layers")]
)
def test_without_its_sizes_a_model_is_refused(key, other):
    config = LLAMA | {other: LLAMA[key]}
    del config[key]
    with pytest.raises(PlanError, match=rf"model\.{key}: missing.*Is it '{other}'"):
        from_config(config)
    del config[other]
    with pytest.raises(PlanError, match=rf"model\.{key}: missing"):
        from_config(config)


@pytest.mark.parametrize("family", sorted(name for name, f in FAMILIES.items() if not f.bridge))
def test_no_family_takes_defaults_for_its_width_and_depth(family):
    with pytest.raises(PlanError, match="missing; a model without its") as e:
        from_config({"model_type": family})
    assert len(e.value.issues) == 2


def test_what_was_assumed_and_what_was_not_read_is_said():
    config = LLAMA | {"draft_depth": 3, "use_cache": True, "hidden_dropout": None, "flags": []}
    del config["vocab_size"]
    report = evaluate(Plan(model=config))
    said = " ".join(report.notes)
    assert "config.json does not have vocab_size (32,000)" in said
    assert "these keys are not read: draft_depth." in said
    assert "use_cache" not in said


def test_of_many_keys_a_few_are_named():
    (note,) = from_config(LLAMA | {f"key_{i:02}": 1 for i in range(30)}).notes
    assert note.endswith("key_07 and 22 more.")


def test_a_whole_config_leaves_nothing_to_say():
    assert from_config(LLAMA).notes == ()
