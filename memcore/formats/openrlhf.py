"""OpenRLHF: the commands of openrlhf.cli, which train with DeepSpeed. Their options have one of two
sets of names: those with '_', and those in groups that came later (--ds.zero_stage).

Source: openrlhf/cli/train_{sft,rm,dpo,kto,ppo_ray}.py, whose defaults hold where nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.formats.found import (
    Draft,
    Keys,
    containing,
    mixed,
    names,
    positive,
    share,
    underscored,
    whole,
    word,
)
from memcore.formats.methods import PAIRS, REFERRED, SINGLE, paired, referred
from memcore.formats.texts import options
from memcore.formats.trainer import ATTENTION
from memcore.words.training import IN_16_BITS

MODULE = "openrlhf.cli.train_"
# Today's names, and those of before.
NAMES = {
    "actor.model_name_or_path": "pretrain",
    "model.model_name_or_path": "pretrain",
    "actor.gradient_checkpointing": "gradient_checkpointing",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "model.gradient_checkpointing_reentrant": "gradient_checkpointing_use_reentrant",
    "train.async_enable": "async_train",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.enable_ema": "enable_ema",
    "critic.freezing_steps": "freezing_actor_steps",
    "ds.grad_accum_dtype": "grad_accum_dtype",
    "actor.num_nodes": "actor_num_nodes",
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "actor.attn_implementation": "attn_implementation",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.kl.init_coef": "init_kl_coef",
    "data.max_len": "max_len",
    "data.prompt_max_len": "prompt_max_len",
    "data.dataloader_num_workers": "dataloader_num_workers",
    "rollout.max_new_tokens": "generate_max_len",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.colocate_all": "colocate_all_models",
    "reward.model_name_or_path": "reward_pretrain",
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size=1",
    "ds.use_liger_kernel": "use_liger_kernel",
    "ds.load_in_4bit": "load_in_4bit",
    "ref.offload": "ref_reward_offload",
    "ref.num_nodes": "ref_num_nodes",
    **{f"ds.lora.{what}": f"lora_{what}" for what in ("rank", "dropout", "alpha")},
    "ds.lora.target_modules": "target_modules",
    **{f"ds.{what}": what for what in (
        "zero_stage", "param_dtype", "zpg", "adam_offload", "attn_implementation", "overlap_comm",
        "packing_samples", "ring_attn_size=1", "deepcompile")},
    **{f"vllm.{what}": f"vllm_{what}" for what in (
        "num_engines", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep")},
    "vllm.enforce_eager": "enforce_eager",
    "vllm.enable_prefix_caching": "enable_prefix_caching",
}  # fmt: skip
PAIRED = {"dpo": PAIRS, "kto": SINGLE, "rm": PAIRS, "kd": SINGLE}
APART = "its reference is a copy of the model beside adapters too, whose bytes are not planned"
# Keys that move memory or time, and that no plan says.
LEFT = {
    "ZeRO++'s own partitions are not planned": "zpg=1",
    "DeepSpeed's tensor parallelism is not planned": "ds_tensor_parallel_size",
    "set parallel.cp, which this framework has no plan for": "ring_attn_size",
    "every sequence is taken to be as long as it may be": "packing_samples",
    "every micro-batch has as many sequences": ("use_dynamic_batch"),
    "rollouts are scored in micro-batches of a training step": "micro_rollout_batch_size",
    "shared prompts are not planned with training": "enable_prefix_caching",
    "DeepSpeed's own compiler is not planned": "deepcompile",
    "gradients are summed in fp32": "grad_accum_dtype",
    "an average of the weights is not read: set train.ema": "enable_ema",
    "kernels of experts other than transformers' are not planned": "ds.experts_implementation",
    "a tower that is frozen apart is not planned": "actor.freeze_visual_encoder",
    "deterministic kernels are as fast as the others here": (
        "full_determinism train.full_determinism_enable"
    ),
    "the policy is trained from the first step": "freezing_actor_steps=-1",
    "generation beside a step of before is not planned": "async_train",
}
HARMLESS = containing(
    *("muon.", "algo.", "reward.", "critic.", "ref.num", "local_rank", "aux_loss", "max_norm"),
    *("pretrain_mode", "use_ms", "head_stride", "sync_", "async_queue", "partial_rollout"),
    *("max_tokens_per_gpu", "eps_clip", "dual_clip", "top_p", "temperature", "entropy_coef"),
    *("loss_", "generate_batch_size", "value_head_prefix", "ema_beta", "agent_func", "colocate_"),
    *("ckpt", "save", "logg", "wandb", "eval", "dataset", "data.", "input_", "_key", "adam."),
    *("learning_rate", "max_samples", "max_epochs", "num_episodes", "seed", "apply_chat"),
    *("lr_", "normalize_reward", "prompt_data", "l2", "lora_alpha", "bf16"),
)


def starts(command: Sequence[str]) -> bool:
    """Whether a command starts one of these."""
    return bool(_job(command))


def _job(command: Sequence[str]) -> str:
    """What a command trains: sft, dpo, ppo_ray, ...; '' for any other command."""
    found = (each.replace("/", ".").partition(MODULE)[2].removesuffix(".py") for each in command)
    return next((job for job in found if job.isidentifier()), "")


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says."""
    job = _job(command)
    own = command[
        next(i for i, each in enumerate(command) if MODULE in each.replace("/", ".")) + 1 :
    ]
    given = {NAMES.get(name, name): value for name, value in options(own)[1].items()}
    keys = Keys(given, underscored)
    draft.model = draft.model or str(keys.one("pretrain") or "")
    generates = job.startswith("ppo")
    nodes = draft.count(keys, "actor_num_nodes") or 1
    draft.nodes = max(draft.nodes, nodes)
    draft.ranks = max(draft.ranks, nodes * (draft.count(keys, "actor_num_gpus_per_node") or 8)
                      if generates else 0)  # fmt: skip
    draft.batch = draft.batch or draft.count(keys, "train_batch_size") or 128
    if generates:
        prompt = draft.count(keys, "prompt_max_len") or 1024
        answer = draft.count(keys, "generate_max_len") or 1024
        name = "--prompt_max_len + --generate_max_len"
        draft.put("train.seq_len", prompt + answer, name, f"{prompt} + {answer}")
        draft.put("serve.prompt_len", prompt, "--prompt_max_len")
        draft.put("serve.output_len", answer, "--generate_max_len")
        _beside(keys, draft)
    elif job in PAIRED:
        paired(draft, f"{MODULE}{job}", PAIRED[job])
        referred(keys, draft, job, f"{MODULE}{job}", IN_16_BITS)
        if job in REFERRED and draft.count(keys, "lora_rank"):
            draft.leave("--lora_rank", APART)
    _step(keys, draft, 1 if generates else 8)
    draft.end(keys, LEFT, HARMLESS)


