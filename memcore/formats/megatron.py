"""Megatron: the arguments of pretrain_gpt.py, which describe the model too.

Source: megatron/training/arguments.py (Megatron-Core 0.14; read again in 0.19).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.formats import hub
from memcore.formats.found import Draft, Keys, harmless, hyphened, positive, whole, word
from memcore.formats.texts import UNSET, options
from memcore.models import catalog
from memcore.words.optimizers import AWARE
from memcore.words.training import (
    ALL_LINEAR,
    ATTN,
    CORE_ATTN,
    CUDA_GRAPHS,
    DISPATCHERS,
    FULL_ITERATION,
    MLA_UP_PROJ,
    MLP,
    MOE,
    RECOMPUTE_MODULES,
)

MARKS = {
    *("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size"),
    *("global_batch_size", "tensor_model_parallel_size"),
}
METHODS = {"uniform": "uniform", "block": "block"}
# Fields that options of the same name turn on.
ENDS = tuple(f"parallel.account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
SWITCHES = (
    *ENDS,
    *("train.overlap_grad_reduce", "train.overlap_param_gather", "train.tp_comm_overlap"),
    "train.overlap_moe_expert_parallel_comm",
)
GPT2_VOCABULARY, LLAMA_VOCABULARY = 50_257, 32_000
LEFT = {
    "its optimizer on the CPU is not planned": (
        "optimizer_cpu_offload optimizer_offload_fraction=1.0"
    ),
    "activations in host memory are not planned for Megatron": (
        "cpu_offloading cpu_offloading_num_layers=0 cpu_offloading_weights "
        "fine_grained_activation_offloading offload_modules"
    ),
    "Megatron-DeepSpeed's ZeRO is not planned": "zero_stage zero_* deepspeed",
    "uneven stages are not planned": (
        "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers "
        "pipeline_model_parallel_layout num_layers_in_*"
    ),
    "version 1 of Megatron-FSDP is planned": "megatron_fsdp_version=1",
    "main weights in fp32 are planned": "megatron_fsdp_main_params_dtype=fp32|torch.float32",
    "gradients are sent as they are summed": (
        "megatron_fsdp_grad_comm_dtype *reduce_scatter_with_fp32_accumulation "
        "*param_name_patterns_for_fp32_local_accumulation"
    ),
    "is not planned": (
        "megatron_fsdp_* hierarchical_context_parallel_sizes distribute_saved_activations "
        "cuda_graph_* microbatch_group_size_per_virtual_pipeline_stage optimizer_cuda_graph "
        "decode_only_cuda_graphs microbatch_group_size_per_vp_stage "
        "num_microbatches_with_partial_*"
    ),
    "buckets that are freed are planned, not double buffers": "fsdp_double_buffer",
    "buffers that NCCL registers are not planned": "use_nccl_ub nccl_ub",
    "its default is planned": "suggested_communication_unit_size",
    "Megatron's own FSDP is not planned": (
        "outer_dp_sharding_strategy=no_shard enable_full_sharding_in_hsdp torch_fsdp2_* "
        "fsdp_manual_registration"
    ),
    "FSDP2 under Megatron is not planned: set train.framework to fsdp2": "use_torch_fsdp2",
    "sequences cut by heads are not planned": "ds_sequence_parallel_size",
    "the batch is the last one from the start here": (
        "rampup_batch_size step_batch_size_schedule decrease_batch_size_if_needed"
    ),
    "is not planned: states are cut over all ranks here": "num_distributed_optimizer_instances=1",
    "training in fp4 is not planned": "fp4 fp4_format fp4_param*",
    "set train.precision to fp8-params or mxfp8-params": "fp8_param_gather fp8_param",
    "a precision for each layer is not planned": (
        "te_precision_config_file kitchen_* use_kitchen* quant_recipe"
    ),
    "tokens that are dropped are not planned": (
        "moe_expert_capacity_factor moe_pad_expert_input_to_capacity"
    ),
    "how sequences are exchanged is not read: rings are planned": "cp_comm_type",
    "windows are not read from arguments; give the config.json beside them": "window_size",
    "layers of their own are not read; give the config.json beside them": (
        "linear_attention* is_hybrid_model hybrid_* moe_latent_size enable_mhc_* mhc_* "
        "attention_output_gate mamba_* heterogeneous_* mtp_use_repeated_layer "
        "mtp_standalone openai_gelu squared_relu quick_geglu no_position_embedding qk_l2_norm "
        "glu_linear_offset activation_func_clamp_value moe_shared_expert_gate softmax_type=vanilla "
        "apply_residual_connection_post_layernorm decoder_num_layers"
    ),
    "is not read from arguments; give the config.json": "experimental_attention_variant",
    "name the adapter in train.adapter": "lora_* peft*",
    "layers run again in groups: set train.recompute_num_layers": "checkpoint_num_layers",
    "a residual stream in fp32 is not planned": "fp32_residual_connection",
    "a loss in fp16 is not planned": "fp16_lm_cross_entropy",
    "fused or not, the loss is planned as the vocabulary-parallel one": "cross_entropy_*",
    "some layers in bf16 are not planned": "first_last_layers_bf16",
    "attention in 8 bits is not planned": (
        "fp8_dot_product_attention fp8_multi_head_attention fp8_output_proj"
    ),
    "gradients of weights are multiplied in 8 bits as the others are": (
        "no_fp8_wgrad fp8_wgrad=true"
    ),
    "what is kept in 8 bits is as without it": (
        "keep_fp8_transpose_cache disable_parameter_transpose_cache activation_func_fp8_input_store"
    ),
    "gathered weights have room of their own here": "reuse_grad_buf_for_mxfp8_param_ag",
    "gradients of weights that wait are not planned": (
        "delay_wgrad_compute defer_embedding_wgrad_compute wgrad_deferral_limit=0"
    ),
    "what runs behind what is planned as without it": (
        "moe_shared_expert_overlap overlap_dispatch_backward* overlap_p2p_*=true batch_p2p_*=true "
        "overlap_param_gather_with_optimizer_step tp_comm_bulk_*=true tp_comm_split_*=true "
        "tp_comm_overlap_ag=true tp_comm_overlap_rs=true tp_comm_bootstrap_backend=nccl tp_comm_* "
        "no_overlap_p2p_* "
        "no_async_tensor_model_parallel_allreduce no_align_param_gather "
        "ep_overlap_early_attn_memory_release"
    ),
    "frozen weights are not read: set train.frozen": "freeze_*",
    "weights that are cut otherwise are not planned": (
        "gtp_*=1 expert_gtp_*=1 *_num_weight_shards use_layer_wise_distributed_optimizer"
    ),
    "rows of experts are as many as are chosen here": (
        "moe_paged_stash moe_router_padding_* moe_expert_rank_capacity_factor moe_token_drop*=probs"
    ),
    "every sequence is taken to be as long as it may be": (
        "variable_seq_lengths max_seqlen_per_dp_cp_rank rl_use_sequence_packing sft "
        "dataloader_inter_document_masking"
    ),
    "kernels that are not fused are not planned": "no_*fusion no_persist_layer_norm",
    "kernels are Megatron's usual ones here": (
        "use_transformer_engine_op_fuser use_te_activation_func batch_invariant_mode "
        "deterministic_mode mlp_chunks_for_training=1 use_grouped_gemm_for_dense_mlp "
        "use_grouped_gemm_for_shared_expert attention_softmax_in_fp32 disable_jit_fuser"
    ),
    "an allocator that is emptied is not planned": "empty_unused_memory_level=0",
    "the peak of evaluation is not planned": "eval_micro_batch_size",
    "a teacher's logits are not planned": "logits_load_dir logits_save_dir",
    "states that are copied while they are saved are not planned": "async_save",
    "what NCCL does is as by default here": "use_sharp nccl_communicator_config_path",
    "ranks lie next to each other by tp, cp, ep, dp and pp here": "use_tp_pp_dp_mapping",
    "the vocabulary is padded to a multiple of 128 for each rank here": (
        "make_vocab_size_divisible_by=128"
    ),
    "norms keep what Transformer Engine's do": "memory_efficient_layer_norm",
    "rollouts are not read: set together and serve": "perform_rl_step",
    "buckets have Megatron's own size here": (
        "ddp_bucket_size ddp_num_buckets bucket_size num_buckets"
    ),
    "logits have the dtype of the arithmetic here": "output_logit_dtype",
}
# Scripts that are given the same options and train nothing.
OTHERS = re.compile(
    r"(?:generat|evaluat|eval_?harness|inference|mmlu|quantiz|ptq|export|convert|tasks?/main)[\w/-]*\.py$"
)
# Positions that have no weights: Megatron-DeepSpeed's ALiBi, and none at all.
UNLEARNED = ("alibi", "none")
# What describes layers that options do not.
OWN_LAYERS = {"spec": "layers of their own are", "encoder_num_layers": "an encoder is"}
# The sizes of latent attention, as a config.json calls them, with Megatron's own.
LATENT = {
    "q_lora_rank": ("q_lora_rank", 512),
    "kv_lora_rank": ("kv_lora_rank", 512),
    "qk_nope_head_dim": ("qk_head_dim", 128),
    "qk_rope_head_dim": ("qk_pos_emb_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
}


def recognise(command: Sequence[str]) -> bool:
    """Whether a command's options are Megatron's."""
    _, given = options(command)
    return len(MARKS & given.keys()) >= 3


def read(command: Sequence[str], draft: Draft) -> None:
    """What the command says."""
    other = next((word for word in command if OTHERS.search(word)), "")
    if other:
        draft.leave(other, "generates or evaluates: a training step of its model is planned")
    told(Keys(options(command)[1], hyphened), draft)


def told(keys: Keys, draft: Draft) -> None:
    """What Megatron's options say, and those of which nothing is made."""
    arguments(keys, draft)
    draft.end(keys, LEFT, harmless("megatron", "launchers"))


