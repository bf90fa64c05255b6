"""Methods: what a training is towards, where it is more than the next token: pairs of answers, and
rollouts that a policy makes.

Sources: trl 1.16's DPOConfig, GRPOConfig and scripts, axolotl's schemas of `trl` and `vllm`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memcore.formats.found import Around, Draft, Keys, positive, share
from memcore.words.training import AS_LOADED

PAIRS = "a pair is two sequences of plain fine-tuning here"
SINGLE = "answers are sequences of plain fine-tuning here"
# What is trained towards by pairs of answers or by single ones.
PAIRED = {
    **dict.fromkeys(("dpo", "ipo", "nca", "orpo", "simpo", "cpo", "rm", "reward"), PAIRS),
    **dict.fromkeys(("kto", "bco"), SINGLE),
}
# What of it is held against a frozen reference, and losses that want none (LLaMA-Factory 0.9.5:
# hparams/finetuning_args.py, use_ref_model).
REFERRED = ("dpo", "ipo", "nca", "kto", "bco")
UNREFERRED = ("orpo", "simpo")
# What a program is called that trains towards it: a command of TRL's, a script, a class of Python.
CALLED = re.compile(
    r"(?:^|[_/.-])(online_?dpo|nash_?md|xpo|gkd|prm|sdft|distillation|dpo|kto|bco|orpo|cpo|simpo|grpo"
    r"|gspo|gmpo|rloo|ppo|reward_modeling|reward|rm)(?=$|[_.-]|config|trainer)"
)
ALIKE = {"reward_modeling": "reward", "gspo": "grpo", "gmpo": "grpo", "rloo": "grpo"}
SIMPO, DPO = ("gamma_beta_ratio", "simpo_gamma"), ("max_prompt_length", "beta", "pref_beta")
# What generates as GRPO does, and is trained otherwise.
OTHERS = (
    *("ebft", "online_dpo", "onlinedpo", "nash_md", "nashmd", "xpo", "gkd", "distillation"),
    "sdft",
)
# How TRL's trainers make the log-probabilities: of versions to 1.14, of those with Liger's kernels,
# and of 1.15 and later, which give DPO, GRPO, KTO and RLOO the fused head of SFT (trl/trainer/
# *_trainer.py: add_fused_lm_head; trl/experimental/orpo and cpo keep outputs.logits). LLaMA-Factory
# 0.9.5 makes whole logits in all stages but sft and pt (model_utils/liger_kernel.py:
# require_logits; train/dpo/trainer.py).
LOSSES = {
    **dict.fromkeys(("dpo", "ipo", "nca", "kto", "bco", "grpo"), ("eager", "chunked", "chunked")),
    **dict.fromkeys(("orpo", "simpo", "cpo"), ("eager", "eager", "eager")),
}
# Keys that TRL's configs had, and have no more since before 1.15.
OLDER = {
    *("max_prompt_length", "torch_dtype", "use_liger_loss", "label_pad_token_id"),
    *("rpo_alpha", "reference_free", "generate_during_eval"),
}
SINCE = (
    "logits are whole, as TRL makes them to 1.14; from 1.15 on set train.cross_entropy to chunked"
)
SHARE = "serve.memory_utilization"
ANSWER = 512  # tokens of an answer where nobody says how many (trl 1.16's GRPOConfig)
FIRST = "the prompt comes before it: set train.seq_len to both"


def called(started: Iterable[str]) -> str:
    """What the words of a command, or a class of Python, say is trained towards; '' where
    nothing."""
    words = (word for word in started if word.endswith(".py") or "/" not in word)
    found = next((found[1] for word in words if (found := CALLED.search(word.lower()))), "")
    return ALIKE.get(found, found)


def beside(command: Iterable[str], draft: Draft) -> None:
    """What a command's name says of a job that a file describes without it."""
    kind = called(command)
    if kind in PAIRED and draft.each == 1:
        paired(draft, kind, PAIRED[kind])
        referred(Keys({}), draft, kind, kind)


def read(keys: Keys, draft: Draft, started: Iterable[str]) -> str:
    """What is trained towards, where it is more than the next token; that is returned, '' where it
    is no more."""
    kind = str(keys.one("rl", "stage", "rlhf_type") or "").lower()
    named = keys.named("rl", "stage", "rlhf_type")
    if not kind and (kind := called(started)):
        named = kind
    generates = {"num_generations", "max_completion_length"} & keys.values.keys()
    if kind in ("grpo", "gdpo", "ppo") or (generates and kind not in OTHERS):
        key = keys.named("rl", "stage", "num_generations", "max_completion_length")
        draft.put("together.kind", kind if kind == "ppo" else "grpo", key)
        _rollouts(keys, draft)
        return "grpo"
    if kind in PAIRED:
        paired(draft, named, PAIRED[kind])
        return kind
    if any(keys.values.get(mark) is not None for mark in SIMPO):
        paired(draft, keys.named(*SIMPO), PAIRS)
        return "simpo"
    if any(keys.values.get(mark) is not None for mark in DPO):
        paired(draft, keys.named(*DPO), PAIRS)
        return "dpo"
    if kind not in ("", "sft", "pt"):
        draft.leave(named, f"{kind} is not planned: fine-tuning of one sequence an example is")
        draft.otherwise("train.cross_entropy", "eager", named)  # of whole logits, as trl's are
    elif keys.values.get("packing") is False or keys.values.get("sample_packing") is False:
        draft.leave(
            keys.named("packing", "sample_packing"),
            "every sequence is taken to be as long as it may be",
        )
    return ""


