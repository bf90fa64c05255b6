"""Here: the GPUs of this machine, as the program of each maker lists them, and what is taken.

nvidia-smi's --query-gpu, rocm-smi's --json (ROCm 6 and 7) and macOS's system_profiler -json are
run, each only where it is installed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, refusal, shown
from memcore.models import cards, catalog
from memcore.units import GiB, MiB

HERE = "here"  # what --gpu is given
SECONDS = 30  # that a program may take
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
SLICES = ("nvidia-smi", "-L")
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
APPLE = ("system_profiler", "-json", "SPHardwareDataType")
COMMANDS = (QUERY, AMD, APPLE)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one slice of it.

    model         as its maker's program calls it; preset: the accelerator that this is, or ''
    memory_bytes  that the program says; 0 where it does not
    taken_bytes   that programs hold now
    share         of the GPU: a slice's, or 1
    """

    model: str
    preset: str
    memory_bytes: int = 0
    taken_bytes: int = 0
    share: float = 1.0


def is_listed() -> bool:
    """Whether some program that lists GPUs is installed."""
    return any(shutil.which(command[0]) for command in COMMANDS)


def devices() -> tuple[Device, ...]:
    """The GPUs of this machine, by the first program that lists some. Raises PlanError where none
    does."""
    readers: tuple[Callable[[str], Iterator[Device]], ...] = (_nvidia, _amd, _apple)
    for command, read in zip(COMMANDS, readers, strict=True):
        with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
            if found := tuple(read(_printed(command))):
                return found
    asked = ", ".join(command[0] for command in COMMANDS)
    raise refusal("--gpu", f"no GPU is found here: {asked} are not installed, or list none")


def settings() -> tuple[dict[str, Any], tuple[Issue, ...]]:
    """The fields of a plan that say this machine, and what is told of it. Raises PlanError."""
    return settings_of(devices())


def settings_of(every: Sequence[Device]) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    """The fields of a plan that say these GPUs: the one that most are, how many, and what is taken
    of the fullest; and what is told of it. Raises PlanError."""
    kinds = Counter((each.preset, each.share) for each in every)
    (preset, share), count = kinds.most_common(1)[0]
    same = [each for each in every if (each.preset, each.share) == (preset, share)]
    model = shown(same[0].model)
    if not preset:
        raise refusal("--gpu", f"this machine has {model}, and {cards.no_preset(same[0].model)}")
    taken = max(each.taken_bytes for each in same)
    fields = {
        "cluster.gpu": preset,
        "cluster.gpus": count,
        "cluster.gpu_share": share,
        "cluster.taken_gib": round(taken / GiB, 2),
    }
    others = len(every) - count
    more = f"; {others} others are left out" if others else ""
    of = f"{share:g} of " if share < 1 else ""
    said = f"{count} x {of}{model}, {taken / GiB:.2f} GiB of the fullest taken already{more}"
    return fields, (Issue("cluster.gpu", f"{preset}, as this machine has: {said}"),)


def _printed(command: tuple[str, ...]) -> str:
    """What a program prints; '' where it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
        return done.stdout if done.returncode == 0 else ""
    return ""


def _preset(model: str, memory: int) -> str:
    """The accelerator by its name, and of several memories that it is sold with the nearest."""
    preset = cards.preset(model)
    if not preset or not memory:
        return preset
    sizes = catalog.sizes(preset)
    return min(sizes, key=lambda name: abs(catalog.accelerator(name).usable_bytes - memory))


def _number(text: str) -> int:
    """Of a cell; 0 of '[N/A]', which unified memory has."""
    return int(text) if text.isdecimal() else 0


# A slice, with the GiB that its name says; MIG cuts memory into eighths, and names are rounded up.
SLICE = re.compile(r"^\s+MIG (?:\d+c\.)?\d+g\.(\d+)gb", re.MULTILINE)


def _nvidia(printed: str) -> Iterator[Device]:
    slices = re.split(r"^GPU \d+:", _printed(SLICES), flags=re.MULTILINE)[1:]
    for i, line in enumerate(filter(str.strip, printed.splitlines())):
        model, total, used = (cell.strip() for cell in line.rsplit(",", 2))
        memory, taken = _number(total) * MiB, _number(used) * MiB
        preset = _preset(model, memory)
        cut = SLICE.findall(slices[i]) if i < len(slices) else []
        if not cut or not preset:
            yield Device(model, preset, memory, taken)
        for size in cut:  # what is taken of one slice is not in what is printed of the GPU
            eighths = round(8 * int(size) * GiB / memory) if memory else 8
            share = min(max(eighths, 1), 8) / 8
            yield Device(model, preset, int(memory * share), 0, share)


def _amd(printed: str) -> Iterator[Device]:
    for key, said in json.loads(printed or "{}").items():
        if not key.startswith("card"):
            continue
        models = [
            said.get(each, "").removesuffix(" OAM")
            for each in ("Card Series", "Card series", "Card Model", "GFX Version")
        ]
        memory = _number(said.get("VRAM Total Memory (B)", ""))
        fitting = (model for model in models if cards.preset(model))
        model = next(fitting, next(filter(None, models), key))
        taken = _number(said.get("VRAM Total Used Memory (B)", ""))
        yield Device(model, _preset(model, memory), memory, taken)


def _apple(printed: str) -> Iterator[Device]:
    """A chip's GPU, whose memory is the machine's; what the system takes of it a preset leaves."""
    hardware: Mapping[str, Any] = json.loads(printed or "{}")["SPHardwareDataType"][0]
    model, memory = hardware["chip_type"], hardware.get("physical_memory", "")
    size = memory.partition(" GB")[0] if memory.endswith(" GB") else ""
    preset = cards.preset(f"{model} {size}gb") if size else ""
    yield Device(model, preset or cards.preset(model), _number(size) * GiB)
