"""Mixtures of experts and latent attention: what counts, and what a bad config is told."""

import pytest

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.models.counts import active_parameters, parameters
from memcore.models.families import from_config
from memcore.plan.plan import Plan

ONE_GPU = {"gpus": 1}


@pytest.mark.parametrize(
    ("model", "published", "rounding"),
    [
        ("mixtral-8x7b", 12.9e9, 0.05e9),  # Jiang et al. 2024: "13B active parameters"
        ("mixtral-8x22b", 39e9, 0.5e9),  # Mistral AI: "39B active parameters out of 141B"
        ("qwen3-30b-a3b", 3.3e9, 0.1e9),  # Qwen3 report, table 2
        ("qwen3-235b-a22b", 22e9, 0.5e9),
        ("qwen2-57b-a14b", 14e9, 0.5e9),  # Qwen2 report, table 1
        ("olmoe-1b-7b", 1.3e9, 0.05e9),  # Muennighoff et al. 2024: "1.3B active"
        ("gpt-oss-120b", 5.7e9, 0.6e9),  # model card: 5.1B, which leaves out the embedding
        ("deepseek-v2", 21e9, 0.5e9),  # DeepSeek-V2, abstract
        ("deepseek-v3", 37e9, 0.6e9),  # DeepSeek-V3, abstract
    ],
)
def test_active_parameters_are_the_published_ones(model, published, rounding):
    assert active_parameters(catalog.model(model)) == pytest.approx(published, abs=rounding)


def test_a_dense_model_is_active_throughout():
    model = catalog.model("llama-3-8b")
    assert active_parameters(model) == parameters(model)


def test_model_flops_count_only_the_experts_that_a_token_meets():
    """6 FLOPs per active parameter and token, but for the embedding; attention is small here."""
    plan = Plan(model="mixtral-8x7b", cluster=ONE_GPU, train={"seq_len": 128})
    report = evaluate(plan)
    embedding = 32_000 * 4096
    expected = 6 * (report.active_parameters - embedding) * 128
    assert report.time.model_flops == pytest.approx(expected, rel=0.01)
    forward = sum(o.flops for o in report.time.operations if o.phase == "forward")
    assert forward == pytest.approx(expected / 3, rel=0.01)


def test_rows_follow_the_tokens_and_not_the_number_of_experts():
    def saved(experts):
        config = {
            "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_local_experts": experts,
        }  # fmt: skip
        plan = Plan(model=config, cluster=ONE_GPU, train={"checkpointing": "none"})
        return evaluate(plan).memory.saved_for_backward_bytes

    one = 32 * 4096 * 4096 * 2  # a bf16 tensor of every token in every layer
    assert 0 < saved(64) - saved(8) < one / 2  # router scores and offsets alone


def test_latent_attention_caches_one_latent():
    """DeepSeek-V3: 61 layers of 512 + 64 numbers in bf16, whole on every tensor-parallel rank."""
    for tp in (1, 8):
        plan = Plan(model="deepseek-v3", cluster={"gpus": 16}, parallel={"tp": tp})
        assert evaluate(plan).serve.kv_bytes_per_token == 61 * 576 * 2 == 70_272


def test_serving_weights_are_those_of_every_kind_of_layer():
    for model in ("deepseek-v3", "deepseek-v2-lite", "qwen3-30b-a3b"):
        report = evaluate(Plan(model=model, serve={"weight_dtype": "bf16"}))
        assert report.serve.weights_bytes == 2 * report.parameters


def test_llama_4_is_trained_through_every_expert_and_served_through_the_chosen():
    plan = Plan(
        model="llama-4-scout-text", cluster={"gpus": 8}, parallel={"tp": 8},
        train={"attention": "sdpa"}, serve={"prompt_len": 16_384},
    )  # fmt: skip
    report = evaluate(plan)
    assert report.parameters > 6 * report.active_parameters
    served = report.serve.ttft_seconds * 989e12 * 8  # FLOPs at full speed
    assert served < 6 * 2 * report.active_parameters * plan.serve.prompt_len
    trained = evaluate(plan.changed("parallel.tp", 1))
    assert any("every token in every expert" in note for note in trained.notes)
    assert not any("every token in every expert" in note for note in report.notes)
    time = trained.time
    assert time.hardware_flops - time.recompute_flops > 5 * time.model_flops


@pytest.mark.parametrize(("gpus", "padded"), [(8, 0), (64, 64), (3, 9)])
def test_experts_that_do_not_divide_over_the_ranks_are_said_to_be_padded(gpus, padded):
    report = evaluate(Plan(model="mixtral-8x7b", cluster={"gpus": gpus}))
    notes = [note for note in report.notes if "padded" in note]
    assert len(notes) == bool(padded)
    assert not padded or f"padded to {padded}." in notes[0]


def test_the_heaviest_stage_has_experts_throughout():
    """Of four stages, the first of DeepSeek-V2-Lite has its dense layer, the others weigh more."""
    plan = Plan(model="deepseek-v2-lite", parallel={"pp": 4}, cluster={"gpus": 4})
    rows = [r for r in evaluate(plan).serve.rows if r.consumer == "parameters"]
    assert {r.count for r in rows if r.name.startswith("layers.")} == {7}


def test_one_generated_token_reads_only_its_experts():
    """A batch of one touches top_k experts; a batch of hundreds touches all of them."""

    def seconds(concurrency):
        plan = Plan(
            model="mixtral-8x7b", cluster={"gpu": "h200-sxm-141gb", "gpus": 2},
            parallel={"tp": 2}, serve={"concurrency": concurrency},
        )  # fmt: skip
        return evaluate(plan).serve.tpot_seconds

    assert seconds(1) < 0.5 * seconds(64)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "mixtral", "num_local_experts": "8"}, "num_local_experts"),
        ({"model_type": "mixtral", "router_jitter_noise": 2}, "router_jitter_noise"),
        ({"model_type": "olmoe", "output_router_logits": "yes"}, "output_router_logits"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "0"}, "mlp_only_layers"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [True]}, "mlp_only_layers"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"model_type": "qwen2_moe", "num_experts": 0}, "num_experts"),
        ({"model_type": "gpt_oss", "sliding_window": None}, "sliding_window"),
        ({"model_type": "llama4_text", "moe_layers": [48, 49]}, "moe_layers"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 2]}, "no_rope_layers"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"model_type": "llama4_text", "layer_types": ["sliding_attention"]}, "layer_types"),
        ({"model_type": "llama4_text", "layer_types": [{}]}, "layer_types"),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, "attention_chunk_size"),
        ({"model_type": "deepseek_v2", "num_key_value_heads": 8}, "num_key_value_heads"),
        ({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}, "topk_method"),
        ({"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"}, "n_group"),
        ({"model_type": "deepseek_v3", "n_group": 7}, "n_routed_experts"),
        ({"model_type": "deepseek_v3", "topk_group": 9}, "topk_group"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": None}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": -1}, "first_k_dense_replace"),
    ],
)
def test_a_bad_config_is_told_which_key(config, field):
    with pytest.raises(PlanError) as caught:
        from_config(config)
    assert any(issue.field == f"model.{field}" for issue in caught.value.issues)
