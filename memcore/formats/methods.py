"""Methods: what a training is towards, where it is more than the next token: pairs of answers, and
rollouts that a policy makes.

Their keys are in presets/programs/methods.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memcore.formats.draft import Around, Draft, Keys
from memcore.formats.programs import Program
from memcore.words.training import AS_LOADED

PAIRS = "a pair is two sequences of plain fine-tuning here"
SINGLE = "answers are sequences of plain fine-tuning here"
METHODS = Program("methods")
PAIRED = {
    **dict.fromkeys(METHODS.names["pairs"], PAIRS),
    **dict.fromkeys(METHODS.names["single"], SINGLE),
}
REFERRED = METHODS.names["referred"]
LOSSES = METHODS.names["chunked"] | METHODS.names["whole"]  # of whose trainers it is known
CALLED = re.compile(METHODS.table["called"])
SINCE = (
    "logits are whole, as TRL makes them to 1.14; from 1.15 on set train.cross_entropy to chunked"
)
ANSWER = 512  # tokens of an answer where nobody says how many (trl 1.16's GRPOConfig)
FIRST = "the prompt comes before it: set train.seq_len to both"


def called(started: Iterable[str]) -> str:
    """What the words of a command, or a class of Python, say is trained towards; '' where
    nothing."""
    words = (word for word in started if word.endswith(".py") or "/" not in word)
    found = next((found[1] for word in words if (found := CALLED.search(word.lower()))), "")
    alike: str = METHODS.table["alike"].get(found, found)
    return alike


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
    if kind in ("grpo", "gdpo", "ppo") or (generates and kind not in METHODS.names["others"]):
        key = keys.named("rl", "stage", "num_generations", "max_completion_length")
        draft.put("together.kind", kind if kind == "ppo" else "grpo", key)
        _rollouts(keys, draft)
        return "grpo"
    if kind in PAIRED:
        paired(draft, named, PAIRED[kind])
        return kind
    for method in ("simpo", "dpo"):
        marks = METHODS.listed(method)
        if any(keys.values.get(mark) is not None for mark in marks):
            paired(draft, keys.named(*marks), PAIRS)
            return method
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
    in_chunks = of_trl and towards in METHODS.names["chunked"]
    key = keys.written("loss_type")
    how = "chunked" if in_chunks and liger else "eager"
    draft.put("train.cross_entropy", how, key, towards)
    if in_chunks and not liger and not METHODS.names["older"] & keys.values.keys():
        draft.leave(key, SINCE)


def _rollouts(keys: Keys, draft: Draft) -> None:
    """Rollouts of a GPU, and who makes them (trl's GRPOConfig, axolotl's `trl` and `vllm`)."""
    prompt, answer = (draft.count(keys, f"max_{what}_length") for what in ("prompt", "completion"))
    METHODS.read(keys, draft, "rollouts")
    if not answer and "max_length" not in keys.values:
        key = keys.written("max_completion_length")
        draft.otherwise("serve.output_len", ANSWER, key)
        draft.otherwise("train.seq_len", prompt + ANSWER, key)
        if not prompt:
            draft.leave(key, FIRST)
    answers = draft.count(keys, "num_generations")
    again = draft.count(keys, "steps_per_generation")
    key = keys.written("steps_per_generation")
    apart = draft.count(keys, "generation_batch_size")

    def shared_out(draft: Draft, around: Around) -> None:
        each = draft.fields.get("train.micro_batch", 1)
        times = again or draft.fields.get("train.grad_accumulation", 1)
        mine = apart // around.gpus if apart else each * times
        draft.put("together.rollouts", max(1, mine), key, f"{each} x {times} of a GPU")
        if answers and (total := max(1, mine) * around.gpus) % answers:
            why = f"{total} rollouts of all GPUs are no multiple of {answers} answers to a prompt"
            draft.leave("num_generations", f"{why}: TRL refuses to start so")

    draft.later.append(shared_out)
    reference(keys, draft, "gpu", "beta", "rl_beta")
    METHODS.read(keys, draft, "makers")
    if not keys.on("use_vllm") or str(keys.take("vllm_mode") or "colocate") != "colocate":
        return
    section = keys.inner("vllm") if isinstance(keys.values.get("vllm"), Mapping) else Keys({})
    METHODS.read(keys, draft, "engine")
    METHODS.read(section, draft, "section")
    METHODS.read(keys, draft, "usual")


def referred(keys: Keys, draft: Draft, kind: str, key: str, word: str = AS_LOADED) -> None:
    """The frozen reference that a kind of training has, as a word of train.reference: none where
    the loss wants none, or where what it says of each answer was made before."""
    loss = keys.take("pref_loss")
    before = keys.on("precompute_ref_log_probs")
    if (
        kind in REFERRED
        and loss not in METHODS.names["unreferred"]
        and not (before or keys.on("reference_free"))
    ):
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
