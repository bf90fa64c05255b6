"""Plans that hypothesis draws: of every family and framework, small enough to be quick."""

from hypothesis import strategies as st

from memcore.models.families import FAMILIES, from_config
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.serving import KV_CACHES, PREFILLS, RUNTIMES
from memcore.words.stored import KV_DTYPES, WEIGHT_DTYPES
from memcore.words.training import (
    CHECKPOINTING,
    COPIES,
    CROSS_ENTROPY,
    FRAMEWORKS,
    GRADIENTS,
    KERNELS,
    OVERLAP,
    eight_bit,
)

FLAGS = {
    "llama": ["attention_bias", "mlp_bias", "tie_word_embeddings"],
    "gpt_neox": ["use_parallel_residual", "attention_bias"],
    "opt": ["do_layer_norm_before", "enable_bias", "tie_word_embeddings"],
    "bloom": ["apply_residual_connection_post_layernorm"],
    "falcon": ["new_decoder_architecture", "multi_query", "parallel_attn", "bias"],
    "starcoder2": ["use_bias"],
    "stablelm": ["use_parallel_residual", "qk_layernorm", "use_qkv_bias"],
    "cohere": ["use_qk_norm"],
    "olmoe": ["norm_topk_prob"],
    "qwen3_moe": ["norm_topk_prob", "use_sliding_window"],
    "gpt_oss": ["attention_bias"],
    "deepseek_v3": ["rope_interleave", "norm_topk_prob"],
    "llama4_text": ["use_qk_norm", "attn_temperature_tuning"],
}
LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32")
EXPERTS = {
    **dict.fromkeys(["mixtral", "granitemoe", "gpt_oss", "llama4_text"], "num_local_experts"),
    **dict.fromkeys(["olmoe", "qwen2_moe", "qwen3_moe"], "num_experts"),
    **dict.fromkeys([*LATENT, "glm_moe_dsa", "glm4_moe_lite", "deepseek_v4"], "n_routed_experts"),
}
# What DeBERTa's files say of its scores, and transformers' defaults do not.
DISENTANGLED = {"relative_attention": True, "position_biased_input": False, "share_att_key": True,
                "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p",
                "num_attention_heads": 10}  # fmt: skip
ACTIVATED = ["silu", "gelu", "gelu_new", "relu"]

