"""torchtune: its YAML, whose parts are named by the functions that build them.

Source: recipes and recipes/configs of torchtune 0.6.1, whose recipes for several GPUs shard with
FSDP2. Attention is `output_proj` there and `o_proj` here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from memcore.formats import hub, methods
from memcore.formats.draft import Draft, Keys, names
from memcore.formats.programs import Program

PART = "_component_"
# Losses of pairs of answers (torchtune 0.6.1: rlhf/loss/dpo.py).
PAIRED = re.compile(r"\.(DPO|IPO|SimPO|KTO)Loss$", re.IGNORECASE)
BUILDER = re.compile(r"torchtune\.models\.\w+\.(lora_|qlora_)?(\w+)")
TUNE = Program("torchtune")


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    model = values.get("model")
    return isinstance(model, Mapping) and bool(BUILDER.match(str(model.get(PART))))


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says. Raises PlanError of one that trains nothing."""
    keys = Keys(values)
    TUNE.read(keys, draft, "refused")
    model = keys.inner("model")
    built = BUILDER.match(str(model.take(PART)))
    if built:
        draft.model = draft.model or _preset(built[2])
        _adapter(model, built[1] or "", draft)
    TUNE.read(keys, draft)
    loss = str(keys.inner("loss").take(PART))
    if "ChunkedOutput" in loss:
        draft.leave("loss._component_", "logits in pieces that are all kept are planned whole")
    if towards := PAIRED.search(loss):
        kind = towards[1].lower()
        methods.paired(draft, "loss._component_", methods.PAIRED[kind])
        methods.referred(Keys({}), draft, kind, "loss._component_")
        draft.put("train.cross_entropy", "eager", "loss._component_", loss.rpartition(".")[2])
    if "LinearCrossEntropyLoss" in loss:
        draft.put("train.cross_entropy", "chunked", "loss._component_", "LinearCrossEntropyLoss")
    if draft.ranks > 1 or any(key.startswith("fsdp") for key in values):
        draft.put("train.framework", "fsdp2", "the recipe")
    TUNE.later(keys, draft)
    for part in (model, keys):
        TUNE.end(part, draft)


def _adapter(model: Keys, kind: str, draft: Draft) -> None:
    """The adapter that a model's builder adds."""
    if not kind:
        return
    TUNE.read(model, draft, "adapter")
    draft.put("train.adapter", kind.rstrip("_"), "model._component_", kind)
    targets = [
        "o_proj" if t == "output_proj" else t for t in names(model.take("lora_attn_modules"))
    ]
    if model.on("apply_lora_to_mlp"):
        targets += ["gate_proj", "up_proj", "down_proj"]
    if targets:
        draft.put("train.lora_modules", ",".join(targets), "model.lora_attn_modules")


def _preset(builder: str) -> str:
    """The preset that a builder makes: in its name every sign between numbers is '_'."""
    pieces = re.split(r"(?<=\d)_(?=\d)", builder)
    for signs in itertools.product(".-", repeat=min(4, len(pieces) - 1)):
        signed = "".join(a + b for a, b in itertools.zip_longest(pieces, signs, fillvalue=""))
        if hub.preset(signed.replace("_", "-")):
            return signed.replace("_", "-")
    return builder
