"""Models that are planned as a family of another name."""

import pytest

from evidence.planned import training_of
from memcore.errors import PlanError
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.families.rows import rows
from memcore.plan.plan import Plan

CHATGLM = {  # zai-org/chatglm3-6b
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "add_bias_linear": False,
    "add_qkv_bias": True, "ffn_hidden_size": 13_696, "hidden_size": 4096, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32,
    "num_layers": 28, "padded_vocab_size": 65_024, "rmsnorm": True, "post_layer_norm": True,
    "seq_length": 8192, "tie_word_embeddings": False,
}  # fmt: skip
PHI = {  # microsoft/Phi-4-multimodal-instruct
    "model_type": "phi4mm", "architectures": ["Phi4MMForCausalLM"], "hidden_size": 3072,
    "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
    "num_key_value_heads": 8, "vocab_size": 200_064, "tie_word_embeddings": True,
    "partial_rotary_factor": 0.75, "audio_processor": {"name": "cascades"},
}  # fmt: skip


def test_chatglm_is_glm_by_other_keys():
    """12,487,168,064 bytes in its index of files, 64 of them rotary frequencies."""
    model = from_config(CHATGLM)
    assert 2 * parameters(model) + 64 == 12_487_168_064
    assert model.family == "glm"
    assert "planned as GLM" in model.notes[0]


def test_the_first_chatglm_is_refused():
    with pytest.raises(PlanError, match="position_encoding_2d"):
        from_config(CHATGLM | {"position_encoding_2d": True})


BEFORE = {  # files of before transformers had their families, and their parameters as published
    "tiiuae/falcon-7b": (6_921_720_704, {
        "model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"], "hidden_size": 4544,
        "n_head": 71, "n_layer": 32, "multi_query": True, "parallel_attn": True, "bias": False,
        "alibi": False, "vocab_size": 65_024,
    }),
    "tiiuae/falcon-40b": (41_303_293_952, {
        "model_type": "RefinedWeb", "architectures": ["RWForCausalLM"], "hidden_size": 8192,
        "n_head": 128, "n_head_kv": 8, "n_layer": 60, "parallel_attn": True, "bias": False,
        "alibi": False, "vocab_size": 65_024,
    }),
    "microsoft/phi-1_5": (1_418_270_720, {
        "model_type": "mixformer-sequential", "architectures": ["MixFormerSequentialForCausalLM"],
        "n_embd": 2048, "n_head": 32, "n_layer": 24, "n_positions": 2048, "n_inner": None,
        "rotary_dim": 32, "vocab_size": 51_200, "activation_function": "gelu_new",
    }),
    "microsoft/phi-2": (2_779_683_840, {
        "model_type": "phi-msft", "architectures": ["PhiForCausalLM"], "n_embd": 2560,
        "n_head": 32, "n_layer": 32, "n_positions": 2048, "n_inner": None, "rotary_dim": 32,
        "vocab_size": 51_200, "activation_function": "gelu_new",
    }),
    "stabilityai/stablelm-3b-4e1t": (2_795_443_200, {
        "model_type": "stablelm_epoch", "architectures": ["StableLMEpochForCausalLM"],
        "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "rope_pct": 0.25, "norm_eps": 1e-5,
        "vocab_size": 50_304, "tie_word_embeddings": False,
    }),
}  # fmt: skip


MINICPM = {  # openbmb/MiniCPM-V-2_6
    "model_type": "minicpmv", "architectures": ["MiniCPMV"], "version": 2.6, "hidden_size": 3584,
    "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 151_666, "tie_word_embeddings": False,
    "vision_config": {"model_type": "siglip", "hidden_size": 1152}, "query_num": 64,
}  # fmt: skip


def test_of_minicpm_v_the_language_model_is_planned():
    model = from_config(MINICPM)
    text = {k: v for k, v in MINICPM.items() if k not in ("architectures", "vision_config")}
    assert parameters(model) == parameters(from_config(text | {"model_type": "qwen2"}))
    assert "left out" in model.notes[0]
    with pytest.raises(PlanError, match="version"):
        from_config(MINICPM | {"version": 4.5})


