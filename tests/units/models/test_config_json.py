"""What a config.json says besides sizes: its class, its quantisation, keys that nobody knows.

Counts are transformers' (5.23.0, on the meta device).
"""

import pytest
from explained import checked
from tables import each

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.quantization import stored_as
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan
from memcore.tape.structure import (
    ALIKE,
    CAUSAL,
    CLASSIFICATION,
    EMBEDDING,
    LABELLED,
    MASKED,
    REPLACED,
    SPANS,
)

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


@pytest.mark.parametrize("name", ["LlamaForProcessRewardModel", "Qwen2ForCausalLM"])
def test_a_class_that_is_not_planned_is_refused_by_name(name):
    with pytest.raises(PlanError, match=rf"model\.architectures: '{name}' is not planned") as e:
        from_config(of_class(name))
    assert "LlamaForCausalLM (causal)" in str(e.value)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3"])
@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle", "Qwen3ForCausalLMEagle3"])
def test_a_head_of_an_unknown_kind_is_told_from_a_model(name, kind):
    with pytest.raises(PlanError) as e:
        from_config(of_class(name) | {"model_type": kind})
    (issue,) = e.value.issues
    assert issue.field == "model.architectures"
    assert issue.message.startswith(f"'{name}' is not a model but an EAGLE head")
    assert "set serve.draft_model to eagle, with serve.draft_tokens" in issue.message


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
    heads = {CAUSAL, MASKED, CLASSIFICATION, EMBEDDING, REPLACED, LABELLED, SPANS, ALIKE}
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


ENCODERS = {  # what encoders are told besides LLAMA's sizes
    "bert": {"type_vocab_size": 2},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "t5": {"d_kv": 64, "d_ff": 512},
    "mt5": {"d_kv": 64, "d_ff": 512},
}
OTHERS = ["llama", "qwen3", "gemma2", "gpt_neox", "opt", "bloom", "mixtral", "phi3"]