def loss(keys: Keys, draft: Draft, towards: str, of_trl: bool, liger: bool) -> None:
    """How the log-probabilities of a trainer in LOSSES are made."""
    plain, with_liger, later = LOSSES[towards]
    key = keys.written("loss_type")
    draft.put("train.cross_entropy", with_liger if of_trl and liger else plain, key, towards)
    if of_trl and not liger and later != plain and not OLDER & keys.values.keys():
        draft.leave(key, SINCE)


def _rollouts(keys: Keys, draft: Draft) -> None:
    """Rollouts of a GPU, and who makes them (trl's GRPOConfig, axolotl's `trl` and `vllm`)."""
    prompt, answer = (draft.count(keys, f"max_{what}_length") for what in ("prompt", "completion"))
    if prompt:
        draft.put("serve.prompt_len", prompt, keys.written("max_prompt_length"), prompt)
    if answer:
        draft.put("serve.output_len", answer, keys.written("max_completion_length"), answer)
    elif "max_length" not in keys.values:
        key = keys.written("max_completion_length")
        draft.otherwise("serve.output_len", ANSWER, key)
        draft.otherwise("train.seq_len", prompt + ANSWER, key)
        if not prompt:
            draft.leave(key, FIRST)
    keys.take("num_generations")
    again = draft.count(keys, "steps_per_generation")
    key = keys.written("steps_per_generation")
    apart = draft.count(keys, "generation_batch_size")

    def shared_out(draft: Draft, around: Around) -> None:
        each = draft.fields.get("train.micro_batch", 1)
        times = again or draft.fields.get("train.grad_accumulation", 1)
        mine = apart // around.gpus if apart else each * times
        draft.put("together.rollouts", max(1, mine), key, f"{each} x {times} of a GPU")

    draft.later.append(shared_out)
    reference(keys, draft, "gpu", "beta", "rl_beta")
    mode = str(keys.take("vllm_mode") or "colocate")
    if not keys.on("use_vllm"):
        draft.leave(
            keys.written("use_vllm"), "rollouts by transformers itself are planned as vLLM's"
        )
        return
    if mode != "colocate":
        draft.leave(
            keys.written("vllm_mode"), "rollouts on GPUs of their own: the trainer's are planned"
        )
    section = keys.inner("vllm") if isinstance(keys.values.get("vllm"), Mapping) else Keys({})
    draft.put("serve.engine", "vllm", keys.written("use_vllm"), True)
    for path, how, name, inner in (
        (
            "serve.memory_utilization",
            share,
            "vllm_gpu_memory_utilization",
            "gpu_memory_utilization",
        ),
        ("together.engine_tp", positive, "vllm_tensor_parallel_size", "tensor_parallel_size"),
        ("serve.max_seq_len", positive, "vllm_max_model_length", "max_model_len"),
    ):
        draft.read(keys, path, how, name)
        draft.read(section, path, how, inner)
    draft.otherwise(SHARE, 0.3, keys.written("vllm_gpu_memory_utilization"))
    draft.otherwise("together.engine_tp", 1, keys.written("vllm_tensor_parallel_size"))
    asleep = keys.on("vllm_enable_sleep_mode")
    draft.put("together.asleep", "all" if asleep else "nothing",
              keys.written("vllm_enable_sleep_mode"), asleep)  # fmt: skip


def referred(keys: Keys, draft: Draft, kind: str, key: str, word: str = AS_LOADED) -> None:
    """The frozen reference that a kind of training has, as a word of train.reference: none where
    the loss wants none, or where what it says of each answer was made before."""
    loss = keys.take("pref_loss")
    before = keys.on("precompute_ref_log_probs")
    if kind in REFERRED and loss not in UNREFERRED and not (before or keys.on("reference_free")):
        draft.put("train.reference", word, key, f"{kind}: a frozen reference")


def reference(keys: Keys, draft: Draft, where: str, *named: str) -> None:
    """Where a reference rests: there is one where a key gives its distance a weight."""
    weight = keys.one(*named)
    near = weight is not None and bool(str(weight).strip("0."))
    said = "not said: 0" if weight is None else weight
    draft.put("together.reference", where if near else "none", keys.named(*named), said)


def paired(draft: Draft, key: str, why: str) -> None:
    """A micro-batch of so many pairs runs both answers of each at once (trl's concatenated
    forward)."""
    draft.leave(key, why)
    if why != SINGLE:
        draft.each = 2
