"""The cases of counted.json: model types, their classes, and keys that change their parameters."""

from itertools import product

IMAGES = "ForImageClassification Model"
VIDEOS = "ForVideoClassification Model"
SPEECH = "ForCTC Model ForSequenceClassification"
MORE = "ForAudioFrameClassification ForXVector"
LETTERS = {"vocab_size": 50}
FULL = "ForMaskedLM Model ForSequenceClassification ForTokenClassification ForQuestionAnswering"
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1000,
         "num_hidden_layers": 3, "vocab_size": 5001, "num_labels": 7}  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
RELATIVE = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}

SEEN = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 500,
        "num_hidden_layers": 3, "image_size": 256, "num_labels": 9}  # fmt: skip
STAGES = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "num_labels": 9,
          "image_size": 256}  # fmt: skip
HEARD_LESS = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1000,
              "num_hidden_layers": 3, "vocab_size": 50, "num_labels": 5,
              "classifier_proj_size": 100, "num_conv_pos_embedding_groups": 8}  # fmt: skip
HEARD = HEARD_LESS | {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True,
                      "num_conv_pos_embeddings": 64}  # fmt: skip
CAUSAL = "ForCausalLM Model"
LITTLE = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
          "intermediate_size": 900, "num_hidden_layers": 3, "vocab_size": 5001}  # fmt: skip
KIMI = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 5, "num_experts": 6,
        "num_experts_per_token": 2, "moe_intermediate_size": 100, "intermediate_size": 900,
        "kv_lora_rank": 64}  # fmt: skip
TOWER = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1000,
         "num_hidden_layers": 3}  # fmt: skip
BOTH = {"vision_config": TOWER | {"image_size": 192}, "text_config": TOWER | {"vocab_size": 5001}}
HEWN = TOWER | {"image_size": 112}
GLM = {"hidden_size": 192, "depth": 3, "num_heads": 3, "intermediate_size": 300, "image_size": 112,
       "out_hidden_size": 512}  # fmt: skip
SAM = {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 3, "image_size": 256,
       "global_attn_indexes": [1], "window_size": 5, "mlp_dim": 500, "output_channels": 64,
       }  # fmt: skip
TRANSLATES = "ForConditionalGeneration Model"
SEQUENCES = {"d_model": 512, "encoder_layers": 3, "decoder_layers": 2, "encoder_ffn_dim": 900,
             "decoder_ffn_dim": 1100, "encoder_attention_heads": 8,
             "decoder_attention_heads": 8, "vocab_size": 5001}  # fmt: skip
