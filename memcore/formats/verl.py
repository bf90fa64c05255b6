"""verl: reinforcement learning with an engine on the GPUs that train, as Hydra's YAML or as the
words of a command that change it.

Source: verl 0.6's verl/trainer/config (ppo_trainer.yaml, ppo_megatron_trainer.yaml), whose defaults
hold where nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats.found import Around, Draft, Keys, containing, names, positive, share

ROOT = "actor_rollout_ref"
ACTOR, ROLLOUT, REF, MODEL = (f"{ROOT}.{part}" for part in ("actor", "rollout", "ref", "model"))
FSDP, MEGATRON = f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"
MAX_DEPTH = 12
PROMPT, ANSWER = "data.max_prompt_length", "data.max_response_length"
TOKENS = 512  # of a prompt and of an answer, where nothing is said
# ${data.max_prompt_length} and ${oc.select:data.max_prompt_length,512}
_ELSEWHERE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
DEGREES = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model",
           "etp": "expert_tensor"}  # fmt: skip
# Keys that move memory or time, and that no plan says.
LEFT = {
    "shared prompts are not planned with training": f"{ROLLOUT}.enable_prefix_caching",
    "as many rollouts as a GPU keeps generate at once here": f"{ROLLOUT}.max_num_seqs",
    "log-probabilities are taken in micro-batches of a training step": (
        f"{ROLLOUT}.log_prob_* {REF}.log_prob_*"
    ),
    "the reference is cut as the policy is": f"{REF}.fsdp_config.* {REF}.megatron.*",
    "experts that an engine shares out: set serve and parallel": (
        f"{ROLLOUT}.expert_parallel_size=1"
    ),
    "attention's own replicas beside training are not planned": f"{ROLLOUT}.data_parallel_size=1",
    "entropy in chunks or recomputed is not planned": (
        f"{ACTOR}.entropy_* {ACTOR}.calculate_entropy"
    ),
    "the critic is planned as the policy is, in its micro-batches": "critic.*",
    "the reward model is planned with the policy's shape": "reward_model.*",
    "turns of tools are not planned: a rollout is one answer": f"{ROLLOUT}.multi_turn.enable",
    "an engine beside training is cut by tensor alone": f"{ROLLOUT}.pipeline_model_parallel_size=1",
    "rollouts on GPUs of their own are planned on these": (
        f"{ROLLOUT}.nnodes=0 {ROLLOUT}.disaggregation.enabled"
    ),
    "what it tells the engine is not read: set serve": f"{ROLLOUT}.engine_kwargs.*",
    "set serve.weight_dtype": f"{ROLLOUT}.quantization {ROLLOUT}.dtype=bfloat16",
    "graphs are those of the engine's default": f"{ROLLOUT}.cudagraph_capture_sizes",
    "changes to the model's config; give the config.json as it is then": (
        f"{MODEL}.override_config*"
    ),
    "adapters on some layers are not planned: all have them here": f"{MODEL}*exclude_modules",
    "an MLP over pieces of a sequence is not planned": f"{MODEL}.tiled_mlp.enabled",
    "heads that predict more tokens are not read: set train.mtp_layers": f"{MODEL}.mtp.enable*",
    "quantization-aware training is not planned": f"{ACTOR}*qat.enable",
    "a tower that is frozen apart is not planned": f"{ACTOR}.freeze_vision_tower",
    "prompts that answers share are computed for each": f"{ACTOR}.use_prefix_grouper",
    "has no word in a plan: AdamW is planned": f"{ACTOR}.optim.optimizer=AdamW|adam",
    "set train.optimizer": f"{ACTOR}.optim.use_precision_aware_optimizer",
    "a step has one pass over its rollouts here": f"{ACTOR}.ppo_epochs=1",
    "gradients are reduced in each micro-batch here": (
        f"{FSDP}.use_no_sync_for_gradient_accumulation"
    ),
}
HARMLESS = containing(
    *(".optim.", "clip_ratio", ".tau_", "loss_", "shuffle", ".seed", "_seed", ".temperature"),
    *(".top_", "ignore_eos", "logprobs_mode", "scheduling_policy", "load_format", "skip."),
    *("layered_summon", "checkpoint_engine", "prometheus", "router_", "load_balance_metrics"),
    *("hf_config_path", "tokenizer_path", "use_shm", "trust_remote_code", "external_lib"),
    *("lora_alpha", ".lora.", "lora_adapter_path", "fused_kernel_options", "nccl_timeout"),
    *("sandbox_fusion", "wrap_policy", "use_orig_params", "full_determinism", "pad_to_length"),
    *("forward_only", ".strategy", f"{FSDP}.dtype", "grad_clip", "rollout_n", "prompt_length"),
    *("response_length", "rollout.mode", "n_gpus_per_node", "over_sample_rate", "turbo_config"),
    *("multi_stage_wake_up", "qat.", "mtp.", "forward_prefetch", "use_fused_kernels"),
    *("disaggregation.", "tiled_mlp.num", "multi_turn.", "routing_replay", "use_torch_compile"),
    *("entropy_from", "entropy_checkpointing", "distillation", "transfer_queue"),
    *("_target_", ".profiler.", ".checkpoint.", ".policy_loss.", ".val_kwargs.", ".trace."),
    *("use_remove_padding", "trainer.", "algorithm.", "data.", "custom_", "ray_"),
    *("global_profiler.", ".agent."),
)


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    return isinstance(values.get(ROOT), Mapping)


# Its fine-tuning, whose keys are the policy's by shorter names: the longest beginning counts.
TUNES = re.compile(r"\bverl[./]trainer[./](?:fsdp_)?sft_trainer(?:_engine|_ray)?(?:\.py)?$")
SHORTER = {
    "model.": f"{MODEL}.",
    "model.strategy": f"{ACTOR}.strategy",
    "model.fsdp_config.": f"{FSDP}.",
    "model.fsdp_config.cpu_offload": f"{FSDP}.offload_policy",
    "engine.": f"{FSDP}.",
    "engine.strategy": f"{ACTOR}.strategy",
    "engine.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    "ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
}
BATCH, LENGTH = 256, 1024  # sequences of a step and their tokens, where nothing is said


def _tunes(command: Sequence[str]) -> bool:
    return any(TUNES.search(word) for word in command)


def starts(command: Sequence[str]) -> bool:
    """Whether a command's words change such a file."""
    return (
        _tunes(command)
        or len([word for word in command if word.lstrip("+").startswith(f"{ROOT}.")]) > 1
    )


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says."""
    pairs = (word.lstrip("+").partition("=") for word in command if "=" in word)
    said = {key: _plain(value) for key, _, value in pairs if re.match(r"[\w.]+$", key)}
    (_tuned if _tunes(command) else _read)(said, draft)


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What a file says."""
    _read(_flat(values), draft)


