"""Configs as others write them: by other names, saved anew, in wrappers, with words of no account.

What PyTorch itself counts for them is asked in test_pytorch_live.py."""

import json

import pytest
from drawn import DISENTANGLED

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.models.config import parse_config
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, from_config
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan

CODER_480B = {  # Qwen/Qwen3-Coder-480B-A35B-Instruct, with num_experts as transformers 5 saves it
    "model_type": "qwen3_moe", "hidden_size": 6144, "num_hidden_layers": 62,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 8192, "moe_intermediate_size": 2560, "num_experts_per_tok": 8,
    "vocab_size": 151_936, "num_local_experts": 160,
}  # fmt: skip


def test_experts_by_the_name_that_transformers_5_saves():
    """480,154,875,392 as transformers counts them; by the default of 128 they were 386.5 B."""
    assert parameters(from_config(CODER_480B)) == 480_154_875_392


def test_a_key_may_stand_there_by_both_names():
    twice = CODER_480B | {"num_experts": 160}
    assert from_config(twice) == from_config(CODER_480B)
    assert from_config(CODER_480B | {"num_experts": None}) == from_config(CODER_480B)


def test_two_names_with_two_values_are_refused():
    with pytest.raises(PlanError, match="num_local_experts: '160', but num_experts, another name"):
        from_config(CODER_480B | {"num_experts": 128})


def test_what_is_wrong_is_said_by_the_name_in_the_file():
    with pytest.raises(PlanError, match=r"model\.num_attention_heads: must be a whole number"):
        from_config({"model_type": "gpt2", "num_attention_heads": "12"})
    with pytest.raises(PlanError, match=r"model\.n_head: must be a whole number"):
        from_config({"model_type": "gpt2", "n_head": "12"})


def test_a_head_of_t5_that_was_loaded_by_itself_stays_so():
    """transformers 5 writes of Flan-T5 that all is tied, and that its outputs are not scaled."""
    config = catalog.model_entry("flan-t5-base")["config"]
    saved = config | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert parameters(from_config(saved)) == parameters(from_config(config)) == 247_577_856


# -- wrappers, and families by other names --------------------------------------------------------

QWEN_27B = {  # Qwen/Qwen3.5-27B
    "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17_408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "head_dim": 256, "vocab_size": 248_320, "linear_num_value_heads": 48,
    },
    "vision_config": {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152,
                      "intermediate_size": 4304, "out_hidden_size": 5120},
    "tie_word_embeddings": False,
}  # fmt: skip


def test_a_wrapper_is_opened_and_its_tower_noted():
    """transformers counts 27,356,728,560 in Qwen3_5ForConditionalGeneration."""
    model = from_config(QWEN_27B)
    assert parameters(model) == 26_895_998_464
    assert parameters(from_config(QWEN_27B["text_config"])) == 26_895_998_464
    note = model.notes[-1]
    assert f"{27_356_728_560 - 26_895_998_464:,} parameters" in note
    report = evaluate(Plan(model=QWEN_27B))
    assert note in report.notes


QWEN3_VL_2B = {  # Qwen/Qwen3-VL-2B-Instruct
    "model_type": "qwen3_vl", "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151_936,
    },
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
                      "out_hidden_size": 2048, "deepstack_visual_indexes": [5, 11, 17]},
}  # fmt: skip
QWEN2_5_VL_7B = {  # Qwen/Qwen2.5-VL-7B-Instruct
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064,
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
                      "out_hidden_size": 3584, "in_chans": 3, "spatial_patch_size": 14},
}  # fmt: skip
QWEN2_VL_7B = QWEN2_5_VL_7B | {
    "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (QWEN3_VL_2B, 2_127_532_032),
        (QWEN2_5_VL_7B, 8_292_166_656),
        (QWEN2_VL_7B, 8_291_375_616),
    ],
)
def test_text_and_tower_are_what_transformers_counts(config, counted):
    assert parameters(from_config(config)) == counted


def test_a_tower_that_is_no_list_is_refused_by_name():
    tower = QWEN3_VL_2B["vision_config"] | {"deepstack_visual_indexes": 3}
    with pytest.raises(PlanError, match="deepstack_visual_indexes"):
        from_config(QWEN3_VL_2B | {"vision_config": tower})


