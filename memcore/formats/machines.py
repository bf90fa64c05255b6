"""GPUs: the preset that a file asks for by name, of a scheduler, a cluster or a cloud."""

from __future__ import annotations

import re

from memcore.formats.programs import Program
from memcore.models import cards

PLACES = Program("machines")
MOST_LOOKED_AT = 300_000  # characters of a text: what is longer is a model or a log


def asked(content: str) -> tuple[str, str, str]:
    """What a text says of the GPU: the key, what it says, and the preset; three '' where it says
    nothing that has one."""
    for place in PLACES.table["gpus"] if len(content) <= MOST_LOOKED_AT else ():
        for key, said in re.findall(place, content, re.MULTILINE):
            if found := cards.preset(said):
                return key, said, found
    return "", "", ""


def _numbers(name: str, content: str) -> list[int]:
    return [int(found) for found in re.findall(PLACES.table[name], content, re.MULTILINE)]


def counted(content: str) -> tuple[int, int]:
    """Machines, and GPUs of each, that a cluster's file asks for a training; 0 where it does not
    say it."""
    each = [*_numbers("each", content), *_numbers("placed", content)]
    nodes = _numbers("nodes", content)
    if "pytorchReplicaSpecs" in content:
        nodes = [sum(_numbers("replicas", content))]
    return max(nodes, default=0), max(each, default=0)