# model_type, what its classes begin with, how they end, and what each has for keys.
CASES = [
    ("longformer", "Longformer", FULL, [{}, SMALL | UNTIED]),
    ("big_bird", "BigBird", FULL, [{}, SMALL | UNTIED | {"use_bias": False}]),
    ("layoutlm", "LayoutLM", FULL, [{}, SMALL | {"max_2d_position_embeddings": 300}]),
    ("squeezebert", "SqueezeBert", FULL,
     [{}, SMALL | {"intermediate_size": 1024, "q_groups": 2, "embedding_size": 384}]),
    ("convbert", "ConvBert", FULL,
     [{}, SMALL | {"embedding_size": 128, "head_ratio": 3, "num_groups": 2,
                   "conv_kernel_size": 5}]),
    ("deberta", "Deberta", FULL,
     [{}, RELATIVE | {"pos_att_type": ["c2p", "p2c"]},
      SMALL | RELATIVE | {"pos_att_type": "c2p"}]),
    ("rembert", "RemBert", FULL,
     [{}, SMALL | {"input_embedding_size": 100, "output_embedding_size": 200}]),
    ("xlm-roberta-xl", "XLMRobertaXL", FULL, [{}, SMALL | UNTIED]),
    ("megatron-bert", "MegatronBert", FULL, [{}, SMALL | UNTIED]),
    ("roberta-prelayernorm", "RobertaPreLayerNorm", FULL, [{}, SMALL | UNTIED]),
    ("roformer", "RoFormer", FULL, [{}, SMALL | UNTIED, SMALL | {"embedding_size": 100}]),
    ("fnet", "FNet", FULL, [{}, SMALL]),
    ("mobilebert", "MobileBert", FULL,
     [{}, {"intra_bottleneck_size": 64, "num_feedforward_networks": 2, "num_labels": 5,
           "num_hidden_layers": 4}]),
    ("lilt", "Lilt", "Model ForSequenceClassification ForTokenClassification ForQuestionAnswering",
     [{}, SMALL | {"intermediate_size": 1024}]),
    ("nystromformer", "Nystromformer", FULL, [{}, SMALL | UNTIED | {"conv_kernel_size": 33}]),
    ("vit_msn", "ViTMSN", IMAGES, [{}, SEEN | {"qkv_bias": False}]),
    ("ijepa", "IJepa", IMAGES, [{}, SEEN]),
    ("vit_mae", "ViTMAE", "ForPreTraining Model",
     [{}, SEEN | {"qkv_bias": False, "decoder_num_hidden_layers": 3, "decoder_hidden_size": 256}]),
    ("beit", "Beit", IMAGES + " ForMaskedImageModeling",
     [{}, SEEN | {"use_relative_position_bias": True, "use_mask_token": True},
      SEEN | {"use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True,
              "layer_scale_init_value": 0.0}]),
    ("data2vec-vision", "Data2VecVision", IMAGES,
     [{}, SEEN | {"use_relative_position_bias": True, "use_mean_pooling": False}]),
    ("videomae", "VideoMAE", VIDEOS + " ForPreTraining",
     [{}, SEEN | {"qv_bias": False, "tubelet_size": 4, "num_frames": 8}]),
    ("vivit", "Vivit", VIDEOS, [{}, SEEN | {"num_frames": 8, "tubelet_size": [4, 8, 8]}]),
    ("timesformer", "Timesformer", VIDEOS,
     [{}, SEEN | {"num_frames": 16, "attention_type": "space_only"},
      SEEN | {"attention_type": "joint_space_time"}]),
    ("yolos", "Yolos", "ForObjectDetection Model",
     [{}, SEEN | {"image_size": [256, 320], "use_mid_position_embeddings": False}]),
    ("swin", "Swin", IMAGES + " ForMaskedImageModeling",
     [{}, STAGES | {"window_size": 8, "qkv_bias": False, "use_absolute_embeddings": True}]),
    ("swinv2", "Swinv2", IMAGES + " ForMaskedImageModeling",
     [{}, STAGES | {"window_size": 8, "mlp_ratio": 3.0, "qkv_bias": False}]),
    ("segformer", "Segformer", IMAGES + " ForSemanticSegmentation",
     [{}, {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 6, 3], "num_labels": 9,
           "decoder_hidden_size": 768, "sr_ratios": [8, 4, 2, 2]}]),
    ("convnext", "ConvNext", IMAGES,
     [{}, {"hidden_sizes": [128, 256, 512, 1024], "depths": [3, 3, 27, 3], "num_labels": 9,
           "layer_scale_init_value": 0.0}]),
    ("convnextv2", "ConvNextV2", IMAGES,
     [{}, {"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2], "num_labels": 9}]),
    ("resnet", "ResNet", IMAGES,
     [{}, {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
      {"downsample_in_first_stage": True, "num_labels": 9, "depths": [3, 4, 23, 3]}]),
    ("mobilenet_v1", "MobileNetV1", IMAGES, [{}, {"depth_multiplier": 0.75, "num_labels": 9}]),
    ("mobilenet_v2", "MobileNetV2", IMAGES,
     [{}, {"depth_multiplier": 0.35, "num_labels": 9},
      {"depth_multiplier": 1.4, "finegrained_output": False}]),
    ("audio-spectrogram-transformer", "AST", "ForAudioClassification Model",
     [{}, {"num_mel_bins": 64, "max_length": 512, "time_stride": 16, "num_hidden_layers": 3}]),
    ("hiera", "Hiera", IMAGES, [{}, {"embed_dim": 112, "depths": [2, 3, 4, 3], "num_labels": 9}]),
    ("wav2vec2", "Wav2Vec2", f"{SPEECH} {MORE} ForPreTraining",
     [{}, HEARD | {"adapter_attn_dim": 16, "use_weighted_layer_sum": True}]),
    ("wav2vec2", "Wav2Vec2", "ForCTC Model",
     [{"add_adapter": True},
      {"add_adapter": True, "output_hidden_size": 512, "mask_time_prob": 0.0}]),
    ("hubert", "Hubert", SPEECH, [{}, HEARD, {"feat_proj_layer_norm": False}]),
    ("wavlm", "WavLM", f"{SPEECH} {MORE}", [{}, HEARD | {"num_buckets": 100}]),
    ("data2vec-audio", "Data2VecAudio", f"{SPEECH} {MORE}", [{}, HEARD_LESS]),
    ("unispeech", "UniSpeech", f"{SPEECH} ForPreTraining", [{}, HEARD]),
    ("unispeech-sat", "UniSpeechSat", f"{SPEECH} {MORE} ForPreTraining", [{}, HEARD]),
    ("wav2vec2-conformer", "Wav2Vec2Conformer", f"{SPEECH} {MORE} ForPreTraining",
     [LETTERS,
      HEARD_LESS | {"position_embeddings_type": "rotary", "conv_depthwise_kernel_size": 15}]),
    ("wav2vec2-bert", "Wav2Vec2Bert", f"{SPEECH} {MORE}",
     [LETTERS, HEARD_LESS | {"position_embeddings_type": "relative"}]),
    ("wav2vec2-bert", "Wav2Vec2Bert", "ForCTC Model",
     [LETTERS | {"add_adapter": True, "use_intermediate_ffn_before_adapter": True}]),
    ("sew", "SEW", SPEECH, [{}, {"hidden_size": 512, "num_attention_heads": 8}]),
    ("diffllama", "DiffLlama", CAUSAL + " ForSequenceClassification ForTokenClassification "
     "ForQuestionAnswering", [{}, LITTLE | {"attention_bias": True}]),
    ("mellum", "Mellum", CAUSAL,
     [{}, LITTLE | {"num_local_experts": 8, "moe_intermediate_size": 200,
                    "mlp_layer_types": ["dense", "sparse", "sparse"]}]),
    ("aria_text", "AriaText", CAUSAL,
     [{}, LITTLE | {"moe_num_experts": 5, "moe_num_shared_experts": 1, "head_dim": 100}]),
    ("minimax", "MiniMax", CAUSAL + " ForSequenceClassification",
     [{}, LITTLE | {"num_local_experts": 4, "head_dim": 100,
                    "layer_types": ["linear_attention", "linear_attention", "full_attention"]}]),
    ("jetmoe", "JetMoe", CAUSAL + " ForSequenceClassification",
     [{}, UNTIED | {"hidden_size": 512, "num_hidden_layers": 3, "num_local_experts": 4,
                    "num_key_value_heads": 6, "kv_channels": 64, "num_attention_heads": 12}]),
    ("longcat_flash", "LongcatFlash", CAUSAL,
     [{}, {"hidden_size": 512, "num_layers": 2, "num_attention_heads": 4, "n_routed_experts": 6,
           "zero_expert_num": 3, "q_lora_rank": 100, "kv_lora_rank": 50, "v_head_dim": 60}]),
    ("kimi_linear", "KimiLinear", CAUSAL,
     [{}, KIMI | {"q_lora_rank": 100, "linear_num_heads": 4, "linear_head_dim": 64},
      KIMI | {"linear_attn_config": {"full_attn_layers": [2, 5], "kda_layers": [1, 3, 4],
                                     "num_heads": 6, "head_dim": 64, "short_conv_kernel_size": 3},
              "first_k_dense_replace": 2}]),
    ("olmo_hybrid", "OlmoHybrid", CAUSAL,
     [{}, LITTLE | {"num_hidden_layers": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
                    "linear_key_head_dim": 48, "linear_value_head_dim": 80,
                    "pad_token_id": 1}]),
    ("recurrent_gemma", "RecurrentGemma", CAUSAL,
     [{}, LITTLE | {"lru_width": 384, "num_hidden_layers": 5, "intermediate_size": 1000}]),
    ("gpt_neox_japanese", "GPTNeoXJapanese", CAUSAL,
     [{}, UNTIED | {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 3,
                    "intermediate_multiple_size": 3}]),
    ("zamba2", "Zamba2", CAUSAL + " ForSequenceClassification",
     [{}, {"num_mem_blocks": 2, "add_bias_linear": True},
      {"use_shared_attention_adapter": True, "adapter_rank": 64}]),
    ("openai-gpt", "OpenAIGPT", "LMHeadModel Model ForSequenceClassification",
     [{}, {"n_embd": 384, "n_layer": 3, "num_labels": 5}]),
    ("ctrl", "CTRL", "LMHeadModel Model ForSequenceClassification",
     [{}, {"n_embd": 384, "n_layer": 3, "dff": 1000, "num_labels": 5}]),
    ("xglm", "XGLM", CAUSAL, [{}, UNTIED | {"d_model": 512, "num_layers": 3, "ffn_dim": 1000}]),
    ("rwkv", "Rwkv", CAUSAL,
     [{}, {"hidden_size": 512, "attention_hidden_size": 600, "num_hidden_layers": 3}]),
    ("xlnet", "XLNet", "LMHeadModel Model ForSequenceClassification ForTokenClassification",
     [{}, UNTIED | {"d_model": 384, "n_head": 6, "d_inner": 1000, "n_layer": 3, "num_labels": 5}]),
    ("xlm", "XLM", "WithLMHeadModel Model ForTokenClassification",
     [{}, {"emb_dim": 512, "n_heads": 8, "n_layers": 3, "n_langs": 4, "num_labels": 5}]),
    ("bert-generation", "BertGeneration", "Decoder Encoder",
     [{}, UNTIED | {"num_hidden_layers": 3, "add_cross_attention": True, "is_decoder": True}]),
    ("trocr", "TrOCR", "ForCausalLM",
     [{}, UNTIED | {"d_model": 512, "decoder_layers": 3, "cross_attention_hidden_size": 768,
                    "use_learned_position_embeddings": False, "layernorm_embedding": False}]),
    ("imagegpt", "ImageGPT", "ForCausalImageModeling Model ForImageClassification",
     [{}, {"n_embd": 256, "n_layer": 3, "n_inner": 500, "num_labels": 5}]),
    ("led", "LED", TRANSLATES,
     [{}, SEQUENCES | {"max_encoder_position_embeddings": 600, "attention_window": 64}]),
    ("mvp", "Mvp", TRANSLATES, [{}, SEQUENCES | {"max_position_embeddings": 600}]),
    ("bigbird_pegasus", "BigBirdPegasus", TRANSLATES,
     [{}, SEQUENCES | {"use_bias": True}]),
    ("pegasus_x", "PegasusX", TRANSLATES, [{}, SEQUENCES | {"num_global_tokens": 10}]),
    ("speech_to_text", "Speech2Text", TRANSLATES,
     [{}, SEQUENCES | {"conv_kernel_sizes": [3, 5, 7], "num_conv_layers": 3,
                       "conv_channels": 600}]),
    ("nllb-moe", "NllbMoe", TRANSLATES,
     [SEQUENCES, SEQUENCES | {"encoder_sparse_step": 1, "decoder_sparse_step": 2,
                                       "num_experts": 3, "router_bias": True}]),
    ("prophetnet", "ProphetNet", TRANSLATES,
     [{}, {"hidden_size": 512, "num_encoder_layers": 3, "num_decoder_layers": 2, "ngram": 3,
           "num_decoder_attention_heads": 8, "encoder_ffn_dim": 900, "num_buckets": 20}]),
    ("switch_transformers", "SwitchTransformers", TRANSLATES,
     [{}, {"d_model": 256, "num_layers": 4, "num_decoder_layers": 6, "num_experts": 3,
           "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 3}]),
    ("longt5", "LongT5", TRANSLATES,
     [{}, {"d_model": 256, "num_layers": 4, "num_decoder_layers": 2, "num_heads": 5,
                    "encoder_attention_type": "transient-global",
                    "feed_forward_proj": "gated-gelu"}]),
    ("siglip", "Siglip", "Model ForImageClassification", [{}, BOTH | {"num_labels": 5}]),
    ("siglip2", "Siglip2", "Model ForImageClassification",
     [{}, {"vision_config": TOWER | {"num_patches": 100}, "text_config": TOWER}]),
    ("siglip2_vision_model", "Siglip2Vision", "Model", [{}, TOWER | {"num_patches": 100}]),
    ("siglip2_text_model", "Siglip2Text", "Model", [{}, TOWER]),
    ("git", "Git", "ForCausalLM Model",
     [{}, TOWER | {"vision_config": TOWER | {"image_size": 256}, "num_image_with_embedding": 6}]),
    ("blip", "Blip", "ForConditionalGeneration", [{}, BOTH]),
    ("chinese_clip", "ChineseCLIP", "Model", [{}, BOTH | {"projection_dim": 200}]),
    ("xmod", "Xmod", FULL, [{}, SMALL | {"languages": ["en_XX", "de_DE"]}]),
    ("pixtral", "PixtralVision", "Model", [{}, HEWN | {"patch_size": 14}]),
    ("idefics2_vision", "Idefics2Vision", "Transformer", [{}, HEWN]),
    ("idefics3_vision", "Idefics3Vision", "Transformer", [{}, HEWN]),
    ("smolvlm_vision", "SmolVLMVision", "Transformer", [{}, HEWN]),
    ("paddleocr_vl_vision", "PaddleOCRVision", "Model", [{}, HEWN]),
    ("blip_2_vision_model", "Blip2Vision", "Model", [{}, HEWN | {"qkv_bias": False}]),
    ("instructblip_vision_model", "InstructBlipVision", "Model", [{}, HEWN]),
    ("blip_2_qformer", "Blip2QFormer", "Model",
     [{}, TOWER | {"cross_attention_frequency": 3, "use_qformer_text_input": True}]),
    ("instructblip_qformer", "InstructBlipQFormer", "Model",
     [{}, TOWER | {"encoder_hidden_size": 100, "vocab_size": 5001}]),
    ("glm4v_vision", "Glm4vVision", "Model", [{}, GLM]),
    ("glm4v_moe_vision", "Glm4vMoeVision", "Model", [{}, GLM | {"attention_bias": True}]),
    ("glm_ocr_vision", "GlmOcrVision", "Model", [{}, GLM | {"attention_bias": False}]),
    ("got_ocr2_vision", "GotOcr2Vision", "Encoder", [{}, SAM]),
    ("sam_vision_model", "SamVision", "Model", [{}, SAM | {"use_rel_pos": False}]),
    ("qwen2_audio_encoder", "Qwen2Audio", "Encoder", [{}, {"encoder_layers": 3, "d_model": 100,
     "encoder_attention_heads": 5, "encoder_ffn_dim": 300, "max_source_positions": 200}]),
    ("voxtral_encoder", "Voxtral", "Encoder", [{}, TOWER | {"num_mel_bins": 80}]),
    ("audioflamingo3_encoder", "AudioFlamingo3", "Encoder", [{}, TOWER]),
    ("glmasr_encoder", "GlmAsr", "Encoder", [{}, TOWER | {"num_key_value_heads": 2}]),
]  # fmt: skip


# Wrappers, whose text has its sizes, and whose other parts have them or not.
TEXT = {"text_config": LITTLE}
WRAPPERS = [
    ("aria", "Aria", [{"vision_config": HEWN, "projector_patch_to_query_dict": {"64": 7}}]),
    ("aya_vision", "AyaVision",
     [{"vision_config": HEWN | {"patch_size": 14}, "downsample_factor": 3},
      {"alignment_intermediate_size": 100, "vision_config": HEWN}]),
    ("cohere2_vision", "Cohere2Vision", [{}, {"vision_config": HEWN, "downsample_factor": 3,
                                              "alignment_intermediate_size": 100}]),
    ("deepseek_vl", "DeepseekVL", [{}, {"vision_config": HEWN}]),
    ("glm4v", "Glm4v", [{}, {"vision_config": GLM}]),
    ("glm46v", "Glm46V", [{}, {"vision_config": GLM}]),
    ("glmga", "Glm46V", [{}]),
    ("glm4v_moe", "Glm4vMoe", [{"vision_config": GLM}]),
    ("glm_ocr", "GlmOcr", [{}, {"vision_config": GLM}]),
    ("got_ocr2", "GotOcr2", [{}, {"vision_config": SAM}]),
    ("idefics2", "Idefics2", [{}, {"vision_config": HEWN, "perceiver_config": {
        "resampler_depth": 2, "resampler_n_latents": 9, "num_key_value_heads": 2,
        "resampler_n_heads": 4, "resampler_head_dim": 10, "hidden_size": 512}}]),
    ("lfm2_vl", "Lfm2Vl",
     [{}, {"vision_config": TOWER | {"num_patches": 100}, "projector_bias": False,
           "projector_use_layernorm": False, "projector_hidden_size": 99}]),
    ("lighton_ocr", "LightOnOcr", [{}, {"vision_config": HEWN, "spatial_merge_size": 3}]),
    ("llava_next_video", "LlavaNextVideo",
     [{}, {"vision_config": HEWN, "vision_feature_layer": [1, 2],
           "multimodal_projector_bias": False}]),
    ("llava_onevision", "LlavaOnevision", [{}, {"vision_config": HEWN}]),
    ("video_llava", "VideoLlava", [{}, {"vision_config": HEWN, "vision_feature_layer": [1, 2]}]),
    ("vipllava", "VipLlava", [{}, {"vision_config": HEWN, "vision_feature_layer": [-2, -3]}]),
    ("ovis2", "Ovis2", [{}, {"vision_config": HEWN | {"hidden_stride": 2, "vocab_size": 99,
                             "qkv_bias": True, "mlp_bias": True}, "hidden_size": 512}]),
    ("paddleocr_vl", "PaddleOCRVL", [{}, {"vision_config": HEWN | {"spatial_merge_size": 3}}]),
    ("blip-2", "Blip2", [{}, {"vision_config": HEWN, "num_query_tokens": 9,
                              "qformer_config": TOWER | {"encoder_hidden_size": 384}}]),
    ("instructblip", "InstructBlip", [{}, {"qformer_config": TOWER}]),
    ("instructblipvideo", "InstructBlipVideo", [{}]),
    ("audioflamingo3", "AudioFlamingo3", [{}, {"audio_config": TOWER, "projector_bias": False}]),
    ("musicflamingo", "MusicFlamingo", [{}]),
    ("glmasr", "GlmAsr", [{}, {"audio_config": TOWER}]),
    ("qwen2_audio", "Qwen2Audio", [{}]),
    ("voxtral", "Voxtral", [{}, {"audio_config": TOWER}]),
    ("llava_next", "LlavaNext", [{}, {"vision_config": HEWN}]),
    ("mistral3", "Mistral3",
     [UNTIED, UNTIED | {"vision_config": HEWN, "spatial_merge_size": 3}]),
    ("paligemma", "PaliGemma", [{}, {"vision_config": HEWN, "projection_dim": 512}]),
    ("smolvlm", "SmolVLM", [{}, {"vision_config": HEWN, "scale_factor": 3}]),
]  # fmt: skip
CASES += [(kind, stem, "ForConditionalGeneration", [TEXT | own for own in keys])
          for kind, stem, keys in WRAPPERS]  # fmt: skip
# Whose head is the embedding: the whole's word counts, or that of either.
TIED = TEXT | UNTIED | {"text_config": LITTLE | {"tie_word_embeddings": True}}
CASES += [
    (kind, stem, "ForConditionalGeneration", [TIED | {"vision_config": HEWN}])
    for kind, stem in (
        ("idefics3", "Idefics3"), ("lfm2_vl", "Lfm2Vl"), ("vipllava", "VipLlava"),
        ("internvl", "InternVL"), ("llava_onevision", "LlavaOnevision"), ("llava", "Llava"),
        ("llava_next_video", "LlavaNextVideo"),
    )
] + [("qwen2_audio", "Qwen2Audio", "ForConditionalGeneration", [
    {"text_config": LITTLE | {"tie_word_embeddings": True}}])]  # fmt: skip
CASES += [("fuyu", "Fuyu", "ForCausalLM", [TEXT | {"patch_size": 20}])]

# Classes that no family plans, of architectures that are planned or counted.
MORE_HEADS = "ForMultipleChoice ForNextSentencePrediction ForPreTraining"
BOTH_WAYS = {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 300, "decoder_ffn_dim": 300,
             "vocab_size": 5001}  # fmt: skip
T5S = {"d_model": 256, "num_layers": 2, "num_heads": 4, "d_ff": 300, "vocab_size": 5001}
CASES += [
    ("bert", "Bert", f"LMHeadModel {MORE_HEADS}", [{}, SMALL]),
    ("megatron-bert", "MegatronBert", f"ForCausalLM {MORE_HEADS}", [{}, SMALL]),
    ("mobilebert", "MobileBert", MORE_HEADS, [{}]),
    ("fnet", "FNet", MORE_HEADS, [{}, SMALL]),
    ("albert", "Albert", "ForMultipleChoice ForPreTraining",
     [{"num_hidden_layers": 3}, SMALL | {"embedding_size": 100, "num_labels": 2}]),
    ("big_bird", "BigBird", "ForCausalLM ForMultipleChoice ForPreTraining", [{}, SMALL]),
    ("roformer", "RoFormer", "ForCausalLM ForMultipleChoice", [{}, SMALL]),
    ("convbert", "ConvBert", "ForMultipleChoice", [{}]),
    ("bart", "Bart", "Model ForQuestionAnswering", [BOTH_WAYS]),
    ("mt5", "MT5", "Model ForQuestionAnswering", [T5S]),
    ("deit", "DeiT", "ForImageClassificationWithTeacher", [{}, SEEN]),
    ("distilbert", "DistilBert", "ForMultipleChoice", [{}]),
]  # fmt: skip
CASES += [
    (kind, stem, ends, [SMALL])
    for ends, kinds in (
        ("ForCausalLM ForMultipleChoice",
         (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"),
          ("electra", "Electra"), ("ernie", "Ernie"), ("data2vec-text", "Data2VecText"),
          ("rembert", "RemBert"), ("roberta-prelayernorm", "RobertaPreLayerNorm"),
          ("xlm-roberta-xl", "XLMRobertaXL"), ("xmod", "Xmod"))),
        ("ForMultipleChoice",
         (("mpnet", "MPNet"),
          ("nystromformer", "Nystromformer"), ("longformer", "Longformer"))),
    )
    for kind, stem in kinds
]  # fmt: skip
CASES += [
    (kind, stem, "Model", [BOTH_WAYS | {"vocab_size": 60_001}])
    for kind, stem in (
        ("mbart", "MBart"), ("plbart", "PLBart"), ("blenderbot", "Blenderbot"),
        ("pegasus", "Pegasus"), ("m2m_100", "M2M100"), ("marian", "Marian"), ("whisper", "Whisper"),
    )
] + [(kind, stem, "Model", [T5S]) for kind, stem in (("t5", "T5"), ("umt5", "UMT5"))]  # fmt: skip

# Models put together from parts.
MAPS = {"neck_hidden_sizes": [16, 24, 32, 40], "fusion_hidden_size": 20}
FINDS = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 100,
         "decoder_ffn_dim": 120, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "num_labels": 7, "num_queries": 9, "position_embedding_type": "learned",
         "backbone_config": {"model_type": "resnet", "out_features": ["stage4"],
                             "layer_type": "basic", "hidden_sizes": [32, 40, 48, 64],
                             "depths": [1, 2, 1, 1]}}  # fmt: skip
PAIRS = {"vision_config": TOWER | {"image_size": 96}, "projection_dim": 100,
         "text_config": TOWER | {"vocab_size": 5001, "hidden_size": 192}}  # fmt: skip
CASES += [
    ("owlvit", "OwlViT", "ForObjectDetection Model", [{}, PAIRS | {"projection_dim": 192}]),
    ("owlv2", "Owlv2", "ForObjectDetection Model", [{}, PAIRS | {"projection_dim": 192}]),
    ("clipseg", "CLIPSeg", "ForImageSegmentation Model",
     [{}, PAIRS | {"extract_layers": [0, 2], "reduce_dim": 32, "decoder_intermediate_size": 99},
      {"use_complex_transposed_convolution": True}]),
    ("altclip", "AltCLIP", "Model", [{}, PAIRS | {"projection_dim": 384, "text_config": TOWER | {
        "vocab_size": 5001, "project_dim": 384}}]),
    ("layoutlmv3", "LayoutLMv3",
     "Model ForTokenClassification ForSequenceClassification ForQuestionAnswering",
     [{}, SMALL | {"num_labels": 12, "visual_embed": False, "coordinate_size": 60,
                   "shape_size": 72, "has_spatial_attention_bias": False, "rel_pos_bins": 20}]),
    ("vilt", "Vilt",
     "Model ForQuestionAnswering ForImageAndTextRetrieval ForTokenClassification",
     [{}, SMALL | {"qkv_bias": False, "image_size": 96, "modality_type_vocab_size": 3}]),
    ("dpt", "DPT", "ForDepthEstimation ForSemanticSegmentation Model",
     [{}, SEEN | MAPS | {"qkv_bias": False, "reassemble_factors": [2, 1, 1, 0.5],
                         "readout_type": "ignore", "use_auxiliary_head": False,
                         "use_batch_norm_in_fusion_residual": True, "add_projection": True}]),
    ("depth_anything", "DepthAnything", "ForDepthEstimation",
     [{}, MAPS | {"head_hidden_size": 10, "reassemble_hidden_size": 192, "backbone_config": {
         "model_type": "dinov2", "hidden_size": 192, "num_attention_heads": 3,
         "num_hidden_layers": 3, "out_indices": [1, 2, 3], "reshape_hidden_states": False}}]),
    ("moonshine", "Moonshine", "ForConditionalGeneration Model",
     [{}, {"hidden_size": 96, "intermediate_size": 200, "encoder_num_hidden_layers": 2,
           "decoder_num_hidden_layers": 3, "decoder_num_key_value_heads": 2,
           "encoder_num_key_value_heads": 4, "attention_bias": True,
           "tie_word_embeddings": False}]),
    ("parakeet_encoder", "Parakeet", "Encoder",
     [{}, TOWER | {"attention_bias": False, "convolution_bias": False, "num_mel_bins": 128,
                   "subsampling_factor": 4, "conv_kernel_size": 5}]),
    ("parakeet_ctc", "Parakeet", "ForCTC", [{}, {"vocab_size": 99, "encoder_config": TOWER}]),
    ("detr", "Detr", "ForObjectDetection Model", [FINDS]),
    ("table-transformer", "TableTransformer", "ForObjectDetection Model", [FINDS]),
    ("sam", "Sam", "Model",
     [{}, {"vision_config": SAM | {"output_channels": 256}, "mask_decoder_config": {
         "num_hidden_layers": 3, "mlp_dim": 300, "num_multimask_outputs": 2,
         "iou_head_depth": 4, "iou_head_hidden_dim": 100}}]),
    ("dpr", "DPR", "QuestionEncoder ContextEncoder Reader",
     [{}, SMALL | {"projection_dim": 100}]),
    ("pix2struct", "Pix2Struct", "ForConditionalGeneration",
     [{}, {"vision_config": {"hidden_size": 100, "num_attention_heads": 5, "d_kv": 16,
                             "num_hidden_layers": 2, "seq_len": 50, "d_ff": 60},
           "text_config": {"hidden_size": 100, "num_heads": 5, "d_kv": 16, "num_layers": 3,
                           "vocab_size": 5001, "d_ff": 60}}]),
]  # fmt: skip

# Keys that were not read, or read wrongly, when files were varied at random.
LAST = {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 200, "vocab_size": 5001,
        "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
CASES += [
    ("blip", "Blip", "ForConditionalGeneration",
     [{"vision_config": TOWER | {"hidden_size": 192}, "tie_word_embeddings": False,
       "text_config": TOWER | {"vocab_size": 5001, "encoder_hidden_size": 100}}]),
    ("blip-2", "Blip2", "ForConditionalGeneration",
     [TEXT | {"vision_config": TOWER, "qformer_config": {"encoder_hidden_size": 100,
                                                         "num_hidden_layers": 3}}]),
    ("convbert", "ConvBert", "ForMaskedLM", [UNTIED]),
    ("deberta", "Deberta", "ForQuestionAnswering", [SMALL | {"type_vocab_size": 2}]),
    ("imagegpt", "ImageGPT", "Model", [{"n_layer": 2, "add_cross_attention": True}]),
    ("internvl", "InternVL", "ForConditionalGeneration",
     [TEXT | UNTIED | {"vision_config": TOWER | {"image_size": 112, "use_mask_token": True,
                                        "use_absolute_position_embeddings": False}}]),
    ("mobilenet_v2", "MobileNetV2", "Model", [{"first_layer_is_expansion": False}]),
    ("olmo_hybrid", "OlmoHybrid", "Model", [LAST | {"vocab_size": 100_300}]),
    ("prophetnet", "ProphetNet", "Model", [{"add_cross_attention": False}]),
    ("swinv2", "Swinv2", "Model", [{"use_absolute_embeddings": True}]),
    ("switch_transformers", "SwitchTransformers", "Model",
     [{"d_model": 96, "num_layers": 5, "num_decoder_layers": 6, "encoder_sparse_step": 3,
       "decoder_sparse_step": 2, "num_experts": 3}]),
    ("albert", "Albert", "ForPreTraining", [SMALL]),
    ("mobilebert", "MobileBert", "Model", [{"classifier_activation": False}]),
    ("pix2struct", "Pix2Struct", "ForConditionalGeneration", [{"tie_word_embeddings": True}]),
    ("parakeet_encoder", "Parakeet", "Encoder", [TOWER | {"num_key_value_heads": 2}]),
    ("trocr", "TrOCR", "ForCausalLM", [{"d_model": 96, "decoder_layers": 2}]),
    ("vaultgemma", "VaultGemma", "ForCausalLM", [LAST | {"attention_bias": True}]),
    ("videomae", "VideoMAE", "ForPreTraining", [SEEN | {"use_mean_pooling": False}]),
    ("vivit", "Vivit", "Model", [SEEN | {"pooler_output_size": 50}]),
    ("xmod", "Xmod", "Model", [SMALL | {"pre_norm": True}]),
]  # fmt: skip

# An encoder of images before a decoder of text, and LLaVA with other towers and texts.
VIT = {"model_type": "vit"} | TOWER
CROSSED = {"is_decoder": True, "add_cross_attention": True}
CASES += [
    ("donut-swin", "DonutSwin", IMAGES, [{}, STAGES | {"window_size": 8, "qkv_bias": False}]),
    ("vision-encoder-decoder", "VisionEncoderDecoder", "Model", [
        {"encoder": VIT, "decoder": CROSSED | {"model_type": "trocr", "decoder_layers": 2,
         "d_model": 256, "vocab_size": 5001, "cross_attention_hidden_size": 384}},
        {"encoder": {"model_type": "donut-swin"} | STAGES, "decoder": CROSSED | BOTH_WAYS | {
            "model_type": "mbart", "add_final_layer_norm": True}},
        {"encoder": VIT, "decoder": CROSSED | BOTH_WAYS | {"model_type": "bart"}},
        {"encoder": VIT, "decoder": CROSSED | {"model_type": "gpt2", "n_embd": 96, "n_layer": 2,
                                               "n_head": 4}},
        {"encoder": VIT, "decoder": CROSSED | TOWER | {"model_type": "bert"}},
        {"encoder": VIT, "decoder": CROSSED | TOWER | {"model_type": "roberta"}}]),
    ("llava", "Llava", "ForConditionalGeneration", [
        {"text_config": LITTLE | {"model_type": text}, "vision_config": HEWN | {"model_type": eye},
         "vision_feature_layer": -1}
        for text, eye in (("mistral", "pixtral"), ("qwen2", "siglip_vision_model"))]),
]  # fmt: skip

# The same of flash-linear-attention, whose files name no class.
BIG = {"hidden_size": 2048, "num_hidden_layers": 24}
NARROW = {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 5001, "num_heads": 4}
OF_FLA = (("gla", "GLA"), ("retnet", "RetNet"), ("gsa", "GSA"), ("hgrn", "HGRN"),
          ("hgrn2", "HGRN2"), ("delta_net", "DeltaNet"))  # fmt: skip
SHORT = {"num_kv_heads": 2, "use_short_conv": True}
STATES = {
    "gla": [SHORT | {"use_output_gate": False, "expand_k": 1.0, "expand_v": 2.0},
            {"elementwise_affine": False}],
    "retnet": [SHORT | {"use_output_gate": False}],
    "gsa": [SHORT | {"num_slots": 32, "elementwise_affine": False},
            {"num_slots": None, "expand_k": 0.5, "expand_v": 2}],
    "hgrn": [{"expand_ratio": 2, "use_short_conv": True, "use_lower_bound": False}],
    "hgrn2": [{"num_heads": None, "expand_ratio": 64, "use_short_conv": True,
               "use_lower_bound": False, "intermediate_size": 900}, {"expand_ratio": None}],
    "delta_net": [{"use_gate": True, "use_short_conv": False, "expand_v": 2, "use_beta": False}],
}  # fmt: skip
CASES += [
    (kind, stem, CAUSAL, [BIG, *(NARROW | own for own in STATES[kind])]) for kind, stem in OF_FLA
]


def cases():
    for kind, stem, ends, keys in CASES:
        for end, own in product(ends.split(), keys):
            yield kind, stem + end, own
