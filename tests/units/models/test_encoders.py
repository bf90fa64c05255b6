"""Encoders: parameters as transformers 5.23.0 counts them, and a head of ELECTRA's."""

import asked
import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan

ELECTRA, NOMIC, EURO = "electra Electra", "nomic_bert NomicBert", "eurobert EuroBert"
MPNET, ESM = "mpnet MPNet", "esm Esm"
ESM_2 = {"vocab_size": 33, "hidden_size": 480, "num_attention_heads": 20, "intermediate_size": 1920,
         "position_embedding_type": "rotary", "token_dropout": True}  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NARROW = {"num_labels": 5, "hidden_size": 384, "num_attention_heads": 6}


def made(name, head, **keys):
    kind, stem = name.split()
    width = 256 if kind == "electra" else 768
    base = {"hidden_size": width, "num_hidden_layers": 12, "classifier_pooling": "bos"}
    return from_config({"model_type": kind, "architectures": [stem + head], **base, **keys})


@pytest.mark.parametrize(
    ("name", "head", "keys", "counted"),
    [
        (ELECTRA, "ForMaskedLM", {}, 13_546_682),
        (ELECTRA, "ForMaskedLM", UNTIED, 17_453_498),
        (ELECTRA, "ForMaskedLM", NARROW, 20_671_290),
        (ELECTRA, "Model", NARROW, 20_591_232),
        (ELECTRA, "ForSequenceClassification", NARROW, 20_740_997),
        (ELECTRA, "ForPreTraining", {}, 13_549_057),
        (NOMIC, "ForMaskedLM", {}, 137_354_304),
        (NOMIC, "ForMaskedLM", UNTIED, 160_830_336),
        (NOMIC, "ForMaskedLM", NARROW, 61_467_072),
        (NOMIC, "Model", {}, 136_731_648),
        (NOMIC, "ForSequenceClassification", NARROW, 61_437_701),
        (EURO, "ForMaskedLM", {}, 310_266_624),
        (EURO, "ForMaskedLM", NARROW, 148_055_424),
        (EURO, "Model", {}, 211_766_016),
        (EURO, "ForSequenceClassification", NARROW, 98_954_885),
        (MPNET, "ForMaskedLM", {}, 109_516_991),
        (MPNET, "ForMaskedLM", NARROW | UNTIED | {"num_hidden_layers": 6}, 41_585_854),
        (MPNET, "Model", {}, 109_484_928),
        (MPNET, "ForSequenceClassification", NARROW | {"num_hidden_layers": 6}, 29_803_589),
        (ESM, "ForMaskedLM", ESM_2, 33_501_394),
        (ESM, "Model", ESM_2, 33_500_401),
        (ESM, "ForSequenceClassification", ESM_2, 33_501_363),
        (ESM, "ForMaskedLM", NARROW | UNTIED | {"vocab_size": 40, "emb_layer_norm_before": True,
                                                "num_hidden_layers": 6}, 18_308_813),
        ("bert Bert", "ForMaskedLM", {"vocab_size": 20_001, "num_hidden_layers": 6, **UNTIED},
         74_277_186),
        ("roberta Roberta", "ForMaskedLM",
         {"vocab_size": 20_001, "num_hidden_layers": 6, **UNTIED}, 74_277_186),
    ],
)  # fmt: skip
def test_parameters_are_those_of_transformers(name, head, keys, counted):
    assert parameters(made(name, head, **keys)) == counted


def test_nomic_s_own_words_are_read():
    own = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 768,
           "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192,
           "activation_function": "swiglu", "rotary_emb_fraction": 1.0}  # fmt: skip
    assert parameters(from_config(own)) == 136_731_648


@pytest.mark.parametrize(
    ("name", "head", "key", "value"),
    [
        (EURO, "ForSequenceClassification", "classifier_pooling", "late"),
        (NOMIC, "Model", "qkv_proj_bias", True),
        (NOMIC, "Model", "num_experts", 8),
        (ESM, "Model", "is_folding_model", True),
        (ESM, "Model", "vocab_size", None),
    ],
)
def test_what_is_not_known_of_them_is_refused_by_its_key(name, head, key, value):
    with pytest.raises(PlanError, match=key):
        made(name, head, **{key: value})


# What PyTorch says by reference/ask_pytorch.py, with AutoModelForPreTraining in TASKS.
@pytest.mark.parametrize(
    ("keys", "micro_batch", "seq", "saved"),
    [
        ({}, 1, 256, 11_218_432),
        ({}, 3, 512, 67_302_400),
        ({"hidden_act": "relu", **UNDROPPED}, 1, 256, 8_564_224),
        ({"hidden_act": "relu", **UNDROPPED}, 3, 512, 51_377_152),
    ],
)
def test_electra_s_discriminator_keeps_what_pytorch_keeps(keys, micro_batch, seq, saved):
    config = {
        "model_type": "electra", "architectures": ["ElectraForPreTraining"], "vocab_size": 3000,
        "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
        "num_hidden_layers": 3, "max_position_embeddings": 1024, **keys,
    }  # fmt: skip
    row = {"batch": micro_batch, "seq": seq, "attention": "sdpa", "checkpointing": "none"}
    row |= {"kind": "saved", "model": "electra"}
    plan = asked.plan_of_family({"configs": {"electra": config}}, row)
    assert asked.saved(plan) == saved


SMALL = {"d_model": 640, "encoder_layers": 5, "decoder_layers": 3, "encoder_ffn_dim": 1000,
         "decoder_ffn_dim": 2000, "encoder_attention_heads": 10, "decoder_attention_heads": 5,
         "vocab_size": 9001, "max_position_embeddings": 600}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "counted"),
    [
        ("bart", "BartForConditionalGeneration", 38_704_760),
        ("mbart", "MBartForConditionalGeneration", 38_707_320),
        ("pegasus", "PegasusForConditionalGeneration", 38_702_200),
        ("marian", "MarianMTModel", 38_699_640),
        ("m2m_100", "M2M100ForConditionalGeneration", 37_934_200),
    ],
)
def test_parameters_of_encoder_decoders(kind, name, counted):
    config = {"model_type": kind, "architectures": [name], **SMALL}
    assert parameters(from_config(config)) == counted


@pytest.mark.parametrize("kind", ["bart", "m2m_100"])
def test_an_encoder_decoder_is_served_with_both_caches(kind):
    """A server keeps of each generated token keys and values of the decoder's layers, and of each
    token of the prompt those that the decoder makes of the encoder's result, once."""
    config = {"model_type": kind, **SMALL}
    plan = Plan.of({
        "model": config, "cluster": {"gpus": 1}, "train": {"seq_len": 256, "framework": "fsdp2"},
        "serve": {"prompt_len": 512, "output_len": 64},
    })  # fmt: skip
    found = evaluate(plan).serve
    assert found.kv_bytes_per_token == 3 * 2 * 640 * 2
    assert found.cross_bytes_per_sequence == 512 * 3 * 2 * 640 * 2


def test_layers_that_are_left_out_at_random_are_noted():
    config = {"model_type": "m2m_100", **SMALL}
    assert any("layerdrop" in note for note in from_config(config).notes)
    every = from_config({**config, "encoder_layerdrop": 0, "decoder_layerdrop": 0})
    assert not any("layerdrop" in note for note in every.notes)