def arguments(keys: Keys, draft: Draft) -> None:
    """What Megatron's options say."""
    for path, how, *named in (
        ("train.micro_batch", positive, "micro_batch_size", "batch_size"),
        ("run.save_steps", positive, "save_interval"),
        # of a model with images the first is the language model's, the others its pieces'
        ("train.seq_len", positive, "decoder_seq_length", "seq_length", "encoder_seq_length"),
        ("parallel.tp", positive, "tensor_model_parallel_size", "model_parallel_size"),
        ("parallel.pp", positive, "pipeline_model_parallel_size"),
        ("parallel.cp", positive, "context_parallel_size"),
        ("parallel.ep", positive, "expert_model_parallel_size"),
        ("parallel.etp", positive, "expert_tensor_parallel_size"),
        ("parallel.virtual_stages", positive, "num_virtual_stages_per_pipeline_rank"),
        ("train.recompute_method", word(METHODS), "recompute_method"),
        ("train.recompute_num_layers", positive, "recompute_num_layers"),
        ("train.mtp_layers", whole, "mtp_num_layers"),
        ("train.optimizer", word({"adam": "adamw", "sgd": "sgd", "muon": "muon"}), "optimizer"),
    ):
        draft.read(keys, path, how, *named)
    draft.otherwise("train.micro_batch", 1, keys.written("micro_batch_size"))
    draft.keeps_checkpoints(0, "--save-interval")
    draft.put("train.framework", "megatron", "Megatron's arguments")
    draft.put("train.kernels", "megatron", "Megatron's arguments")
    draft.otherwise("train.optimizer", "adamw", "--optimizer")
    _stage(keys, draft)
    for path in SWITCHES:
        option = path.rpartition(".")[2]
        draft.put(path, keys.on(option), keys.written(option))
    tp = draft.fields.get("parallel.tp", 1)
    by_sequence = keys.on("sequence_parallel") and tp > 1  # which it turns off by itself
    draft.put("parallel.sequence_parallel", by_sequence, "--sequence-parallel")
    if draft.count(keys, "num_experts"):
        draft.otherwise("parallel.etp", tp, "--expert-tensor-parallel-size")
    _dispatcher(keys, draft)
    _precision(keys, draft)
    _moments(keys, draft)
    _recomputation(keys, draft)
    _graphs(keys, draft)
    flash = keys.on("use_flash_attn")
    eager = keys.take("attention_backend", "transformer_impl") in ("unfused", "local")
    draft.put("train.attention", "eager" if eager and not flash else "flash", "--attention-backend")
    layers = draft.count(keys, "num_layers")
    apart = draft.count(keys, "num_layers_per_virtual_pipeline_stage")
    stages = draft.fields.get("parallel.pp", 1)
    all_of = layers + sum(draft.fields[path] for path in ENDS)
    if apart and layers and all_of % (stages * apart) == 0:
        key = "--num-layers-per-virtual-pipeline-stage"
        draft.put("parallel.virtual_stages", all_of // stages // apart, key, apart)
    draft.batch = draft.batch or draft.count(keys, "global_batch_size")
    draft.config = draft.config or _config(keys, layers, draft)


# Which linear layers each word of train.lora_targets has, as Megatron and NeMo 1 name them.
ADAPTED = {
    "attention": {"linear_qkv", "attention_qkv"},
    "attention-all": {"linear_qkv", "linear_proj", "attention_qkv", "attention_dense"},
}
EVERYWHERE = {"linear_fc1", "linear_fc2", "mlp_fc1", "mlp_fc2", "all", "*_proj", ALL_LINEAR}


def adapt(draft: Draft, targets: set[str], key: str) -> None:
    """What adapters are put on: every linear layer where nothing less is named."""
    within = next((word for word, of in ADAPTED.items() if targets and targets <= of), ALL_LINEAR)
    draft.put("train.lora_targets", within, key, sorted(targets) or "all")
    if targets - EVERYWHERE.union(*ADAPTED.values()):
        draft.leave(key, f"{', '.join(sorted(targets))}: planned as {within}")


def _dispatcher(keys: Keys, draft: Draft) -> None:
    """How rows go to experts; HybridEP and DeepEP are two of the flexible dispatcher's."""
    kind, older = keys.take("moe_token_dispatcher_type"), keys.on("moe_enable_deepep")
    named = keys.take("moe_flex_dispatcher_backend")
    backend = "deepep" if named is None else shown(named)[1:-1]
    if kind == "flex" or older:
        if backend in DISPATCHERS:
            draft.put("train.moe_dispatcher", backend, "--moe-flex-dispatcher-backend", backend)
        else:
            draft.leave("--moe-flex-dispatcher-backend", f"{backend} is not planned")
    elif kind == "allgather":
        draft.leave("--moe-token-dispatcher-type", "allgather is planned as alltoall")


def _precision(keys: Keys, draft: Draft) -> None:
    eight = keys.take("fp8_format", "fp8")
    if eight is not None:
        recipe = str(keys.take("fp8_recipe") or "delayed")
        how = {"delayed": "fp8-delayed", "mxfp8": "mxfp8", "tensorwise": "fp8-mixed"}.get(recipe)
        if how is None:
            draft.leave("--fp8-recipe", f"{shown(recipe)} has no word in a plan: tensorwise is")
        draft.put("train.precision", how or "fp8-mixed", "--fp8-format", eight)
    half = "fp16" if keys.on("fp16") else "bf16"
    unset = any(str(word).startswith(UNSET) for word in keys.values.values())
    if keys.on(half) or eight is not None or unset:
        draft.put("train.precision", f"{half}-mixed", f"--{half}", keys.on(half) or "not said")
    else:
        draft.otherwise("train.precision", "fp32", "--bf16")
    # arguments.py turns fp32 on for bf16 unless it is told otherwise, and for nothing else.
    wide, narrow = "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16"
    in_fp32, in_bf16 = keys.on(wide), keys.on(narrow)
    own = str(keys.take("megatron_fsdp_main_grads_dtype") or "auto").rpartition(".")[2]
    in_fp32, in_bf16 = in_fp32 or own in ("fp32", "float32"), in_bf16 or own in ("bf16", "bfloat16")
    if in_fp32 or in_bf16:
        key = narrow if in_bf16 else wide
        draft.put("train.grad_reduce_in_fp32", not in_bf16, keys.written(key), True)
    else:
        draft.otherwise("train.grad_reduce_in_fp32", half == "bf16", keys.written(wide))


# What Megatron-FSDP cuts, by the ZeRO stage that it is; it has the distributed optimizer always.
STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads_params": 3}


def _stage(keys: Keys, draft: Draft) -> None:
    """Which states ranks share out (distributed_data_parallel_config.py)."""
    key, strategy = "use_distributed_optimizer", "data_parallel_sharding_strategy"
    owned, old = keys.on(key), keys.on("use_custom_fsdp")
    said = keys.take(strategy)
    if not (keys.on("use_megatron_fsdp") or old):
        draft.put("train.zero", int(owned), "--use-distributed-optimizer")
        return
    word = "no_shard" if said is None else str(said)
    if word in STRATEGIES:
        draft.put("train.zero", STRATEGIES[word], keys.written(strategy), word)
    else:
        draft.put("train.zero", 3, keys.written(strategy), word)
        draft.leave(keys.written(strategy), f"{word} is not planned: weights are cut too")


def _moments(keys: Keys, draft: Draft) -> None:
    """The optimizer whose states have fewer bits; its gradients are those of the buffer."""
    keys.take("main_grads_dtype")
    said = [str(keys.take(name)).rpartition(".")[2] for name in (*MOMENTS, MASTERS)]
    if not keys.on(PRECISION_AWARE):
        return
    remainders = keys.written("store_param_remainders")
    draft.leave(remainders, "masters are whole here; it keeps their lower 16 bits, by default")
    if {*said[:2]} <= {"bf16", "bfloat16"} and said[2] in ("None", "fp32", "float32"):
        draft.put("train.optimizer", AWARE, keys.written(PRECISION_AWARE), True)
    else:
        message = f"is planned with both of {', '.join(MOMENTS)} in bf16 and masters in fp32"
        draft.leave(keys.written(PRECISION_AWARE), message)


def _graphs(keys: Keys, draft: Draft) -> None:
    """What is replayed as CUDA graphs. Of the older options, enable_cuda_graph and
    external_cuda_graph are implementations, and a scope of full is a whole layer; with local the
    scope may be full_iteration (transformer_config.py: __post_init__)."""
    older = {name: keys.on(name) for name in ("enable_cuda_graph", "external_cuda_graph")}
    said = keys.take("cuda_graph_impl")
    scope, modules = keys.take("cuda_graph_scope"), keys.take("cuda_graph_modules")
    for name in ("cuda_graph_warmup_steps", "cuda_graph_use_single_mempool"):
        keys.take(name)  # which change no step that is planned
    implementation = "none" if said is None else shown(said)[1:-1]
    if implementation == "none" and not any(older.values()):
        return
    key = keys.written("cuda_graph_impl")
    given = modules if modules is not None else scope
    names = given if isinstance(given, list) else [] if given is None else [given]
    named = [word for name in names for word in shown(name)[1:-1].split(",")]
    named = [name.strip().rpartition(".")[2] for name in named]
    if implementation == FULL_ITERATION or FULL_ITERATION in named:
        named = [FULL_ITERATION]
    elif set(named) <= {"", "full"}:
        named = [ATTN, MLP]
    found = [name for name in named if name in CUDA_GRAPHS]
    if found:
        draft.put("train.cuda_graphs", ",".join(found), key, found)
    if others := [name for name in named if name not in found]:
        draft.leave(key, f"{', '.join(others)}: is not planned")


PRECISION_AWARE, MASTERS = "use_precision_aware_optimizer", "main_params_dtype"
MOMENTS = ("exp_avg_dtype", "exp_avg_sq_dtype")


def _recomputation(keys: Keys, draft: Draft) -> None:
    grain = str(keys.take("recompute_granularity") or "")
    older = [keys.on(name) for name in ("checkpoint_activations", "recompute_activations")]
    if grain == "full" or (older[0] and not grain):
        draft.put("train.checkpointing", "full", "--recompute-granularity", grain or True)
    elif grain == "selective" or older[1] or keys.on("moe_layer_recompute"):
        named = _modules(keys)
        modules = [name for name in named if name in RECOMPUTE_MODULES]
        word = "selective" if modules else "none"
        draft.put("train.checkpointing", word, "--recompute-granularity", grain or True)
        if modules:
            draft.put("train.recompute_modules", ",".join(modules), keys.written(MODULES), modules)
        if others := [name for name in named if name not in modules]:
            draft.leave(keys.written(MODULES), f"{', '.join(others)}: is not planned")
    else:
        draft.put("train.checkpointing", "none", "--recompute-granularity", "not said")
    keys.take(MODULES)  # which nothing but a selective recomputation reads


MODULES = "recompute_modules"
# Options that stood for a module before modules were named.
OLDER = {"moe_layer_recompute": MOE, "recompute_mla_up_projection": MLA_UP_PROJ}


def _modules(keys: Keys) -> list[str]:
    """What is run again selectively: attention's core where nothing is named
    (transformer_config.py)."""
    named = keys.take(MODULES)
    names = [CORE_ATTN] if named is None else named if isinstance(named, list) else [named]
    more = [module for option, module in OLDER.items() if keys.on(option)]
    return [*(shown(name)[1:-1] if named else name for name in names), *more]


def _config(keys: Keys, layers: int, draft: Draft) -> dict[str, Any] | None:
    """The model as a config.json. Raises PlanError where the arguments are no model known here."""
    hidden, heads = (draft.count(keys, k) for k in ("hidden_size", "num_attention_heads"))
    if not (layers and hidden and heads):
        return None
    for name, what in OWN_LAYERS.items():
        if keys.on(name):
            message = f"{what} not read from arguments; give the config.json beside them"
            raise PlanError([Issue(keys.written(name), message)])
    gated = keys.on("swiglu")
    where = keys.take("position_embedding_type", words=("none",))
    rotary = keys.on("use_rotary_position_embeddings") or where == "rope"
    if not rotary and where not in (None, "learned_absolute"):
        unlearned = str(where).lower() in UNLEARNED
        instead = "without weights for positions" if unlearned else "with learned positions"
        draft.leave(keys.written("position_embedding_type"), f"{shown(where)} is planned {instead}")
    rms = str(keys.take("normalization") or "").lower() == "rmsnorm"
    own = keys.take("untie_embeddings_and_output_weights") is not None
    positions = draft.count(keys, "max_position_embeddings", "seq_length") or 4096
    kind = str(keys.take("tokenizer_type") or "")
    vocabulary = draft.count(keys, "vocab_size", "padded_vocab_size")
    if not vocabulary:
        vocabulary = GPT2_VOCABULARY if "GPT2" in kind or not rotary else LLAMA_VOCABULARY
        taken = "the kind of tokenizer"
        named = str(keys.values.get("tokenizer_model") or "")
        if "HuggingFace" in kind and (found := hub.preset(named)):
            config = catalog.model_entry(found)["config"]
            size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
            vocabulary, taken = int(size or vocabulary), f"the preset {found}"
        draft.leave("--vocab-size", f"not said; {vocabulary:,} is taken from {taken}")
    if not rotary:
        return {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": positions,
            **({"position_embedding_type": "none"} if str(where).lower() in UNLEARNED else {}),
            "vocab_size": vocabulary,
            "n_inner": draft.count(keys, "ffn_hidden_size") or 4 * hidden,
            "resid_pdrop": 0.0 if str(keys.take("hidden_dropout")) in ("0", "0.0") else 0.1,
            "attn_pdrop": 0.0 if str(keys.take("attention_dropout")) in ("0", "0.0") else 0.1,
            "tie_word_embeddings": not own,
        }
    if not (gated and rms):
        message = (
            "rotary positions without it or --swiglu are no family known; give the config.json"
        )
        raise PlanError([Issue("--normalization", message)])
    for name in ("norm_epsilon", "rotary_base"):
        keys.take(name)
    if not keys.on("disable_bias_linear"):
        draft.leave(
            "--disable-bias-linear", "not said, and biases of linear layers are not planned"
        )
    for name in ("hidden_dropout", "attention_dropout"):
        if str(keys.take(name)) not in ("0", "0.0"):
            message = f"{shown(keys.values.get(name, 0.1))}: masks of dropout are not planned here"
            draft.leave(keys.written(name), message)
    experts = draft.count(keys, "num_experts")
    grouped = keys.on("group_query_attention")
    groups = draft.count(keys, "num_query_groups") or 1 if grouped else heads
    widths = ("moe_ffn_hidden_size",) if experts else ()
    inner = draft.count(keys, *widths, "ffn_hidden_size")
    latent = keys.on("multi_latent_attention")
    normed = keys.on("qk_layernorm") and not latent  # latent attention has norms of its own
    config = {
        "model_type": "qwen3" if normed else "qwen2" if keys.on("add_qkv_bias") else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner or 4 * hidden * 2 // 3 // 64 * 64,
        "max_position_embeddings": positions,
        "vocab_size": vocabulary,
        "tie_word_embeddings": not own,
    }
    channels = draft.count(keys, "kv_channels")
    if channels or normed:
        config["head_dim"] = channels or hidden // heads
    if latent:
        config |= {"model_type": "deepseek_v3", "num_key_value_heads": heads}
        for mine, (theirs, size) in LATENT.items():
            config[mine] = draft.count(keys, theirs) or size
    return config | _experts(keys, config, draft) if experts or latent else config


def _experts(keys: Keys, config: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """What a mixture has besides, in the words of its family. Raises PlanError where options say
    what no family has."""
    experts, chosen = draft.count(keys, "num_experts"), draft.count(keys, "moe_router_topk") or 2
    dense, family = draft.count(keys, "ffn_hidden_size"), config["model_type"]
    width = draft.count(keys, "moe_ffn_hidden_size") or dense
    common = draft.count(keys, "moe_shared_expert_intermediate_size")
    before = _dense_before(keys, config["num_hidden_layers"])
    if family == "deepseek_v3":
        return {
            "intermediate_size": dense or width,
            "moe_intermediate_size": width,
            "n_routed_experts": experts,
            "num_experts_per_tok": chosen,
            "n_shared_experts": common // width if width else 0,
            "first_k_dense_replace": before if experts else config["num_hidden_layers"],
        }
    if common or before:
        key = "moe_shared_expert_intermediate_size" if common else "moe_layer_freq"
        message = "no family of its kind has it in arguments; give the config.json beside them"
        raise PlanError([Issue(keys.written(key), message)])
    if family == "qwen3":
        return {
            "model_type": "qwen3_moe",
            "moe_intermediate_size": width,
            "num_experts": experts,
            "num_experts_per_tok": chosen,
            "norm_topk_prob": True,
        }
    return {
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
    }


def _dense_before(keys: Keys, layers: int) -> int:
    """Layers without experts before those with them. Raises PlanError for others between them."""
    said = str(keys.take("moe_layer_freq") or "1").replace(" ", "").strip("()'\"")
    found = re.fullmatch(r"(?:\[0\](?:\*(\d+))?\+)?\[1\](?:\*(\d+))?", said)
    before = int(found[1] or 1) if found and "[0]" in said else 0
    if said == "1" or (found and before + int(found[2] or 1) == layers):
        return before
    message = f"{shown(said)}: layers without experts between them; give the config.json"
    raise PlanError([Issue(keys.written("moe_layer_freq"), message)])