def test_of_phi_3_5_vision_the_language_model_is_planned():
    vision = {
        "model_type": "phi3_v", "architectures": ["Phi3VForCausalLM"], "hidden_size": 3072,
        "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 32_064, "img_processor": {"name": "clip_vision_model", "num_img_tokens": 144},
    }  # fmt: skip
    model = from_config(vision)
    assert parameters(model) == 3_821_079_552  # as Phi-3-mini
    assert "left out" in model.notes[0]


@pytest.mark.parametrize("name", ["H2OVLChatModel", "NVLM_D_Model", "Ovis", "UltravoxModel"])
def test_classes_of_their_own_that_write_text_are_wrappers(name):
    inner = QWEN_2 | {"model_type": "qwen2"}
    model = from_config({"model_type": "one", "architectures": [name], "text_config": inner})
    assert parameters(model) == parameters(from_config(inner))


QWEN_2 = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
          "num_hidden_layers": 2, "vocab_size": 1000, "intermediate_size": 4864}  # fmt: skip


def test_skywork_is_llama_by_name():
    skywork = {
        "model_type": "skywork", "architectures": ["SkyworkForCausalLM"], "hidden_size": 4608,
        "intermediate_size": 12_288, "num_hidden_layers": 52, "num_attention_heads": 36,
        "num_key_value_heads": 36, "vocab_size": 65_519,
    }  # fmt: skip
    assert round(parameters(from_config(skywork)) / 1e9, 2) == 13.85


@pytest.mark.parametrize("name", BEFORE)
def test_a_file_of_before_is_its_family(name):
    count, config = BEFORE[name]
    assert parameters(from_config(config)) == count


@pytest.mark.parametrize("key", ["rmsnorm", "post_layer_norm", "multi_query_attention"])
def test_another_chatglm_is_refused(key):
    with pytest.raises(PlanError, match=key):
        from_config(CHATGLM | {key: False})


def test_of_phi_4_multimodal_the_language_model_is_planned():
    model = from_config(PHI)
    assert parameters(model) == 3_836_021_760  # as Phi-4-mini
    assert "left out" in model.notes[0]


QWEN = {  # Qwen/Qwen-14B, whose index of files says 28,334,580,480 bytes
    "model_type": "qwen", "architectures": ["QWenLMHeadModel"], "hidden_size": 5120,
    "intermediate_size": 27_392, "kv_channels": 128, "num_attention_heads": 40,
    "num_hidden_layers": 40, "no_bias": True, "seq_length": 2048, "vocab_size": 152_064,
}  # fmt: skip
FLA = {"model_type": "transformer", "hidden_size": 1024, "num_heads": 16, "num_hidden_layers": 24}
OLMO = {  # allenai/OLMo-1B: 1,176,764,416 parameters
    "model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"], "d_model": 2048, "n_heads": 16,
    "n_layers": 16, "mlp_ratio": 8, "rope": True, "include_bias": False, "weight_tying": True,
    "layer_norm_with_affine": False, "vocab_size": 50_280, "embedding_size": 50_304,
}  # fmt: skip
SHARED = {
    "model_type": "granitemoeshared", "hidden_size": 512, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 256,
    "vocab_size": 3000, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (QWEN, 14_167_290_880),
        (FLA, 24 * (4 * 1024**2 + 3 * 1024 * 2816 + 2048) + 1024 * (2 * 32_000 + 1)),
        (OLMO, 1_176_764_416),
    ],
)
def test_a_twin_has_as_many_parameters_as_it_is_published_with(config, count):
    assert parameters(from_config(config)) == count


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (QWEN, "no_bias", False),
        (QWEN, "visual", {}),
        (QWEN, "intermediate_size", "wide"),
        (FLA, "qkv_bias", True),
        (OLMO, "rope", False),
        (SHARED, "shared_intermediate_size", 0),
    ],
)
def test_what_makes_a_twin_another_model_is_refused_by_its_key(config, key, value):
    with pytest.raises(PlanError, match=f"model.{key}"):
        from_config(config | {key: value})


def test_a_twin_without_its_width_is_refused():
    with pytest.raises(PlanError, match=r"model.hidden_size: missing"):
        from_config({k: v for k, v in QWEN.items() if k != "hidden_size"})