def test_a_wrapper_may_leave_out_what_its_class_has_by_default():
    """Llama 4 Scout has no vision_config: 108,225,039,360 in Llama4ForConditionalGeneration."""
    scout = {
        "model_type": "llama4",
        "text_config": {"num_local_experts": 16, "num_hidden_layers": 48, "hidden_size": 5120},
    }
    model = from_config(scout)
    assert parameters(model) == 107_769_861_120
    assert f"{108_225_039_360 - 107_769_861_120:,} parameters" in model.notes[-1]


def test_a_wrapper_of_a_known_family_that_is_not_known_itself():
    inner = {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14,
             "num_key_value_heads": 2, "num_hidden_layers": 24, "vocab_size": 151_936,
             "intermediate_size": 4864}  # fmt: skip
    model = from_config({"model_type": "a_wrapper", "text_config": inner} | {"dtype": "bfloat16"})
    assert parameters(model) == parameters(from_config(inner))
    assert "its weights too" in model.notes[0]
    tied = {"model_type": "a_wrapper", "text_config": inner, "tie_word_embeddings": True}
    assert parameters(model) - parameters(from_config(tied)) == 151_936 * 896


def test_what_a_wrapper_s_text_says_of_its_image_is_no_part_of_the_text():
    """transformers 5 writes it into PaliGemma's text_config; a Gemma of that kind is refused."""
    text = {"model_type": "gemma", "hidden_size": 64, "num_hidden_layers": 2,
            "use_bidirectional_attention": True}  # fmt: skip
    alone = text | {"use_bidirectional_attention": None}
    wrapped = from_config({"model_type": "paligemma", "text_config": text})
    assert parameters(wrapped) == parameters(from_config(alone))
    with pytest.raises(PlanError, match="use_bidirectional_attention"):
        from_config(text)


def test_llama_3_2_vision_has_the_parameters_of_its_class():
    """MllamaForConditionalGeneration of 11B: 10,670,220,835, of its text 9,775,192,080."""
    text = {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32}
    ratios = [[a, b] for a in range(1, 5) for b in range(1, 5) if a * b <= 4]
    model = from_config({
        "model_type": "mllama",
        "text_config": text,
        "vision_config": {"image_size": 560, "supported_aspect_ratios": ratios},
    })  # fmt: skip
    assert parameters(model) == 9_775_192_080
    assert f"{10_670_220_835 - 9_775_192_080:,} parameters" in model.notes[-1]


def test_how_a_wrapper_s_weights_are_stored_is_so_of_the_model_in_it():
    stored = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    outside = evaluate(Plan(model=QWEN_27B | stored)).serve.weights_bytes
    inside = evaluate(Plan(model=QWEN_27B["text_config"] | stored)).serve.weights_bytes
    assert outside == inside < 0.6 * evaluate(Plan(model=QWEN_27B)).serve.weights_bytes


def test_the_class_of_the_whole_counts_not_that_of_the_part_in_it():
    """Some name the part's class as one without a head."""
    inner = QWEN_27B["text_config"] | {"architectures": ["Qwen3_5TextModel"]}
    assert parameters(from_config(QWEN_27B | {"text_config": inner})) == 26_895_998_464


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (QWEN_27B | {"text_config": {"model_type": "unheard_text"}}, "text_config.model_type"),
        (QWEN_27B | {"text_config": {"model_type": ["llama"]}}, "text_config.model_type"),
        (QWEN_27B | {"text_config": {"model_type": {"a": 1}}}, "text_config.model_type"),
        (QWEN_27B | {"text_config": {"model_type": "bert"}}, "text_config.model_type"),
        (QWEN_27B | {"text_config": {"model_type": "llava"}}, "text_config.model_type"),
        (QWEN_27B | {"text_config": {"hidden_size": "x"}}, "text_config.hidden_size"),
        (QWEN_27B | {"vision_config": {"depth": [27]}}, "vision_config.depth"),
        (QWEN_27B | {"vision_config": 7}, "vision_config"),
        (QWEN_27B | {"architectures": ["Qwen3_5ForImageClassification"]}, "architectures"),
        ({"model_type": "llava", "text_config": {"model_type": ["llama"]}},
         "text_config.model_type"),
        ({"model_type": "llava", "text_config": {"model_type": {"llama": 1}}},
         "text_config.model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": "gemma2", "layer_types": [[]]}, "layer_types"),
        ({"model_type": "qwen3_5_text", "layer_types": [{}]}, "layer_types"),
        ({"model_type": "smollm3", "no_rope_layers": [[]] * 36}, "no_rope_layers"),
        ({"model_type": "gpt_neox", "rotary_pct": 10**400}, "rotary_pct"),
        ({"model_type": "phi3", "partial_rotary_factor": []}, "partial_rotary_factor"),
        ({"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": "half"}},
         "rope_parameters.partial_rotary_factor"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": "x"}},
         "rope_scaling.factor"),
        ({"model_type": "llama", "rope_scaling": 8}, "rope_scaling"),
    ],
)  # fmt: skip
def test_what_is_of_the_wrong_kind_is_refused_by_name(config, field):
    with pytest.raises(PlanError) as caught:
        from_config(config)
    assert f"model.{field}" in [issue.field for issue in caught.value.issues]