def _step(keys: Keys, draft: Draft, each: int) -> None:
    """One training step with DeepSpeed, of so many sequences at once where nobody says how
    many."""
    if keys.on("overlap_comm"):
        draft.put("train.overlap_comm", "on", "--ds.overlap_comm", True)
    draft.put("train.framework", "deepspeed", "openrlhf.cli")
    for path, how, name in (
        ("train.zero", whole, "zero_stage"),
        ("train.micro_batch", positive, "micro_train_batch_size"),
        ("train.seq_len", positive, "max_len"),
        ("train.attention", word(ATTENTION), "attn_implementation"),
        ("train.loader_workers", whole, "dataloader_num_workers"),
        ("train.optimizer", word({"adam": "adamw", "muon": "muon"}), "optim"),
    ):
        draft.read(keys, path, how, name)
    if keys.on("flash_attn"):
        draft.put("train.attention", "flash", "--flash_attn", True)
    half = "fp16" if keys.one("param_dtype") == "fp16" else "bf16"
    draft.put("train.precision", mixed(half, sharded=True), "--param_dtype", half)
    again = keys.on("gradient_checkpointing")
    draft.put("train.checkpointing", "full" if again else "none", "--gradient_checkpointing", again)
    if keys.on("gradient_checkpointing_use_reentrant"):
        name = "--gradient_checkpointing_use_reentrant"
        draft.put("train.reentrant", True, name, True)
    if keys.on("adam_offload"):
        draft.put("train.offload_optimizer", "cpu", "--adam_offload", True)
    if keys.on("use_liger_kernel"):
        draft.put("train.kernels", "liger", "--use_liger_kernel", True)
    if rank := draft.count(keys, "lora_rank"):
        four = keys.on("load_in_4bit")
        draft.put("train.adapter", "qlora-single" if four else "lora", "--lora_rank", rank)
        draft.put("train.lora_rank", rank, "--lora_rank", rank)
        draft.read(keys, "train.lora_dropout", share, "lora_dropout")
        draft.adapt(names(keys.take("target_modules")), "--target_modules")
    for path, value, name in (
        ("train.zero", 2, "--zero_stage"),
        ("train.micro_batch", each, "--micro_train_batch_size"),
        ("train.seq_len", 2048, "--max_len"),
        ("train.attention", "flash", "--attn_implementation"),
        ("train.optimizer", "adamw", "FusedAdam"),
    ):
        draft.otherwise(path, value, name)


