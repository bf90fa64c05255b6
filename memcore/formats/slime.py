"""slime: `train.py` and `train_async.py`, which train with Megatron what SGLang generates.

Source: slime/utils/arguments.py and rollout/sft_rollout.py (0.3.1): its own options stand beside
Megatron's and, with --sglang- before them, SGLang's.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.formats import megatron
from memcore.formats.draft import Draft, Keys, hyphened
from memcore.formats.programs import Program
from memcore.formats.texts import options

SLIME = Program("slime")


def starts(command: Sequence[str]) -> bool:
    """Whether a command starts one of these."""
    return len(set(SLIME.listed("marks")) & options(command)[1].keys()) >= 3


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says."""
    keys = Keys(options(command)[1], hyphened)
    SLIME.begin(keys, draft)
    prompt, answer = (
        draft.count(keys, f"rollout_max_{what}_len") for what in ("prompt", "response")
    )
    if prompt:
        draft.put("serve.prompt_len", prompt, "--rollout-max-prompt-len", prompt)
    if answer:
        prompt = prompt or draft.fields.get("serve.prompt_len", SLIME.table["usual_tokens"])
        said = f"{prompt} + {answer}"
        draft.put("serve.output_len", answer, "--rollout-max-response-len", answer)
        draft.put("train.seq_len", prompt + answer, "--rollout-max-response-len", said)
    alone = keys.on("debug_train_only")  # no engine is started; what it trains on was made before
    if str(keys.one("loss_type")) == "sft_loss" or alone:
        draft.put("job", "train", "--debug-train-only" if alone else "--loss-type")
        SLIME.read(keys, draft, "alone")
    else:
        SLIME.read(keys, draft, "engine")
        SLIME.rollouts(keys, draft)
    _packed(keys, draft)
    given = {name: value for name, value in keys.values.items() if name not in keys.taken}
    own = Keys(SLIME.rename(given), hyphened)
    megatron.arguments(own, draft)
    keys.taken |= own.taken
    SLIME.end(keys, draft)


def _packed(keys: Keys, draft: Draft) -> None:
    """Micro-batches of so many tokens: as many sequences of the longest as they hold, or one of all
    of them where nobody says how long one is. With context parallelism each rank has a part."""
    key = "--max-tokens-per-gpu"
    tokens = draft.count(keys, "max_tokens_per_gpu")
    if not (tokens and keys.on("use_dynamic_batch_size")):
        return
    tokens *= draft.count(keys, "context_parallel_size") or 1
    length = draft.fields.get("train.seq_len") or draft.count(keys, "seq_length") or tokens
    draft.put("train.seq_len", length, key, tokens)
    draft.put("train.micro_batch", max(1, tokens // length), key, tokens)
    draft.leave(key, "sequences are packed by their lengths: each is planned as long as may be")
