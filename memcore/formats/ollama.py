"""Ollama: its Modelfile, which says what llama.cpp is given, and commands that run a model.

Source: docs/modelfile.md, envconfig/config.go and server/routes.go of ollama, August 2026. What it
does by itself is in placement.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memcore.formats import hub, placement
from memcore.formats.draft import Draft, Keys
from memcore.formats.programs import Program

FROM = re.compile(r"^FROM[ \t]+(\S+)", re.MULTILINE)
PARAMETER = re.compile(r"^PARAMETER[ \t]+(\w+)[ \t]+(\S.*)", re.MULTILINE)  # blanks may follow
OTHERS = re.compile(r"^(?:PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE)[ \t]", re.MULTILINE)
ADAPTER = re.compile(r"^ADAPTER[ \t]", re.MULTILINE)
PROGRAM = Program("ollama")
STORED = "q4_k_m"  # what its library has of most models, where a tag says no other


def recognise(content: str) -> bool:
    """Whether a text is a Modelfile: of Dockerfiles, which begin so too, none has the others."""
    return bool(FROM.search(content) and OTHERS.search(content))


SET = "/set parameter {}"  # how a parameter is typed into a chat


def runs(commands: Sequence[Sequence[str]]) -> str:
    """The model that commands run or bring, or ''."""
    for words in commands:
        for at, each in enumerate(words[:-1]):
            if each.rpartition("/")[2] == "ollama" and words[at + 1] in ("run", "pull"):
                return next((name for name in words[at + 2 :] if name[:1] != "-"), "")
    return ""


def launched(commands: Sequence[Sequence[str]], draft: Draft) -> None:
    """What commands say, and the variables that they set."""
    said = (each.partition("=") for words in commands for each in words if each[:7] == "OLLAMA_")
    variables = {name: value for name, given, value in said if given}
    typed = {
        words[at + 2]: words[at + 3]
        for words in commands
        for at in range(len(words) - 3)
        if words[at : at + 2] == ("/set", "parameter")
    }
    _planned(runs(commands), "ollama run", Keys(typed, SET.format), variables, draft)


def read(content: str, draft: Draft) -> None:
    """What the file says."""
    keys = Keys({n: v.strip() for n, v in PARAMETER.findall(content)}, "PARAMETER {}".format)
    if ADAPTER.search(content):
        draft.leave("ADAPTER", "adapters of a server are not planned")
    _planned(FROM.findall(content)[-1], "FROM", keys, {}, draft)


def _planned(named: str, key: str, keys: Keys, variables: Mapping[str, str], draft: Draft) -> None:
    """What runs: a model, with a Modelfile's parameters and the server's variables."""
    draft.model = draft.model or model(named)
    draft.put("serve.engine", "llama.cpp", key, named)
    PROGRAM.read(keys, draft)
    server = Keys(dict(variables))
    PROGRAM.read(server, draft, "variables")
    if layers := draft.count(keys, "num_gpu"):
        draft.later.append(placement.layers_on_gpu(layers, "PARAMETER num_gpu"))
    else:
        draft.places = placement.OLLAMA
    draft.later.append(placement.share_out(placement.LAYER, 0))
    draft.later.append(placement.own_context)
    said = hub.stored(f"-{named.rpartition('/')[2]}")
    draft.put("serve.weight_dtype", said or STORED, key, named if said else f"not said: {STORED}")
    hub.tell_type(draft, said, f"-{named.rpartition('/')[2]}")
    for part in (keys, server):
        PROGRAM.end(part, draft)


def model(named: str) -> str:
    """A model of its library as the hub would call it: of 'llama3.1:8b-instruct-q4_K_M' the tag is
    part of the name."""
    name, _, tag = named.rpartition("/")[2].partition(":")
    return f"{name}-{tag}" if tag and tag != "latest" else name