def _beside(keys: Keys, draft: Draft) -> None:
    """What else runs on the GPUs that train."""
    critic = str(keys.one("advantage_estimator") or "gae") == "gae"
    answers = draft.count(keys, "n_samples_per_prompt") or 1
    prompts = draft.count(keys, "rollout_batch_size") or 1024
    together = keys.on("colocate_all_models")
    engines = draft.count(keys, "vllm_num_engines")
    if not together:
        name = "--vllm_num_engines" if engines else "--colocate_all_models"
        draft.leave(name, "models on GPUs of their own are not planned: this is the policy's step")
        for other in ("vllm_gpu_memory_utilization", "reward_pretrain", "init_kl_coef",
                      "vllm_enable_sleep", "deepspeed_enable_sleep", "enforce_eager",
                      "vllm_tensor_parallel_size"):  # fmt: skip
            keys.take(other)
        return
    draft.put("together.kind", "ppo" if critic else "grpo", "--advantage_estimator")
    draft.put("serve.engine", "vllm", "--vllm_num_engines", engines)
    draft.read(keys, "together.engine_tp", positive, "vllm_tensor_parallel_size")
    draft.read(keys, "serve.memory_utilization", share, "vllm_gpu_memory_utilization")
    draft.otherwise("serve.memory_utilization", 0.95, "--vllm_gpu_memory_utilization")
    if keys.on("enforce_eager"):
        draft.put("serve.runtime", "eager", "--enforce_eager", True)
    asleep = keys.on("vllm_enable_sleep")
    draft.put("together.asleep", "all" if asleep else "nothing", "--vllm_enable_sleep", asleep)
    leaves = keys.on("deepspeed_enable_sleep")
    where = "host" if leaves else "stays"
    draft.put("together.trainer", where, "--deepspeed_enable_sleep", leaves)
    said = str(keys.one("init_kl_coef") or "0.01")
    apart = "host" if keys.on("ref_reward_offload") else "gpu"
    near = bool(said.strip("0.e-"))  # a weight of 0 wants no reference
    draft.put("together.reference", apart if near else "none", "--init_kl_coef", said)
    scores = keys.one("reward_pretrain") is not None
    draft.put("together.reward", apart if scores else "none", "--reward_pretrain", scores)
    draft.rollouts(prompts, answers, "--rollout_batch_size")
