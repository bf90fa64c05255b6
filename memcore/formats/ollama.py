"""Ollama: its Modelfile, which says what llama.cpp is given.

Source: docs/modelfile.md, envconfig/config.go and server/routes.go of ollama, August 2026. What it
does by itself is in placement.py.
"""

from __future__ import annotations

import re

from memcore.formats import hub, placement
from memcore.formats.found import Draft, Keys, positive

FROM = re.compile(r"^FROM[ \t]+(\S+)", re.MULTILINE)
PARAMETER = re.compile(r"^PARAMETER[ \t]+(\w+)[ \t]+(\S.*)", re.MULTILINE)  # blanks may follow
OTHERS = re.compile(r"^(?:PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE)[ \t]", re.MULTILINE)
ADAPTER = re.compile(r"^ADAPTER[ \t]", re.MULTILINE)
STORED = "q4_k_m"  # what its library has of most models, where a tag says no other


def recognise(content: str) -> bool:
    """Whether a text is a Modelfile: of Dockerfiles, which begin so too, none has the others."""
    return bool(FROM.search(content) and OTHERS.search(content))


def read(content: str, draft: Draft) -> None:
    """What the file says."""
    named = FROM.findall(content)[-1]
    draft.model = draft.model or model(named)
    keys = Keys({n: v.strip() for n, v in PARAMETER.findall(content)}, "PARAMETER {}".format)
    draft.put("serve.engine", "llama.cpp", "FROM", named)
    draft.put("serve.concurrency", 1, "OLLAMA_NUM_PARALLEL", "not said: 1")
    for path, name in (
        ("serve.max_seq_len", "num_ctx"),
        ("serve.max_batched_tokens", "num_batch"),
    ):
        draft.read(keys, path, positive, name)
    if layers := draft.count(keys, "num_gpu"):
        draft.later.append(placement.layers_on_gpu(layers, "PARAMETER num_gpu"))
    else:
        draft.places = placement.OLLAMA
    draft.later.append(placement.share_out(placement.LAYER, 0))
    draft.later.append(placement.own_context)
    said = hub.stored(f"-{named.rpartition('/')[2]}")
    draft.put(
        "serve.weight_dtype", said or STORED, "FROM", named if said else f"not said: {STORED}"
    )
    hub.tell_type(draft, said, f"-{named.rpartition('/')[2]}")
    draft.otherwise("serve.kv_dtype", "fp16", "OLLAMA_KV_CACHE_TYPE")
    if ADAPTER.search(content):
        draft.leave("ADAPTER", "adapters of a server are not planned")
    draft.end(keys, {"a draft model is not read: set serve.draft_model": "draft_*"})


def model(named: str) -> str:
    """A model of its library as the hub would call it: of 'llama3.1:8b-instruct-q4_K_M' the tag is
    part of the name."""
    name, _, tag = named.rpartition("/")[2].partition(":")
    return f"{name}-{tag}" if tag and tag != "latest" else name
