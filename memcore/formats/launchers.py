"""Launchers: what starts the processes of a training: torchrun, accelerate, deepspeed, Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memcore.formats import accelerate
from memcore.formats.draft import Draft, Keys
from memcore.formats.programs import Program
from memcore.formats.texts import options
from memcore.words.training import EXPANDABLE, NATIVE

LAUNCHERS = Program("launchers")


def nodes(command: Sequence[str]) -> int:
    """On how many machines a command starts processes; 0 where it does not say it."""
    keys = Keys(options(command)[1])
    said = Draft().count(keys, "nnodes", "num_machines", "nodes", "N", "num_nodes")
    return said or _variable(command, "NNODES")


def _variable(command: Sequence[str], name: str) -> int:
    """A number in a variable that LLaMA-Factory's and ms-swift's commands, which start torchrun
    themselves, go by (LLaMA-Factory 0.9.5: launcher.py; ms-swift 4.6: cli/utils.py)."""
    found = [re.fullmatch(rf"{name}=['\"]?(\d{{1,6}})['\"]?", word) for word in command]
    return next((int(number[1]) for number in found if number), 0)


def read(command: Sequence[str], draft: Draft) -> None:
    """How many processes and machines the command says, if any, and who shards."""
    _, given = options(command)
    keys = Keys(given)
    draft.nodes = max(draft.nodes, nodes(command))
    each = draft.count(keys, "nproc_per_node", "num_gpus", "ntasks_per_node")
    each = each or _variable(command, "NPROC_PER_NODE") or _variable(command, "NGPU")
    for option in ("gres", "gpus_per_node"):
        # --gres=gpu:a100:4, --gpus-per-node=a100:4
        if not each and (found := re.search(r"(?:^|:)(\d+)", str(given.get(option, "")))):
            each = int(found[1])
    if not each and (placed := re.search(r":([\d,]+)", str(given.get("include", "")))):
        each = len(placed[1].split(","))  # deepspeed --include worker:0,1,2,3
    words = [word.rpartition("/")[2] for word in command]
    in_all = LAUNCHERS.table["processes"].get(words[0], "").split() if words else []
    whole_job = draft.count(keys, "num_processes", *in_all)
    named = re.fullmatch(r"[A-Za-z][\w-]*:(\d+)", str(given.get("gpus", "")))  # --gpus=a100:8
    if named and in_all:
        whole_job = int(named[1])
    draft.ranks = max(draft.ranks, whole_job, each * max(1, draft.nodes))
    if "accelerate" in words and "launch" in words:
        accelerate.launched(options(before_program(command))[1], draft)


def before_program(command: Sequence[str]) -> list[str]:
    """A launcher's own words: those before the program that it starts."""
    ends = (
        at
        for at, word in enumerate(command)
        if word.endswith(".py") or (word in ("-m", "--module") and at)
    )
    return list(command[: next(ends, len(command))])


def seen(commands: Sequence[Sequence[str]]) -> int:
    """GPUs that a script lets its programs see, where what starts them takes all, or there is one;
    0 otherwise."""
    words = [word for command in commands for word in command]
    starts = any(
        word.rpartition("/")[2].partition(":")[0] in LAUNCHERS.names["see_all"] for word in words
    )
    visible = devices(words)
    return visible if starts or visible == 1 else 0  # one is all that any program has


def devices(words: Sequence[str]) -> int:
    """GPUs that CUDA_VISIBLE_DEVICES numbers among some words; 0 where it does not."""
    found = [word.partition("=")[2] for word in words if word.startswith("CUDA_VISIBLE_DEVICES=")]
    visible = found[-1].strip("'\"").split(",") if found else [""]
    return len(visible) if visible[0][:1].isdecimal() else 0


def described(command: Sequence[str]) -> str:
    """The file that describes the job that a command starts, or ''."""
    if not any(word.rpartition("/")[2] in LAUNCHERS.names["by_file"] for word in command):
        return ""
    for at, word in enumerate(command):
        option, given, value = word.partition("=")
        file = value if given else word
        before = option if given else command[at - 1] if at else ""
        if re.search(r"\.(?:ya?ml|toml)$", file) and before not in LAUNCHERS.names["other_files"]:
            return file
    named = re.search(r"--config[ =](\S+)", " ".join(command)) if "tune" in command else None
    return named[1] if named else ""


ALLOCATOR, FACTORY_CLI = "train.allocator", "llamafactory-cli"
# How an environment tells PyTorch's allocator, by its name until 2.10 and since; a program that
# says nothing has the native one.
TELLS = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF")
SEGMENTS = re.compile(r"expandable_segments:(True|False|1|0)\b", re.IGNORECASE)


def allocator(content: str, draft: Draft) -> None:
    """PyTorch's allocator, where a text sets it."""
    if "ALLOC_CONF" not in content:
        return
    for line in content.splitlines():
        said = SEGMENTS.search(line) if (told := TELLS.search(line)) else None
        if said and told and not line.lstrip().startswith("#"):
            grows = said[1].lower() in ("true", "1")
            draft.put(ALLOCATOR, EXPANDABLE if grows else NATIVE, told[0], said[0])