@pytest.mark.parametrize("place", ["llm_config", "language_config", "decoder_config"])
def test_the_language_model_may_stand_under_another_key(place):
    inside = {"model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28}
    model = from_config({"model_type": "internvl_chat", place: inside})
    assert model.family == "qwen2"
    with pytest.raises(PlanError, match=f"model.{place}.hidden_size"):
        from_config({"model_type": "internvl_chat", place: {"model_type": "qwen2"}})


def test_a_file_of_llava_s_own_code_is_its_language_model():
    """liuhaotian/llava-v1.5-7b: the keys of Llama's and of its tower's stand together."""
    file = {
        "model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 11_008, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "vocab_size": 32_000, "mm_hidden_size": 1024,
        "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    }  # fmt: skip
    model = from_config(file)
    assert (model.family, parameters(model)) == ("llama", 6_738_415_616)
    assert "left out" in model.notes[-1]
    with pytest.raises(PlanError, match=r"model.architectures: 'LlavaOtherForCausalLM'"):
        from_config(file | {"architectures": ["LlavaOtherForCausalLM"]})


def test_heads_of_a_mamba_2_that_names_none_are_those_that_fit():
    """flash-linear-attention's files: 2 x 1,024 channels are 32 heads of 64."""
    file = {"model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 48, "n_groups": 1,
            "head_dim": 64}  # fmt: skip
    model = from_config(file)
    assert model.heads == 32
    assert any("num_heads" in note for note in model.notes)


LLM_ANALYSIS = {"name": "gpt2", "model_type": "gpt2", "num_layers": 12, "n_head": 12,
                "hidden_dim": 768, "vocab_size": 50_257, "max_seq_len": 1024,
                "ffn_embed_dim": 3072}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "count"),
    [  # as published
        ({}, 124_439_808),
        ({"num_layers": 48, "n_head": 25, "hidden_dim": 1600, "ffn_embed_dim": 6400},
         1_557_611_200),
        ({"model_type": "bloom", "num_layers": 24, "n_head": 16, "hidden_dim": 1024,
          "ffn_embed_dim": 4096, "vocab_size": 250_880, "max_seq_len": None}, 559_214_592),
        ({"model_type": "opt", "num_layers": 24, "n_head": 32, "hidden_dim": 2048,
          "ffn_embed_dim": 8192, "vocab_size": 50_272, "max_seq_len": 2048}, 1_315_758_080),
        ({"model_type": "gpt_neo", "num_layers": 32, "n_head": 20, "hidden_dim": 2560,
          "ffn_embed_dim": 10_240, "max_seq_len": 2048}, 2_651_307_520),
        ({"model_type": "llama", "num_layers": 32, "n_head": 32, "hidden_dim": 4096,
          "ffn_embed_dim": 11_008, "vocab_size": 32_000}, 6_738_415_616),
    ],
)  # fmt: skip
def test_a_file_of_llm_analysis_is_read(words, count):
    model = from_config(LLM_ANALYSIS | words)
    assert parameters(model) == count
    assert "llm-analysis" in model.notes[0]


@pytest.mark.parametrize(("kind", "wide"), [("llama", 3072), ("bloom", 3000)])
def test_a_width_that_llm_analysis_made_up_is_refused(kind, wide):
    """It writes 16,384 for Llama-2-7b, whose MLP is 11,008 wide."""
    with pytest.raises(PlanError, match=r"model.ffn_embed_dim"):
        from_config(LLM_ANALYSIS | {"model_type": kind, "ffn_embed_dim": wide})


def test_another_name_with_the_class_of_a_family_is_that_family():
    file = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
    for kind in ({}, {"model_type": "my_qwen"}):
        model = from_config(file | kind)
        assert model.family == "qwen3"
        assert "planned as qwen3" in model.notes[0]
    with pytest.raises(PlanError, match="my_qwen"):
        from_config(file | {"model_type": "my_qwen", "architectures": ["MyForCausalLM"]})


