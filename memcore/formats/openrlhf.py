"""OpenRLHF: the commands of openrlhf.cli, which train with DeepSpeed. Their options have one of two
sets of names: those with '_', and those in groups that came later (--ds.zero_stage).

Source: openrlhf/cli/train_{sft,rm,dpo,kto,ppo_ray}.py, whose defaults hold where nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.formats.draft import Draft, Keys, mixed, names, share, underscored
from memcore.formats.methods import PAIRS, REFERRED, SINGLE, paired, referred
from memcore.formats.programs import Program
from memcore.formats.texts import options
from memcore.words.training import IN_16_BITS

MODULE = "openrlhf.cli.train_"
OPENRLHF = Program("openrlhf")
PAIRED = {"dpo": PAIRS, "kto": SINGLE, "rm": PAIRS, "kd": SINGLE}
APART = "its reference is a copy of the model beside adapters too, whose bytes are not planned"


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
    keys = Keys(OPENRLHF.rename(options(own)[1]), underscored)
    OPENRLHF.begin(keys, draft)
    generates = job.startswith("ppo")
    if generates:
        if not draft.count(keys, "actor_num_gpus_per_node"):
            draft.ranks = max(draft.ranks, 8 * draft.nodes)
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
    OPENRLHF.end(keys, draft)


def _step(keys: Keys, draft: Draft, each: int) -> None:
    """One training step with DeepSpeed, of so many sequences at once where nobody says how
    many."""
    OPENRLHF.read(keys, draft)
    draft.otherwise("train.micro_batch", each, "--micro_train_batch_size")
    half = "fp16" if keys.one("param_dtype") == "fp16" else "bf16"
    draft.put("train.precision", mixed(half, sharded=True), "--param_dtype", half)
    again = keys.on("gradient_checkpointing")
    draft.put("train.checkpointing", "full" if again else "none", "--gradient_checkpointing", again)
    if keys.on("gradient_checkpointing_use_reentrant"):
        name = "--gradient_checkpointing_use_reentrant"
        draft.put("train.reentrant", True, name, True)
    if rank := draft.count(keys, "lora_rank"):
        four = keys.on("load_in_4bit")
        draft.put("train.adapter", "qlora-single" if four else "lora", "--lora_rank", rank)
        draft.put("train.lora_rank", rank, "--lora_rank", rank)
        draft.read(keys, "train.lora_dropout", share, "lora_dropout")
        draft.adapt(names(keys.take("target_modules")), "--target_modules")


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
        keys.take("reward_pretrain", "init_kl_coef")
        keys.take(*(key for row in OPENRLHF.rows["engine"] for key in row.keys))
        return
    draft.put("together.kind", "ppo" if critic else "grpo", "--advantage_estimator")
    OPENRLHF.read(keys, draft, "engine")
    said = str(keys.one("init_kl_coef") or "0.01")
    apart = "host" if keys.on("ref_reward_offload") else "gpu"
    near = bool(said.strip("0.e-"))  # a weight of 0 wants no reference
    draft.put("together.reference", apart if near else "none", "--init_kl_coef", said)
    scores = keys.one("reward_pretrain") is not None
    draft.put("together.reward", apart if scores else "none", "--reward_pretrain", scores)
    draft.rollouts(prompts, answers, "--rollout_batch_size")