def _plain(value: str) -> Any:
    text = value.strip("'\" ")
    return names(text) if text.startswith("[") else text


def _flat(values: Mapping[str, Any], before: str = "", depth: int = MAX_DEPTH) -> dict[str, Any]:
    """All keys by their whole paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and depth:
            found |= _flat(value, f"{path}.", depth - 1)
        else:
            found[path] = value
    return found


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that stand elsewhere in the file put in; what nobody has said is none."""
    found = {}
    for key, value in values.items():
        for _ in range(MAX_DEPTH):
            there = _ELSEWHERE.fullmatch(value) if isinstance(value, str) else None
            if not there:
                break
            value = values.get(there[1], there[2])
        found[key] = None if value == "???" else value
    return found


def _read(values: Mapping[str, Any], draft: Draft) -> None:
    keys = Keys(_resolved(values))
    draft.model = draft.model or str(keys.one(f"{MODEL}.path") or "")
    nodes = draft.count(keys, "trainer.nnodes") or 1
    each = draft.count(keys, "trainer.n_gpus_per_node") or 8
    draft.nodes, draft.ranks = max(draft.nodes, nodes), max(draft.ranks, nodes * each)
    length = _length(keys, draft)
    _step(keys, draft, length)
    _policy(keys, draft)
    _beside(keys, draft)
    draft.end(keys, LEFT, HARMLESS)