def test_kimi_k2_is_deepseek_v3_by_another_name():
    """moonshotai/Kimi-K2-Instruct: 1,026,408,209,408 parameters."""
    kimi = {
        "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18_432,
        "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163_840,
    }  # fmt: skip
    model = from_config(kimi)
    assert parameters(model) == 1_026_408_209_408
    assert (model.family, model.label) == ("deepseek_v3", "Your kimi_k2 model")
    assert from_config({"model_type": "kimi_k25", "text_config": kimi}) == from_config(
        kimi, "Your kimi_k25 model"
    )


def test_minimax_m3_is_read_in_its_own_words_and_in_those_of_transformers():
    """MiniMaxAI/MiniMax-M3 with transformers' MiniMaxM3SparseForConditionalGeneration around it:
    427,040,132,864 parameters, of which 426,174,565,632 are the text's."""
    choose = [0] * 3 + [1] * 57
    own = {
        "model_type": "minimax_m3", "hidden_size": 6144, "num_hidden_layers": 60,
        "hidden_act": "swigluoai", "partial_rotary_factor": 0.5, "moe_layer_freq": choose,
        "sparse_attention_config": {
            "sparse_attention_freq": choose, "sparse_num_index_heads": 4, "sparse_block_size": 128,
            "sparse_topk_blocks": 16,
        },
    }  # fmt: skip
    kinds = {0: ("full_attention", "dense"), 1: ("minimax_m3_sparse", "sparse")}
    words = {
        "model_type": "minimax_m3_vl_text", "hidden_size": 6144, "num_hidden_layers": 60,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5},
        "layer_types": [kinds[n][0] for n in choose],
        "mlp_layer_types": [kinds[n][1] for n in choose],
    }  # fmt: skip
    model = from_config(own, "M3")
    assert model == from_config(words, "M3")
    assert parameters(model) == 426_174_565_632
    whole = from_config({"model_type": "minimax_m3_vl", "text_config": own, "vision_config": {}})
    assert f"{427_040_132_864 - 426_174_565_632:,} parameters" in whole.notes[-1]
    for key, value in (("sparse_num_index_heads", 8), ("sparse_index_dim", 32)):
        choice = own["sparse_attention_config"] | {key: value}
        with pytest.raises(PlanError, match=rf"sparse_attention_config\.{key}"):
            from_config(own | {"sparse_attention_config": choice})


def test_mimo_is_qwen2_by_another_name():
    sizes = {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 3000,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    mimo = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], **sizes}
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **sizes}
    assert parameters(from_config(mimo)) == parameters(from_config(qwen))
    for config in (mimo | {"architectures": ["Qwen2ForCausalLM"]},
                   qwen | {"architectures": ["MiMoForCausalLM"]}):  # fmt: skip
        with pytest.raises(PlanError, match=r"model\.architectures"):
            from_config(config)


# -- words of no account --------------------------------------------------------------------------

NEMOTRON_H_56B = {  # nvidia/Nemotron-H-56B-Base-8K
    "model_type": "nemotron_h", "hidden_size": 8192, "intermediate_size": 32_768,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131_072,
    "mamba_num_heads": 256, "mamba_head_dim": 64, "ssm_state_size": 256, "n_groups": 8,
    "num_hidden_layers": 118, "time_step_limit": [0.0, float("inf")],
    "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
}  # fmt: skip