@pytest.mark.parametrize(
    ("config", "count"),
    [  # as published
        ({"model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "hidden_size": 2304,
          "intermediate_size": 5760, "num_hidden_layers": 40, "num_attention_heads": 36,
          "num_key_value_heads": 36, "vocab_size": 122_753, "scale_emb": 12}, 2_724_880_896),
        ({"model_type": "exaone", "architectures": ["ExaoneForCausalLM"], "hidden_size": 4096,
          "intermediate_size": 14_336, "num_layers": 32, "num_attention_heads": 32,
          "num_key_value_heads": 8, "vocab_size": 102_400}, 7_818_448_896),
        ({"model_type": "deepseek", "architectures": ["DeepseekForCausalLM"], "hidden_size": 2048,
          "intermediate_size": 10_944, "num_hidden_layers": 28, "num_attention_heads": 16,
          "num_key_value_heads": 16, "vocab_size": 102_400, "moe_intermediate_size": 1408,
          "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
          "first_k_dense_replace": 1, "moe_layer_freq": 1}, 16_375_728_128),
    ],
)  # fmt: skip
def test_remote_code_is_a_family_that_is_known(config, count):
    model = from_config(config)
    assert parameters(model) == count
    assert not model.reading.unread


STEP = {
    "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"], "hidden_size": 512,
    "intermediate_size": 1000, "num_hidden_layers": 3, "num_attention_heads": 8, "head_dim": 64,
    "num_attention_groups": 2, "vocab_size": 3000, "moe_num_experts": 8, "moe_top_k": 3,
    "moe_intermediate_size": 352, "share_expert_dim": 320, "moe_layers_enum": "1,2",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 256, "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
    "attention_other_setting": {"num_attention_heads": 12}, "max_position_embeddings": 2048,
}  # fmt: skip


def test_step_s_own_words():
    model = from_config(STEP)
    assert (model.heads, model.rotary_dim) == (8, 32)
    assert (model.heads_apart.heads, model.heads_apart.rotary_dim) == (12, 64)
    assert model.kinds[0].endswith("-dense")
    transformers = {k: v for k, v in STEP.items() if not k.startswith(("moe_layers", "attention_"))}
    transformers |= {"mlp_layer_types": ["dense", "sparse", "sparse"],
                     "num_sliding_attention_heads": 12}  # fmt: skip
    assert from_config(transformers) == model


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partial_rotary_factors", [2.0] * 3),
        ("moe_layers_enum", "first"),
        ("attention_other_setting", {"num_attention_heads": "many"}),
    ],
)
def test_what_step_cannot_mean_is_refused_by_its_key(key, value):
    with pytest.raises(PlanError, match=f"model.{key}"):
        from_config(STEP | {key: value})


def test_internvl_s_own_files_name_their_tower():
    """OpenGVLab/InternVL2-8B: 304,012,288 parameters of InternViT-300M, and of its projector two
    layers behind a norm."""
    text = {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"],
            "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92_553,
            "bias": False}  # fmt: skip
    tower = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
             "image_size": 448, "patch_size": 14, "qkv_bias": True, "qk_normalization": False,
             "norm_type": "layer_norm"}  # fmt: skip
    model = from_config({"model_type": "internvl_chat", "architectures": ["InternVLChatModel"],
                         "llm_config": text, "vision_config": tower})  # fmt: skip
    assert parameters(model) == 7_737_708_544 + 2 * 4096 * (92_553 - 92_544)
    assert f" {304_012_288 + 33_570_816:,} parameters" in model.notes[-1]


NEMOTRON = {  # nvidia/Llama-3_3-Nemotron-Super-49B-v1
    "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": 8192,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": None,
    "intermediate_size": None, "vocab_size": 128_256,
}  # fmt: skip
LAYERS = {(8, 5.25): 48, (8, 2.625): 1, (0, 5.25): 1, (0, 3.28125): 1, (0, 2.625): 5,
          (0, 1.3125): 10, (0, 1.0): 8, (0, 0.5): 6}  # fmt: skip


def blocks(layers):
    return [
        {"attention": {"n_heads_in_group": group or None, "no_op": not group},
         "ffn": {"ffn_mult": mult or None, "no_op": not mult}}
        for (group, mult), count in layers.items() for _ in range(count)
    ]  # fmt: skip