@pytest.mark.oracle
@pytest.mark.parametrize("family", [*OTHERS, *ENCODERS])
def test_other_heads_are_those_of_transformers(family):
    """Parameters of each class that is no language model, against transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    own = {"num_labels": 3, "pad_token_id": 0} | ENCODERS.get(family, {})
    sizes = {k: v for k, v in LLAMA.items() if k not in ("architectures", "model_type")} | own
    heads = {name: h for name, h in FAMILIES[family].classes.items() if h not in (CAUSAL, MASKED)}
    assert heads
    for name in heads:
        kind = getattr(transformers, name)
        config = kind.config_class(**sizes)
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
        model = from_config(config.to_dict() | {"architectures": [name]})
        assert (parameters(model), model.head) == (count, heads[name]), name


BERT = {
    key: LLAMA[key] for key in LLAMA if key not in ("num_key_value_heads", "tie_word_embeddings")
}
BERT |= {"model_type": "bert", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5 = {"model_type": "t5", "d_model": 128, "num_layers": 3, "num_heads": 4, "d_kv": 32, "d_ff": 256,
      "vocab_size": 1000, "feed_forward_proj": "relu", "dropout_rate": 0.0}  # fmt: skip
ENCODER_COUNTS = [  # as transformers has them on the meta device
    (BERT, "BertForMaskedLM", MASKED, 1_509_608),
    (BERT, "BertModel", EMBEDDING, 1_508_096),
    (BERT, "BertForSequenceClassification", CLASSIFICATION, 1_508_610),
    (BERT, "BertForTokenClassification", LABELLED, 1_442_818),
    (BERT, "BertForQuestionAnswering", SPANS, 1_442_818),
    (T5, "T5ForConditionalGeneration", CAUSAL, 1_113_472),
    (T5, "T5WithLMHeadModel", CAUSAL, 1_113_472),
    (T5, "T5EncoderModel", EMBEDDING, 522_240),
]


@pytest.mark.parametrize(("config", "name", "head", "count"), ENCODER_COUNTS)
def test_an_encoder_s_class_has_its_own_parameters(config, name, head, count):
    model = from_config(config | {"architectures": [name]})
    assert (model.head, parameters(model)) == (head, count)


def test_the_text_encoder_of_sd3_counts_no_decoder():
    """T5 v1.1 XXL, as Stable Diffusion 3 and FLUX have it: 11.1 B with a decoder."""
    sizes = {"d_model": 4096, "d_ff": 10_240, "d_kv": 64, "num_heads": 64, "num_layers": 24,
             "vocab_size": 32_128, "feed_forward_proj": "gated-gelu"}  # fmt: skip
    model = from_config({"model_type": "t5", "architectures": ["T5EncoderModel"]} | sizes)
    assert parameters(model) == 4_762_310_656
    assert model.tower is None


def test_the_encoder_of_t5_alone_saves_what_pytorch_does():
    """bf16, eager attention, 3 x 24 tokens; of the last hidden states."""
    assert saved(T5 | {"architectures": ["T5EncoderModel"]}).saved_for_backward_bytes == 1_007_136


def test_a_classifier_of_bert_has_no_logits_of_the_vocabulary():
    masked, classes = (
        saved(BERT | {"architectures": [name]})
        for name in ("BertForMaskedLM", "BertForSequenceClassification")
    )
    tokens = 3 * 24
    assert masked.saved_for_backward_bytes - classes.saved_for_backward_bytes > 2 * tokens * 1000
    assert not any(str(r.shape).endswith("VOCAB 1,000") for r in evaluate_rows("BertModel"))


def evaluate_rows(name):
    words = {"seq_len": 64, "checkpointing": "none"}
    plan = Plan(model=BERT | {"architectures": [name]}, cluster={"gpus": 1}, train=words)
    return [r for r in evaluate(plan).ledger if r.consumer == "activations"]


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


@each("family", sorted(name for name, f in FAMILIES.items() if not f.bridge))
def test_no_family_takes_defaults_for_its_width_and_depth(family):
    with pytest.raises(PlanError, match="missing; a model without its") as e:
        from_config({"model_type": family})
    # ESM's vocabulary has no default in transformers either; DeBERTa's default is another model.
    assert len(e.value.issues) == 2 + {"esm": 1, "deberta-v2": 5}.get(family, 0)


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


# -- quantization_config --------------------------------------------------------------------------

NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}
FP8 = {"num_bits": 8, "type": "float"}
W4 = {"num_bits": 4, "type": "int", "group_size": 64}


def packed(weights, **more):
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


def hqq(bits, group):
    weights = {"nbits": bits, "group_size": group}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": weights}}


def torchao(name, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": data}}}


def quark(dtype, scheme, **more):
    weight = {"dtype": dtype, "qscheme": scheme, **more}
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}}


SCHEMES = [  # as published -> the word, and bits of a value in the layers' matrices
    ({"quant_method": "fp8"}, "fp8", 8),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", 8 + 32 / 128**2),
    ({"quant_method": "fbgemm_fp8"}, "fp8", 8),
    ({"quant_method": "mxfp4"}, "mxfp4", 4.25),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4-g32", 4 + 20 / 32),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", 8 + 24 / 128),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "int3", 3 + 19 / 128),
    ({"quant_method": "gptq", "bits": 2, "group_size": 64}, "int2", 2 + 18 / 64),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4", 4),
    ({"quant_method": "auto-round", "bits": 2, "group_size": 32}, "int2", 2 + 18 / 32),
    ({"quant_method": "intel/auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32},
     "mxfp4", 4.25),
    (hqq(3, 64), "int4", 3.2 + 32 / 64),  # ten values in an int32
    (hqq(8, None), "int8", 8),
    (torchao("Int8WeightOnlyConfig"), "int8", 8),
    (torchao("Int4WeightOnlyConfig", group_size=32), "int4", 4 + 32 / 32),
    (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8", 8),
    ({"quant_method": "torchao", "quant_type": "int4_weight_only",
      "quant_type_kwargs": {"group_size": 256}}, "int4", 4 + 32 / 256),
    (quark("int8", "per_tensor"), "int8", 8),
    (quark("fp8_e4m3", "per_channel"), "fp8", 8),
    (quark("fp6_e2m3", "per_group", group_size=32, scale_format="e8m0"), "fp8", 6 + 8 / 32),
    ({"quant_method": "quanto", "weights": "int4"}, "int4", 4 + 32 / 128),
    ({"quant_method": "eetq", "weights": "int8"}, "int8", 8),
    ({"quant_method": "bitnet"}, "int2", 2),
    ({"quant_method": "higgs", "bits": 3, "group_size": 256}, "int3", 3 + 16 / 256),
    ({"quant_method": "exl3", "bits": 3.5}, "int4", 3.5),
    ({"quant_method": "mxfp8"}, "mxfp8", 8.25),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "mxfp8", 8.25),
    (packed({"num_bits": 4, "type": "int", "strategy": "channel"}), "int4", 4),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4-g64", 4 + 20 / 64),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
    ({"load_in_4bit": True}, "nf4", 4.5),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
     "nf4-double", 4 + (8 + 32 / 256) / 64),
    (packed(FP8), "fp8", 8),
    (packed(NVFP4), "nvfp4", 4.5),
    (packed(W4), "int4-g64", 4 + 20 / 64),
    (packed(NVFP4 | {"group_size": 32}), "mxfp4", 4.25),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 8),
    ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "nvfp4", 4.5),
]  # fmt: skip
MATRICES = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)  # of LLAMA's two layers


# What has its own types for the embedding and the head too: bits of matrices, embedding, head.
OUTER = [
    ({"bits": 6, "group_size": 64}, 6.5, 6.5, 6.5),  # MLX
    ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, 4.25, 4.25, 4.25),
    ({"bits": 4, "group_size": 64, "lm_head": False,
      "model.embed_tokens": {"bits": 8, "group_size": 64}}, 4.5, 8.5, 16),
    ({"quant_method": "exl2", "bits": 4.0, "head_bits": 6}, 4, 16, 6),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "matrices", "embedding", "head"), OUTER)
def test_the_embedding_and_the_head_are_stored_as_config_json_says(
    scheme, matrices, embedding, head
):
    narrow = evaluate(quantized(scheme, engine="vllm")).serve.weights_bytes
    wide = evaluate(Plan(model=LLAMA, serve={"engine": "vllm"})).serve.weights_bytes
    outer = 1024 * LLAMA["hidden_size"]  # vLLM pads 1,000 rows to a multiple of 64
    saved = MATRICES * (16 - matrices) + outer * (32 - embedding - head)
    assert wide - narrow == pytest.approx(saved / 8, rel=1e-3)


def quantized(scheme, **serve):
    return Plan(model=LLAMA | {"quantization_config": scheme}, serve=serve)


@pytest.mark.parametrize(("scheme", "word", "bits"), SCHEMES)
def test_weights_are_served_as_config_json_stores_them(scheme, word, bits):
    plan = quantized(scheme)
    assert (plan.serve.weight_dtype, plan.weight_dtype) == ("auto", word)
    narrow = evaluate(plan).serve.weights_bytes
    wide = evaluate(plan.changed("serve.weight_dtype", "bf16")).serve.weights_bytes
    assert wide - narrow == pytest.approx(MATRICES * (16 - bits) / 8, rel=1e-3)


def test_without_a_word_weights_have_16_bits():
    assert Plan(model=LLAMA).weight_dtype == "bf16"


def test_a_plan_s_own_word_is_kept_and_the_file_s_is_said():
    plan = quantized(packed(NVFP4), weight_dtype="int8")
    assert plan.weight_dtype == "int8"
    (note,) = (n for n in evaluate(plan).notes if n.startswith("Serving: config.json has"))
    assert "compressed-tensors" in note
    assert "int8" in note


def test_a_link_without_a_word_means_what_it_meant():
    """bf16, for ever; a plan that says auto carries the word."""
    old, _ = decode({"v": "1", "model": "gpt-oss-120b~1"})
    assert old.weight_dtype == "bf16"
    new = Plan(model="gpt-oss-120b")
    assert encode(new, short=True, form=1)["wdtype"] == "auto"
    assert decode(encode(new, short=True))[0].weight_dtype == "mxfp4"


# GB of the published files: 65.25 for gpt-oss-120b (its model card), and 13.76. DeepSeek-V3 is
# published with a further layer of 11.5 B parameters that predicts a second token: 688.6 with it.
@pytest.mark.parametrize(
    ("preset", "gigabytes"), [("gpt-oss-120b", 65.25), ("gpt-oss-20b", 13.76), ("deepseek-v3", 673)]
)
def test_presets_are_served_as_published(preset, gigabytes):
    report = evaluate(Plan(model=preset, cluster={"gpus": 8}))
    assert report.serve.weights_bytes == pytest.approx(gigabytes * 1e9, rel=1e-3)
    assert any("as config.json has them" in note for note in report.notes)
    assert any("training is planned with them widened" in note for note in report.notes)


STRANGE = [
    ({"quant_method": "hqq", "quant_config": {}}, "hqq"),
    ({"quant_method": "gptq", "bits": 12, "group_size": 128}, "12"),
    ({"quant_method": "gptq", "bits": "4", "group_size": 128}, "4"),
    ({"quant_method": "gptq", "bits": 4, "group_size": "all"}, "all"),
    ({"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 16}, "aqlm"),
    ({"quant_method": "spqr", "bits": 3}, "spqr"),
    ({"quant_method": "vptq"}, "vptq"),
    ({"quant_method": "torchao", "quant_type": "uintx_weight_only_7"}, "uintx"),
    ({"quant_method": "torchao", "quant_type": {"default": 4}}, "torchao"),
    (quark("fp5", "per_tensor"), "fp5"),
    (packed({"num_bits": 12, "type": "int"}), "12"),
    (packed({"num_bits": 6, "type": "float"}), "6 bits"),
    ({"quant_method": "modelopt", "quant_algo": "MXFP6"}, "MXFP6"),
    ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    ({"bits": 4}, "not named"),
    ({"quant_method": 7}, "not named"),
    ("int4", "int4"),
]


@pytest.mark.parametrize(("scheme", "says"), STRANGE)
def test_a_scheme_that_is_not_planned_is_refused_by_name(scheme, says):
    with pytest.raises(PlanError, match=rf"serve\.weight_dtype: config\.json .*{says}"):
        quantized(scheme)
    report = evaluate(quantized(scheme, weight_dtype="bf16"))
    assert any(n.startswith("Serving: config.json has its weights as") for n in report.notes)


# What is left wide: of LLAMA's two layers in fp8, in values.
WIDE = [
    ({"modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}, 0),
    ({"modules_to_not_convert": ["model.layers.1.mlp"]}, 3 * 256 * 512),
    ({"modules_to_not_convert": ["o_proj"]}, 2 * 256 * 256),
    ({"modules_to_not_convert": ["mlp.gate"]}, 0),
    ({"modules_to_not_convert": ["model.layers.*.self_attn"]}, 2 * (2 * 256 * 256 + 2 * 256 * 128)),
    ({"ignore": ["re:.*self_attn.(q|o)_proj"]}, 2 * 2 * 256 * 256),
    ({"ignore": ["model.language_model.layers.0*"]}, MATRICES // 2),
    ({"ignore": ["model.layers.1.self_attn*"]}, 2 * 256 * 256 + 2 * 256 * 128),
]


@pytest.mark.parametrize(("names", "values"), WIDE)
def test_modules_that_are_named_stay_in_16_bits(names, values):
    whole = evaluate(quantized({"quant_method": "fp8"})).serve.weights_bytes
    part = evaluate(quantized({"quant_method": "fp8"} | names)).serve.weights_bytes
    assert part - whole == values


def test_a_stranger_s_expression_is_not_run():
    scheme = {"quant_method": "fp8", "ignore": ["re:(a+)+$", "re:((x)*)*y", "re:" + "(a|b)" * 99]}
    report = evaluate(quantized(scheme))
    assert any("patterns of names are not read" in note for note in report.notes)


def test_several_schemes_in_one_file():
    """Each module as it is named; what nobody names stays wide."""
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
        "lm_head": {"quant_algo": "NVFP4"},
    }
    scheme = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    wide = evaluate(quantized(scheme, weight_dtype="bf16")).serve.weights_bytes
    saved_bits = 256 * 256 * 8 + 256 * 512 * 11.5 + 256 * 1024 * 11.5  # the vocabulary is padded
    assert wide - evaluate(quantized(scheme)).serve.weights_bytes == saved_bits / 8


def test_layers_of_another_stack_are_not_the_model_s():
    for name in ("mtp.layers.0*", "mtp.layers.0.mlp", "visual.layers.0.mlp", "mtp*"):
        assert stored_as(((name, ""),), "layers.mlp.up_proj.weight", 0) is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("model.layers.3.linear_attn.in_proj_qkv", "layers.linear_attn.in_proj_qkvz.weight"),
        ("model.layers.3.mlp.experts.0.gate_proj", "layers.mlp.experts.gate_up_proj"),
        ("model.layers.3.mlp.experts.0.down_proj", "layers.mlp.experts.down_proj"),
        ("model.layers.3.mlp.experts", "layers.mlp.experts.down_proj"),
        ("language_model.lm_head", "head.lm_head.weight"),
        ("lm_head", "head.lm_head.weight"),
    ],
)
def test_a_module_is_known_by_the_name_of_its_file(written, name):
    assert stored_as(((written, "fp8"),), name, 3) == "fp8"
    if "layers" in written:
        assert stored_as(((written, "fp8"),), name, 2) is None


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
    ],
)
def test_a_cache_that_the_file_asks_for_is_noted(words, dtype):
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8"} | words
    note = f"asks for a cache in {dtype}"
    assert any(note in n for n in evaluate(quantized(scheme)).notes)
    assert not any(note in n for n in evaluate(quantized(scheme, kv_dtype=dtype)).notes)


def test_every_number_of_a_file_s_own_dtype_is_explained():
    plan = quantized({"quant_method": "fp8", "modules_to_not_convert": ["o_proj"]})
    checked(Book(plan, evaluate(plan)))