def test_a_limit_without_end_is_read():
    """Python writes Infinity into the config.json of every model with Mamba-2 layers."""
    text = json.dumps(NEMOTRON_H_56B)
    assert "Infinity" in text
    parsed = parse_config(text)
    assert parameters(from_config(parsed)) == 56_324_350_464  # as transformers counts them
    plan = Plan(model=NEMOTRON_H_56B)
    assert json.dumps(evaluate(plan).to_dict(), allow_nan=False)
    assert Plan(model=parsed) == plan == Plan.of(json.loads(json.dumps(plan.document())))
    wrapped = {"model_type": "nemotron_vl", "text_config": NEMOTRON_H_56B}
    assert json.dumps(Plan(model=wrapped).document(), allow_nan=False)


def test_a_limit_without_end_goes_into_a_link():
    plan = Plan(model=NEMOTRON_H_56B)
    read, issues = decode(encode(plan))
    assert (read, issues) == (plan, [])


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_other_numbers_that_json_has_not_are_refused(number):
    text = '{"model_type": "mamba2", "time_step_limit": [0.0, ' + number + "]}"
    with pytest.raises(PlanError, match=r"model\.time_step_limit\.1"):
        parse_config(text)


SIZES = {"hidden_size": 640, "num_hidden_layers": 4}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe", "gpt_oss"])
def test_a_loss_that_balances_experts_is_noted(family):
    plain = from_config({"model_type": family} | SIZES)
    model = from_config({"model_type": family, "output_router_logits": True} | SIZES)
    assert model == plain
    (note,) = set(model.notes) - set(plain.notes)
    assert "output_router_logits" in note


NO_FLASH = {"bloom": "eager", "mpt": "eager", "t5": "eager", "mt5": "eager",
            "umt5": "eager", "llama4_text": "sdpa",
            "deepseek_v32": "sdpa", "glm_moe_dsa": "sdpa", "step3p5": "sdpa",
            "minimax_m3_vl_text": "sdpa", "deepseek_v4": "eager", "mpnet": "eager",
            "deberta-v2": "eager"}  # fmt: skip


def test_families_without_the_usual_attention():
    assert {f for f in FAMILIES if "flash" not in FAMILIES[f].attentions} == set(NO_FLASH)


@pytest.mark.parametrize("family", NO_FLASH)
def test_the_attention_that_there_is_is_taken_and_said(family):
    own = {"mpnet": {"num_attention_heads": 10}, "deberta-v2": DISENTANGLED}.get(family, {})
    model = {"model_type": family, **own} | SIZES
    report = evaluate(Plan(model=model, train={"seq_len": 500}))
    assert report.plan["train"]["attention"] == NO_FLASH[family]
    (note,) = [n for n in report.notes if f"flash attention for {family}" in n.lower()]
    assert note.endswith(f"; {NO_FLASH[family]} attention is taken.")
    again = Plan.of(report.plan)
    assert evaluate(again).notes == report.notes
    with pytest.raises(PlanError, match=rf"train\.attention: .* set it to {NO_FLASH[family]}"):
        Plan(model=model, train={"seq_len": 500, "attention": "flash"})


def test_a_head_s_width_of_olmoe_that_does_not_run_is_refused():
    """transformers' norm of queries is as wide as the hidden size, whatever the heads are."""
    with pytest.raises(PlanError, match=r"model\.head_dim: 16 heads of 96 are not"):
        from_config({"model_type": "olmoe", "head_dim": 96} | SIZES)
    assert from_config({"model_type": "olmoe", "head_dim": 40} | SIZES) == from_config(
        {"model_type": "olmoe"} | SIZES
    )


@pytest.mark.parametrize(
    ("named", "title"),
    [
        ("acme/tuned-8b-chat", "Your tuned-8b-chat"),
        ("/models/mine/", "Your mine"),
        ("x" * 300, f"Your {'x' * 40}"),
        ("a\nb", "Your a?b"),
        *((unnamed, "Your 8.03B llama") for unnamed in (None, "", "./", "..", 3)),
    ],
)
def test_a_model_of_ones_own_is_called_as_its_file_says_or_by_its_size(named, title):
    config = catalog.model_entry("llama-3-8b")["config"] | {"_name_or_path": named}
    assert Plan(model=config).architecture.label == title