def test_layers_of_nemotron_s_search_have_widths_of_their_own():
    """99,734,290,432 bytes in its index of files."""
    model = from_config(NEMOTRON | {"block_configs": blocks(LAYERS)})
    assert 2 * parameters(model) == 99_734_290_432
    assert (model.kv_heads, len(model.widths)) == (8, 6)
    whole = from_config(NEMOTRON | {"block_configs": blocks({(8, 5.25): 80})})
    llama = from_config(NEMOTRON | {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                        "intermediate_size": 28_672, "num_key_value_heads": 8})  # fmt: skip
    assert parameters(whole) == parameters(llama)
    plans = (Plan(model=NEMOTRON | {"block_configs": blocks({(8, 5.25): 80})}),
             Plan(model="llama-3.3-70b"))  # fmt: skip
    saved = [training_of(plan).memory.saved_for_backward_bytes for plan in plans]
    assert saved[0] == saved[1]


@pytest.mark.parametrize(
    ("blocks", "place"),
    [
        (None, "block_configs"),
        (blocks({(8, 1.0): 3}), "block_configs"),
        (blocks({(8, 1.0): 40, (4, 1.0): 40}), "n_heads_in_group"),
        (blocks({(0, 0): 80}), "block_configs.0"),
        ([{"attention": {"replace_with_linear": True}, "ffn": {}}] * 80, "replace_with_linear"),
        (["full"] * 80, "block_configs.0"),
    ],
)
def test_layers_that_are_not_known_are_refused_by_their_place(blocks, place):
    with pytest.raises(PlanError, match=place):
        from_config(NEMOTRON | {"block_configs": blocks})


LAYER = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("config", "count"),
    [  # each with the defaults of its class in transformers, which counts as many
        ({"model_type": "hy_v3", "num_hidden_layers": 80, "hidden_size": 4096}, 295_033_528_320),
        ({"model_type": "solar_open", "num_hidden_layers": 48, "hidden_size": 4096},
         102_651_793_408),
        (LAYER | {"model_type": "glm4v_text", "num_hidden_layers": 40}, 9_400_279_040),
        ({"model_type": "mistral4", "num_hidden_layers": 36, "hidden_size": 4096,
          "qk_head_dim": 128}, 118_972_826_624),
        ({"model_type": "minicpm3", "num_hidden_layers": 62, "hidden_size": 2560,
          "v_head_dim": None, "scale_emb": 12}, 4_073_875_968),
        ({"model_type": "jais2", "num_hidden_layers": 32, "hidden_size": 3328}, 8_090_401_280),
        (LAYER | {"model_type": "hyperclovax", "num_key_value_heads": None, "use_post_norm": True,
                  "residual_multiplier": 1.0}, 6_738_677_760),
        (LAYER | {"model_type": "flex_olmo"}, 33_270_665_216),
        ({"model_type": "gemma4_unified_text", "num_hidden_layers": 30, "hidden_size": 2304},
         3_010_758_400),
        ({"model_type": "gated_deltanet", "hidden_size": 2048, "num_hidden_layers": 21,
          "expand_v": 2}, 1_387_348_732),
    ],
)  # fmt: skip
def test_kin_of_known_families_are_these(config, count):
    model = from_config(config)
    assert parameters(model) == count
    assert not model.reading.unread


def test_of_an_omni_model_the_one_that_thinks_is_planned():
    text = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32, "head_dim": 128,
            "num_key_value_heads": 4, "num_experts": 16, "num_experts_per_tok": 2,
            "moe_intermediate_size": 768, "vocab_size": 3000}  # fmt: skip
    inner = text | {"model_type": "qwen3_omni_moe_text", "tie_word_embeddings": True}
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": inner}  # fmt: skip
    omni = {"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {},
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"]}  # fmt: skip
    model = from_config(omni)
    alone = from_config(text | {"model_type": "qwen3_moe", "norm_topk_prob": True})
    assert parameters(model) == parameters(alone)
    assert any("talker" in note for note in model.notes)
    with pytest.raises(PlanError, match="thinker_config"):
        from_config(omni | {"thinker_config": 3})


def test_a_row_has_no_classes_of_the_row_that_it_is_like():
    for name, row in rows("families").items():
        if "stem" in row and "classes" not in row:
            assert all(c.startswith(row["stem"]) for c in FAMILIES[name].classes), name
