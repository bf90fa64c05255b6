"""Trainer: what transformers' Trainer is told, as YAML, JSON or a command's options; and TRL,
LLaMA-Factory, axolotl and people's own scripts, which are built on it.

Their vocabularies agree where they meet, so one table has the names of all of them; what each does
where a key is not said is its own. Sources: transformers 5.23's TrainingArguments, trl 1.16's
ModelConfig and SFTConfig, peft 0.21's LoraConfig, LLaMA-Factory's hparams and axolotl's schemas of
the summer of 2026.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats import accelerate, deepspeed, hub, megatron, methods
from memcore.formats.found import (
    AUTO,
    Around,
    Draft,
    Keys,
    flag,
    harmless,
    mixed,
    names,
    positive,
    share,
    whole,
    word,
)
from memcore.formats.texts import options
from memcore.words.training import ALL_LINEAR, AS_LOADED, IN_16_BITS, LOWER

BATCH = ("per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size")
LENGTH = (
    "packing_length",
    *("max_seq_length", "model_max_length", "cutoff_len", "sequence_len", "max_length"),
    *("max_seq_len", "max_len", "max_completion_length"),
)
RECOMPUTES = (
    *("gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing"),
    "grad_checkpoint",
)
LIGER = ("use_liger_kernel", "enable_liger_kernel", "use_liger")  # all of its kernels at once
ATTENDS = ("attn_implementation", "flash_attn", "flash_attention")
# axolotl's older switches, with the word of attn_implementation that each is.
SWITCHES = {
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    **{f"{name}_attention": name for name in ("flex", "xformers", "sage")},
}
MODEL = (
    *("model_name_or_path", "base_model", "model_id", "pretrained_model_name_or_path"),
    *("model_name", "llm_path", "llm_model_name_or_path", "pretrain", "model"),
)
MARKS = {
    *BATCH[:2],
    *MODEL,
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "finetuning_type",
    "num_train_epochs",
    "max_seq_length",
}
# Keys that one program alone has, or that its files say all but always.
AXOLOTL, FACTORY, TRL, SWIFT = "axolotl", "LLaMA-Factory", "TRL", "ms-swift"
# Scripts that many repositories have copied: LLaVA's llava/train/train.py and 2U1's Qwen-VL series
# (src/params.py), artidoro/qlora's qlora.py, and Qwen's finetune.py, each as of its main branch.
LLAVA, QLORA, QWEN = "LLaVA", "qlora.py", "Qwen's finetune.py"
OWN = {
    AXOLOTL: {"base_model", "sequence_len", "sample_packing", "lora_target_linear"},
    FACTORY: {"finetuning_type", "cutoff_len", "lora_target", "dataset_dir", "pure_bf16"},
    TRL: {
        *("use_peft", "packing", "dataset_text_field", "completion_only_loss", "max_prompt_length"),
        *("num_generations", "max_completion_length", "assistant_only_loss", "dataset_mixer"),
        *("dataset_mixture", "activation_offloading", "padding_free"),
    },
    LLAVA: {"lora_enable", "mm_vision_select_layer", "tune_mm_mlp_adapter"},
    QLORA: {"source_max_len", "target_max_len"},
}
# axolotl's own cuts; ranks are a group within which weights are shared out, and copies of it.
OF_AXOLOTL = (
    ("parallel.tp", positive, "tensor_parallel_size"),
    ("parallel.cp", positive, "context_parallel_size", "sequence_parallel_degree"),
    ("parallel.shard_group", positive, "dp_shard_size"),
)
# Arguments of transformers' TrainingArguments that other programs' seldom have; its examples, and
# the class by its name.
ITS = {
    *("optim", "do_train", "do_eval", "save_strategy", "eval_strategy", "evaluation_strategy"),
    *("save_steps", "eval_steps", "save_total_limit", "logging_steps", "logging_strategy"),
    *("report_to", "warmup_ratio", "max_grad_norm", "dataloader_num_workers", "group_by_length"),
    *("ddp_find_unused_parameters", "remove_unused_columns", "overwrite_output_dir", "tf32"),
    *("fsdp", "fsdp_config", "deepspeed", "torch_compile", "gradient_checkpointing_kwargs"),
    *("load_best_model_at_end", "bf16_full_eval", "adam_beta2", "lazy_preprocess", "logging_dir"),
    *("dataloader_pin_memory", "use_liger_kernel", "attn_implementation"),
}
EXAMPLE = re.compile(
    r"\brun_(?:clm|mlm|glue|qa|seq2seq|summarization|translation)\w*\.py\Z|\ATraining\w*Arguments\Z"
)
# Commands that start one program.
TOOLS = {"trl": TRL, "llamafactory-cli": FACTORY, "axolotl": AXOLOTL, "swift": SWIFT}
# What each does where a key is not said: by field the value and the key; '' is transformers itself.
DEFAULTS: dict[str, dict[str, tuple[Any, str]]] = {
    "": {
        "train.micro_batch": (8, BATCH[0]),
        "train.attention": ("sdpa", "attn_implementation"),
        "train.optimizer": ("adamw", "optim"),
        "train.loader_pin_memory": (True, "dataloader_pin_memory"),
        "train.checkpointing": ("none", "gradient_checkpointing"),
        "train.precision": ("fp32", "bf16"),
        "train.kernels": ("hf", LIGER[0]),
        "train.cross_entropy": ("eager", LIGER[0]),
    },
    TRL: {
        "train.seq_len": (1024, "max_length"),
        "train.checkpointing": ("full", "gradient_checkpointing"),
        "train.cross_entropy": ("chunked", "loss_type"),
    },
    FACTORY: {
        "train.seq_len": (2048, "cutoff_len"),
        "train.checkpointing": ("full", "disable_gradient_checkpointing"),
        "train.reentrant": (True, "use_reentrant_gc"),
        "train.kernels": ("hf", LIGER[1]),
        "train.cross_entropy": ("eager", LIGER[1]),
    },
    AXOLOTL: {
        "train.micro_batch": (1, "micro_batch_size"),
        "train.seq_len": (512, "sequence_len"),
        "train.loader_prefetch": (256, "dataloader_prefetch_factor"),
    },
    SWIFT: {
        "train.micro_batch": (1, BATCH[0]),
        "train.checkpointing": ("full", "gradient_checkpointing"),
    },
    LLAVA: {"train.optimizer": ("adamw-foreach", "optim")},
    QLORA: {
        "train.micro_batch": (1, BATCH[0]),
        "train.grad_accumulation": (16, "gradient_accumulation_steps"),
        "train.optimizer": ("paged-adamw32bit", "optim"),
        "train.checkpointing": ("full", "gradient_checkpointing"),
    },
    QWEN: {
        "train.seq_len": (8192, "model_max_length"),
        "train.optimizer": ("adamw-foreach", "optim"),
    },
}
DEFAULTS |= {program: DEFAULTS[""] | own for program, own in DEFAULTS.items() if program}
DTYPES = ("torch_dtype", "dtype", "model_dtype")  # of the weights as they are loaded
# TRL casts the adapters of a quantized model to bf16 and leaves the rest as it was loaded, in fp32
# unless told (trl 1.16, sft_trainer.py and its kin, model_config.py); its experimental trainers of
# ORPO and CPO, which have these, call PEFT's prepare_model_for_kbit_training.
OLDER_TRL = (
    "is as loaded under TRL 1.16; older versions call PEFT's prepare_model_for_kbit_training: set "
    "it to fp32, and train.adapter_dtype, for them"
)
OF_PEFT = {"cpo_alpha", "simpo_gamma", "disable_dropout_in_orpo"}
TUNERS = ("lora", "qlora", "full", "freeze", "none", "")  # words of an adapter, or of none
# Adapters: rank, dropout and targets of each; PEFT's own are a rank of 8 and no dropout.
DOUBLE = "bnb_4bit_use_double_quant"
ADAPTERS = {
    "": (8, 0.0, ""),
    TRL: (16, 0.05, ""),
    FACTORY: (8, 0.0, ALL_LINEAR),
    AXOLOTL: (8, 0.0, ""),
    SWIFT: (8, 0.05, ALL_LINEAR),
    LLAVA: (64, 0.05, ALL_LINEAR),
    QLORA: (64, 0.0, ALL_LINEAR),
    QWEN: (64, 0.05, ALL_LINEAR),
}
# Who loads a tower of images and leaves it as it is, and the key that says so, on where it is not
# said (LLaMA-Factory 0.9.5: hparams/finetuning_args.py; ms-swift 4.6: arguments/tuner_args.py).
FROZEN_TOWERS = {FACTORY: "freeze_vision_tower", SWIFT: "freeze_vit"}
DOUBLED = (LLAVA, QLORA)  # who quantize scales unless told not to
OPTIMIZERS = {
    "adamw_torch": "adamw-foreach",
    "adamw_hf": "adamw-foreach",
    "adamw_torch_fused": "adamw",
    "adamw": "adamw",
    "adamw_8bit": "adam8bit",
    "adamw_bnb_8bit": "adam8bit",
    "paged_adamw": "paged-adamw32bit",
    "paged_adamw_32bit": "paged-adamw32bit",
    "paged_adamw_8bit": "paged-adamw8bit",
    **dict.fromkeys(("adamw_torch_8bit", "ao_adamw_8bit"), "torchao-adamw8bit"),
    **dict.fromkeys(("adamw_torch_4bit", "ao_adamw_4bit"), "torchao-adamw4bit"),
    "adafactor": "adafactor",
    **dict.fromkeys(("lion", "lion_pytorch", "lion_32bit"), "lion"),
    "sgd": "sgd-momentum",
    "muon": "muon",
}
FLASH = ("flash_attention_2", "kernels-community/flash-attn2", "fa2", "true", "1")
FLASH3 = ("flash_attention_3", "kernels-community/flash-attn3", "fa3")
ATTENTION = {
    **dict.fromkeys(FLASH, "flash"),
    **dict.fromkeys(FLASH3, "flash3"),
    **dict.fromkeys(("sdpa", "false", "0"), "sdpa"),
    **dict.fromkeys(("eager", "disabled"), "eager"),
}
HALVES = {
    **dict.fromkeys(("bfloat16", "bf16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half", "torch.float16"), "fp16"),
}
CHANGED = "changes to the model's config; give the config.json as it is then"
SPREAD = "layers that are spread over GPUs, or the host, are not planned: a GPU holds all"
TOWER = "a tower of images is not planned with these keys: the language model is"
OFFLOADED_BASE = (
    "adapters over a base in host memory are counted from their parts; no measured step was held "
    "against them, and the only published one (FSDP 1, axolotl's PR 1428) took a third more"
)
UNREDUCED = (
    "before the last micro-batch of a step the Trainer reduces no gradients under FSDP: each GPU "
    "has those of every weight then, which are not planned unless sync_each_batch is set"
)
HARMLESS = (*("transformers", "trl", "peft", "axolotl", "llamafactory", "ms-swift", "launchers"),)
# Keys that move memory or time, and that no plan says.
LEFT = {
    "GaLore's projections are not planned": "use_galore",
    "APOLLO's projections are not planned": "use_apollo",
    "BAdam's blocks of layers are not planned": "use_badam",
    "Unsloth's checkpoints in host memory are not planned": "use_unsloth_gc",
    "S2 attention is not planned": "shift_attn s2_attention",
    "experts that the CPU trains are not planned": "use_kt kt_*",
    "weights frozen by name are not planned: all are trained here": (
        "unfrozen_parameters spectrum_top_fraction freeze_parameters* trainable_parameters* "
        "freeze_extra_modules"
    ),
    "a frozen language model is not planned: all of it is trained here": (
        "freeze_llm freeze_language_model"
    ),
    "a tower that is frozen apart is not planned": "freeze_vision*",
    TOWER: (
        "freeze_vit* freeze_aligner freeze_merger freeze_mlp freeze_backbone "
        "freeze_multi_modal_projector vision_lora vision_tower vision_path mm_vision_tower "
        "tune_mm_* freeze_mm_modules crop_to_patches use_audio_in_video mm_use_im_patch_token"
    ),
    "adapters of a tower are not planned": "use_backbone_lora use_llm_lora",
    "cutting over GPUs by this key is not read here: set parallel.tp, pp, cp or ep": (
        "parallelism_config* "
        "tensor_model_parallel_size=1 pipeline_model_parallel_size=1 use_mca "
        "expert_model_parallel_size=1 context_parallel_size=1 tensor_parallel_size=1 "
        "sequence_parallel_size=1 sequence_parallel_degree=1 expert_parallel_size=1 tp_size=1 "
        "ulysses_size=1 cp_size=1 mp_replicate_size mp_shard_size sp_size=1 context_parallel "
        "deepspeed_autotp_size cp_mode ep_size=1"
    ),
    SPREAD: ("device_map=cuda|cuda:0|{'': 0} max_memory quantization_device_map gpu_memory_limit"),
    "every sequence is taken to be as long as it may be": (
        "group_by_length train_sampling_strategy=random multipack_real_batches"
    ),
    "sequences are as long as they are read here": "use_pose pose_*",
    "a batch that ranks split is not planned: each has its own": "split_batches",
    "a reference is planned as a copy of the model": "ref_model reference_model*",
    "a frozen reference of SFT is not planned: set train.reference": "use_asft_loss",
    "a reference of its own beside an adapter is not planned": "rl_adapter_ref_model",
    "a reward model is not planned with these keys": (
        "reward_model reward_model_adapters reward_model_quantization_bit reward_model_path "
        "process_reward_model"
    ),
    "a head of classes in place of the vocabulary is not planned": (
        "num_labels task_type=causal_lm problem_type"
    ),
    "GPTQ's frozen base is not planned": "gptq",
    "experts in 4 bits are not planned": "quantize_moe_experts",
    "axolotl's fused adapters are not planned: PEFT's are": "lora_*_kernel",
    "adapters of their own kind are planned as LoRA": (
        "oft_rank=0 mixlora_num_experts use_qalora use_bdlora velora_config monteclora_config "
        "kasa_config arrow_config alora_invocation_tokens"
    ),
    "generation beside it is not read: set together and serve": "use_vllm vllm_mode",
    "only some layers trained are not read: set train.frozen": "freeze_trainable_modules=all",
    "ReLoRA is not planned": "relora relora_steps",
    "LISA's layers are not planned": "lisa_n_layers lisa_step_interval",
    "the peak of evaluation is not planned": (
        "eval_accumulation_steps eval_sample_packing per_device_eval_batch_size eval_batch_size "
        "eval_sequence_len"
    ),
    "an allocator that is emptied is not planned": "torch_empty_cache_steps gc_steps",
    "an optimizer for some modules is not planned": "optim_target_modules lr_groups",
    "frozen layers in host memory are not planned": "layer_offloading ple_cpu_offload",
    "fp8 under the Trainer is not planned": "fp8 fp8_config",
    "kernels of experts other than transformers' are not planned": (
        "use_scattermoe use_sonicmoe experts_implementation llama4_linearized_experts "
        "expert_backend moe_grouped_backend experts_impl moe_bnb_fast dense_mixer"
    ),
    "kernels other than transformers' are not planned": (
        "use_kernels fused_attn_kernel gemma4_hybrid_attn_impl flash_attn_rms_norm use_v1_kernels "
        "scaling_softmax* use_dsv4_kernels use_glm_dsa_kernels sdpa_varlen "
        "large_head_attention flash_attn_d512 flash_optimum deepcompile use_hyper_parallel "
        "use_onebitllms dpo_use_liger_kernel"
    ),
    "a vocabulary that grows is not planned": (
        "resize_token_embeddings_to_32x resize_vocab shrink_embeddings"
    ),
    "training of diffusion is not planned: of the next token is": "diffusion diffusion_*",
    "modules trained whole beside an adapter are not planned": (
        "modules_to_save lora_modules_to_save additional_target trainable_token_indices "
        "peft_trainable_token_indices"
    ),
    "adapters on experts are not planned": "lora_target_parameters target_parameters",
    "DoRA's magnitudes are not planned: LoRA is": "use_dora peft_use_dora",
    "biases are not trained here": "bias=none lora_bias=none",
    "quantization-aware training is not planned": "qat",
    "Unsloth's kernels are not planned: these are transformers'": "use_unsloth",
    "the batch may shrink by itself": "auto_find_batch_size",
    "logits made in pieces by this key are not planned": "chunked_cross_entropy",
    "copies of a group that shards are not read: set parallel.shard_group": "dp_replicate_size=1",
    "an MLP over pieces of a sequence is not planned": "tiled_mlp",
    "recomputation of some operations by this key is not planned": "selective_checkpointing",
    "recomputation of some layers is not planned": "recompute_layer_types",
    "quantization other than bitsandbytes' is not planned": (
        "model_quantization_config* nonexpert_quantization quantization_config llmcompressor "
        "nf4_backend=bitsandbytes dsv4_fp8_nonexpert_mode dsv4_fp4_grouped_mode gemma4_*_nonexpert"
    ),
    CHANGED: "overrides_of_model_config overrides_of_model_kwargs rope_scaling",
    "tokens that skip layers are not planned": "mixture_of_depths",
    "set train.unquantized_dtype": "embeddings_skip_upcast upcast_layernorm",
    "set train.outputs": "upcast_lmhead_output cast_lm_head_to_fp32",
    "set train.precision to fp32": "float32",
    "norms in fp32 beside other weights are not planned": "fp32_norms",
    "set train.adapter_dtype": (
        "lora_dtype autocast_adapter_dtype=true peft_autocast_adapter_dtype=true"
    ),
    "adapters on some layers are not planned: all have them here": (
        "peft_layers_to_transform layers_to_transform exclude_modules target_regex"
    ),
    "one rank is planned for all adapters": "lora_rank_pattern rank_pattern",
    "MoRA is not planned: LoRA is": "use_mora",
    "layers that are added are not planned": (
        "use_llama_pro layer_replication peft_layer_replication"
    ),
    "Adam-mini's states are not planned": "use_adam_mini",
    "a teacher beside the model is not planned": "kd_trainer teacher_model* teacher_deepspeed",
    "this kernel is not planned": "flash_attn_fuse_mlp flash_attn_cross_entropy",
    "a loss in pieces is not planned for what is trained towards here": "use_liger_loss",
    "logits of a loss of its own are not planned: cross-entropy's are": (
        "label_smoothing_factor use_dft use_dft_loss use_eaft use_eaft_loss enable_dft_loss "
        "top_entropy_quantile=1.0 use_adaptive_entropy"
    ),
    "a reference that follows the policy is not planned": "sync_ref_model",
    "set train.images and the tokens of a sequence for images of this size": (
        "image_max_pixels max_pixels image_size"
    ),
    "frames of a video are not planned": "video_max*=128 video_fps=2.0",
    "graphs of a compiled model are not planned": "torch_compile_mode torch_compile_regional",
    "buckets of PyTorch's DDP have its own size here": "ddp_bucket_cap_mb",
    "what it tells the optimizer is not read": "optim_args",
    "states that are kept over steps are not planned": "past_index",
    "noise on the embeddings is not planned": "neftune_noise_alpha noisy_embedding_alpha",
    "set together.rollouts to the sequences of a GPU": "generation_batch_size",
    "a step has one pass over its rollouts here": "num_iterations=1",
    "training on the CPU is not planned: on GPUs it is": "use_cpu no_cuda use_mps_device",
    "deterministic kernels are as fast as the others here": "full_determinism",
    "products of what is in fp32 are not TF32's here": "tf32",
    "ZeRO++'s own partitions are not planned": "zero_hpz_partition_size",
    "a model that starts anew has the shapes of its config": "train_from_scratch",
    "memory of the host while files are prepared is not planned": "preprocessing_num_workers",
}


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document, or a command's options, are of such a program."""
    return len(MARKS & _flat(_plain(values)).keys()) >= 2