# Families whose layers keep states: their kernels are not those of the others.
STATES = (
    *("mamba", "mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "lfm2", "lfm2_moe"),
    *("jamba", "kimi_linear", "minimax"),
)


@st.composite
def configs(draw, families=None):
    """Small models of every family, with the flags that change which tensors exist."""
    family = draw(st.sampled_from(families or sorted(FAMILIES)))
    heads = 8
    config = {
        "model_type": family,
        "vocab_size": draw(st.integers(1, 5000)),
        "hidden_size": heads * 2 * draw(st.integers(1, 32)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, 2, 4, 8])),
        "num_hidden_layers": draw(st.integers(1, 40)),
        "intermediate_size": draw(st.integers(1, 2000)),
        "max_position_embeddings": 4096 + 2 * (family in ("roberta", "xlm-roberta", "camembert")),
        "image_size": 16 * draw(st.integers(1, 24)),
        "patch_size": 16,
        "attention_dropout": draw(st.sampled_from([0.0, 0.1])),
        **{flag: draw(st.booleans()) for flag in FLAGS.get(family, [])},
    }
    if family == "deberta-v2":
        config |= DISENTANGLED | {"num_attention_heads": heads}
    if family in ("llama", "qwen2"):
        config["hidden_act"] = draw(st.sampled_from(ACTIVATED))
    if family in EXPERTS:
        experts = 8 * draw(st.integers(1, 4))
        config |= {EXPERTS[family]: experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    if family.startswith("deepseek"):  # every head expands its own keys and values
        config |= {"num_key_value_heads": heads, "first_k_dense_replace": draw(st.integers(0, 3))}
        ranks = [96] if family == "deepseek_v32" else [None, 96]  # an indexer reads them
        config |= {"q_lora_rank": draw(st.sampled_from(ranks))}
    if family == "deepseek_v4":  # one key and value of all heads
        config |= {"num_key_value_heads": 1, "q_lora_rank": 96,
                   "o_groups": draw(st.sampled_from([1, 2, 8]))}  # fmt: skip
    if family == "gemma3n_text":
        config["num_kv_shared_layers"] = 0
    if family in ("glm_moe_dsa", "glm4_moe_lite", "kimi_linear"):
        config["num_key_value_heads"] = heads
    if family == "gemma4_text":
        config |= {"hidden_size_per_layer_input": 0, "global_head_dim": 64}
    if family == "mimo_v2_flash":  # layers with a window have twice as many
        config["num_key_value_heads"] = min(4, config["num_key_value_heads"])
    if family == "whisper":
        config |= {"num_key_value_heads": heads, "decoder_attention_heads": heads}
    if family == "gptj":
        config["rotary_dim"] = 2 * draw(st.integers(1, config["hidden_size"] // heads // 2))
    config = deeper(config, 0)
    if family in ("mistral", "mixtral", "gemma2", "gemma3_text", "starcoder2", "phi3", "gpt_oss"):
        config["sliding_window"] = draw(st.integers(1, 4096))
    return config


def deeper(config, more):
    """The same with more layers; GPT-Neo's says of each what it attends to."""
    layers = config["num_hidden_layers"] + more
    words = [[(["global", "local"] * layers)[:layers], 1]]
    named = {"attention_types": words} if config["model_type"] == "gpt_neo" else {}
    return dict(config) | {"num_hidden_layers": layers} | named


@st.composite
def plans(draw):
    # Products in 8 bits want sizes in multiples of 16: see test_eight_bit.py.
    framework, precision = draw(st.sampled_from(sorted(c for c in COPIES if not eight_bit(*c))))
    own = framework == "megatron"  # which runs its own kernels, and they nowhere else
    known = [f for f in sorted(FAMILIES) if not own or "megatron" in FAMILIES[f].kernels]
    known = [f for f in known if not FAMILIES[f].bridge]  # see test_stacks.py
    known = [f for f in known if f not in STATES]  # see test_trained_states.py
    known = [f for f in known if not FAMILIES[f].untrained]
    if framework not in ("pytorch", "fsdp2"):
        known = [f for f in known if not FAMILIES[f].alone]
    known = [f for f in known if framework == "pytorch" or not FAMILIES[f].unsharded]
    model = draw(configs(known))
    family = model["model_type"]
    others = [k for k in FAMILIES[family].kernels if k != "megatron"]
    kernels = "megatron" if own else draw(st.sampled_from(others))
    scales_logits = family in ("granite", "granitemoe")
    losses = ["eager", "fused"] if scales_logits else FAMILIES[family].losses
    image = from_config(model).image
    checkpointing = sorted(set(CHECKPOINTING) - ({"selective"} if kernels == "compile" else set()))
    document = {
        "model": model,
        "cluster": {"gpus": draw(st.integers(1, 64)), "gpus_per_node": 8},
        "train": {
            "micro_batch": draw(st.integers(1, 8)),
            "seq_len": image.tokens if image else draw(st.integers(1, 4096)),
            "grad_accumulation": draw(st.integers(1, 3)),
            "framework": framework,
            "zero": draw(st.sampled_from(FRAMEWORKS[framework].zero)),
            "precision": precision,
            "gradients": draw(st.sampled_from(sorted(GRADIENTS))),
            "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
            "kernels": kernels,
            "cross_entropy": draw(st.sampled_from(losses)),
            "checkpointing": draw(st.sampled_from(checkpointing)),
            "checkpoint_every": draw(st.integers(1, 4)),
            "attention": draw(st.sampled_from(FAMILIES[model["model_type"]].attentions)),
            "offload_optimizer": draw(st.sampled_from(["none", "cpu", "nvme"])),
            "offload_parameters": draw(st.sampled_from(["none", "none", "cpu", "nvme"])),
            "offload_activations": draw(st.sampled_from(["none", "none", "cpu"])),
            "loader_workers": draw(st.integers(0, 4)),
        },
    }
    sizes = ("reduce_bucket_size", "stage3_max_live_parameters", "stage3_prefetch_bucket_size")
    if framework == "deepspeed":
        document["train"] |= {size: draw(st.sampled_from([1000, 10**6, 10**9])) for size in sizes}
        document["train"] |= {"overlap_comm": draw(st.sampled_from(sorted(OVERLAP)))}
    fitted, _ = repair(document, given=("train.framework",))  # not everything goes together
    assert fitted.train.framework == framework
    return fitted


@st.composite
def varied(draw):
    """A plan with any optimizer, kernels and loss, where they can be combined."""
    plan = draw(plans())
    train = {
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
        "kernels": draw(st.sampled_from(sorted(KERNELS))),
        "cross_entropy": draw(st.sampled_from(sorted(CROSS_ENTROPY))),
        "checkpoint_every": draw(st.integers(1, 3)),
        "early_stop": draw(st.sampled_from(["auto", "off"])),
        "outputs": draw(st.sampled_from(["auto", "freed", "kept"])),
        "allocator": draw(st.sampled_from(["expandable", "native"])),
    }
    document = plan.document()
    fitted, _ = repair(document | {"train": document["train"] | train})
    return fitted


@st.composite
def served(draw):
    """A plan served in some way; cut over GPUs, serving alone is computed."""
    plan = draw(plans())
    document = plan.document()
    document["serve"] |= {
        "weight_dtype": draw(st.sampled_from(sorted(WEIGHT_DTYPES))),
        "kv_dtype": draw(st.sampled_from(sorted(KV_DTYPES))),
        "kv_cache": draw(st.sampled_from(sorted(KV_CACHES))),
        "concurrency": draw(st.integers(1, 10_000)),
        "prompt_len": draw(st.integers(1, 3000)),
        "output_len": draw(st.integers(1, 1000)),
        "block_size": draw(st.integers(1, 64)),
        "memory_utilization": draw(st.floats(0.001, 1)),
        "max_batched_tokens": draw(st.integers(1, 10_000)),
        "runtime": draw(st.sampled_from(sorted(RUNTIMES))),
        "prefill": draw(st.sampled_from(sorted(PREFILLS))),
        "draft_tokens": draw(st.sampled_from([0, 0, 1, 5])),
        "draft_acceptance": draw(st.sampled_from([0.0, 0.6, 1.0])),
        "draft_model": draw(st.sampled_from(["none", "gpt2", "llama-3.2-1b"])),
        "offload_weights": draw(st.sampled_from([0.0, 0.0, 0.001, 3.0])),
        "offload_kv": draw(st.sampled_from(["none", "none", "cpu"])),
    }
    tp, pp = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]))
    document["parallel"] |= {"tp": tp, "pp": pp}
    document["cluster"] |= {"gpus": draw(st.integers(1, 3)) * tp * pp}
    fitted, _ = repair(document, given=("parallel.tp", "parallel.pp"))
    return fitted


