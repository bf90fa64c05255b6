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


# A comment, or a line of a post, that counts GPUs: "for 64 A100 GPUs", "4x H100 80GB", "16 nodes
# of 8 H100s".
COMMENT = re.compile(
    r"^[ \t]*+[#*A-Z-][^\n]{0,120}?(?<![\w.])((?:(\d{1,4}) nodes? of )?(\d{1,4}) ?[x×*]? ?"
    r"(?:NVIDIA )?((?:RTX )?[A-Z]{0,3}\d{2,4}[A-Z]{0,2}?)s?)\b",
    re.MULTILINE | re.IGNORECASE,
)


def noted(content: str) -> tuple[str, int]:
    """What a comment of a text says of GPUs that a preset has, and how many they are; '' and 0
    where none does."""
    for said, nodes, each, name in COMMENT.findall(content[:MOST_LOOKED_AT]):
        if cards.preset(name):
            return said, int(nodes or 1) * int(each)
    return "", 0


def _numbers(name: str, content: str) -> list[int]:
    return [int(found) for found in re.findall(PLACES.table[name], content, re.MULTILINE)]


def replicas(content: str) -> int:
    """Servers of one kind that a cluster's file asks for, 0 where it does not say it."""
    return max(_numbers("replicas", content[:MOST_LOOKED_AT]), default=0)


def counted(content: str) -> tuple[int, int]:
    """Machines, and GPUs of each, that a cluster's file asks for a training; 0 where it does not
    say it."""
    each = [*_numbers("each", content), *_numbers("placed", content)]
    nodes = _numbers("nodes", content)
    if "pytorchReplicaSpecs" in content:
        nodes = [sum(_numbers("replicas", content))]
    return max(nodes, default=0), max(each, default=0)