def starts(command: Sequence[str]) -> bool:
    """Whether a command gives such a program its options: many of them, or one to a known tool."""
    words, given = options(command)
    known = {word.rpartition("/")[2] for word in words} & TOOLS.keys()
    return recognise(given) or bool(known and set(MODEL) & given.keys())


def read(
    values: Mapping[str, Any],
    draft: Draft,
    form: Callable[[str], str] = str,
    started: Iterable[str] = (),
) -> None:
    """What such a program is told. `form`: how its keys are written; `started`: the words of the
    command before its options."""
    keys = Keys(_flat(_plain(values)), form)
    for key in [key for key in keys.values if key.startswith("no_")]:
        keys.values.setdefault(key.removeprefix("no_"), not keys.on(key))
    started = tuple(started)
    model = keys.one(*MODEL)
    draft.model = draft.model or str(model or "")
    parts = {part for word in started for part in word.split("/")}
    program = next((TOOLS[part] for part in TOOLS if part in parts), _program(keys))
    if not program and "finetune.py" in parts and {"use_lora", "lazy_preprocess"} <= {*keys.values}:
        program = QWEN
    if "train_mem.py" in parts:  # LLaVA's, which begins with this kernel
        draft.otherwise("train.attention", "flash", "train_mem.py")
    if not program and not is_its(keys.values, started):
        marks = [key for key in keys.values if key in MARKS]
        by = ", ".join(map(keys.written, sorted(marks, key=MODEL.__contains__)[:2]))
        draft.unsure = f"taken for transformers' Trainer by {by}, which other programs have too"
    _plugins(keys)
    if "r" in keys.values:  # of PEFT's LoraConfig
        keys.values.setdefault("lora_r", keys.values.pop("r"))
    if program == FACTORY:
        _of_megatron(keys, draft)
    _attention(keys)
    _sum_of_lengths(keys, draft)
    for path, how, *named in (
        ("train.micro_batch", positive, *BATCH),
        ("train.seq_len", positive, *LENGTH),
        ("train.grad_accumulation", positive, "gradient_accumulation_steps"),
        ("train.optimizer", word(OPTIMIZERS), "optim", "optimizer"),
        ("train.attention", word(ATTENTION), *ATTENDS),
        ("train.loader_workers", whole, "dataloader_num_workers"),
        ("train.loader_prefetch", positive, "dataloader_prefetch_factor"),
        ("train.loader_pin_memory", flag, "dataloader_pin_memory"),
        ("train.offload_activations", _to_host, "activation_offloading"),
        ("run.save_steps", positive, "save_steps"),
        ("run.save_total_limit", positive, "save_total_limit"),
        *(OF_AXOLOTL if program == AXOLOTL else ()),
    ):
        draft.read(keys, path, how, *named)
    draft.keeps_checkpoints(0, "save_total_limit")
    keys.take("packing", "sample_packing", "neat_packing", "pad_to_sequence_len")  # as planned
    if str(keys.values.get("device_map")) == AUTO:
        draft.later.append(_spread)
    if keys.inner("accelerator_config").on("split_batches"):
        keys.values["split_batches"] = True
    draft.batch = draft.batch or draft.count(keys, "global_batch_size")
    every, each = (draft.count(keys, name) for name in ("batch_size", "micro_batch_size"))
    if program == AXOLOTL and every and each and every % each == 0:
        draft.put("train.grad_accumulation", every // each, keys.written("batch_size"), every)
    if program == FACTORY:  # a GPU each, of Ray's workers
        draft.ranks = draft.ranks or draft.count(keys, "ray_num_workers")
    towards = methods.read(keys, draft, started)
    _referred(program, keys, draft, towards)
    _options(program, keys, draft, towards)
    _sharded(keys, draft)
    _precision(program, keys, draft, _adapter(program, keys, draft))
    _defaults(program, keys, draft)
    if {"train.adapter", "train.offload_parameters"} <= draft.fields.keys() and (
        draft.fields["train.adapter"] != "none"
    ):
        draft.leave("train.offload_parameters", OFFLOADED_BASE)
    draft.later.append(_unreduced)
    still = FROZEN_TOWERS.get(program, "")
    if keys.values.get(still, True) in (True, "true", "True"):
        draft.frozen_tower = still
    draft.end(keys, LEFT, harmless(*HARMLESS))


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a document, with those in its sections: LLaMA-Factory and others nest them."""
    inner = (
        *("training_arguments", "training_args", "model_args", "model_init_kwargs", "peft"),
        *("model", "training", "trl"),
    )
    found: dict[str, Any] = {}
    values = {name: _document(value) for name, value in values.items()}
    for name in inner:
        if isinstance(values.get(name), Mapping):
            found |= values[name]
    found |= {k: v for k, v in values.items() if not (k in inner and isinstance(v, Mapping))}
    return found if len(OF_A_STEP & found.keys()) > 1 else _deep(values, found)


OF_A_STEP = MARKS - {*MODEL, "micro_batch_size"}  # which say that a file is of a training


def _deep(values: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The same with the keys of all sections, if they say then that it is of a training."""
    more: dict[str, Any] = {}
    level: list[Mapping[str, Any]] = [values]
    for _ in range(MAX_DEPTH):
        inner = [(name, value) for each in level for name, value in each.items()]
        more |= {name: value for name, value in inner if name not in more}
        level = [value for _, value in inner if isinstance(value, Mapping)]
    plain = {name: value for name, value in more.items() if not isinstance(value, Mapping)}
    return plain if len(OF_A_STEP & plain.keys()) > 1 else found


MAX_DEPTH = 5


def _document(value: Any) -> Any:
    """What a command's option says in JSON, as values; any other as it is."""
    if not (isinstance(value, str) and value.startswith("{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


# Sections of LLaMA-Factory's second form, each with what its keys are called in the first.
SECTIONS: dict[str, dict[str, str]] = {
    "peft_config": {
        "name": "finetuning_type",
        "r": "lora_rank",
        "lora_dropout": "lora_dropout",
        "target_modules": "lora_target",
        "freeze_trainable_layers": "freeze_trainable_layers",
    },
    "quant_config": {"name": "quantization_method", "quantization_bit": "quantization_bit"},
    "optim_config": {"name": "optim"},
    "dist_config": {"config_file": "deepspeed", "ep_size": "expert_parallel_size"},
}


def _plain(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document of LLaMA-Factory's second form (its v1) as one of the first; any other as it is.
    What it does where nobody says it is its own."""
    if not {"model_class", "train_dataset"} <= values.keys():
        return values
    found = {key: value for key, value in values.items() if key not in ("model_class", *SECTIONS)}
    found = {"bf16": True, "finetuning_type": "full", "micro_batch_size": 1, **found}
    sections = {name: values.get(name) for name in (*SECTIONS, "kernel_config")}
    given = {name: each for name, each in sections.items() if isinstance(each, Mapping)}
    for name, section in given.items():
        for key, other in SECTIONS.get(name, {}).items():
            if section.get(key) not in (None, AUTO):
                found[other] = section[key]
    sharded = str(given.get("dist_config", {}).get("name"))
    if sharded.startswith("fsdp"):
        found |= {"fsdp": "full_shard", "fsdp_version": 2, "fsdp_config": {}}
    if "liger" in str(given.get("kernel_config", {}).get("name")):
        found["enable_liger_kernel"] = True
        found["liger_kernel_config"] = {"fused_linear_cross_entropy": False, "cross_entropy": True}
    if "enable_activation_checkpointing" in found:
        found["gradient_checkpointing"] = found.pop("enable_activation_checkpointing")
    return found


def _program(keys: Keys) -> str:
    """Whose defaults hold where a key is not said: of several that know the keys, the one that
    alone has one of them."""
    return next((name for name, marks in OWN.items() if marks & keys.values.keys()), "")


def is_its(values: Mapping[str, Any], started: Sequence[str]) -> bool:
    """Whether arguments are transformers' own: a script of its examples has them, or several have
    names that other programs' seldom have."""
    scripts = any(EXAMPLE.search(word) for word in started)
    return scripts or len(ITS & values.keys()) > 1


def _defaults(program: str, keys: Keys, draft: Draft) -> None:
    """What a program does where nobody says it."""
    for path, (value, key) in DEFAULTS[program].items():
        draft.otherwise(path, value, keys.written(key))
    if program == AXOLOTL:
        draft.later.append(_workers)


def _spread(draft: Draft, around: Around) -> None:
    """What a device_map of auto does where there is more than one GPU."""
    if around.gpus > 1:
        draft.leave("device_map", SPREAD)


def _unreduced(draft: Draft, around: Around) -> None:
    """Gradients under FSDP (transformers 5.23: trainer.py; accelerate 1.15: no_sync)."""
    of = draft.fields
    several = of.get("train.grad_accumulation", 1) > 1 and around.gpus > 1
    if (
        several
        and of.get("train.framework") == "fsdp2"
        and of.get("train.adapter", "none") == "none"
    ):
        draft.leave("gradient_accumulation_steps", UNREDUCED)


def _workers(draft: Draft, around: Around) -> None:
    """axolotl's own loader, where nobody says one: a worker for each GPU of the machine."""
    draft.otherwise("train.loader_workers", around.gpus_per_node, "dataloader_num_workers")


def _plugins(keys: Keys) -> None:
    """axolotl's plugins, of which one does what its key says where nobody says the key."""
    if "CutCrossEntropy" in str(keys.take("plugins")):
        keys.values.setdefault("cut_cross_entropy", True)


# Megatron's options in a file of LLaMA-Factory's, which runs it then.
OF_MEGATRON = ("tensor", "pipeline", "expert")
AS_MEGATRON = {
    "cutoff_len": "seq_length",
    "per_device_train_batch_size": "micro_batch_size",
    "optim": "",
    "flash_attn": "",
}


def _of_megatron(keys: Keys, draft: Draft) -> None:
    """Megatron's options, if a file has them."""
    marks = {f"{cut}_model_parallel_size" for cut in OF_MEGATRON} & keys.values.keys()
    if not (marks or keys.on("use_mca") or keys.on("use_megatron_bridge")):
        return
    given = {AS_MEGATRON.get(name, name): value for name, value in keys.values.items()}
    given = {name: value for name, value in given.items() if name and name not in keys.taken}
    own = Keys({"use_distributed_optimizer": True, "bf16": True} | given)
    megatron.arguments(own, draft)
    if str(keys.values.get("finetuning_type", "lora")) == "lora":
        draft.put("train.adapter_dtype", "base", "its adapters", "as the weights")
    keys.taken |= own.taken | {"use_mca", "use_megatron_bridge"}


def _attention(keys: Keys) -> None:
    """axolotl's older switches, as the key that has taken their place."""
    on = [name for switch, name in SWITCHES.items() if keys.on(switch)]
    if keys.values.get("disable_flash_attn2") is not None:  # of 2U1/Qwen-VL-Series-Finetune
        on.append("sdpa" if keys.on("disable_flash_attn2") else "flash_attention_2")
    if on:
        keys.values.setdefault(ATTENDS[0], on[0])


def _sum_of_lengths(keys: Keys, draft: Draft) -> None:
    """A prompt and what is generated after it are one sequence."""
    source, target = (draft.count(keys, f"{end}_max_len") for end in ("source", "target"))
    if source and target:  # of the QLoRA paper's script
        draft.put("train.seq_len", source + target, "source_max_len + target_max_len")
    prompt, answer = (draft.count(keys, f"max_{what}_length") for what in ("prompt", "completion"))
    if prompt and answer:
        key = "max_prompt_length + max_completion_length"
        draft.put("train.seq_len", prompt + answer, key, f"{prompt} + {answer}")
    elif answer:
        draft.leave(keys.written("max_completion_length"), methods.FIRST)


def _to_host(value: Any) -> str:
    return "cpu" if str(value) in ("legacy", "disk") or flag(value) else "none"


def _referred(program: str, keys: Keys, draft: Draft, towards: str) -> None:
    """The frozen reference: LLaMA-Factory (train/trainer_utils.py: create_ref_model) and axolotl
    (train.py: setup_reference_model) load it in the dtype that they compute in, TRL and ms-swift
    as the trained model (trl 1.16: dpo_trainer.py, ms-swift 4.6: rlhf_args.py)."""
    dtype = str(keys.values.get("torch_dtype") or keys.values.get("dtype") or "").lower()
    half = program in (FACTORY, AXOLOTL) or dtype in {*HALVES, AUTO}
    key = keys.named("rl", "stage", "rlhf_type", "beta", "pref_beta", "max_prompt_length")
    methods.referred(keys, draft, towards, key, IN_16_BITS if half else AS_LOADED)


def _options(program: str, keys: Keys, draft: Draft, towards: str) -> None:
    """What is on or off."""
    off = "disable_gradient_checkpointing"
    said = keys.take(*RECOMPUTES)
    if keys.take(off) is not None or said is not None:
        recomputes = not keys.on(off) and (said is None or keys.on(*RECOMPUTES))
        key = keys.named(*RECOMPUTES, off)
        draft.put("train.checkpointing", "full" if recomputes else "none", key, recomputes)
        if "offload" in str(said) or said == "unsloth":  # whose checkpoints rest in host memory
            draft.put("train.offload_activations", "cpu", key, said)
        if recomputes and program == AXOLOTL and keys.take("rl") is None:
            draft.otherwise("train.reentrant", True, "gradient_checkpointing_kwargs")
    for named in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        how = keys.inner(named)
        if how.take("use_reentrant") is not None:
            draft.put("train.reentrant", how.on("use_reentrant"), "use_reentrant")
        draft.read(how, "train.checkpoint_every", positive, "every_n_layers")
        if how.on("offload"):
            draft.put("train.offload_activations", "cpu", how.written("offload"), True)
    draft.read(keys, "train.reentrant", flag, "use_reentrant_gc")
    liger = (*LIGER, "liger_rms_norm", "liger_swiglu")
    fused = [keys.on(name) for name in (*liger, "liger_glu_activation", "liger_rope")]
    if any(fused):
        draft.put("train.kernels", "liger", keys.named(*liger), True)
    chunked = ("liger_fused_linear_cross_entropy", "cut_cross_entropy")
    in_chunks = [keys.on(name) for name in chunked]
    if towards in methods.LOSSES:
        methods.loss(keys, draft, towards, program in (TRL, ""), any(fused[: len(LIGER)]))
        keys.inner("liger_kernel_config")
    elif any(in_chunks):
        draft.put("train.cross_entropy", "chunked", keys.named(*chunked), True)
    elif keys.on("liger_cross_entropy"):
        draft.put("train.cross_entropy", "fused", "liger_cross_entropy", True)
    if towards not in methods.LOSSES and any(
        fused[: len(LIGER)]
    ):  # which puts its own loss into the model, with the head
        parts = keys.inner("liger_kernel_config")
        whole = parts.take("fused_linear_cross_entropy") is False
        if not whole:
            draft.otherwise("train.cross_entropy", "chunked", keys.named(*LIGER))
        elif parts.on("cross_entropy"):
            draft.put("train.cross_entropy", "fused", parts.written("cross_entropy"), True)
    compiles = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    if keys.on(compiles[0]) or any(keys.values.get(name) for name in compiles[1:]):
        draft.put("train.kernels", "compile", keys.named(*compiles), True)
    keys.take(compiles[1])
    if keys.on("use_muon"):
        draft.put("train.optimizer", "muon", keys.written("use_muon"), True)


def _adapter(program: str, keys: Keys, draft: Draft) -> str:
    """The adapter, if there is one, as a word of train.adapter."""
    by_word = str(keys.one("adapter", "finetuning_type") or "").lower()
    if program == FACTORY and not by_word:
        by_word = "lora"  # its own default
    wanted = ("use_peft", "use_lora", "lora_enable", "q_lora", "qlora", "lora")
    switched = [keys.on(name) for name in wanted]
    ranked = keys.take("lora_r", "lora_rank") is not None
    bits = draft.count(keys, "bits", "quantization_bit")
    with_what = str(keys.take("quantization_method", "quant_method") or "bnb").lower()
    if with_what not in ("bnb", "bitsandbytes"):
        name = keys.named("quantization_method", "quant_method")
        draft.leave(name, f"{with_what}'s frozen base is planned as bitsandbytes' is")
    four = keys.on("load_in_4bit") or bits == 4 or any(switched[3:5]) or by_word == "qlora"
    eight = keys.on("load_in_8bit") or bits == 8
    if by_word not in TUNERS:
        draft.leave(keys.named("adapter", "finetuning_type"), f"{by_word} is planned as lora")
        by_word = "lora"
    if by_word == "freeze":
        last = draft.count(keys, "freeze_trainable_layers") or 2
        draft.put("train.frozen", LOWER, "finetuning_type", by_word)
        draft.put("train.trained_layers", last, "freeze_trainable_layers", last)
    said_no = by_word in ("full", "freeze") or keys.values.get("use_peft") in (False, "False")
    if said_no or not (by_word in ("lora", "qlora") or any(switched) or ranked or four):
        return "none"
    doubles = ("double_quant", "double_quantization", "use_bnb_nested_quant", DOUBLE)
    keys.values |= keys.inner("bnb_config_kwargs").values
    keys.taken |= {key for key in keys.values if key.startswith("bnb_4bit_")}
    # transformers quantizes scales only if told to; axolotl and LLaMA-Factory unless told not to.
    single = not by_word and program not in DOUBLED
    if keys.take(*doubles) is not None:
        single = not keys.on(*doubles)
    kept = hub.stored(draft.model)
    if (four or eight) and kept not in ("int4", "int8-linear"):
        kept = ""  # what is quantized while it is loaded is as the file says
    if kept in ("nf4-double", "int4"):
        four, single = True, kept == "int4"
    eight = eight or kept == "int8"
    if kept in ("int4", "int8"):
        by = " (GPTQ, AWQ)" if kept == "int4" else ""
        instead = "nf4" if kept == "int4" else "int8"
        message = f"a base that is stored in {kept}{by} is planned as bitsandbytes' {instead}"
        draft.leave("model", message)
    adapter = ("qlora-single" if single else "qlora") if four else "lora-8bit" if eight else "lora"
    told = [name for name, on in zip(wanted, switched, strict=True) if on]
    key = keys.named("adapter", "finetuning_type", *told, "lora_r", "lora_rank", "load_in_4bit")
    draft.put("train.adapter", adapter, key)
    draft.read(keys, "train.lora_rank", positive, "lora_r", "lora_rank")
    draft.read(keys, "train.lora_dropout", share, "lora_dropout")
    named = ("lora_target_modules", "lora_target", "target_modules", "lora_modules")
    said = keys.take(*named)
    targets = _expanded(said) if isinstance(said, str) else names(said)
    key = keys.named(*named, "lora_target_linear")
    if keys.on("lora_target_linear") or targets in (["all"], [ALL_LINEAR]):
        draft.put("train.lora_targets", ALL_LINEAR, key, targets or True)
    elif any(not name.replace(".", "").replace("_", "").isalnum() for name in targets):
        draft.leave(key, "targets by a pattern are not read; give their names")
    elif targets:
        draft.put("train.lora_modules", ",".join(targets), key)
    rank, dropout, everywhere = ADAPTERS[program]
    draft.otherwise("train.lora_rank", rank, keys.named("lora_r", "lora_rank"))
    draft.otherwise("train.lora_dropout", dropout, keys.written("lora_dropout"))
    by_trl = program == TRL and "train.adapter_dtype" not in draft.fields
    if by_trl and (four or eight) and not keys.values.keys() & OF_PEFT:
        draft.put("train.adapter_dtype", "base", "TRL's adapters of a quantized model", "bf16")
        loaded = str(next((keys.values[n] for n in DTYPES if n in keys.values), "float32"))
        wide = "fp32" if loaded.rpartition(".")[2] == "float32" else "base"
        draft.put("train.unquantized_dtype", wide, "dtype", loaded)
        if draft.fields["train.unquantized_dtype"] == "base":
            draft.leave("train.unquantized_dtype", OLDER_TRL)
    draft.otherwise("train.adapter_dtype", "fp32", "autocast_adapter_dtype")
    if "train.lora_modules" not in draft.fields:
        draft.otherwise("train.lora_targets", everywhere or "attention", key)
    return adapter


MOST_PATTERN = 2_000  # characters of a pattern, which is looked through from each of them on


def _expanded(pattern: str) -> list[str]:
    """The names that a pattern of PEFT's ends with: of r'.*(self_attn|mlp).(q|v|up)_proj' q_proj,
    v_proj and up_proj. Nothing of it is run."""
    last = pattern.rstrip("$").replace("\\.", ".").replace("?:", "")
    if "(" not in pattern or len(last) > MOST_PATTERN:
        return names(pattern)
    found = re.search(r"((?:\w|\([\w|]+\))+)\)?$", last)
    if found is None:
        return names(pattern)
    pieces = [piece.strip("()").split("|") for piece in re.findall(r"\([^()]*\)|\w+", found[1])]
    return ["".join(parts) for parts in itertools.islice(itertools.product(*pieces), 64)]


def _sharded(keys: Keys, draft: Draft) -> None:
    """Who shards, where the file itself says it."""
    given = keys.take("deepspeed", "deepspeed_config", "ds_config")
    if isinstance(given, Mapping):
        deepspeed.read(given, draft)
    elif given is not None:
        draft.put("train.framework", "deepspeed", "deepspeed", given)
        draft.wants[str(given)] = "DeepSpeed"
        called, key = str(given).lower(), "the name of DeepSpeed's file"
        if stage := re.search(r"(?:zero|stage|z)[-_]?([0-3])", called):
            draft.put("train.zero", int(stage[1]), key, given)
            parts = [] if "offload" not in called else ["optimizer", "parameters"]
            parts = parts[:1] if stage[1] != "3" else parts
            for part in parts[1:] if "offload_param" in called else parts:
                draft.put(f"train.offload_{part}", "cpu", key, given)
    fsdp, config = keys.take("fsdp"), keys.take("fsdp_config")
    if isinstance(config, Mapping) or fsdp:
        inner = dict(config) if isinstance(config, Mapping) else {}
        version = keys.take("fsdp_version")  # which axolotl has beside it; both have 2 by default
        if version is not None or not {"version", "fsdp_version"} & inner.keys():
            inner["version"] = 2 if version is None else version
        accelerate.shards(Keys(inner), " ".join(names(fsdp)) if fsdp else "", draft)
        if isinstance(config, str):
            draft.wants[config] = "Accelerate"
    if "train.framework" not in draft.fields:
        draft.put("train.framework", "pytorch", "neither DeepSpeed nor FSDP is named")
        draft.put("train.zero", 0, "neither DeepSpeed nor FSDP is named")


def _precision(program: str, keys: Keys, draft: Draft, adapter: str) -> None:
    """Which dtype the weights have, and the arithmetic."""
    as_stored = any(str(keys.values.get(name)) == AUTO for name in DTYPES)
    dtype = str(keys.one(*DTYPES) or "").lower()
    loaded = HALVES.get(dtype, "bf16" if as_stored else "")
    if dtype and dtype not in (*HALVES, "float32", "fp32", "torch.float32", "float"):
        draft.leave(keys.named(*DTYPES), f"{shown(dtype)} is no dtype that is read here")
    pure = keys.on("pure_bf16") or keys.take("bfloat16") is not None
    # Whose weights stay in the dtype that it computes in (LLaMA-Factory: model/adapter.py).
    pure = pure or (program == FACTORY and flag(keys.values.get("use_badam") or False))
    others = keys.on("fp16", "float16")
    if program == AXOLOTL and keys.values.get("bf16", AUTO) in (None, AUTO) and not others:
        keys.values["bf16"] = True  # where the GPU has it, unless told otherwise
    elif program == TRL and keys.values.get("bf16") is None and not others:
        keys.values["bf16"] = True
    half = "bf16" if keys.on("bf16") or pure else "fp16" if others else loaded
    if not half:
        return
    # axolotl loads weights in the dtype that it computes in, LLaMA-Factory and scripts those of a
    # frozen base; TRL in fp32 unless it is told.
    frozen = adapter != "none" and (program != TRL or adapter != "lora")
    small = loaded or pure or program == AXOLOTL or frozen
    framework = draft.fields.get("train.framework")
    if framework == "deepspeed" or (framework == "fsdp2" and adapter == "none"):
        precision = mixed(half, sharded=True)
    elif small:
        precision = f"{half}-pure"
    else:
        precision = mixed(half, sharded=False)
    key = keys.named("bf16", "fp16", "bfloat16", *DTYPES)
    draft.put("train.precision", precision, key, half)
