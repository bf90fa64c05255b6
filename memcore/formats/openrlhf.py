"""OpenRLHF: the commands of openrlhf.cli, which train with DeepSpeed. Their options have one of two
sets of names: those with '_', and those in groups that came later (--ds.zero_stage).

Source: openrlhf/cli/train_{sft,rm,dpo,kto,ppo_ray}.py, whose defaults hold where nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.formats.draft import Draft, Keys, names, underscored
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
    if job.startswith("ppo"):
        if not draft.count(keys, "actor_num_gpus_per_node"):
            draft.ranks = max(draft.ranks, 8 * draft.nodes)
        OPENRLHF.lengths(keys, draft)
        if keys.on("colocate_all_models"):
            OPENRLHF.rollouts(keys, draft)
            OPENRLHF.read(keys, draft, "engine")
        else:
            OPENRLHF.read(keys, draft, "apart")
            keys.take(*(key for row in OPENRLHF.rows["engine"] for key in row.keys))
        draft.otherwise("train.micro_batch", 1, "--micro_train_batch_size")
    elif job in PAIRED:
        paired(draft, f"{MODULE}{job}", PAIRED[job])
        referred(keys, draft, job, f"{MODULE}{job}", IN_16_BITS)
        if job in REFERRED and draft.count(keys, "lora_rank"):
            draft.leave("--lora_rank", APART)
    OPENRLHF.read(keys, draft)
    draft.otherwise("train.micro_batch", 8, "--micro_train_batch_size")
    if "train.adapter" in draft.fields:
        draft.adapt(names(keys.take("target_modules")), "--target_modules")
    OPENRLHF.end(keys, draft)
