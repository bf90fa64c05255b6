"""Configs as others write them: by other names, saved anew, in wrappers, with words of no account.

What PyTorch itself counts for them is asked in test_pytorch_live.py."""

import pytest

from memcore import PlanError, catalog
from memcore.evaluate import parameters
from memcore.families import from_config

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
