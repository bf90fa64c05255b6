"""Models that are planned as a family of another name."""

import pytest

from memcore.errors import PlanError
from memcore.models.counts import parameters
from memcore.models.families import from_config

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


@pytest.mark.parametrize("key", ["rmsnorm", "post_layer_norm", "multi_query_attention"])
def test_another_chatglm_is_refused(key):
    with pytest.raises(PlanError, match=key):
        from_config(CHATGLM | {key: False})


def test_of_phi_4_multimodal_the_language_model_is_planned():
    model = from_config(PHI)
    assert parameters(model) == 3_836_021_760  # as Phi-4-mini
    assert "left out" in model.notes[0]