@st.composite
def divided(draw):
    """A plan cut over tensor, pipeline, context and expert ranks, as far as it can be."""
    document = draw(plans()).document()
    axes = {axis: draw(st.sampled_from([1, 2, 4])) for axis in ("tp", "pp", "cp")}
    document["parallel"] |= axes | {
        "sequence_parallel": draw(st.booleans()),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble"])),
    }
    document["train"]["offload_optimizer"] = "none"
    ranks = axes["tp"] * axes["pp"] * axes["cp"]
    document["cluster"] |= {"gpus": ranks * draw(st.sampled_from([1, 2, 8])), "gpus_per_node": 8}
    fitted, _ = repair(document)
    return fitted


STACKS = ("t5-base", "flan-t5-large", "llava-1.5-7b", "gemma-3-4b", "whisper-small")


@st.composite
def stacked(draw):
    """A model of several stacks, on data-parallel GPUs."""
    model = draw(st.sampled_from(STACKS))
    images = draw(st.integers(1, 3))
    train = {
        "attention": "eager"
        if "t5" in model
        else draw(st.sampled_from(["eager", "sdpa", "flash"])),
        "seq_len": 1500 if "whisper" in model else draw(st.integers(576 * images, 4096)),
        "target_len": draw(st.integers(1, 448 if "whisper" in model else 1024)),
        "images": images,
        "micro_batch": draw(st.integers(1, 4)),
        "grad_accumulation": draw(st.integers(1, 3)),
        "checkpointing": draw(st.sampled_from(["none", "full"])),
        **draw(
            st.sampled_from(
                [
                    {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"},
                    {"framework": "fsdp2", "zero": 2},
                    {"framework": "fsdp2", "zero": 3},
                    {"framework": "fsdp2", "zero": 3, "offload_optimizer": "cpu"},
                ]
            )
        ),
    }
    gpus = draw(st.sampled_from([1, 2, 8, 16]))
    return Plan.of({"model": model, "cluster": {"gpus": gpus}, "train": train})


ANY = st.one_of(divided(), stacked())