def _tuned(values: Mapping[str, Any], draft: Draft) -> None:
    """What its fine-tuning is told."""
    own = values.get("engine") == "megatron"
    places = SHORTER | ({"engine.": f"{MEGATRON}."} if own else {})
    longer, shorter = {}, {}
    for key, value in _resolved(values).items():
        start = max((s for s in places if key.startswith(s)), key=len, default="")
        name = places[start] + key[len(start) :] if start else key
        longer[name], shorter[name] = value, key
    keys = Keys(longer, lambda name: shorter.get(name, name))
    draft.model = draft.model or str(keys.one(f"{MODEL}.partial_pretrain", f"{MODEL}.path") or "")
    keys.take(f"{MODEL}.path", "engine")
    each = draft.count(keys, "trainer.n_gpus_per_node")
    draft.ranks = max(draft.ranks, each * (draft.count(keys, "trainer.nnodes") or 1))
    length = draft.read(keys, "train.seq_len", positive, "data.max_length") or LENGTH
    draft.otherwise("train.seq_len", LENGTH, "data.max_length")
    draft.batch = draft.batch or draft.count(keys, "data.train_batch_size") or BATCH
    tokens = draft.count(keys, "data.max_token_len_per_gpu")
    if tokens and keys.on("data.use_dynamic_bsz"):
        many = max(1, tokens // length)
        draft.put("train.micro_batch", many, "data.use_dynamic_bsz", f"{tokens:,} tokens at once")
    else:
        draft.read(keys, "train.micro_batch", positive, "data.micro_batch_size_per_gpu",
                   "data.micro_batch_size")  # fmt: skip
        draft.put("train.micro_batch", 4, "data.micro_batch_size_per_gpu", "not said: 4")
    _policy(keys, draft)
    draft.end(keys, LEFT, (*HARMLESS, *containing("optim", "checkpoint.", "engine", "profiler")))


def _length(keys: Keys, draft: Draft) -> int:
    """Tokens of a prompt and of the answer after it."""
    prompt, answer = (draft.count(keys, name) or TOKENS for name in (PROMPT, ANSWER))
    draft.put("train.seq_len", prompt + answer, f"{PROMPT} + {ANSWER}", f"{prompt} + {answer}")
    draft.put("serve.prompt_len", prompt, PROMPT)
    draft.put("serve.output_len", answer, ANSWER)
    return prompt + answer


def _step(keys: Keys, draft: Draft, length: int) -> None:
    """Sequences of a micro-batch, of an update, and of a step's rollouts."""
    answers = draft.count(keys, f"{ROLLOUT}.n") or 1
    prompts = draft.count(keys, "data.train_batch_size") or 1024
    update = draft.count(keys, f"{ACTOR}.ppo_mini_batch_size") or 256
    draft.batch = draft.batch or update * answers
    tokens = draft.count(keys, f"{ACTOR}.ppo_max_token_len_per_gpu") or 16_384
    dynamic = f"{ACTOR}.use_dynamic_bsz"
    if keys.on(dynamic):
        many = max(1, tokens // length)
        draft.put("train.micro_batch", many, dynamic, f"{tokens:,} tokens at once")
        keys.take(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
    else:
        draft.read(keys, "train.micro_batch", positive, f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    of_all = draft.count(keys, f"{ACTOR}.ppo_micro_batch_size")  # of all GPUs, in older files

    def shared_out(draft: Draft, around: Around) -> None:
        name = f"{ACTOR}.ppo_micro_batch_size"
        draft.put("train.micro_batch", max(1, of_all // around.gpus), name, of_all)

    draft.rollouts(prompts, answers, "data.train_batch_size")
    if of_all:
        draft.later.append(shared_out)


def _policy(keys: Keys, draft: Draft) -> None:
    """Who cuts the policy, and how it is run."""
    strategy = str(keys.one(f"{ACTOR}.strategy") or "fsdp")
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        draft.leave(keys.written(f"{ACTOR}.strategy"), f"{shown(strategy)} is planned as FSDP2")
    own = strategy == "megatron" or any(key.startswith(f"{MEGATRON}.") for key in keys.values)
    halved = str(keys.one(f"{FSDP}.model_dtype")).rpartition(".")[2] in ("bf16", "bfloat16")
    draft.put("train.precision", "bf16-pure" if halved and not own else "bf16-mixed",
              f"{FSDP}.model_dtype" if halved else f"{ACTOR}.strategy")  # fmt: skip
    if own:
        draft.put("train.framework", "megatron", f"{ACTOR}.strategy", "megatron")
        draft.put("train.zero", 1, f"{MEGATRON}.use_distributed_optimizer")
        keys.take(f"{MEGATRON}.use_distributed_optimizer")
        for path, word in DEGREES.items():
            draft.read(keys, f"parallel.{path}", positive, f"{MEGATRON}.{word}_parallel_size")
        _recomputed(keys, draft)
    else:
        draft.put("train.framework", "fsdp2", f"{ACTOR}.strategy", strategy)
        kept = not _on(keys, f"{FSDP}.reshard_after_forward")
        draft.put("train.zero", 2 if kept else 3, f"{FSDP}.reshard_after_forward", not kept)
        draft.put("train.attention", "flash", "verl's own attention", "flash_attention_2")
        if str(keys.take(f"{FSDP}.fsdp_size")) != "-1":  # all that there are
            draft.read(keys, "parallel.shard_group", positive, f"{FSDP}.fsdp_size")
        ulysses = f"{ACTOR}.ulysses_sequence_parallel_size"
        if (draft.read(keys, "parallel.cp", positive, ulysses) or 1) > 1:
            draft.leave(
                keys.written(ulysses), "heads exchanged in place of tokens: planned as parallel.cp"
            )
        name = f"{MODEL}.enable_gradient_checkpointing"
        full = _on(keys, name)
        draft.put("train.checkpointing", "full" if full else "none", name, full)
        if keys.on(f"{MODEL}.enable_activation_offload"):
            name = f"{MODEL}.enable_activation_offload"
            draft.put("train.offload_activations", "cpu", name, True)
        draft.otherwise("train.optimizer", "adamw-foreach", f"{ACTOR}.optim")
        if keys.on(f"{FSDP}.offload_policy"):
            for what in ("parameters", "optimizer"):
                draft.put(f"train.offload_{what}", "cpu", f"{FSDP}.offload_policy", True)
    if keys.on(f"{MODEL}.use_liger"):
        draft.put("train.kernels", "liger", f"{MODEL}.use_liger", True)
    if keys.on(f"{MODEL}.use_fused_kernels"):
        draft.put("train.cross_entropy", "chunked", f"{MODEL}.use_fused_kernels", True)
    if rank := draft.count(keys, f"{MODEL}.lora_rank", f"{MODEL}.lora.rank"):
        draft.put("train.adapter", "lora", f"{MODEL}.lora_rank", rank)
        draft.put("train.lora_rank", rank, f"{MODEL}.lora_rank", rank)
        draft.adapt(names(keys.take(f"{MODEL}.target_modules")), f"{MODEL}.target_modules")


def _on(keys: Keys, name: str) -> bool:
    """A switch that is on where nobody says it."""
    return keys.take(name) is None or keys.on(name)


def _recomputed(keys: Keys, draft: Draft) -> None:
    own = f"{MEGATRON}.override_transformer_config"
    how = str(keys.one(f"{own}.recompute_granularity") or "none")
    word = how if how in ("full", "selective") else "none"
    draft.put("train.checkpointing", word, f"{own}.recompute_granularity", how)
    layers = f"{own}.recompute_num_layers"
    if how == "full":
        keys.take(f"{own}.recompute_method")
        draft.read(keys, "train.recompute_num_layers", positive, layers)


def _beside(keys: Keys, draft: Draft) -> None:
    """What else runs on the GPUs that train."""
    name = "algorithm.adv_estimator"
    critic = str(keys.one(name) or "gae") == "gae"
    draft.put("together.kind", "ppo" if critic else "grpo", name, keys.values.get(name) or "gae")
    engine = str(keys.one(f"{ROLLOUT}.name") or "vllm")
    if engine in ("vllm", "sglang"):
        draft.put("serve.engine", engine, f"{ROLLOUT}.name", engine)
    else:
        draft.leave(f"{ROLLOUT}.name", f"{engine} is not planned beside training: vLLM is")
    for path, how, named in (
        ("together.engine_tp", positive, "tensor_model_parallel_size"),
        ("serve.memory_utilization", share, "gpu_memory_utilization"),
        ("serve.max_batched_tokens", positive, "max_num_batched_tokens"),
        ("serve.max_seq_len", positive, "max_model_len"),
    ):
        draft.read(keys, path, how, f"{ROLLOUT}.{named}")
    draft.otherwise("together.engine_tp", 2, f"{ROLLOUT}.tensor_model_parallel_size")
    draft.otherwise("serve.memory_utilization", 0.5, f"{ROLLOUT}.gpu_memory_utilization")
    draft.otherwise("serve.max_batched_tokens", 8192, f"{ROLLOUT}.max_num_batched_tokens")
    if keys.on(f"{ROLLOUT}.enforce_eager"):
        draft.put("serve.runtime", "eager", f"{ROLLOUT}.enforce_eager", True)
    name = f"{ROLLOUT}.free_cache_engine"
    asleep = _on(keys, name)
    draft.put("together.asleep", "all" if asleep else "nothing", name, asleep)
    leaves = [keys.on(f"{place}.{what}_offload") for place in (FSDP, MEGATRON)
              for what in ("param", "optimizer", "grad")]  # fmt: skip
    name = f"{FSDP}.param_offload"
    draft.put("together.trainer", "host" if any(leaves) else "stays", name, any(leaves))
    near = keys.on(f"{ACTOR}.use_kl_loss"), keys.on("algorithm.use_kl_in_reward")
    away = keys.on(f"{REF}.fsdp_config.param_offload"), keys.on(f"{REF}.megatron.param_offload")
    where = ("host" if any(away) else "gpu") if any(near) else "none"
    draft.put("together.reference", where, f"{ACTOR}.use_kl_loss", any(near))
    if keys.on("reward_model.enable"):
        away = (keys.on("reward_model.model.fsdp_config.param_offload"), False)
        draft.put("together.reward", "host" if any(away) else "gpu", "reward_model.enable", True)
